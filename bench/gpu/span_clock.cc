#include "bench/gpu/span_clock.h"

#include <utility>

#include "bench/common/machine.h"

namespace sparseagg::bench {
namespace {

class HostClock : public SpanClock {
 public:
  void Begin() override { begin_ = Now(); }
  void End(const std::string& name) override { seconds_[name] += Now() - begin_; }
  std::map<std::string, double> Collect() override { return std::exchange(seconds_, {}); }

 private:
  double begin_ = 0;
  std::map<std::string, double> seconds_;
};

}  // namespace

std::unique_ptr<SpanClock> MakeHostClock() { return std::make_unique<HostClock>(); }

}  // namespace sparseagg::bench
