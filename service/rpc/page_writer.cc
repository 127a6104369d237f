#include "service/rpc/page_writer.h"

#include <utility>

#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/base/to_status.h"
#include "service/rpc/grpc_util.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

void PageWriter::Open(PageStream pages, std::function<void(v1::ResultPage*)> complete) {
  pages_.emplace(std::move(pages));
  complete_ = std::move(complete);
}

void PageWriter::Next(std::function<void(absl::StatusOr<const grpc::ByteBuffer*>)> write) {
  if (!pages_->more()) return write(nullptr);
  server_.in_flight.Acquire(
      PageInFlightBytes(pages_->NextBytes()),
      [this, write = std::move(write)](InFlightReservation credit) {
        reservation_ = std::move(credit);
        const absl::Status made = ToStatus([this] { return Make(); });
        if (!made.ok()) return write(made);
        written_ = server_.clock.Monotonic();
        write(&page_);
      },
      [canceller = canceller_] { canceller->Reclaim(); });
}

void PageWriter::Taken() {
  pages_->round().RecordPageTaken(server_.clock.Monotonic() - written_);
  reservation_.Release();
}

absl::Status PageWriter::Make() {
  v1::ResultPage page;
  pages_->Next(&page);
  if (complete_) std::exchange(complete_, nullptr)(&page);
  page_.Clear();
  return Serialize(page, &page_);
}

}  // namespace sparseagg::service
