#include "cuda/device_accumulator.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
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
      RETURN_IF_ERROR(PrepareOnCpu(*checks_, update).status());
      if (device.ok()) {
        engine_.Distrust(*checked_by,
                         absl::InternalError(absl::StrCat(Quoted(spec_), ": the device refused a good update")));
      }
    }
  }
  return prepared;
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
  return MergeIfDue();
}

absl::Status DeviceAccumulator::AddPartial(std::unique_ptr<PreparedUpdate> update) {
  const auto& partial = static_cast<const PartialUpdate&>(*update);
  // Positions on the device have 32 bits.
  if (on_cpu_ || partial.rows().num_rows > std::numeric_limits<uint32_t>::max()) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->Add(std::move(update));
  }
  HostRows rows = FromUnfinished(UnfinishedRows(partial.rows()));
  bases_.reserve(bases_.size() + 1);
  weights_.insert(weights_.end() - static_cast<std::ptrdiff_t>(pending_.size()), partial.weights().begin(),
                  partial.weights().end());
  partials_ = Sum(partials_, partial.totals());
  bases_.push_back(std::move(rows));
  return MergeBasesIfDue();
}

absl::Status DeviceAccumulator::MergeBasesIfDue() {
  size_t bytes = 0;
  for (const HostRows& base : bases_) bytes += MemoryBytes(base);
  if (bases_.size() < 2 ||
      bytes - MemoryBytes(bases_.front()) < std::max(engine_.tuning().min_pending_bytes, MemoryBytes(bases_.front()))) {
    return absl::OkStatus();
  }
  try {
    absl::Status merged = MergePending();
    return absl::IsResourceExhausted(merged) ? absl::OkStatus() : merged;
  } catch (const std::bad_alloc&) {
    return absl::OkStatus();  // what was added counts; the next call merges it
  }
}

void DeviceAccumulator::CountHandOver(const DevicePrepared& pending) {
  growth_bytes_ = SaturatingAdd(growth_bytes_, GrowthBytesOf(&pending));
  prepare_bytes_ = std::max(prepare_bytes_, checks_->PrepareBytes(pending.update()));
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
  partials_ = Sum(partials_, from.partials_);
  weights_.insert(weights_.end(), from.weights_.begin(), from.weights_.end());
  pending_size_.Add(from.pending_size_);
  growth_bytes_ = SaturatingAdd(growth_bytes_, from.growth_bytes_);
  prepare_bytes_ = std::max(prepare_bytes_, from.prepare_bytes_);
  std::move(from.pending_.begin(), from.pending_.end(), std::back_inserter(pending_));
  std::move(from.bases_.begin(), from.bases_.end(), std::back_inserter(bases_));
  from.pending_.clear();
  from.bases_.clear();
  RETURN_IF_ERROR(MergeIfDue());
  return on_cpu_ ? absl::OkStatus() : MergeBasesIfDue();
}

absl::StatusOr<UnfinishedRows> DeviceAccumulator::ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) {
  if (!on_cpu_ && (!pending_.empty() || bases_.size() > 1)) RETURN_IF_ERROR(MergePending());
  if (on_cpu_) {
    RETURN_IF_ERROR(GoToCpu());
    return cpu_->ExportRows(first, last, max_rows);
  }
  UnfinishedRows rows;
  if (bases_.empty()) return rows;
  const HostRows& base = bases_.front();
  const auto find = [&](auto key_type, auto bound) {
    const auto* keys = reinterpret_cast<const decltype(key_type)*>(base[RowColumn::kKeys].data());
    return static_cast<uint64_t>(bound(keys, keys + base.num_rows) - keys);
  };
  const auto row_of = [&](auto bound) {
    return shape_.key_bytes == sizeof(uint32_t) ? find(uint32_t{}, bound) : find(uint64_t{}, bound);
  };
  const uint64_t begin = row_of([&](auto* from, auto* to) { return std::lower_bound(from, to, first); });
  const uint64_t end = row_of([&](auto* from, auto* to) { return std::upper_bound(from, to, last); });
  rows.num_rows = std::min(max_rows, end - begin);
  const auto copy = [&](RowColumn column, Column<std::byte>& out) {
    const size_t row_bytes = BytesPerRow(shape_, column);
    if (row_bytes > 0) out.Append(base[column].data() + begin * row_bytes, rows.num_rows * row_bytes);
  };
  copy(RowColumn::kKeys, rows.keys);
  copy(RowColumn::kAccs, rows.accs);
  copy(RowColumn::kCounts, rows.counts);
  copy(RowColumn::kWeights, rows.weights);
  return rows;
}

