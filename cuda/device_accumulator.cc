#include "cuda/device_accumulator.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/merger.h"
#include "cuda/merge/slab_merge.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/result.h"

namespace sparseagg::cuda {
namespace {

absl::StatusOr<UnfinishedRows> CopyOut(Session& session, const DeviceRows& rows) {
  UnfinishedRows copy;
  copy.num_rows = rows.num_rows;
  for (const RowColumn column : kRowColumns) {
    Column<std::byte>& to = ColumnOf(copy, column);
    to.resize(rows[column].bytes());
    RETURN_IF_ERROR(session.CopyOut(to.data(), rows[column].get(), rows[column].bytes()));
  }
  return copy;
}

}  // namespace

DevicePrepared::DevicePrepared(DeviceEngine& engine, const TensorShape& shape, ValidatedUpdate update,
                               std::optional<size_t> send_to)
    : update_(engine.FindPinned(shape, std::move(update))),
      key_bytes_(std::holds_alternative<KeyRun>(update_.keys()) ? 0 : update_.num_keys() * shape.key_bytes),
      value_bytes_(update_.num_keys() * shape.row_bytes),
      preloaded_(engine, send_to.value_or(0)) {
  if (!send_to.has_value() || update_.on_device()) return;
  engine.Preload({KeyPart(update_, 0, key_bytes_), ValuePart(update_, 0, value_bytes_)}, preloaded_);
}

absl::StatusOr<std::unique_ptr<PreparedUpdate>> DeviceAccumulator::Prepare(ValidatedUpdate update) const {
  if (NeedsRangeCheck(spec_, update)) RETURN_IF_ERROR(PrepareOnCpu(*checks_, update).status());
  // Of an update that several devices will merge, none needs all.
  const bool may_be_cut = engine_.num_devices() > 1 && update.unique();
  std::optional<size_t> send_to;
  if (!on_cpu_ && !may_be_cut) send_to = home_;
  return std::make_unique<DevicePrepared>(engine_, shape_, std::move(update), send_to);
}

absl::Status DeviceAccumulator::Add(std::unique_ptr<PreparedUpdate> update) {
  if (update->is_partial()) return AddPartial(std::move(update));
  std::unique_ptr<DevicePrepared> prepared(static_cast<DevicePrepared*>(update.release()));
  if (on_cpu_) {
    RETURN_IF_ERROR(GoToCpu());
    return AddToCpu(prepared->update());
  }
  ReserveOne(weights_);
  pending_.push_back(std::move(prepared));
  const DevicePrepared& added = *pending_.back();
  weights_.push_back(added.update().weight());
  pending_size_.Add(added.memory_bytes(), added.update().num_keys());
  CountHandOver(added);
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::AddPartial(std::unique_ptr<PreparedUpdate> update) {
  const auto& partial = static_cast<const PartialUpdate&>(*update);
  // Positions on the device have 32 bits.
  if (on_cpu_ || partial.rows().num_rows > std::numeric_limits<uint32_t>::max()) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->Add(std::move(update));
  }
  UnfinishedRows rows = partial.rows();
  bases_.reserve(bases_.size() + 1);
  weights_.insert(weights_.end() - static_cast<std::ptrdiff_t>(pending_.size()), partial.weights().begin(),
                  partial.weights().end());
  partials_ = Sum(partials_, partial.totals());
  bases_.push_back(std::move(rows));
  return absl::OkStatus();
}

Accumulator::Pending DeviceAccumulator::pending() const {
  if (OrderMatters(spec_)) return {};
  Pending pending = on_cpu_ ? cpu_->pending() : Pending();
  pending.bytes += pending_size_.memory_bytes() + device_bytes_;
  for (size_t i = 0; i < bases_.size(); ++i) (i == 0 ? pending.due_bytes : pending.bytes) += bases_[i].memory_bytes();
  return pending;
}

absl::Status DeviceAccumulator::MergeFrom(Accumulator&& other) {
  auto& from = static_cast<DeviceAccumulator&>(other);
  if (on_cpu_ || from.on_cpu_) {
    RETURN_IF_ERROR(GoToCpu());
    RETURN_IF_ERROR(from.GoToCpu());
    return cpu_->MergeFrom(std::move(*from.cpu_));
  }
  // Weights of merged submissions come first.
  if (!pending_.empty() && !from.bases_.empty()) {
    RETURN_IF_ERROR(MergePending());
    if (on_cpu_) {
      RETURN_IF_ERROR(from.GoToCpu());
      return cpu_->MergeFrom(std::move(*from.cpu_));
    }
  }
  from.base_copies_.reset();
  partials_ = Sum(partials_, from.partials_);
  weights_.insert(weights_.end(), from.weights_.begin(), from.weights_.end());
  pending_size_.Add(from.pending_size_);
  device_bytes_ += from.device_bytes_;
  growth_bytes_ = SaturatingAdd(growth_bytes_, from.growth_bytes_);
  prepare_bytes_ = std::max(prepare_bytes_, from.prepare_bytes_);
  std::move(from.pending_.begin(), from.pending_.end(), std::back_inserter(pending_));
  std::move(from.bases_.begin(), from.bases_.end(), std::back_inserter(bases_));
  from.pending_.clear();
  from.bases_.clear();
  return absl::OkStatus();
}

absl::StatusOr<UnfinishedRows> DeviceAccumulator::ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) {
  if (!on_cpu_ && (!pending_.empty() || bases_.size() > 1)) RETURN_IF_ERROR(MergePending());
  if (on_cpu_) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->ExportRows(first, last, max_rows);
  }
  UnfinishedRows rows;
  if (bases_.empty()) return rows;
  const UnfinishedRows& base = bases_.front();
  const auto find = [&](auto key_type, auto bound) {
    const auto* keys = reinterpret_cast<const decltype(key_type)*>(base.keys.data());
    return static_cast<uint64_t>(bound(keys, keys + base.num_rows) - keys);
  };
  const auto row_of = [&](auto bound) {
    return shape_.key_bytes == sizeof(uint32_t) ? find(uint32_t{}, bound) : find(uint64_t{}, bound);
  };
  const uint64_t begin = row_of([&](auto* from, auto* to) { return std::lower_bound(from, to, first); });
  const uint64_t end = row_of([&](auto* from, auto* to) { return std::upper_bound(from, to, last); });
  rows.num_rows = std::min(max_rows, end - begin);
  for (const RowColumn column : kRowColumns) {
    const size_t row_bytes = BytesPerRow(shape_, column);
    if (row_bytes == 0) continue;
    ColumnOf(rows, column).Append(ColumnOf(base, column).data() + begin * row_bytes, rows.num_rows * row_bytes);
  }
  return rows;
}

