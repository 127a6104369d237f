#include "service/grpc/page_writer.h"

#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/codec/serialize.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

void PageWriter::Open(PageStream pages, std::function<void(v1::ResultPage*)> complete_first) {
  pages_.emplace(std::move(pages));
  complete_first_ = std::move(complete_first);
}

void PageWriter::Prepare(OnPrepared on_prepared) {
  if (!pages_->HasNext()) return on_prepared(nullptr);
  server_.in_flight.Acquire(
      PageInFlightBytes(pages_->NextBytes()),
      [this, on_prepared = std::move(on_prepared)](InFlightReservation reservation) {
        reservation_ = std::move(reservation);
        const absl::Status made = ToStatus([this] { return MakePage(); });
        if (!made.ok()) return on_prepared(made);
        write_began_ = server_.clock.Monotonic();
        on_prepared(&page_);
      },
      [canceller = canceller_] { canceller->Cancel(); }, InFlightMemory::Wait::kUnbounded, canceller_->peer());
}

void PageWriter::OnWritten() {
  pages_->round().meter().RecordPageTaken(server_.clock.Monotonic() - write_began_);
  reservation_.Release();
}

absl::Status PageWriter::MakePage() {
  v1::ResultPage page;
  pages_->Next(&page);
  if (complete_first_) std::exchange(complete_first_, nullptr)(&page);
  page_.Clear();
  return Serialize(page, &page_);
}

}  // namespace sparseagg::service