PartialTotals DeviceAccumulator::Totals() const {
  if (!on_cpu_) return TotalsOf(spec_, weights_, partials_);
  PartialTotals totals = cpu_->Totals();
  std::vector<double> left = weights_;  // after a hand-over that stopped in the middle
  for (const auto& prepared : pending_) left.push_back(prepared->update().weight());
  return left.empty() ? totals : Sum(totals, TotalsOf(spec_, left, weights_.empty() ? PartialTotals() : partials_));
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
    const std::vector<double> weights = weights_;
    const PartialTotals partials = partials_;
    RETURN_IF_ERROR(GoToCpu());
    // The devices have no memory now, and may have later.
    if (engine_.Probe().ok()) ComeBack(weights, partials).IgnoreError();
    return absl::OkStatus();
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
  if (pending_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(MergePending());
  return on_cpu_ ? cpu_->FoldPending(order) : absl::OkStatus();
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

absl::StatusOr<Result> DeviceAccumulator::Finish(SubmissionOrder order) && {
  RETURN_IF_ERROR(CheckOrder(spec_, order, num_submissions()));
  if (on_cpu_ || IsSmall() || IsForCpu()) {
    RETURN_IF_ERROR(GoToCpu());
    return std::move(*cpu_).Finish(order);
  }
  if (shape_.order.has_value()) shape_.order->num_submissions = num_submissions();
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
  const double total_weight = TotalWeight(spec_, weights_, partials_, order);
  const absl::Status status = engine_.RunOnDevice(
      [&](Session& session, int shrink) -> absl::Status {
        const std::vector<const ValidatedUpdate*> updates = OrderMatters(spec_) ? UpdatesIn(order) : PendingUpdates();
        ASSIGN_OR_RETURN(const DeviceRows rows, Merger(session, shape_, shrink).Merge(Bases(), updates));
        ASSIGN_OR_RETURN(finished, FinishRowsOnDevice(session, spec_, shape_, total_weight, rows));
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
  return weights_.size() + (on_cpu_ ? cpu_->num_submissions() + pending_.size() : 0);
}

size_t DeviceAccumulator::memory_bytes() const {
  size_t bytes = pending_size_.memory_bytes() + weights_.capacity() * sizeof(double);
  if (on_cpu_) bytes += cpu_->memory_bytes();
  for (const HostRows& base : bases_) bytes += MemoryBytes(base);
  return bytes;
}

// When the device cannot check the update, the CPU engine does, by preparing it.
uint64_t DeviceAccumulator::PrepareBytes(const ValidatedUpdate& update) const {
  return NeedsRangeCheck(spec_, update) ? checks_->PrepareBytes(update) : 0;
}

uint64_t DeviceAccumulator::GrowthBytesOf(const PreparedUpdate* prepared) const {
  if (prepared == nullptr || prepared->is_partial()) return 0;
  const ValidatedUpdate& update = *UpdateOf(prepared);
  if (update.unique()) return 0;
  const uint64_t folded =
      SaturatingMultiply(update.num_keys(), shape_.key_bytes + uint64_t{shape_.columns} * sizeof(double));
  return folded - std::min<uint64_t>(folded, prepared->memory_bytes());
}

uint64_t DeviceAccumulator::MaxRowsWith(const PreparedUpdate* next) const {
  uint64_t rows = pending_size_.num_keys();
  for (const HostRows& base : bases_) rows = SaturatingAdd(rows, base.num_rows);
  if (next != nullptr) {
    rows = SaturatingAdd(rows, next->is_partial() ? static_cast<const PartialUpdate*>(next)->rows().num_rows
                                                  : UpdateOf(next)->num_keys());
  }
  return spec_.num_rows == 0 ? rows : std::min(rows, spec_.num_rows);
}

// The CPU engine takes the updates one after another. Their growth adds up; the memory to prepare an update is needed
// for one update at a time.
uint64_t DeviceAccumulator::HandOverBytes(const PreparedUpdate* next) const {
  const uint64_t prepare_bytes = next == nullptr || next->is_partial()
                                     ? prepare_bytes_
                                     : std::max(prepare_bytes_, checks_->PrepareBytes(*UpdateOf(next)));
  const uint64_t bytes = SaturatingAdd(prepare_bytes, SaturatingAdd(growth_bytes_, GrowthBytesOf(next)));
  if (OrderMatters(spec_)) return bytes;
  // The rows merged so far, and the rows that the next merge makes of them.
  return SaturatingAdd(bytes, SaturatingMultiply(MaxRowsWith(next), 2 * shape_.RowBytes()));
}

// FoldBytes and FinishBytes return enough for the device's work, and for the same work after it failed.
uint64_t DeviceAccumulator::FoldBytes(const PreparedUpdate* next) const {
  const uint64_t row_bytes = SaturatingMultiply(MaxRowsWith(next), shape_.RowBytes());
  const uint64_t bytes = SaturatingAdd(row_bytes, HandOverBytes(next));
  return on_cpu_ ? SaturatingAdd(bytes, cpu_->FoldBytes(nullptr)) : bytes;
}

uint64_t DeviceAccumulator::FinishBytes(const PreparedUpdate* next) const {
  // Parts of several devices are joined.
  const uint64_t result_bytes =
      SaturatingMultiply(ResultBytes(spec_, MaxRowsWith(next)), engine_.num_devices() > 1 ? 2 : 1);
  const uint64_t bytes = SaturatingAdd(result_bytes, HandOverBytes(next));
  return on_cpu_ ? SaturatingAdd(bytes, cpu_->FinishBytes(nullptr)) : bytes;
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

absl::Status DeviceAccumulator::ComeBack(const std::vector<double>& weights, const PartialTotals& partials) {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  std::unique_ptr<Accumulator> fresh = engine_.CreateOnCpu(spec_);
  ASSIGN_OR_RETURN(UnfinishedRows rows, cpu_->ExportRows(0, kAll, kAll));
  if (rows.num_rows > std::numeric_limits<uint32_t>::max()) return absl::ResourceExhaustedError("too many rows");
  std::vector<double> kept = weights;
  bases_.reserve(1);
  bases_.push_back(FromUnfinished(std::move(rows)));
  weights_.swap(kept);
  partials_ = partials;
  cpu_ = std::move(fresh);
  on_cpu_ = false;
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::HandOverBase() {
  auto rows = std::make_shared<UnfinishedRows>();
  if (!bases_.empty()) *rows = ToUnfinished(std::move(bases_.back()));
  absl::Cleanup put_back = [&] {
    if (!bases_.empty()) bases_.back() = FromUnfinished(std::move(*rows));
  };
  RETURN_IF_ERROR(cpu_->Add(std::make_unique<PartialUpdate>(rows, weights_, partials_)));
  std::move(put_back).Cancel();
  if (!bases_.empty()) bases_.pop_back();
  weights_ = {};
  partials_ = {};
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::GoToCpu() {
  if (!on_cpu_) {
    weights_.resize(weights_.size() - pending_.size());  // the others go with their updates
    on_cpu_ = true;
  }
  while (!bases_.empty() || !weights_.empty()) RETURN_IF_ERROR(HandOverBase());
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
  ASSIGN_OR_RETURN(std::unique_ptr<PreparedUpdate> prepared, PrepareOnCpu(*cpu_, update));
  return cpu_->Add(std::move(prepared));
}

absl::StatusOr<std::unique_ptr<PreparedUpdate>> DeviceAccumulator::PrepareOnCpu(const Accumulator& cpu,
                                                                                const ValidatedUpdate& update) const {
  if (!update.on_device()) return cpu.Prepare(update);
  ASSIGN_OR_RETURN(ValidatedUpdate copy, engine_.CopyToHost(spec_, update));
  return cpu.Prepare(std::move(copy));
}

}  // namespace sparseagg::cuda