PartialTotals DeviceAccumulator::Totals() const {
  if (!on_cpu_) return TotalsOf(spec_, weights_, partials_);
  PartialTotals totals = cpu_->Totals();
  // What a hand-over that stopped in the middle has left.
  if (!weights_.empty()) totals = Sum(totals, TotalsOf(spec_, weights_, partials_));
  for (const auto& prepared : pending_) {
    const double weight = prepared->update().weight();
    totals = Sum(totals, TotalsOf(spec_, absl::MakeConstSpan(&weight, 1), PartialTotals()));
  }
  return totals;
}

void DeviceAccumulator::Remove(absl::Span<const uint32_t> indices) {
  // What a hand-over has left pending follows what the CPU engine has.
  const size_t num_on_cpu = on_cpu_ ? cpu_->num_submissions() : 0;
  const auto first_pending = std::lower_bound(indices.begin(), indices.end(), num_on_cpu);
  const auto on_cpu = static_cast<size_t>(first_pending - indices.begin());
  if (on_cpu > 0) cpu_->Remove(indices.first(on_cpu));
  const absl::Span<const uint32_t> pending = indices.subspan(on_cpu);
  for (const uint32_t index : pending) {
    const DevicePrepared& removed = *pending_[index - num_on_cpu];
    pending_size_.Remove(removed.memory_bytes(), removed.update().num_keys());
  }
  EraseAt(pending, pending_, num_on_cpu);
  if (!on_cpu_) EraseAt(indices, weights_);
  device_bytes_ = growth_bytes_ = prepare_bytes_ = 0;
  for (const auto& kept : pending_) CountHandOver(*kept);
}

