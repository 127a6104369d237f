// CheckJson: whether a body is JSON of a message, and says everything once.
#ifndef SPARSEAGG_SERVICE_GATEWAY_JSON_CHECK_H_
#define SPARSEAGG_SERVICE_GATEWAY_JSON_CHECK_H_

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

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
absl::StatusOr<std::string> CheckJson(const google::protobuf::Descriptor* type, absl::string_view json);

// Returns: the value whose name without its prefix this is, in capitals or not; null if there is none.
const google::protobuf::EnumValueDescriptor* FindShortName(const google::protobuf::EnumDescriptor* type,
                                                           absl::string_view name);

// Returns: the field of this name, in either form of the JSON mapping; null if there is none.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor* type, absl::string_view name);

// Returns: the names of the fields of a message, for an error.
std::string FieldNames(const google::protobuf::Descriptor* type);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_JSON_CHECK_H_
