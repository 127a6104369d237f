#include "cuda/device_accumulator.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "cuda/fallback_bytes.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/checker.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/key_parts.h"
#include "cuda/merge/merger.h"
#include "cuda/merge/slab_merge.h"
#include "host/accumulation.h"
#include "host/base/reserve_more.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/result.h"

namespace sparseagg::cuda {
namespace {

absl::StatusOr<HostRows> CopyOut(Session& session, const DeviceRows& rows) {
  HostRows copy;
  copy.num_rows = rows.num_rows;
  for (const RowColumn column : kRowColumns) {
    copy[column].resize(rows[column].bytes());
    RETURN_IF_ERROR(session.CopyOut(copy[column].data(), rows[column].get(), rows[column].bytes()));
  }
  return copy;
}

const ValidatedUpdate* UpdateOf(const PreparedUpdate* prepared) {
  return prepared == nullptr ? nullptr : &static_cast<const DevicePrepared*>(prepared)->update();
}

}  // namespace

DevicePrepared::DevicePrepared(DeviceEngine& engine, const TensorShape& shape, ValidatedUpdate update,
                               std::optional<size_t> send_to)
    : update_(std::move(update)),
      key_bytes_(update_.on_device() || std::holds_alternative<KeyRun>(update_.keys())
                     ? 0
                     : update_.num_keys() * shape.key_bytes),
      value_bytes_(update_.on_device() ? 0 : update_.num_keys() * shape.row_bytes),
      preloaded_(
          send_to.has_value()
              ? engine.Preload({{KeyArray(update_), 0, key_bytes_}, {update_.values(), 0, value_bytes_}}, *send_to)
              : PreloadedArrays(engine, 0)) {}

absl::StatusOr<std::unique_ptr<PreparedUpdate>> DeviceAccumulator::Prepare(ValidatedUpdate sent) const {
  // Before the check, which then finds the copy on the device.
  const bool needs_check = NeedsRangeCheck(spec_, sent);
  // Of an update that several devices will merge, none needs all.
  const bool may_be_cut = engine_.num_devices() > 1 && sent.unique() && !needs_check;
  std::optional<size_t> send_to;
  if (!on_cpu_ && !may_be_cut) send_to = home_;
  auto prepared = std::make_unique<DevicePrepared>(engine_, shape_, std::move(sent), send_to);
  const ValidatedUpdate& update = prepared->update();
  if (needs_check) {
    bool refused = false;
    Session* checked_by = nullptr;
    absl::Status device = absl::UnavailableError("too small for the device");
    if (update.on_device() || update.num_keys() * spec_.row_width >= engine_.tuning().min_check_values) {
      device = engine_.RunOnDevice(
          [&](Session& session, int) -> absl::Status {
            checked_by = &session;
            absl::StatusOr<bool> fails = FailsRangeCheck(session, spec_, shape_, update);
            // An update is checked in one batch, so another attempt would need the same memory.
            if (absl::IsResourceExhausted(fails.status())) return NoRoom(fails.status().message());
            ASSIGN_OR_RETURN(refused, std::move(fails));
            return absl::OkStatus();
          },
          update.on_device() ? Place{0, /*only=*/true} : Place{home_, /*only=*/false});
    }
    if (refused || !device.ok()) {
      RETURN_IF_ERROR(PrepareOnCpu(update).status());
      if (device.ok()) {
        engine_.Distrust(*checked_by,
                         absl::InternalError(absl::StrCat(Quoted(spec_), ": the device refused a good update")));
      }
    }
  }
  return prepared;
}

absl::Status DeviceAccumulator::Add(std::unique_ptr<PreparedUpdate> update) {
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
  return MergeIfDue();
}

void DeviceAccumulator::CountHandOver(const DevicePrepared& pending) {
  growth_bytes_ = SaturatingAdd(growth_bytes_, GrowthBytesOf(&pending));
  prepare_bytes_ = std::max(prepare_bytes_, cpu_->PrepareBytes(pending.update()));
}

absl::Status DeviceAccumulator::MergeFrom(Accumulator&& other) {
  auto& from = static_cast<DeviceAccumulator&>(other);
  if (on_cpu_ || from.on_cpu_) {
    RETURN_IF_ERROR(GoToCpu());
    RETURN_IF_ERROR(from.GoToCpu());
    return cpu_->MergeFrom(std::move(*from.cpu_));
  }
  weights_.insert(weights_.end(), from.weights_.begin(), from.weights_.end());
  pending_size_.Add(from.pending_size_);
  growth_bytes_ = SaturatingAdd(growth_bytes_, from.growth_bytes_);
  prepare_bytes_ = std::max(prepare_bytes_, from.prepare_bytes_);
  std::move(from.pending_.begin(), from.pending_.end(), std::back_inserter(pending_));
  std::move(from.bases_.begin(), from.bases_.end(), std::back_inserter(bases_));
  from.pending_.clear();
  from.bases_.clear();
  return MergeIfDue();
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
  growth_bytes_ = prepare_bytes_ = 0;
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

absl::StatusOr<std::vector<UpdateRows>> DeviceAccumulator::ReadPending() {
  RETURN_IF_ERROR(GoToCpu());
  return cpu_->ReadPending();
}

absl::Status DeviceAccumulator::MergeIfDue() {
  size_t base_bytes = 0;
  for (const HostRows& base : bases_) base_bytes += MemoryBytes(base);
  return sparseagg::MergeIfDue(spec_, pending_size_, base_bytes, engine_.tuning().min_pending_bytes,
                               [this] { return MergePending(); });
}

absl::Status DeviceAccumulator::MergePending() {
  HostRows merged;
  const DeviceEngine::Operation merge = [&](Session& session, int shrink) -> absl::Status {
    ASSIGN_OR_RETURN(const DeviceRows rows, Merger(session, shape_, shrink).Merge(Bases(), PendingUpdates()));
    ASSIGN_OR_RETURN(merged, CopyOut(session, rows));
    return absl::OkStatus();
  };
  if (!engine_.RunOnDevice(merge, PlaceOfAll()).ok()) {
    if (bases_.empty() && !engine_.Probe().ok()) return GoToCpu();
    RETURN_IF_ERROR(BringPendingToHost());
    RETURN_IF_ERROR(engine_.RunOnHost(merge));
  }
  bases_.clear();
  bases_.push_back(std::move(merged));
  pending_.clear();
  pending_size_.Clear();
  growth_bytes_ = 0;
  prepare_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::FoldPending(SubmissionOrder order) {
  // The device folds sums whose order matters only at the end.
  if (on_cpu_ || OrderMatters(spec_)) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->FoldPending(order);
  }
  return pending_.empty() ? absl::OkStatus() : MergePending();
}

bool DeviceAccumulator::IsSmall() const {
  return bases_.empty() &&
         SaturatingMultiply(pending_size_.num_keys(), spec_.row_width) < engine_.tuning().min_merge_values &&
         !HasPendingOnDevice();
}

bool DeviceAccumulator::IsForCpu() const {
  if (!shape_.order.has_value()) return false;
  return !IsForDevice(spec_) || pending_.size() > kMaxOrderSources ||
         std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& prepared) { return !prepared->update().unique(); });
}

