// JSON and query strings to serialized messages, and back.
#ifndef SPARSEAGG_SERVICE_GATEWAY_JSON_H_
#define SPARSEAGG_SERVICE_GATEWAY_JSON_H_

#include <google/protobuf/descriptor.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

// Converts the JSON mapping of proto3 to the serialized message. Names of enum values may leave out their prefix, in
// capitals or not: "float32" for "DTYPE_FLOAT32". The methods parse that under their own limits, so no
// message object is made here.
// Errors: INVALID_ARGUMENT: as of CheckJson, or a value that does not fit.
absl::StatusOr<std::string> JsonToMessage(const google::protobuf::Descriptor* type, absl::string_view json);

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_JSON_H_