void DeviceAccumulator::MultiplyWeights(absl::Span<const double> factors) {
  spec_.aggregation.weighting = Weighting::kByWeight;
  shape_ = TensorShape(spec_);
  // What a hand-over has left pending follows what the CPU engine has.
  const size_t num_on_cpu = on_cpu_ ? cpu_->num_submissions() : 0;
  cpu_->MultiplyWeights(factors.first(num_on_cpu));
  for (size_t i = 0; i < pending_.size(); ++i) pending_[i]->MultiplyWeight(factors[num_on_cpu + i]);
  for (size_t i = 0; i < weights_.size(); ++i) weights_[i] *= factors[i];
}

absl::StatusOr<std::vector<UpdateRows>> DeviceAccumulator::ReadPending(RowOrder order) {
  RETURN_IF_ERROR(GoToCpu());
  return cpu_->ReadPending(order);
}

absl::Status DeviceAccumulator::MergePending() {
  bases_.reserve(1);
  UnfinishedRows merged;
  auto copies = std::make_unique<PreloadedArrays>(engine_, home_);
  const DeviceEngine::Operation merge = [&](Session& session, int shrink) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceRows rows, Merger(session, shape_, shrink).Merge(bases_, UpdatesIn({})));
    ASSIGN_OR_RETURN(merged, CopyOut(session, rows));
    for (const RowColumn column : kRowColumns) {
      copies->Keep(session, ColumnOf(merged, column).data(), std::move(rows[column]));
    }
    return absl::OkStatus();
  };
  if (!engine_.RunOnDevice(merge, PlaceOfAll()).ok()) return GoToCpu();
  base_copies_ = std::move(copies);
  bases_.clear();
  bases_.push_back(std::move(merged));
  pending_.clear();
  pending_size_.Clear();
  device_bytes_ = growth_bytes_ = prepare_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::FoldPending(SubmissionOrder order) {
  // The device folds sums whose order matters only at the end.
  if (on_cpu_ || OrderMatters(spec_)) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->FoldPending(order);
  }
  if (pending_.empty() && bases_.size() < 2) return absl::OkStatus();
  RETURN_IF_ERROR(MergePending());
  return on_cpu_ ? cpu_->FoldPending(order) : absl::OkStatus();
}

uint64_t DeviceAccumulator::num_submissions() const {
  return weights_.size() + (on_cpu_ ? cpu_->num_submissions() + pending_.size() : 0);
}

size_t DeviceAccumulator::memory_bytes() const {
  size_t bytes = pending_size_.memory_bytes() + weights_.capacity() * sizeof(double);
  if (on_cpu_) bytes += cpu_->memory_bytes();
  for (const UnfinishedRows& base : bases_) bytes += base.memory_bytes();
  return bytes;
}

std::vector<const ValidatedUpdate*> DeviceAccumulator::UpdatesIn(SubmissionOrder order) const {
  const bool is_ordered = OrderMatters(spec_);
  std::vector<const ValidatedUpdate*> updates;
  updates.reserve(pending_.size());
  for (size_t i = 0; i < pending_.size(); ++i) updates.push_back(&pending_[is_ordered ? order[i] : i]->update());
  return updates;
}

bool DeviceAccumulator::IsSmall() const {
  return bases_.empty() &&
         SaturatingMultiply(pending_size_.num_keys(), spec_.row_width) < engine_.tuning().min_merge_values &&
         device_bytes_ == 0;
}

absl::StatusOr<Result> DeviceAccumulator::Finish(SubmissionOrder order) && {
  RETURN_IF_ERROR(CheckOrder(spec_, order, num_submissions()));
  if (on_cpu_ || IsSmall()) {
    RETURN_IF_ERROR(GoToCpu());
    return std::move(*cpu_).Finish(order);
  }
  const std::vector<const ValidatedUpdate*> updates = UpdatesIn(order);
  const double total_weight = TotalWeight(spec_, weights_, partials_, order);
  Finished finished;
  const DeviceEngine::Operation finish = [&](Session& session, int shrink) -> absl::Status {
    ASSIGN_OR_RETURN(finished, MergeAndFinish(session, shrink, spec_, total_weight, bases_, updates));
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
                                                           double total_weight, absl::Span<const UnfinishedRows> bases,
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
        ASSIGN_OR_RETURN(
            DeviceRows rows,
            Merger(session, shape_, shrink).Merge(bases_, UpdatesIn(order), RoundingOf(spec_, shape_, total_weight)));
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

}  // namespace sparseagg::cuda
