// Who may hold how much memory: admission by counting, before anything is allocated.
#ifndef SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_
#define SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// What rounds may hold of the server's --memory-limit. Thread-safe, lock-free.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : MemoryBudget(limit_bytes, limit_bytes) {}  // 0: no limit
  // `limit_bytes` of a --memory-limit of `of_bytes`, which messages are to name.
  MemoryBudget(uint64_t limit_bytes, uint64_t of_bytes) : limit_(limit_bytes), of_(of_bytes) {}

  // False, and nothing reserved, if `bytes` more would pass the limit.
  bool TryReserve(uint64_t bytes);
  // For memory that is held already, whatever the limit says.
  void Reserve(uint64_t bytes) { reserved_.fetch_add(bytes, std::memory_order_relaxed); }
  void Release(uint64_t bytes) { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }

  uint64_t limit() const { return limit_; }
  uint64_t of() const { return of_; }
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  const uint64_t of_;
  std::atomic<uint64_t> reserved_{0};
};

// A share of the budget, given back on destruction. Not thread-safe.
class Reservation {
 public:
  // `keeps`: for a round that keeps submissions until its close; where the limit is reached, it is told of the way
  // around that.
  explicit Reservation(MemoryBudget* budget, bool keeps = true) : budget_(budget), keeps_(keeps) {}
  ~Reservation() { budget_->Release(bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // RESOURCE_EXHAUSTED, and nothing changed, if it does not fit. `purpose` says in the message what asked.
  absl::Status Grow(uint64_t bytes, absl::string_view purpose);
  // The same for `purpose` that needs memory whatever is submitted, with another way around, or "".
  absl::Status Grow(uint64_t bytes, absl::string_view purpose, absl::string_view way_around);
  // Becomes `bytes`, whatever the limit says: for memory that is held already, or given back.
  void SetTo(uint64_t bytes);
  // Takes over all that `other` holds.
  void Absorb(Reservation& other);

  uint64_t bytes() const { return bytes_; }
  uint64_t limit() const { return budget_->limit(); }  // of all together; 0: none

 private:
  MemoryBudget* const budget_;
  const bool keeps_;
  uint64_t bytes_ = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_
