// The memory that rounds keep: uploads, submissions and results.
#ifndef SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_
#define SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// A counter of the bytes that all rounds keep, with a limit. A round reserves bytes before it allocates them; the
// budget itself allocates nothing and never makes a caller wait. Rounds use it through Reservation.
//
// Owned by ServerContext and Tenants. Thread-safe, lock-free.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : MemoryBudget(limit_bytes, limit_bytes) {}  // 0: no limit
  // `process_limit_bytes`: the --memory-limit of which `limit_bytes` is the share of rounds, for error messages.
  MemoryBudget(uint64_t limit_bytes, uint64_t process_limit_bytes)
      : limit_(limit_bytes), process_limit_(process_limit_bytes) {}
  // A part of `whole`, such as that of a tenant: its bytes count there, too. `limit_bytes` 0: only the limit of
  // `whole`.
  MemoryBudget(uint64_t limit_bytes, MemoryBudget* whole)
      : limit_(limit_bytes), process_limit_(whole->process_limit_), whole_(whole) {}

  // Returns: false, and reserves nothing, if `bytes` more would exceed this limit or that of the whole. True for 0
  // bytes in any case.
  bool TryReserve(uint64_t bytes);
  // Reserves `bytes` of memory that is already allocated, even beyond the limit.
  void Reserve(uint64_t bytes);
  void Release(uint64_t bytes);

  // Returns: the error of a reservation that was refused. `purpose`, `advice`: as of Reservation::Grow.
  absl::Status NoRoomError(uint64_t bytes, absl::string_view purpose, absl::string_view advice) const;
  // Whether more than half of this budget, or of the whole, is reserved.
  bool IsShort() const;

  // Of this budget, or of the whole where that is lower. 0: no limit.
  uint64_t limit() const;
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  const uint64_t process_limit_;
  MemoryBudget* const whole_ = nullptr;
  std::atomic<uint64_t> reserved_{0};
};

// Bytes reserved in a MemoryBudget, which must outlive the reservation. Starts with 0 bytes; the destructor releases
// all of them. Not thread-safe.
class Reservation {
 public:
  // `keeps_submissions`: the round keeps every submission until it closes. Errors then advise BINNED numerics,
  // which merge submissions on arrival.
  explicit Reservation(MemoryBudget* budget, bool keeps_submissions = true)
      : budget_(budget), keeps_submissions_(keeps_submissions) {}
  ~Reservation() { budget_->Release(bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Reserves `bytes` more. `purpose` is the subject of the error message: "an upload".
  // Errors: RESOURCE_EXHAUSTED, and nothing changes, if the budget has no room.
  absl::Status Grow(uint64_t bytes, absl::string_view purpose);
  // The same with `advice` in the error message in place of these. "": no advice.
  absl::Status Grow(uint64_t bytes, absl::string_view purpose, absl::string_view advice);
  // Sets the reservation to `bytes` of memory that is already allocated or released, even beyond the limit.
  void SetTo(uint64_t bytes);
  // Moves all bytes of `other`, a reservation in the same budget, into this one.
  void Absorb(Reservation& other);

  uint64_t bytes() const { return bytes_; }
  uint64_t limit() const { return budget_->limit(); }  // of the whole budget; 0: no limit

 private:
  MemoryBudget* const budget_;
  const bool keeps_submissions_;
  uint64_t bytes_ = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_MEMORY_BUDGET_H_
