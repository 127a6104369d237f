#include "cuda/merge/slab_merge.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "cuda/kernels/segments.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/merger.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"

namespace sparseagg::cuda {
namespace {

constexpr uint64_t kSamplesPerSlab = 128;
constexpr uint64_t kHalvedParts = 2;    // the last ones
constexpr size_t kSourcesPerTask = 64;  // whose positions one thread looks for

}  // namespace

std::optional<SlabPlan> SlabPlan::Make(HostThreads& threads, const TensorShape& shape, const UnfinishedRows* base,
                                       const std::vector<const ValidatedUpdate*>& updates, const Limits& limits) {
  SlabPlan plan(updates, base, shape.key_bytes);
  const auto [num_tuples, num_used] = plan.CountEntries();
  if (num_tuples == 0 || limits.max_entries == 0) return std::nullopt;
  const uint64_t entries = num_tuples + plan.end_.back();
  const auto mean_run = static_cast<double>(num_tuples) / static_cast<double>(num_used);
  const uint64_t wanted =
      std::min<uint64_t>(limits.send_bytes / limits.slab_bytes, static_cast<uint64_t>(mean_run / limits.min_run));
  const uint64_t needed = (entries - 1) / limits.max_entries + 1;
  const uint64_t num_slabs = std::max(wanted, needed);
  if (num_slabs < 2) return std::nullopt;
  for (const uint64_t key : plan.ChooseKeys(num_tuples, num_slabs, /*halves_last=*/true)) {
    plan.cuts_.push_back(plan.CutAt(threads, key));
  }
  if (!plan.CutOversized(threads, limits.max_entries)) return std::nullopt;
  return plan;
}

std::optional<SlabPlan> SlabPlan::MakeParts(HostThreads& threads, const TensorShape& shape,
                                            const std::vector<const ValidatedUpdate*>& updates, uint64_t num_parts) {
  SlabPlan plan(updates, nullptr, shape.key_bytes);
  const uint64_t num_tuples = plan.CountEntries().first;
  if (num_tuples == 0 || num_parts < 2) return std::nullopt;
  for (const uint64_t key : plan.ChooseKeys(num_tuples, num_parts, /*halves_last=*/false)) {
    plan.cuts_.push_back(plan.CutAt(threads, key));
  }
  if (plan.num_slabs() < 2) return std::nullopt;
  return plan;
}

std::pair<uint64_t, uint64_t> SlabPlan::CountEntries() {
  uint64_t num_tuples = 0;
  uint64_t num_used = 0;
  for (size_t source = 0; source <= updates_.size(); ++source) {
    const uint64_t count = NumEntries(source);
    end_.push_back(count);
    if (count == 0) continue;
    largest_key_ = std::max(largest_key_, KeyAt(source, count - 1));
    if (source == updates_.size()) break;
    num_tuples += count;
    ++num_used;
  }
  return {num_tuples, num_used};
}

uint64_t SlabPlan::NumEntries(size_t source) const {
  if (source < updates_.size()) return updates_[source]->num_keys();
  return base_ == nullptr ? 0 : base_->num_rows;
}

uint64_t SlabPlan::KeyAt(size_t source, uint64_t index) const {
  if (source == updates_.size()) return LoadKey(base_->keys.data(), key_bytes_, index);
  return cuda::KeyAt(*updates_[source], index);
}

SlabPlan::Cut SlabPlan::CutAt(HostThreads& threads, uint64_t key) const {
  Cut cut{key, std::vector<uint64_t>(end_.size())};
  threads.For((end_.size() + kSourcesPerTask - 1) / kSourcesPerTask, [&](size_t task) {
    const size_t end = std::min(end_.size(), (task + 1) * kSourcesPerTask);
    for (size_t source = task * kSourcesPerTask; source < end; ++source) {
      uint64_t low = 0;
      uint64_t high = end_[source];
      while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (KeyAt(source, middle) < key) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      cut.positions[source] = low;
    }
  });
  return cut;
}

std::vector<uint64_t> SlabPlan::ChooseKeys(uint64_t num_tuples, uint64_t num_parts, bool halves_last) const {
  const uint64_t step = std::max<uint64_t>(1, num_tuples / (num_parts * kSamplesPerSlab));
  std::vector<uint64_t> samples;
  uint64_t next = step / 2;  // of the tuples of the present update and those after it
  for (size_t source = 0; source < updates_.size(); ++source) {
    const uint64_t count = NumEntries(source);
    for (; next < count; next += step) samples.push_back(KeyAt(source, next));
    next -= count;
  }
  std::sort(samples.begin(), samples.end());
  std::vector<uint64_t> keys = {0};
  const auto cut_at = [&](double parts) {
    const auto at = static_cast<size_t>(static_cast<double>(samples.size()) * parts / static_cast<double>(num_parts));
    if (samples[at] > keys.back()) keys.push_back(samples[at]);
  };
  for (uint64_t part = 1; part < num_parts; ++part) {
    cut_at(static_cast<double>(part));
    if (halves_last && part + kHalvedParts >= num_parts) cut_at(static_cast<double>(part) + 0.5);
  }
  if (halves_last) cut_at(static_cast<double>(num_parts) - 0.25);
  return keys;
}

bool SlabPlan::CutOversized(HostThreads& threads, uint64_t max_entries) {
  for (size_t slab = 0; slab < cuts_.size();) {
    if (EntriesOf(slab) <= max_entries) {
      ++slab;
      continue;
    }
    const uint64_t first = cuts_[slab].key;
    const uint64_t last = slab + 1 < cuts_.size() ? cuts_[slab + 1].key - 1 : largest_key_;
    if (first == last) return false;
    cuts_.insert(cuts_.begin() + static_cast<std::ptrdiff_t>(slab) + 1, CutAt(threads, first + (last - first) / 2 + 1));
  }
  return true;
}

const std::vector<uint64_t>& SlabPlan::EndOf(size_t slab) const {
  return slab + 1 < cuts_.size() ? cuts_[slab + 1].positions : end_;
}

uint64_t SlabPlan::EntriesOf(size_t slab) const {
  uint64_t entries = 0;
  for (size_t source = 0; source < end_.size(); ++source) {
    entries += EndOf(slab)[source] - cuts_[slab].positions[source];
  }
  return entries;
}

std::vector<UpdateRange> SlabPlan::RangesOf(size_t slab) const {
  std::vector<UpdateRange> ranges;
  for (size_t source = 0; source < updates_.size(); ++source) {
    const uint64_t first = cuts_[slab].positions[source];
    const uint64_t count = EndOf(slab)[source] - first;
    if (count > 0) ranges.push_back({updates_[source], first, count});
  }
  return ranges;
}

SlabPlan::RowRange SlabPlan::RowsOf(size_t slab) const {
  const uint64_t first = cuts_[slab].positions.back();
  return {first, EndOf(slab).back() - first};
}

namespace {

// Slabs on their way or on the device when one is merged: enough for the link to be busy while the host waits.
constexpr size_t kSentAhead = 2;

// A slab on its way to the device.
struct SentSlab {
  DeviceRows base;
  Batch batch;
};

absl::StatusOr<SentSlab> Send(Session& session, const TensorShape& shape, const UnfinishedRows* base,
                              const SlabPlan& plan, size_t slab) {
  SentSlab sent;
  if (base != nullptr) {
    const SlabPlan::RowRange range = plan.RowsOf(slab);
    ASSIGN_OR_RETURN(sent.base, SendRows(session, shape, *base, range.first, range.count));
  }
  ASSIGN_OR_RETURN(sent.batch, SendBatch(session, shape, plan.RangesOf(slab)));
  return sent;
}

// Returns: the bytes of keys and values that the device does not hold yet.
uint64_t BytesToSend(const Session& session, const TensorShape& shape,
                     const std::vector<const ValidatedUpdate*>& updates) {
  uint64_t bytes = 0;
  const auto add = [&](const void* array, uint64_t array_bytes) {
    const bool is_sent = array != nullptr && session.resident().Find(array, array_bytes) == nullptr;
    if (is_sent) bytes += array_bytes;
  };
  for (const ValidatedUpdate* update : updates) {
    add(KeyArray(*update), update->num_keys() * shape.key_bytes);
    add(update->values(), update->num_keys() * shape.row_bytes);
  }
  return bytes;
}

std::optional<SlabPlan> Plan(Session& session, const TensorSpec& spec, const TensorShape& shape, int shrink,
                             const std::vector<const UnfinishedRows*>& bases,
                             const std::vector<const ValidatedUpdate*>& updates) {
  // The host finds the cuts, and cannot read keys that are on the device; these need no way in either.
  const bool can_cut = std::all_of(updates.begin(), updates.end(), [](const ValidatedUpdate* update) {
    return update->unique() && !update->on_device();
  });
  if (session.tuning().slab_bytes == 0 || !can_cut || bases.size() > 1 ||
      spec.aggregation.result_layout != ResultLayout::kSparse)
    return std::nullopt;
  SlabPlan::Limits limits;
  limits.slab_bytes = session.tuning().slab_bytes;
  limits.send_bytes = BytesToSend(session, shape, updates);
  limits.min_run = session.tuning().min_slab_run;
  // A slab is merged while the next ones and the result of the one before are on the device, too.
  limits.max_entries = Merger(session, shape, shrink).Room() / 3;
  return SlabPlan::Make(session.threads(), shape, bases.empty() ? nullptr : bases.front(), updates, limits);
}

}  // namespace

absl::StatusOr<std::optional<Finished>> MergeInSlabs(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                     int shrink, double total_weight,
                                                     const std::vector<const UnfinishedRows*>& bases,
                                                     const std::vector<const ValidatedUpdate*>& updates) {
  const std::optional<SlabPlan> plan = Plan(session, spec, shape, shrink, bases, updates);
  if (!plan.has_value()) return std::nullopt;
  const UnfinishedRows* const base = bases.empty() ? nullptr : bases.front();
  uint64_t max_rows = base == nullptr ? 0 : base->num_rows;
  for (const ValidatedUpdate* update : updates) max_rows += update->num_keys();
  if (spec.num_rows != 0) max_rows = std::min(max_rows, spec.num_rows);

  Finished finished;
  ASSIGN_OR_RETURN(finished.result, MakeResult(session, spec, Layout::kSparse, max_rows));
  uint64_t num_rows = 0;
  Merger merger(session, shape, shrink);
  const FoldedRows rounding = RoundingOf(spec, shape, total_weight);
  std::deque<EventId> leaving;  // after the results of slabs
  std::deque<SentSlab> ahead;
  size_t num_sent = 0;
  // Sends slabs until so many of them have been sent.
  const auto send_until = [&](size_t count) -> absl::Status {
    for (; num_sent < std::min(count, plan->num_slabs()); ++num_sent) {
      ASSIGN_OR_RETURN(SentSlab sent, Send(session, shape, base, *plan, num_sent));
      ahead.push_back(std::move(sent));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(send_until(kSentAhead));
  for (size_t slab = 0; slab < plan->num_slabs(); ++slab) {
    SentSlab now = std::move(ahead.front());
    ahead.pop_front();
    // What the host does while the device works.
    const auto meanwhile = [&]() -> absl::Status {
      RETURN_IF_ERROR(send_until(slab + 1 + kSentAhead));
      // The rows of the slab before the one before. Those of the one before may still be under way.
      if (leaving.size() < 2) return absl::OkStatus();
      RETURN_IF_ERROR(session.device().Await(leaving.front()));
      leaving.pop_front();
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(session.device().Wait(Lane::kCompute, now.batch.sent));
    for (DeviceBuffer& column : now.base.columns) column.HandTo(Lane::kCompute);
    DeviceRows rows;
    if (now.batch.num_tuples > 0) {
      ASSIGN_OR_RETURN(rows, merger.MergeBatch(now.base, now.batch, meanwhile, rounding));
    } else {
      rows = std::move(now.base);
      RETURN_IF_ERROR(meanwhile());
    }
    now = {};
    RETURN_IF_ERROR(AppendRows(session, spec, shape, total_weight, std::move(rows), finished, num_rows));
    if (!finished.failure.ok()) break;
    ASSIGN_OR_RETURN(const EventId left, session.Mark(Lane::kResult));
    leaving.push_back(left);
  }
  // After a failure of the round too, since the memory of its updates and of its result serves others then.
  for (const Lane lane : {Lane::kCopy, Lane::kResult}) RETURN_IF_ERROR(session.device().AwaitLane(lane));
  cpu::CutSparse(spec, num_rows, finished.result);
  return finished;
}

namespace {

KeyColumn Slice(const KeyColumn& keys, uint64_t first, uint64_t count) {
  if (const auto* run = std::get_if<KeyRun>(&keys)) return KeyRun{run->first + first, count};
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return narrow->subspan(first, count);
  return std::get<absl::Span<const uint64_t>>(keys).subspan(first, count);
}

template <typename T>
void Append(const Column<T>& part, size_t first, Column<T>& whole) {
  if (!part.empty()) std::memcpy(whole.data() + first, part.data(), part.size() * sizeof(T));
}

}  // namespace

std::optional<SlabPlan> PlanParts(HostThreads& threads, const TensorShape& shape,
                                  const std::vector<const ValidatedUpdate*>& updates, size_t max_parts,
                                  const Tuning& tuning) {
  uint64_t num_tuples = 0;
  for (const ValidatedUpdate* update : updates) {
    if (!update->unique() || update->on_device()) return std::nullopt;
    num_tuples += update->num_keys();
  }
  if (tuning.slab_bytes == 0) return std::nullopt;
  const uint64_t wanted = num_tuples * (shape.key_bytes + uint64_t{shape.row_bytes}) / tuning.slab_bytes;
  return SlabPlan::MakeParts(threads, shape, updates, std::min<uint64_t>(max_parts, wanted));
}

std::vector<ValidatedUpdate> SlicesOf(const TensorShape& shape, const std::vector<UpdateRange>& ranges) {
  std::vector<ValidatedUpdate> slices;
  slices.reserve(ranges.size());
  for (const auto& [update, first, count] : ranges) {
    UpdateColumns columns;
    columns.keys = Slice(update->keys(), first, count);
    if (update->values() != nullptr) columns.values = update->values() + first * shape.row_bytes;
    columns.pinned_keys = update->pinned_keys();
    columns.pinned_values = update->pinned_values();
    const ValidatedUpdate slice =
        ValidatedUpdate::CreateFromTrusted(std::move(columns), update->weight(), /*unique=*/true);
    slices.push_back(update->factor() == 1.0 ? slice : slice.WithFactor(update->factor()));
  }
  return slices;
}

Finished JoinParts(const TensorSpec& spec, std::vector<Finished> parts) {
  uint64_t num_rows = 0;
  for (Finished& part : parts) {
    if (!part.failure.ok()) return std::move(part);
    num_rows += part.result.num_keys;
  }
  Finished joined;
  joined.result = cpu::MakeSparse(spec, num_rows);
  joined.result.plan = absl::StrCat(parts.size(), " ranges of keys; the first: ", parts.front().result.plan);
  const size_t row_values = spec.row_width;
  uint64_t first = 0;
  for (Finished& part : parts) {
    const Result& from = part.result;
    std::visit([&](auto& keys) { Append(std::get<std::decay_t<decltype(keys)>>(from.keys), first, keys); },
               joined.result.keys);
    Append(from.values, first * from.row_bytes(), joined.result.values);
    Append(from.counts, first, joined.result.counts);
    Append(from.weights, first, joined.result.weights);
    Append(from.moments, first * row_values, joined.result.moments);
    first += from.num_keys;
    part = {};  // its memory
  }
  joined.result = cpu::CutAndLayOut(spec, num_rows, std::move(joined.result));
  return joined;
}

}  // namespace sparseagg::cuda
