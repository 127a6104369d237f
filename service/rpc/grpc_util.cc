#include "service/rpc/grpc_util.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sparseagg::service {
namespace {

// gRPC sends messages percent-encoded in a header, of which clients accept 8 KiB together.
constexpr size_t kMaxMessageBytes = 2000;

// As W3C has it. What is longer is no traceparent, and lines wait in memory.
constexpr size_t kTraceparentBytes = 55;
// Of a name or an id, which may not have been checked. The longest that is valid.
constexpr size_t kMostLoggedBytes = 256;

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

grpc::Status NoInFlightMemory(ServerContext& server, grpc::CallbackServerContext& context) {
  server.metrics.CountRefusedInFlight();
  return TryAgain(absl::StrCat("messages under way fill the ", server.in_flight.limit(),
                               " bytes that they may take of the server's memory limit of ",
                               server.limits.memory_limit_bytes, " bytes"),
                  context);
}

absl::Status Reclaimed(const ServerContext& server) {
  return absl::UnavailableError(absl::StrCat(
      "others wait for the memory of this stream, which has not moved for ",
      absl::FormatDuration(InFlightMemory::kReclaimAfter), "; it was given up. Messages under way may take ",
      server.in_flight.limit(), " bytes; try again, with smaller messages if the connection is slow"));
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
       {"round", round.substr(0, kMostLoggedBytes)},
       {"client", client.substr(0, kMostLoggedBytes)},
       {"peer", context.peer()},
       {"traceparent", traceparent.substr(0, kTraceparentBytes)}});
}

}  // namespace sparseagg::service
