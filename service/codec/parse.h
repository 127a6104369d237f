// Parsers of serialised messages that bound the memory of the parsed message, and refuse what the server does not know.
#ifndef SPARSEAGG_SERVICE_CODEC_PARSE_H_
#define SPARSEAGG_SERVICE_CODEC_PARSE_H_

#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "service/base/limits.h"

namespace sparseagg::service {

// The most bytes of a message of names and ids. The parsed message may take a hundred times as much, which is still
// negligible.
inline constexpr uint64_t kMaxNamesBytes = 4096;

// Parses `message`, whose memory is not bounded. `bytes` is not changed.
// Errors: INVALID_ARGUMENT: the bytes are not such a message, or FindUnknownFields finds fields.
absl::Status Parse(const absl::Cord& bytes, google::protobuf::Message* message);
// Returns: the error of Parse.
absl::Status Malformed(const google::protobuf::Descriptor* message);

// Parses a message of names and ids.
// Errors: as of Parse. RESOURCE_EXHAUSTED, before parsing: more than kMaxNamesBytes.
absl::Status ParseNames(const absl::Cord& bytes, google::protobuf::Message* message);

// Parses a message of names and ids with a list of client ids.
// Errors: as of Parse. RESOURCE_EXHAUSTED, before parsing: more than max_message_bytes, or more ids than memory allows.
absl::Status ParseIdList(const absl::Cord& bytes, const Limits& limits, google::protobuf::Message* message);

// Parses a message of up to `max_bytes` that has names, ids and perhaps one large field.
// Errors: as of ParseNames.
absl::Status ParseUpTo(const absl::Cord& bytes, uint64_t max_bytes, google::protobuf::Message* message);
// Parses a message with a list of tasks or of their names.
// Errors: as of Parse. RESOURCE_EXHAUSTED, before parsing: more fields than the most tasks of a call may have.
absl::Status ParseTaskList(const absl::Cord& bytes, google::protobuf::Message* message);

// Parses a message with a round's spec, or with names of its tensors.
// Errors: as of Parse. RESOURCE_EXHAUSTED, before parsing: more bytes, fields or tensors than max_tensors allows.
absl::Status ParseSpec(const absl::Cord& bytes, const Limits& limits, google::protobuf::Message* message);
// The check of ParseSpec without the parsing, for the `size` bytes of `bytes`.
absl::Status CheckSpec(const google::protobuf::Descriptor* message, uint64_t size,
                       google::protobuf::io::ZeroCopyInputStream* bytes, const Limits& limits);

// Finds fields that a client of a newer version has set, and that this server would ignore. Unknown fields of some
// messages are harmless; aggregation.proto lists those messages under "Unknown fields".
// Returns: the place and the numbers of the first message with other ones, for an error; empty if there are none.
std::string FindUnknownFields(const google::protobuf::Message& message);
// Returns: the error for a message with fields that FindUnknownFields has found.
absl::Status OlderThanTheClient(absl::string_view unknown_fields);

// Replaces `bytes` by the serialized message. Errors: INTERNAL: it has 2 GiB or more.
absl::Status Serialize(const google::protobuf::Message& message, std::string* bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_PARSE_H_
