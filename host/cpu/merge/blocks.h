// Cuts the keys of a merge into blocks of about equal numbers of tuples.
#ifndef SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_
#define SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {

// How a block is folded: with a table that has a slot for every key (sweeper.h), or by sorting what there is
// (gatherer.h).
enum class Method : uint8_t { kTable, kSort };

template <typename Key>
struct Block {
  Key first = 0;
  Key last = 0;
  Method method = Method::kTable;
  uint64_t window_keys = 1;  // of the table of a sweep
  // What was expected: the tuples, and the nanoseconds of either method.
  uint64_t tuples = 0;
  double table_cost = 0;
  double sort_cost = 0;
};

// Ascending, without gaps between the smallest key and the largest.
template <typename Key>
struct Blocks {
  std::vector<Block<Key>> blocks;
  uint64_t num_tuples = 0;
  // A block has to be far larger than wanted, since it may not begin anywhere: updates in coarse order should be sorted
  // completely.
  bool is_crowded = false;
  // No merge can have more rows.
  uint64_t MaxRows() const {
    if (blocks.empty()) return 0;
    const uint64_t span_minus_one = static_cast<uint64_t>(blocks.back().last) - blocks.front().first;
    return span_minus_one < num_tuples ? span_minus_one + 1 : num_tuples;
  }
};

// Such as "sweep 93 % of 10000000 tuples (expected 1.9 ns each, gather 5.8), gather 7 % (expected 5.6 ns
// each, sweep 9.1)".
template <typename Key>
std::string Explain(const Blocks<Key>& blocks) {
  struct Sum {
    double tuples = 0;
    double table_cost = 0;
    double sort_cost = 0;
  };
  Sum swept;
  Sum gathered;
  for (const Block<Key>& block : blocks.blocks) {
    Sum& sum = block.method == Method::kTable ? swept : gathered;
    sum.tuples += static_cast<double>(block.tuples);
    sum.table_cost += block.table_cost;
    sum.sort_cost += block.sort_cost;
  }
  const double all = swept.tuples + gathered.tuples;
  if (all == 0) return "no tuples";
  std::string text;
  const auto add = [&](absl::string_view name, const Sum& sum, double cost, absl::string_view other,
                       double other_cost) {
    if (sum.tuples == 0) return;
    absl::StrAppendFormat(&text, "%s%s %.0f %%", text.empty() ? "" : ", ", name, 100 * sum.tuples / all);
    if (text.find(" of ") == std::string::npos) absl::StrAppend(&text, " of ", blocks.num_tuples, " tuples");
    absl::StrAppendFormat(&text, " (expected %.1f ns each, %s %.1f)", cost / sum.tuples, other,
                          other_cost / sum.tuples);
  };
  add("sweep", swept, swept.table_cost, "gather", swept.sort_cost);
  add("gather", gathered, gathered.sort_cost, "sweep", gathered.table_cost);
  return text;
}

// Plans the block of keys from first to last, of which the samples let expect `tuples` tuples of `columns` values each,
// spread over `num_cursors` updates. Windows begin in steps of 2^coarse_bits keys.
template <typename Key>
Block<Key> PlanBlock(Key first, Key last, uint64_t tuples, uint64_t columns, uint64_t num_cursors, int coarse_bits) {
  const Tuning& tuning = CurrentTuning();
  Block<Key> block{first, last};
  const double span = static_cast<double>(static_cast<uint64_t>(last) - first) + 1.0;
  const double wanted =
      static_cast<double>(tuning.window_tuples_per_cursor * num_cursors) * span / static_cast<double>(tuples);
  const uint64_t least = tuning.window_values / columns;
  const uint64_t most = tuning.max_window_values / columns;
  const double bounded = std::clamp(wanted, static_cast<double>(least), static_cast<double>(most));
  const uint64_t align_mask = (uint64_t{1} << coarse_bits) - 1;
  block.window_keys = (std::max<uint64_t>(1, static_cast<uint64_t>(bounded)) + align_mask) & ~align_mask;
  const double windows = std::ceil(span / static_cast<double>(block.window_keys));
  const double values = static_cast<double>(tuples * columns);
  const double visits = static_cast<double>(num_cursors) * tuning.visit_cost;
  block.tuples = tuples;
  block.table_cost = windows * visits + span * static_cast<double>(columns) * tuning.table_slot_cost +
                     values * tuning.table_value_cost;
  block.sort_cost = 2 * visits + static_cast<double>(tuples) * tuning.sort_tuple_cost +
                    static_cast<double>((columns - 1) * tuples) * tuning.table_value_cost;
  const bool fits_table = std::min(static_cast<double>(block.window_keys), span) * static_cast<double>(columns) <=
                          2 * static_cast<double>(tuning.max_window_values);
  block.method = block.table_cost <= block.sort_cost && fits_table ? Method::kTable : Method::kSort;
  return block;
}

// A well-mixed function of j (SplitMix64's finaliser), so that samples follow no pattern of the input.
inline uint64_t Mix(uint64_t j) {
  j += 0x9e3779b97f4a7c15u;
  j = (j ^ (j >> 30)) * 0xbf58476d1ce4e5b9u;
  j = (j ^ (j >> 27)) * 0x94d049bb133111ebu;
  return j ^ (j >> 31);
}