bool DeviceAccumulator::HasPendingOnDevice() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& prepared) { return prepared->update().on_device(); });
}

absl::Status DeviceAccumulator::BringPendingToHost() {
  for (auto& prepared : pending_) {
    if (!prepared->update().on_device()) continue;
    ASSIGN_OR_RETURN(ValidatedUpdate copy, engine_.CopyToHost(spec_, prepared->update()));
    prepared = std::make_unique<DevicePrepared>(engine_, shape_, std::move(copy), /*send_to=*/std::nullopt);
  }
  return absl::OkStatus();
}

absl::StatusOr<Result> DeviceAccumulator::Finish(SubmissionOrder order) && {
  RETURN_IF_ERROR(CheckOrder(spec_, order, num_submissions()));
  if (on_cpu_ || IsSmall() || IsForCpu()) {
    RETURN_IF_ERROR(GoToCpu());
    return std::move(*cpu_).Finish(order);
  }
  if (shape_.order.has_value()) shape_.order->num_submissions = num_submissions();
  const std::vector<const ValidatedUpdate*> updates = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
  const double total_weight = TotalWeight(spec_, weights_, order);
  Finished finished;
  const DeviceEngine::Operation finish = [&](Session& session, int shrink) -> absl::Status {
    // Anew each time: between two attempts, updates may have come to the host.
    const std::vector<const ValidatedUpdate*> all = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
    ASSIGN_OR_RETURN(finished, MergeAndFinish(session, shrink, spec_, total_weight, Bases(), all));
    return absl::OkStatus();
  };
  absl::StatusOr<std::optional<Finished>> in_parts = FinishInParts(total_weight, updates);
  if (in_parts.ok() && in_parts->has_value()) {
    finished = **std::move(in_parts);
  } else if (!in_parts.ok() || !engine_.RunOnDevice(finish, PlaceOfAll()).ok()) {
    if (bases_.empty()) {
      RETURN_IF_ERROR(GoToCpu());
      return std::move(*cpu_).Finish(order);
    }
    RETURN_IF_ERROR(BringPendingToHost());
    RETURN_IF_ERROR(engine_.RunOnHost(finish));
  }
  pending_.clear();
  bases_.clear();
  RETURN_IF_ERROR(finished.failure);
  return std::move(finished.result);
}

