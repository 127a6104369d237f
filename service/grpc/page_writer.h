// The pages of a result on their way to a stream.
#ifndef SPARSEAGG_SERVICE_GRPC_PAGE_WRITER_H_
#define SPARSEAGG_SERVICE_GRPC_PAGE_WRITER_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/admission/in_flight_memory.h"
#include "service/grpc/call_canceller.h"
#include "service/handlers/page_stream.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Serializes the pages of a stream, one at a time, each when in-flight memory for it is reserved. So a slow reader
// costs one page of memory. If other calls wait for that memory, the call of a slow reader is cancelled.
//
// Owned by the reactor. Order of calls: Open; then for each page Prepare, gRPC's StartWrite, and OnWritten from
// OnWriteDone. Not thread-safe: one page is prepared or written at a time.
class PageWriter {
 public:
  // Gets the serialized page, null after the last page, or an error.
  using OnPrepared = std::function<void(absl::StatusOr<const grpc::ByteBuffer*>)>;

  PageWriter(ServerContext* server, std::shared_ptr<CallCanceller> canceller)
      : server_(*server), canceller_(std::move(canceller)) {}

  // `complete_first`, if not null, adds to the first page.
  void Open(PageStream pages, std::function<void(v1::ResultPage*)> complete_first);

  // Makes the next page as soon as memory for it is reserved, and calls `on_prepared`, before the return or on the
  // worker pool. The page stays valid until OnWritten. `on_prepared` must keep the owner of this writer alive.
  void Prepare(OnPrepared on_prepared);

  // The write of the page has ended: releases the memory of the page.
  void OnWritten();

 private:
  absl::Status MakePage();

  ServerContext& server_;
  const std::shared_ptr<CallCanceller> canceller_;
  std::optional<PageStream> pages_;
  std::function<void(v1::ResultPage*)> complete_first_;
  InFlightReservation reservation_;
  grpc::ByteBuffer page_;
  absl::Duration write_began_ = absl::ZeroDuration();  // Clock::Monotonic
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GRPC_PAGE_WRITER_H_
