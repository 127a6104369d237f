// The clock of the server, which tests replace.
#ifndef SPARSEAGG_SERVICE_BASE_CLOCK_H_
#define SPARSEAGG_SERVICE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace sparseagg::service {

// One instant on both clocks. An event that several fields record is read once.
struct Moment {
  absl::Time wall;
  absl::Duration monotonic;
};

// A source of time. Tests inject a clock that they move by hand. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Returns: the time since a fixed moment. Never jumps; the clock of all deadlines.
  virtual absl::Duration Monotonic() const = 0;
  // Returns: the time of day, for people. May jump.
  virtual absl::Time WallTime() const = 0;
  Moment Now() const { return {WallTime(), Monotonic()}; }
};

// The real clock. Lives for ever.
const Clock& SystemClock();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_CLOCK_H_