absl::StatusOr<Finished> DeviceAccumulator::MergeAndFinish(Session& session, int shrink, const TensorSpec& spec,
                                                           double total_weight,
                                                           const std::vector<const HostRows*>& bases,
                                                           const std::vector<const ValidatedUpdate*>& updates) const {
  ASSIGN_OR_RETURN(std::optional<Finished> in_slabs,
                   MergeInSlabs(session, spec, shape_, shrink, total_weight, bases, updates));
  if (in_slabs.has_value()) return *std::move(in_slabs);
  ASSIGN_OR_RETURN(const DeviceRows rows, Merger(session, shape_, shrink).Merge(bases, updates));
  return FinishRows(session, spec, shape_, total_weight, rows);
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
  if (on_cpu_ || IsForCpu()) {
    const absl::string_view reason = IsOrderStatistic(spec_.aggregation.op)
                                         ? "the device has order statistics of floats, with equal votes and unique keys"
                                         : "the CPU holds the sums";
    return absl::UnavailableError(absl::StrCat(Quoted(spec_), ": no result in device memory: ", reason));
  }
  if (shape_.order.has_value()) shape_.order->num_submissions = num_submissions();
  FinishedOnDevice finished;
  const std::shared_ptr<ResultColumns> columns = engine_.NewColumns();
  const absl::Status status = engine_.RunOnDevice(
      [&](Session& session, int shrink) -> absl::Status {
        const std::vector<const ValidatedUpdate*> updates = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
        ASSIGN_OR_RETURN(const DeviceRows rows, Merger(session, shape_, shrink).Merge(Bases(), updates));
        ASSIGN_OR_RETURN(finished,
                         FinishRowsOnDevice(session, spec_, shape_, TotalWeight(spec_, weights_, order), rows));
        *columns = std::move(finished.columns);
        for (const DeviceBuffer* column :
             {&columns->d_keys, &columns->d_values, &columns->d_counts, &columns->d_weights}) {
          session.Keep(column->bytes());
        }
        return absl::OkStatus();
      },
      {0, /*only=*/true});
  if (absl::IsResourceExhausted(status)) return status;
  if (!status.ok()) return failed(status);
  pending_.clear();
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

uint64_t DeviceAccumulator::num_submissions() const {
  return on_cpu_ ? cpu_->num_submissions() + pending_.size() : weights_.size();
}

size_t DeviceAccumulator::memory_bytes() const {
  size_t bytes = pending_size_.memory_bytes() + weights_.capacity() * sizeof(double);
  if (on_cpu_) bytes += cpu_->memory_bytes();
  for (const HostRows& base : bases_) bytes += MemoryBytes(base);
  return bytes;
}

// When the device cannot check the update, the CPU engine does, by preparing it.
uint64_t DeviceAccumulator::PrepareBytes(const ValidatedUpdate& update) const {
  return NeedsRangeCheck(spec_, update) ? cpu_->PrepareBytes(update) : 0;
}

uint64_t DeviceAccumulator::GrowthBytesOf(const PreparedUpdate* prepared) const {
  if (prepared == nullptr) return 0;
  const ValidatedUpdate& update = *UpdateOf(prepared);
  return GrowthBytes(shape_, update.num_keys(), update.unique(), prepared->memory_bytes());
}

FallbackInput DeviceAccumulator::FallbackInputWith(const PreparedUpdate* next) const {
  FallbackInput input;
  for (const HostRows& base : bases_) input.num_rows += base.num_rows;
  input.num_tuples = SaturatingAdd(pending_size_.num_keys(), next == nullptr ? 0 : UpdateOf(next)->num_keys());
  input.max_rows = SaturatingAdd(input.num_rows, input.num_tuples);
  if (spec_.num_rows != 0) input.max_rows = std::min(input.max_rows, spec_.num_rows);
  return input;
}

// The CPU engine takes the updates one after another. Their growth adds up; the memory to prepare an update is needed
// for one update at a time.
uint64_t DeviceAccumulator::HandOverBytes(const PreparedUpdate* next) const {
  const uint64_t prepare_bytes =
      next == nullptr ? prepare_bytes_ : std::max(prepare_bytes_, cpu_->PrepareBytes(*UpdateOf(next)));
  const uint64_t bytes = SaturatingAdd(prepare_bytes, SaturatingAdd(growth_bytes_, GrowthBytesOf(next)));
  if (OrderMatters(spec_)) return bytes;
  // The rows merged so far, and the rows that the next merge makes of them.
  return SaturatingAdd(bytes, SaturatingMultiply(FallbackInputWith(next).max_rows, 2 * shape_.RowBytes()));
}

// FoldBytes and FinishBytes return the larger of the memory for the device's work, and for the same work after it
// failed.
uint64_t DeviceAccumulator::FoldBytes(const PreparedUpdate* next) const {
  const FallbackInput input = FallbackInputWith(next);
  const uint64_t row_bytes = SaturatingMultiply(input.max_rows, shape_.RowBytes());
  if (on_cpu_) return SaturatingAdd(SaturatingAdd(row_bytes, HandOverBytes(next)), cpu_->FoldBytes(nullptr));
  const uint64_t host_bytes = OrderMatters(spec_) ? row_bytes : HostMergeBytes(shape_, input);
  if (!bases_.empty()) return host_bytes;
  return std::max(host_bytes, SaturatingAdd(row_bytes, HandOverBytes(next)));
}

uint64_t DeviceAccumulator::FinishBytes(const PreparedUpdate* next) const {
  const FallbackInput input = FallbackInputWith(next);
  // Parts of several devices are joined.
  const uint64_t result_bytes =
      SaturatingMultiply(ResultBytes(spec_, input.max_rows), engine_.num_devices() > 1 ? 2 : 1);
  if (on_cpu_) return SaturatingAdd(SaturatingAdd(result_bytes, HandOverBytes(next)), cpu_->FinishBytes(nullptr));
  if (!bases_.empty()) return HostFinishBytes(shape_, input, result_bytes);
  return SaturatingAdd(result_bytes, HandOverBytes(next));
}

std::vector<const ValidatedUpdate*> DeviceAccumulator::UpdatesIn(SubmissionOrder order) const {
  std::vector<const ValidatedUpdate*> updates;
  updates.reserve(order.size());
  for (const uint32_t index : order) updates.push_back(&pending_[index]->update());
  return updates;
}

std::vector<const ValidatedUpdate*> DeviceAccumulator::PendingUpdates() const {
  std::vector<const ValidatedUpdate*> updates;
  updates.reserve(pending_.size());
  for (const auto& prepared : pending_) updates.push_back(&prepared->update());
  return updates;
}

std::vector<const HostRows*> DeviceAccumulator::Bases() const {
  std::vector<const HostRows*> bases;
  for (const HostRows& base : bases_) bases.push_back(&base);
  return bases;
}

absl::Status DeviceAccumulator::GoToCpu() {
  if (!bases_.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        Quoted(spec_), ": what a device merged before it failed cannot be merged with what the CPU engine holds"));
  }
  on_cpu_ = true;
  weights_ = {};
  while (!pending_.empty()) {
    const uint64_t num_before = cpu_->num_submissions();
    const absl::Status status = AddToCpu(pending_.front()->update());
    // An Add that fails may have counted the update. If so, the update must not be added again; if not, it must stay.
    if (cpu_->num_submissions() > num_before) DropFirstPending();
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

void DeviceAccumulator::DropFirstPending() {
  pending_size_.Remove(pending_.front()->memory_bytes(), pending_.front()->update().num_keys());
  pending_.pop_front();
  if (pending_.empty()) growth_bytes_ = prepare_bytes_ = 0;
}

absl::Status DeviceAccumulator::AddToCpu(const ValidatedUpdate& update) {
  ASSIGN_OR_RETURN(std::unique_ptr<PreparedUpdate> prepared, PrepareOnCpu(update));
  return cpu_->Add(std::move(prepared));
}

absl::StatusOr<std::unique_ptr<PreparedUpdate>> DeviceAccumulator::PrepareOnCpu(const ValidatedUpdate& update) const {
  if (!update.on_device()) return cpu_->Prepare(update);
  ASSIGN_OR_RETURN(ValidatedUpdate copy, engine_.CopyToHost(spec_, update));
  return cpu_->Prepare(std::move(copy));
}

}  // namespace sparseagg::cuda
