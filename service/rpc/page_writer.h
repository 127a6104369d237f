// How the pages of a result go to a stream.
#ifndef SPARSEAGG_SERVICE_RPC_PAGE_WRITER_H_
#define SPARSEAGG_SERVICE_RPC_PAGE_WRITER_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/admission/in_flight_memory.h"
#include "service/rpc/call_end.h"
#include "service/rpc/page_stream.h"
#include "service/server_context.h"

namespace sparseagg::service {

// One page is in memory at a time, and there only when there is credit for it: a slow reader costs no more. Not
// thread-safe: one page is made or written at a time.
class PageWriter {
 public:
  PageWriter(ServerContext* server, std::shared_ptr<Canceller> canceller)
      : server_(*server), canceller_(std::move(canceller)) {}

  // `complete`, if there is one, adds what goes with the first page.
  void Open(PageStream pages, std::function<void(v1::ResultPage*)> complete);
  // Makes the next page as soon as there is credit for it, and calls `write` on the pool, which keeps the stream: with
  // the message, where gRPC may write from until Taken; with none after the last one.
  void Next(std::function<void(absl::StatusOr<const grpc::ByteBuffer*>)> write);
  // OnWriteDone.
  void Taken();

 private:
  absl::Status Make();

  ServerContext& server_;
  const std::shared_ptr<Canceller> canceller_;
  std::optional<PageStream> pages_;
  std::function<void(v1::ResultPage*)> complete_;
  InFlightReservation reservation_;
  grpc::ByteBuffer page_;
  absl::Duration written_ = absl::ZeroDuration();  // when the last write began: Clock::Monotonic
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_PAGE_WRITER_H_
