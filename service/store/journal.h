// Writes to a store that may be missing.
#ifndef SPARSEAGG_SERVICE_STORE_JOURNAL_H_
#define SPARSEAGG_SERVICE_STORE_JOURNAL_H_

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "host/base/status_macros.h"
#include "service/store/store.h"

namespace sparseagg::service {

// Writes what happens to one owner's rounds or tasks, and knows the owner's latest write.
//
//   RETURN_IF_ERROR(journal.Write(&Store::DeleteTask, number));
//   journal.WhenDurable([](const absl::Status& status) { … });
//
// Thread-safe.
class Journal {
 public:
  // `store`: null where everything lives in memory only; else outlives the journal.
  explicit Journal(Store* store) : store_(store) {}

  bool HasStore() const { return store_ != nullptr; }
  const Store* store() const { return store_; }
  // Calls a write of the store. Does nothing, and succeeds, without a store. Errors: of Store.
  template <typename... Parameters, typename... Arguments>
  absl::Status Write(absl::StatusOr<Store::Ticket> (Store::*write)(Parameters...), const Arguments&... arguments) {
    if (store_ == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Store::Ticket ticket, (store_->*write)(arguments...));
    Follow(ticket);
    return absl::OkStatus();
  }

  // The latest write, for Follow.
  Store::Ticket latest() const { return latest_; }
  // Makes WhenDurable and AwaitDurable wait for this write of another owner, too.
  void Follow(Store::Ticket ticket) {
    Store::Ticket latest = latest_;
    while (latest < ticket && !latest_.compare_exchange_weak(latest, ticket)) {
    }
  }

  // As Store::WhenDurable and AwaitDurable, for all that was written until now.
  void WhenDurable(Store::OnDurable done) const {
    if (latest_ == 0) return done(absl::OkStatus());
    store_->WhenDurable(latest_, std::move(done));
  }
  absl::Status AwaitDurable() const { return latest_ == 0 ? absl::OkStatus() : store_->AwaitDurable(latest_); }

 private:
  Store* const store_;
  std::atomic<Store::Ticket> latest_ = 0;  // 0: none
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_JOURNAL_H_
