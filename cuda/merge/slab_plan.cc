#include "cuda/merge/slab_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {
namespace {

constexpr uint64_t kSamplesPerSlab = 128;
constexpr uint64_t kHalvedParts = 2;    // the last ones
constexpr size_t kSourcesPerTask = 64;  // whose positions one thread looks for

}  // namespace

std::optional<SlabPlan> SlabPlan::Make(HostThreads& threads, const TensorShape& shape, const HostRows* base,
                                       const std::vector<const ValidatedUpdate*>& updates, const Limits& limits) {
  SlabPlan plan(updates, base, shape.key_bytes);
  const auto [num_tuples, num_used] = plan.CountEntries();
  if (num_tuples == 0 || limits.max_entries == 0) return std::nullopt;
  const uint64_t entries = num_tuples + plan.end_.back();
  const auto mean_run = static_cast<double>(num_tuples) / static_cast<double>(num_used);
  const uint64_t wanted = std::min<uint64_t>(num_tuples * (shape.key_bytes + shape.row_bytes) / limits.slab_bytes,
                                             static_cast<uint64_t>(mean_run / limits.min_run));
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
  if (source == updates_.size()) return LoadKey((*base_)[RowColumn::kKeys].data(), key_bytes_, index);
  const KeyColumn& keys = updates_[source]->keys();
  if (const auto* run = std::get_if<KeyRun>(&keys)) return run->first + index;
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return (*narrow)[index];
  return std::get<absl::Span<const uint64_t>>(keys)[index];
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

}  // namespace sparseagg::cuda