// Regular sampling with jitter: one key from every stretch of `stride` tuples. The splitters only balance the work; a
// block that turns out larger costs memory and balance, never the result.
//
// Blocks begin in steps of 2^coarse_bits keys, those of the update with the most. They lie between the first key of an
// update and the last one, below the dimension, whatever became of the keys; FAILED_PRECONDITION: KeysChanged, if they
// could not.
template <typename Key, typename Fold>
absl::StatusOr<Blocks<Key>> ChooseBlocks(const MergeInput<Key, Fold>& input) {
  Blocks<Key> blocks;
  struct Source {
    KeyReader<Key> keys;
    uint64_t num_keys;
    Key coarse_mask;
  };
  std::vector<Source> sources;
  if (input.base != nullptr) sources.push_back({{input.base->keys.data(), 0}, input.base->keys.size(), 0});
  int coarse_bits = 0;
  for (const CpuUpdate* update : input.updates) {
    const auto mask = static_cast<Key>((Key{1} << update->coarse_bits) - 1);
    sources.push_back({ReaderOf<Key>(*update), update->num_keys, mask});
    coarse_bits = std::max(coarse_bits, update->coarse_bits);
  }
  const Key start_mask = static_cast<Key>(~((Key{1} << coarse_bits) - 1));

  Key first = std::numeric_limits<Key>::max();
  Key last = 0;
  uint64_t total = 0;
  for (const Source& source : sources) {
    if (source.num_keys == 0) continue;
    total = SaturatingAdd(total, source.num_keys);  // runs of keys take no memory
    const Key smallest = source.keys[0] & static_cast<Key>(~source.coarse_mask);
    const Key largest = source.keys[source.num_keys - 1];
    const bool is_beyond = input.spec->dimension > 0 && largest >= input.spec->dimension;
    if (smallest > largest || is_beyond) return KeysChanged(*input.spec);
    first = std::min(first, smallest);
    last = std::max(last, static_cast<Key>(largest | source.coarse_mask));
  }
  first &= start_mask;
  blocks.num_tuples = total;
  if (total == 0) return blocks;

  const Tuning& tuning = CurrentTuning();
  const uint64_t sums = input.shape.columns + (input.shape.key_weights == KeyWeights::kNone ? 0 : 1);  // a key
  const uint64_t columns = std::max<uint64_t>(sums, 1);
  const uint64_t per_cursor =
      std::min(tuning.block_tuples_per_cursor * sources.size(), tuning.max_block_values / columns);
  const uint64_t block_tuples = std::max<uint64_t>({1, tuning.block_values / columns, per_cursor});
  if (total <= block_tuples) {
    blocks.blocks.push_back(PlanBlock(first, last, total, columns, sources.size(), coarse_bits));
    return blocks;
  }
  const uint64_t stride = std::max<uint64_t>(1, block_tuples / tuning.samples_per_block);
  Column<Key> samples;  // which throws std::bad_alloc, however many they would be
  samples.reserve(SaturatingAdd(total / stride, 1));
  uint64_t before = 0;  // tuples of the sources already passed
  uint64_t stretch = 0;
  uint64_t next = Mix(0) % stride;
  for (const Source& source : sources) {
    while (next < before + source.num_keys) {
      const Key key = source.keys[next - before];
      if (key > last) return KeysChanged(*input.spec);
      samples.push_back(key & start_mask);
      ++stretch;
      next = stretch * stride + Mix(stretch) % stride;
    }
    before += source.num_keys;
  }
  std::sort(samples.begin(), samples.end());
  const size_t step = std::max<uint64_t>(1, block_tuples / stride);
  // The block of the samples from `begin` to `end`, which starts at `first`.
  const auto add = [&](size_t begin, size_t end, Key block_last) {
    const auto plan = [&](Key from, Key to, size_t num_samples) {
      return PlanBlock(from, to, std::max<uint64_t>(1, num_samples) * stride, columns, sources.size(), coarse_bits);
    };
    const Block<Key> whole = plan(first, block_last, end - begin);
    // What is sorted should stay closer than what is swept, if the cursors then still find some tuples at each visit.
    const uint64_t part_tuples = std::max(tuning.sort_values / columns, tuning.sort_tuples_per_cursor * sources.size());
    const size_t part = std::max<size_t>(tuning.samples_per_part, part_tuples / stride);
    if (whole.method == Method::kSort) {
      for (size_t i = begin + part; i + part <= end; i += part) {
        if (samples[i] <= first) continue;
        blocks.blocks.push_back(plan(first, static_cast<Key>(samples[i] - 1), part));
        blocks.blocks.back().method = Method::kSort;
        first = samples[i];
      }
    }
    Block<Key> rest = whole;
    if (first != whole.first) {
      rest = plan(first, block_last, std::max<size_t>(1, (end - begin) % part));
      rest.method = Method::kSort;
    }
    blocks.blocks.push_back(rest);
    first = static_cast<Key>(block_last + 1);
  };
  size_t begin = 0;  // the samples of the block at hand start here
  for (size_t i = step; i < samples.size(); i += step) {
    if (samples[i] <= first) continue;
    add(begin, i, static_cast<Key>(samples[i] - 1));
    begin = i;
  }
  add(begin, samples.size(), last);
  for (const Block<Key>& block : blocks.blocks) {
    if (coarse_bits > 0 && block.tuples > tuning.max_block_values / columns) blocks.is_crowded = true;
  }
  return blocks;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_
