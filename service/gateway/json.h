// JSON and query strings to serialized messages, and back.
#ifndef SPARSEAGG_SERVICE_GATEWAY_JSON_H_
#define SPARSEAGG_SERVICE_GATEWAY_JSON_H_

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/gateway/http_message.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// Converts the JSON mapping of proto3 to the serialized message. Names of enum values may leave out their prefix, in
// capitals or not: "float32" for "DTYPE_FLOAT32". The methods parse that under their own limits, so no
// message object is made here.
// `takes_numbers`: keys and values of slices may be lists of numbers in place of their bytes.
// Errors: INVALID_ARGUMENT: as of CheckJson, or a value that does not fit.
absl::StatusOr<std::string> JsonToMessage(const google::protobuf::Descriptor* type, absl::string_view json,
                                          bool takes_numbers = false);

// Converts a serialized message to JSON. Fields that have no presence are written with their default values.
// Errors: INTERNAL if the bytes are not such a message.
absl::StatusOr<std::string> MessageToJson(const google::protobuf::Descriptor* type, const std::string& message);

// Splits a query string. Errors: INVALID_ARGUMENT: malformed escapes.
absl::StatusOr<HttpFields> ParseQuery(absl::string_view query);

// Converts the parameters of a query to the serialized message. A parameter is named as a field, in either form of the
// JSON mapping, or as a path of fields: "range.begin". A list takes several values, repeated or with commas. Names of
// enum values are as in JSON. The value of a bytes field is those bytes.
// Errors: INVALID_ARGUMENT: an unknown parameter, a value that does not fit or is not UTF-8, or several values of a
// field that is no list.
absl::StatusOr<std::string> QueryToMessage(const google::protobuf::Descriptor* type, const HttpFields& parameters);

// Elements, fields, objects and lists of a request: four times those of the largest CreateTasksRequest.
inline constexpr size_t kMaxJsonValues = 100'000;

// Checks a body before Protocol Buffers 3.21 converts it. That converter reads much that is not JSON (RFC 8259), takes
// the last one of a field that comes twice, and leaves out a null in a list, so that [null] becomes "all".
//
// A field of value null is one that is left out, as in the JSON mapping of proto3. Values of enums, bytes, numbers in
// strings and ranges of numbers are left to the converter.
// Requires: no message contains a message of its own type; so the nesting is bounded.
// Errors: INVALID_ARGUMENT: not RFC 8259; more than kMaxJsonValues; an unknown field; a field that comes twice, also in
// both forms of its name; a value of another type than the field's, or null in a list; an integer with a fraction or an
// exponent that float64 may have rounded. The message names the field.
// Returns: the body for the converter, with the full names of enum values.
absl::StatusOr<std::string> CheckJson(const google::protobuf::Descriptor* type, absl::string_view json,
                                      bool takes_numbers = false);

// The columns of a slice that are lists of numbers: what is between the brackets, numbers with commas and white space.
struct NumberLists {
  std::optional<absl::string_view> keys;
  std::optional<absl::string_view> values;
  bool has_key_encoding = false;
  v1::ValueEncoding value_encoding = v1::VALUE_ENCODING_UNSPECIFIED;
};
// Returns: the members of the slice's JSON that have the columns' bytes, and the encoding of keys, each behind a comma.
// Errors: INVALID_ARGUMENT: a number that its encoding does not have, or an integer beyond 2^53; an encoding of keys,
// or none of values.
absl::StatusOr<std::string> PackNumbers(const NumberLists& lists);

// MessageToJson for a ResultPage or a RowsPage, with lists of numbers in place of the bytes of its columns.
// Errors: INVALID_ARGUMENT: NaN, an infinite value or an integer beyond 2^53, which JSON does not hold; packed columns.
absl::StatusOr<std::string> PageToNumbers(const google::protobuf::Descriptor* type, const std::string& page);

// Returns: the value whose name without its prefix this is, in capitals or not; null if there is none.
const google::protobuf::EnumValueDescriptor* FindShortName(const google::protobuf::EnumDescriptor* type,
                                                           absl::string_view name);

// Returns: the field of this name, in either form of the JSON mapping; null if there is none.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor* type, absl::string_view name);

// Returns: the names of the fields of a message, for an error.
std::string FieldNames(const google::protobuf::Descriptor* type);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_JSON_H_
