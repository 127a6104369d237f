#include "service/grpc/grpc_options.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <limits>

#include "absl/synchronization/mutex.h"
#include "service/admission/memory_shares.h"

namespace sparseagg::service {
namespace {

// Threads of calls to reflection and channelz. Each such call occupies a thread as long as it lasts.
constexpr int kMaxThreads = 32;

// The largest DATA frame that clients may send. HTTP/2's default of 16 KiB makes a message of 1 MiB 64 frames, each of
// which gRPC handles by itself. Other calls on the connection wait for a frame: at 100 Mbit/s, 20 ms for this one.
constexpr int kLargestFrame = 256 << 10;

// Concurrent calls on one connection; a client queues further calls. About twice the default of --max-open-rounds,
// because a client may wait for each open round. At most half of MaxOpenStreams: one beyond that ends connections.
constexpr int kMaxCallsPerConnection = 2048;

}  // namespace

void ConfigureTransport(const Limits& limits, grpc::ServerBuilder& builder) {
  // The error of our own check of max_message_bytes names the flag. gRPC's check is for messages far beyond the limit.
  const uint64_t max_receive =
      limits.max_message_bytes == 0 ? std::numeric_limits<uint64_t>::max() : MaxBufferedMessageBytes(limits);
  builder.SetMaxReceiveMessageSize(max_receive > std::numeric_limits<int>::max() ? -1 : static_cast<int>(max_receive));
  builder.SetMaxSendMessageSize(-1);
  // Two servers must not share a port: rounds live in one process.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // The server pings silent peers, and clients may ping the server during a long WaitRound. gRPC's defaults would find
  // dead peers after two hours and refuse such pings.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // For TLS, and for the first frame of HTTP/2. gRPC's default would keep a connection that sends nothing for two
  // minutes.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20'000);
  // An idle call, or one whose small answer is not read, takes memory that InFlightMemory does not count.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(HostShare(MaxOpenStreams(limits), kMaxCallsPerConnection)));
  // The window of a stream that the server does not read. While the server reads a message, the window is as large as
  // the message. Workaround: gRPC 1.51 grows the window with the speed of the connection to megabytes per stream, read
  // or not. Remove with: a version that bounds the bytes of unread streams.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kLargestFrame);
  // Workaround: gRPC 1.51 decompresses a message before it checks the message's size, and a message may expand a
  // thousandfold. Remove with: a version that checks the size while it decompresses.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // The quota is a fuse for memory that InFlightMemory does not count: requests that gRPC reads on its own, and gRPC's
  // own services. Workaround: gRPC 1.51 cancels calls beyond its quota where it could make them wait, so the quota
  // cannot replace InFlightMemory. Remove with: a version that queues calls for memory.
  grpc::ResourceQuota quota("sparseagg");
  quota.SetMaxThreads(kMaxThreads);
  if (const MemoryShares shares = DivideMemory(limits); shares.process != 0)
    quota.Resize(shares.in_flight + shares.process / 2);
  builder.SetResourceQuota(quota);
  // Only reflection and channelz are synchronous services.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 1);
}

void DisableMutexDeadlockDetection() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace sparseagg::service
