#include "service/grpc_util.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sparseagg::service {
namespace {

// gRPC sends messages percent-encoded in a header, of which clients accept 8 KiB together.
constexpr size_t kMaxMessageBytes = 2000;

// In about so long some of what is in transit is through.
constexpr char kPushbackMs[] = "500";

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    while (end > 0 && (message[end] & 0xc0) == 0x80) --end;  // not within a UTF-8 character
    message.resize(end);
    message += " …";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), message);
}

grpc::Status TryAgain(absl::string_view what, grpc::CallbackServerContext& context) {
  context.AddTrailingMetadata("grpc-retry-pushback-ms", kPushbackMs);
  return ToGrpc(absl::ResourceExhaustedError(absl::StrCat(what, "; try again in ", kPushbackMs, " ms")));
}

grpc::Status NoRoomInTransit(Machine& machine, grpc::CallbackServerContext& context) {
  machine.metrics.CountRefusedInTransit();
  return TryAgain(absl::StrCat("messages under way fill the ", machine.transit.limit(),
                               " bytes that they may take of the server's memory limit of ",
                               machine.limits.memory_limit_bytes, " bytes"),
                  context);
}

absl::Status CalledIn(const Machine& machine) {
  return absl::UnavailableError(absl::StrCat("others wait for the memory of this stream, which has not moved for ",
                                             absl::FormatDuration(Transit::kPatience),
                                             "; it was given up. Messages under way may take ", machine.transit.limit(),
                                             " bytes; try again, with smaller messages if the connection is slow"));
}

absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ByteBuffer consumed = bytes;
  const grpc::Status parsed =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&consumed, message);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a message that is no ", message->GetDescriptor()->name()));
}

absl::Status ParseUpTo(uint64_t most_bytes, const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (most_bytes == 0 || bytes.Length() <= most_bytes) return Parse(bytes, message);
  return absl::ResourceExhaustedError(absl::StrCat("a ", message->GetDescriptor()->name(), " of ", bytes.Length(),
                                                   " bytes is beyond the ", most_bytes, " bytes that it may have"));
}

absl::Status Serialize(const google::protobuf::Message& message, grpc::ByteBuffer* buffer) {
  bool own_buffer;
  const grpc::Status encoded =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, buffer, &own_buffer);
  return encoded.ok() ? absl::OkStatus() : absl::InternalError("the answer could not be encoded");
}

void LogCall(LogLevel level, const grpc::CallbackServerContext& context, absl::string_view method,
             absl::string_view round, absl::string_view client) {
  if (!IsLogged(level)) return;
  const auto& metadata = context.client_metadata();
  const auto trace = metadata.find("traceparent");
  const absl::string_view traceparent =
      trace == metadata.end() ? "" : absl::string_view(trace->second.data(), trace->second.size());
  Log(level, "call",
      {{"method", method},
       {"round", round},
       {"client", client},
       {"peer", context.peer()},
       {"traceparent", traceparent}});
}

}  // namespace sparseagg::service
