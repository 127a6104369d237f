// DeviceAccumulator: the end of a round.
#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_accumulator.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/merger.h"
#include "cuda/merge/slab_merge.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/result.h"

namespace sparseagg::cuda {

bool DeviceAccumulator::IsSmall() const {
  return bases_.empty() &&
         SaturatingMultiply(pending_size_.num_keys(), spec_.row_width) < engine_.tuning().min_merge_values &&
         !HasPendingOnDevice();
}

absl::StatusOr<Result> DeviceAccumulator::Finish(SubmissionOrder order) && {
  RETURN_IF_ERROR(CheckOrder(spec_, order, num_submissions()));
  if (on_cpu_ || IsSmall()) {
    RETURN_IF_ERROR(GoToCpu());
    return std::move(*cpu_).Finish(order);
  }
  const std::vector<const ValidatedUpdate*> updates = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
  const double total_weight = TotalWeight(spec_, weights_, partials_, order);
  Finished finished;
  const DeviceEngine::Operation finish = [&](Session& session, int shrink) -> absl::Status {
    ASSIGN_OR_RETURN(finished, MergeAndFinish(session, shrink, spec_, total_weight, Bases(), updates));
    return absl::OkStatus();
  };
  absl::StatusOr<std::optional<Finished>> in_parts = FinishInParts(total_weight, updates);
  if (in_parts.ok() && in_parts->has_value()) {
    finished = **std::move(in_parts);
  } else if (!in_parts.ok() || !engine_.RunOnDevice(finish, PlaceOfAll()).ok()) {
    RETURN_IF_ERROR(GoToCpu());
    return std::move(*cpu_).Finish(order);
  }
  pending_.clear();
  base_copies_.reset();
  bases_.clear();
  RETURN_IF_ERROR(finished.failure);
  return std::move(finished.result);
}

absl::StatusOr<Finished> DeviceAccumulator::MergeAndFinish(Session& session, int shrink, const TensorSpec& spec,
                                                           double total_weight,
                                                           const std::vector<const UnfinishedRows*>& bases,
                                                           const std::vector<const ValidatedUpdate*>& updates) const {
  ASSIGN_OR_RETURN(std::optional<Finished> in_slabs,
                   MergeInSlabs(session, spec, shape_, shrink, total_weight, bases, updates));
  if (in_slabs.has_value()) return *std::move(in_slabs);
  ASSIGN_OR_RETURN(DeviceRows rows,
                   Merger(session, shape_, shrink).Merge(bases, updates, RoundingOf(spec, shape_, total_weight)));
  return FinishRows(session, spec, shape_, total_weight, std::move(rows));
}

absl::StatusOr<std::optional<Finished>> DeviceAccumulator::FinishInParts(
    double total_weight, const std::vector<const ValidatedUpdate*>& updates) {
  const std::vector<size_t> devices = engine_.WorkingDevices();
  if (devices.size() < 2 || !bases_.empty()) return std::nullopt;
  const std::optional<SlabPlan> plan = PlanParts(engine_.threads(), shape_, updates, devices.size(), engine_.tuning());
  if (!plan.has_value()) return std::nullopt;
  TensorSpec spec = spec_;  // of one part
  spec.aggregation.result_layout = ResultLayout::kSparse;
  std::vector<Finished> parts(plan->num_slabs());
  const auto merge = [&](size_t part) {
    const std::vector<ValidatedUpdate> slices = SlicesOf(shape_, plan->RangesOf(part));
    std::vector<const ValidatedUpdate*> sources;
    sources.reserve(slices.size());
    for (const ValidatedUpdate& slice : slices) sources.push_back(&slice);
    const auto finish = [&](Session& session, int shrink) -> absl::Status {
      ASSIGN_OR_RETURN(parts[part], MergeAndFinish(session, shrink, spec, total_weight, {}, sources));
      return absl::OkStatus();
    };
    return engine_.RunOnDevice(finish, {devices[part], /*only=*/false});
  };
  std::vector<std::future<absl::Status>> others;
  others.reserve(parts.size());
  // A thread that cannot be had is this one. Whatever happens, the destructors of the futures wait for their threads.
  for (size_t part = 1; part < parts.size(); ++part) {
    others.push_back(std::async(std::launch::async | std::launch::deferred, merge, part));
  }
  absl::Status status = merge(0);
  for (std::future<absl::Status>& other : others) status.Update(other.get());
  RETURN_IF_ERROR(status);
  return JoinParts(spec_, std::move(parts));
}

absl::StatusOr<DeviceResult> DeviceAccumulator::FinishOnDevice(SubmissionOrder order) && {
  RETURN_IF_ERROR(CheckOrder(spec_, order, num_submissions()));
  const auto failed = [this](const absl::Status& why) {
    return absl::UnavailableError(
        absl::StrCat(Quoted(spec_), ": no result in device memory: the device has failed: ", why.message()));
  };
  if (on_cpu_ && !engine_.Probe().ok()) return failed(engine_.Probe());
  if (on_cpu_) {
    const absl::string_view reason =
        IsForDevice(spec_) ? "the CPU holds the sums" : "the device has no order statistics";
    return absl::UnavailableError(absl::StrCat(Quoted(spec_), ": no result in device memory: ", reason));
  }
  FinishedOnDevice finished;
  // Whoever has the result may read it on any stream.
  const std::shared_ptr<ResultColumns> columns = engine_.NewColumns([](Device& device) { return device.AwaitAll(); });
  const double total_weight = TotalWeight(spec_, weights_, partials_, order);
  const absl::Status status = engine_.RunOnDevice(
      [&](Session& session, int shrink) -> absl::Status {
        const std::vector<const ValidatedUpdate*> updates = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
        ASSIGN_OR_RETURN(
            DeviceRows rows,
            Merger(session, shape_, shrink).Merge(Bases(), updates, RoundingOf(spec_, shape_, total_weight)));
        ASSIGN_OR_RETURN(finished, FinishRowsOnDevice(session, spec_, shape_, total_weight, std::move(rows)));
        *columns = std::move(finished.columns);
        return absl::OkStatus();
      },
      {0, /*only=*/true});
  if (absl::IsResourceExhausted(status)) return status;
  if (!status.ok()) return failed(status);
  pending_.clear();
  base_copies_.reset();
  bases_.clear();
  RETURN_IF_ERROR(finished.failure);
  DeviceResult result = FormOf(cpu::MakeSparse(spec_, 0));
  result.layout = finished.layout;
  result.num_keys = finished.num_keys;
  result.d_keys = columns->d_keys.get();
  result.d_values = columns->d_values.get();
  result.d_counts = columns->d_counts.as<uint32_t>();
  result.d_weights = columns->d_weights.as<double>();
  result.owner = columns;
  return result;
}

std::vector<const ValidatedUpdate*> DeviceAccumulator::UpdatesIn(SubmissionOrder order) const {
  std::vector<const ValidatedUpdate*> updates;
  updates.reserve(order.size());
  for (const uint32_t index : order) updates.push_back(&pending_[index]->update());
  return updates;
}

}  // namespace sparseagg::cuda
