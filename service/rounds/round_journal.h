// The part of the store that holds one round.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "service/store/store.h"

namespace sparseagg::service {

// Writes what happens to a round. It does nothing, and succeeds, without a store, before Start, and after Delete: so
// that rounds need not ask. Errors of all writes: as of Store.
//
// Owned by the round and its uploads together. Thread-safe.
class RoundJournal {
 public:
  // `store`: null for a round that lives in memory only; else outlives the journal.
  explicit RoundJournal(Store* store) : store_(store) {}

  // Begins to write, as round `number` of the store. Call it once.
  void Start(uint64_t number) {
    number_ = number;
    is_active_ = store_ != nullptr;
  }
  bool IsActive() const { return is_active_; }

  absl::Status PutRound(const RoundRecord& record) {
    return Write([&] { return store_->PutRound(number_, record); });
  }
  absl::Status PutState(const StateRecord& record, absl::Span<const std::pair<std::string, uint64_t>> withdrawn = {}) {
    return Write([&] { return store_->PutState(number_, record, withdrawn); });
  }
  absl::Status PutChunk(uint64_t upload, uint64_t sequence, absl::Span<const absl::string_view> bytes,
                        const UploadRecord* opened) {
    return Write([&] { return store_->PutChunk(number_, upload, sequence, bytes, opened); });
  }
  absl::Status DeleteUpload(uint64_t upload) {
    return Write([&] { return store_->DeleteUpload(number_, upload); });
  }
  absl::Status PutSubmission(absl::string_view client_id, const SubmissionRecord& record) {
    return Write([&] { return store_->PutSubmission(number_, client_id, record); });
  }
  absl::Status DeleteSubmission(absl::string_view client_id, uint64_t upload) {
    return Write([&] { return store_->DeleteSubmission(number_, client_id, upload); });
  }
  // Removes all that was written, and writes nothing from then on.
  absl::Status Delete() {
    absl::Status deleted = Write([&] { return store_->DeleteRound(number_); });
    if (deleted.ok()) is_active_ = false;
    return deleted;
  }

  // As Store::WhenDurable and AwaitDurable, for all that was written until now.
  void WhenDurable(Store::OnDurable done) const {
    if (latest_ == 0) return done(absl::OkStatus());
    store_->WhenDurable(latest_, std::move(done));
  }
  absl::Status AwaitDurable() const { return latest_ == 0 ? absl::OkStatus() : store_->AwaitDurable(latest_); }

 private:
  template <typename Function>
  absl::Status Write(Function write) {
    if (!is_active_) return absl::OkStatus();
    const absl::StatusOr<Store::Ticket> ticket = write();
    if (!ticket.ok()) return ticket.status();
    Store::Ticket latest = latest_;
    while (latest < *ticket && !latest_.compare_exchange_weak(latest, *ticket)) {
    }
    return absl::OkStatus();
  }

  Store* const store_;
  uint64_t number_ = 0;
  std::atomic<bool> is_active_ = false;
  std::atomic<Store::Ticket> latest_ = 0;  // of this round's writes; 0: none
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_JOURNAL_H_
