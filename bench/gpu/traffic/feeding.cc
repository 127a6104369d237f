#include "bench/gpu/traffic/feeding.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/common/must.h"
#include "bench/gpu/gpu_cases.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"

namespace sparseagg::bench {

double Feeding::LinkShare() const {
  const double link_bytes_per_s = MachineModel().link_bytes_per_s;
  return static_cast<double>(std::max(timeline.in_bytes, timeline.out_bytes)) / link_bytes_per_s / seconds();
}

Feeding ModelFeeding(const Workload& workload, const CanonicalSums& expected, const cuda::Tuning& tuning) {
  const HostInput input(workload);
  Feeding feeding;
  feeding.num_tuples = workload.num_tuples;
  cuda::DeviceEngineOptions options;
  options.tuning = tuning;
  auto owned_device = std::make_unique<TimelineDevice>(&feeding.timeline);
  TimelineDevice& device = *owned_device;
  cuda::DeviceEngine engine(std::move(owned_device), options);
  auto aggregation = Must(Aggregation::Create(engine, {workload.spec}));
  for (size_t k = 0; k < input.updates().size(); ++k) {
    Check(aggregation->Add(absl::StrFormat("%020d", k), Must(aggregation->Prepare({input.updates()[k]}))));
  }
  device.Restart();
  const Result result = std::move(Must(std::move(*aggregation).Finish())[0]);
  Check(engine.Probe());
  const std::string difference = expected.FindDifference(workload.spec.aggregation, result);
  if (engine.use().num_fallbacks > 0 || !difference.empty()) {
    throw std::runtime_error(workload.name + ": " + (difference.empty() ? "the host did the work" : difference));
  }
  return feeding;
}

}  // namespace sparseagg::bench
