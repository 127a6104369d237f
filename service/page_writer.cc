#include "service/page_writer.h"

#include <utility>

#include "host/status_macros.h"
#include "service/contain.h"
#include "service/grpc_util.h"
#include "service/memory_shares.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

void PageWriter::Open(PageStream pages, std::function<void(v1::ResultPage*)> complete) {
  pages_.emplace(std::move(pages));
  complete_ = std::move(complete);
}

void PageWriter::Next(std::function<void(absl::StatusOr<const grpc::ByteBuffer*>)> write) {
  if (!pages_->more()) return write(nullptr);
  machine_.transit.Acquire(
      PageTransitBytes(pages_->NextBytes()),
      [this, write = std::move(write)](Credit credit) {
        credit_ = std::move(credit);
        const absl::Status made = Contain([this] { return Make(); });
        if (!made.ok()) return write(made);
        written_ = machine_.clock.Monotonic();
        write(&page_);
      },
      [canceller = canceller_] { canceller->CallIn(); });
}

void PageWriter::Taken() {
  pages_->round().NotePageTaken(machine_.clock.Monotonic() - written_);
  credit_.Release();
}

absl::Status PageWriter::Make() {
  v1::ResultPage page;
  pages_->Next(&page);
  if (complete_) std::exchange(complete_, nullptr)(&page);
  page_.Clear();
  return Serialize(page, &page_);
}

}  // namespace sparseagg::service
