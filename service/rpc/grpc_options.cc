#include "service/rpc/grpc_options.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <limits>

#include "absl/synchronization/mutex.h"
#include "service/admission/memory_shares.h"

namespace sparseagg::service {
namespace {

// Of calls to reflection and channelz, each of which keeps one as long as it lasts.
constexpr int kMostThreads = 32;

// At a time on one connection; a client keeps further ones to itself until others end. By default twice the rounds that
// may be open, for each of which a call may wait.
constexpr int kMostCalls = 2048;

}  // namespace

void ConfigureTransport(const Limits& limits, grpc::ServerBuilder& builder) {
  // Our own check of max_message_bytes names the flag; gRPC's, which cannot, is left for what is far beyond.
  const uint64_t fuse =
      limits.max_message_bytes == 0 ? std::numeric_limits<uint64_t>::max() : MaxBufferedMessageBytes(limits);
  builder.SetMaxReceiveMessageSize(fuse > std::numeric_limits<int>::max() ? -1 : static_cast<int>(fuse));
  builder.SetMaxSendMessageSize(-1);
  // A second server on the same port is a mistake, not a way to share load: rounds live in one process.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds peers that are gone without a word; lets clients do the same during a long poll.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // Calls whose messages do not come, or whose small answers are not read, cost memory that nobody has counted.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCalls);
  // What a client may send before anybody reads it. Left to itself gRPC adapts that to the speed of the connection, to
  // megabytes a stream, whether it is read or not. While a message is read, the window is as wide as the message.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  // gRPC unpacks a message before it looks at its size, and a thousandth of the bytes may stand for it.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // InFlightMemory counts what is read for rounds. The quota is for all else that comes in: calls of one message, which
  // gRPC receives by itself, and its own services. Beyond it gRPC cancels calls.
  grpc::ResourceQuota quota("sparseagg");
  quota.SetMaxThreads(kMostThreads);
  if (const MemoryShares shares = DivideMemory(limits); shares.process != 0)
    quota.Resize(shares.in_flight + shares.process / 2);
  builder.SetResourceQuota(quota);
  // Only reflection and channelz are synchronous.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
}

void DisableMutexDeadlockDetection() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace sparseagg::service
