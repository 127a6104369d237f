#include "cuda/merge/slab_merge.h"

#include <algorithm>
#include <cstdint>
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

SlabPlan::SlabPlan(const std::vector<const ValidatedUpdate*>& updates, const UnfinishedRows* base, uint32_t key_bytes)
    : updates_(updates), base_(base), key_bytes_(key_bytes) {
  for (const ValidatedUpdate* update : updates_) {
    end_.push_back(update->num_keys());
    num_tuples_ += update->num_keys();
  }
  end_.push_back(base_ == nullptr ? 0 : base_->num_rows);
  for (size_t source = 0; source < end_.size(); ++source) {
    if (end_[source] > 0) largest_key_ = std::max(largest_key_, KeyAt(source, end_[source] - 1));
  }
}

std::optional<SlabPlan> SlabPlan::Make(HostThreads& threads, const TensorShape& shape, const UnfinishedRows* base,
                                       const std::vector<const ValidatedUpdate*>& updates, uint64_t num_slabs,
                                       uint64_t max_entries, bool halves_last) {
  if (num_slabs < 2) return std::nullopt;
  SlabPlan plan(updates, base, shape.key_bytes);
  for (const uint64_t key : plan.ChooseKeys(num_slabs, halves_last)) plan.cuts_.push_back(plan.CutAt(threads, key));
  if (!plan.CutOversized(threads, max_entries) || plan.num_slabs() < 2) return std::nullopt;
  return plan;
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

std::vector<uint64_t> SlabPlan::ChooseKeys(uint64_t num_parts, bool halves_last) const {
  const uint64_t step = std::max<uint64_t>(1, num_tuples_ / (num_parts * kSamplesPerSlab));
  std::vector<uint64_t> samples;
  uint64_t next = step / 2;  // of the tuples of the present update and those after it
  for (size_t source = 0; source < updates_.size(); ++source) {
    for (; next < end_[source]; next += step) samples.push_back(KeyAt(source, next));
    next -= end_[source];
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

RowRange SlabPlan::RowsOf(size_t slab) const {
  const uint64_t first = cuts_[slab].positions.back();
  return {base_, first, EndOf(slab).back() - first};
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
    ASSIGN_OR_RETURN(sent.base, SendRows(session, shape, {plan.RowsOf(slab)}));
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
    add(KeyArray(update->keys()), update->num_keys() * shape.key_bytes);
    add(update->values(), update->num_keys() * shape.row_bytes);
  }
  return bytes;
}

// Whether updates may be cut into ranges of keys. The host finds the cuts, and cannot read keys that are on the device;
// these need no way in either.
bool CanCut(const Tuning& tuning, const std::vector<const ValidatedUpdate*>& updates) {
  return tuning.slab_bytes > 0 && std::all_of(updates.begin(), updates.end(), [](const ValidatedUpdate* update) {
           return update->unique() && !update->on_device();
         });
}

std::optional<SlabPlan> Plan(Session& session, const TensorSpec& spec, const TensorShape& shape, int shrink,
                             absl::Span<const UnfinishedRows> bases,
                             const std::vector<const ValidatedUpdate*>& updates) {
  const Tuning& tuning = session.tuning();
  if (!CanCut(tuning, updates) || bases.size() > 1 || spec.aggregation.result_layout != ResultLayout::kSparse) {
    return std::nullopt;
  }
  uint64_t num_tuples = 0;
  uint64_t num_used = 0;
  for (const ValidatedUpdate* update : updates) {
    num_tuples += update->num_keys();
    num_used += update->num_keys() > 0 ? 1 : 0;
  }
  // A slab is merged while the next ones and the result of the one before are on the device, too.
  const uint64_t max_entries = Merger(session, shape, shrink).Room() / 3;
  if (num_tuples == 0 || max_entries == 0) return std::nullopt;
  const UnfinishedRows* const base = bases.empty() ? nullptr : &bases.front();
  const uint64_t entries = num_tuples + (base == nullptr ? 0 : base->num_rows);
  const auto mean_run = static_cast<double>(num_tuples) / static_cast<double>(num_used);
  const uint64_t wanted = std::min<uint64_t>(BytesToSend(session, shape, updates) / tuning.slab_bytes,
                                             static_cast<uint64_t>(mean_run / tuning.min_slab_run));
  const uint64_t needed = (entries - 1) / max_entries + 1;
  return SlabPlan::Make(session.threads(), shape, base, updates, std::max(wanted, needed), max_entries,
                        /*halves_last=*/true);
}

}  // namespace

absl::StatusOr<std::optional<Finished>> MergeInSlabs(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                     int shrink, double total_weight,
                                                     absl::Span<const UnfinishedRows> bases,
                                                     const std::vector<const ValidatedUpdate*>& updates) {
  const std::optional<SlabPlan> plan = Plan(session, spec, shape, shrink, bases, updates);
  if (!plan.has_value()) return std::nullopt;
  const UnfinishedRows* const base = bases.empty() ? nullptr : &bases.front();
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
void CopyTo(Column<T>& whole, size_t first, const Column<T>& part) {
  if (!part.empty()) std::copy(part.begin(), part.end(), whole.begin() + first);
}

}  // namespace

std::optional<SlabPlan> PlanParts(HostThreads& threads, const TensorShape& shape,
                                  const std::vector<const ValidatedUpdate*>& updates, size_t max_parts,
                                  const Tuning& tuning) {
  if (!CanCut(tuning, updates)) return std::nullopt;
  uint64_t num_tuples = 0;
  for (const ValidatedUpdate* update : updates) num_tuples += update->num_keys();
  const uint64_t wanted = num_tuples * (shape.key_bytes + uint64_t{shape.row_bytes}) / tuning.slab_bytes;
  return SlabPlan::Make(threads, shape, nullptr, updates, std::min<uint64_t>(max_parts, wanted), UINT64_MAX,
                        /*halves_last=*/false);
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
  uint64_t first = 0;
  for (Finished& part : parts) {
    const Result& from = part.result;
    std::visit([&](auto& keys) { CopyTo(keys, first, std::get<std::decay_t<decltype(keys)>>(from.keys)); },
               joined.result.keys);
    CopyTo(joined.result.values, first * from.row_bytes(), from.values);
    CopyTo(joined.result.counts, first, from.counts);
    CopyTo(joined.result.weights, first, from.weights);
    first += from.num_keys;
    part = {};  // its memory
  }
  joined.result = cpu::CutAndLayOut(spec, num_rows, std::move(joined.result));
  return joined;
}

}  // namespace sparseagg::cuda
