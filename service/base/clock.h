// Time, injectable: tests move it by hand.
#ifndef SPARSEAGG_SERVICE_BASE_CLOCK_H_
#define SPARSEAGG_SERVICE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace sparseagg::service {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Time since a fixed moment. Never jumps: deadlines are measured with it.
  virtual absl::Duration Monotonic() const = 0;
  // Time of day, for people. May jump.
  virtual absl::Time WallTime() const = 0;
};

const Clock& SystemClock();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_CLOCK_H_
