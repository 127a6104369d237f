// Blocks: the key space of a merge, cut into ranges of about equally many tuples, and how each is folded.
#ifndef SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_
#define SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/tuning.h"

namespace sparseagg::cpu {

// How a block is folded.
enum class Method : uint8_t {
  kTable,  // in a table with one slot a key (table_fold.h), for dense keys
  kSort,   // by collecting and sorting its tuples (sort_fold.h), for sparse keys
};

// A range of keys that one thread merges.
template <typename Key>
struct Block {
  Key first = 0;
  Key last = 0;
  Method method = Method::kTable;
  uint64_t window_keys = 1;  // kTable: slots of the table; the block is folded window after window
  // Expected number of tuples, and expected nanoseconds of either method.
  uint64_t tuples = 0;
  double table_cost = 0;
  double sort_cost = 0;
};

// All blocks of a merge, in ascending order, without gaps.
template <typename Key>
struct Blocks {
  std::vector<Block<Key>> blocks;
  uint64_t num_tuples = 0;
  // A block is far larger than wanted, because blocks may begin only where the coarse order allows. The updates in
  // coarse order should be sorted completely, and the blocks chosen again.
  bool needs_full_sort = false;

  // Returns: an upper bound of the rows of the merge.
  uint64_t MaxRows() const {
    if (blocks.empty()) return 0;
    const uint64_t span_minus_one = static_cast<uint64_t>(blocks.back().last) - blocks.front().first;
    return span_minus_one < num_tuples ? span_minus_one + 1 : num_tuples;
  }
};

// Returns: a description for people, such as "table 93 % of 10000000 tuples (expected 1.9 ns each, sort 5.8), sort 7 %
// (expected 5.6 ns each, table 9.1)".
template <typename Key>
std::string Explain(const Blocks<Key>& blocks) {
  struct Sum {
    double tuples = 0;
    double table_cost = 0;
    double sort_cost = 0;
  };
  Sum table;
  Sum sort;
  for (const Block<Key>& block : blocks.blocks) {
    Sum& sum = block.method == Method::kTable ? table : sort;
    sum.tuples += static_cast<double>(block.tuples);
    sum.table_cost += block.table_cost;
    sum.sort_cost += block.sort_cost;
  }
  const double all = table.tuples + sort.tuples;
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
  add("table", table, table.table_cost, "sort", table.sort_cost);
  add("sort", sort, sort.sort_cost, "table", sort.table_cost);
  return text;
}

// Chooses the method and the window for the block of keys from `first` to `last`. `tuples`: the expected number of its
// tuples, of `columns` values each, over `num_cursors` sources. Windows have a multiple of 2^coarse_bits keys.
//
// The cost model (tuning.h): a table fold pays for every slot of the block's range, for every value, and for each
// cursor's visit to each window. A sort fold pays for every tuple, and visits each cursor twice: to find tuples and to
// collect them.
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

// Returns: pseudo-random bits for j (the finaliser of SplitMix64).
inline uint64_t Mix(uint64_t j) {
  j += 0x9e3779b97f4a7c15u;
  j = (j ^ (j >> 30)) * 0xbf58476d1ce4e5b9u;
  j = (j ^ (j >> 27)) * 0x94d049bb133111ebu;
  return j ^ (j >> 31);
}

// Cuts the keys of a merge into blocks, and plans each. The boundaries are chosen from a regular sample of keys with
// jitter: one key at a pseudo-random place among every `stride` tuples, so that no pattern of the input misleads it. A
// block that turns out larger than expected costs memory and balance between threads, never the result.
//
// Blocks begin at multiples of 2^coarse_bits, of the coarsest update. They cover the keys of all sources.
// Cost: O(samples · log samples); samples_per_block for each block.
template <typename Key, typename Fold>
Blocks<Key> ChooseBlocks(const MergeInput<Key, Fold>& input) {
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
    const auto [smallest, largest] = source.keys.Ends(source.num_keys);
    first = std::min(first, static_cast<Key>(smallest & ~source.coarse_mask));
    last = std::max(last, static_cast<Key>(largest | source.coarse_mask));
  }
  first &= start_mask;
  blocks.num_tuples = total;
  if (total == 0) return blocks;

  const Tuning& tuning = CurrentTuning();
  const uint64_t sums = input.shape.columns + (!input.shape.weights ? 0 : 1);  // for each key
  const uint64_t columns = std::max<uint64_t>(sums, 1);
  const uint64_t per_cursor =
      std::min(tuning.block_tuples_per_cursor * sources.size(), tuning.max_block_values / columns);
  const uint64_t block_tuples = std::max<uint64_t>({1, tuning.block_values / columns, per_cursor});
  if (total <= block_tuples) {
    blocks.blocks.push_back(PlanBlock(first, last, total, columns, sources.size(), coarse_bits));
    return blocks;
  }
  const uint64_t stride = std::max<uint64_t>(1, block_tuples / tuning.samples_per_block);
  Column<Key> samples;  // throws std::bad_alloc for any impossible size, unlike std::vector
  samples.reserve(SaturatingAdd(total / stride, 1));
  uint64_t before = 0;  // tuples of the sources already passed
  uint64_t stretch = 0;
  uint64_t next = Mix(0) % stride;
  for (const Source& source : sources) {
    while (next < before + source.num_keys) {
      samples.push_back(source.keys[next - before] & start_mask);
      ++stretch;
      next = stretch * stride + Mix(stretch) % stride;
    }
    before += source.num_keys;
  }
  std::sort(samples.begin(), samples.end());
  const size_t step = std::max<uint64_t>(1, block_tuples / stride);
  // Adds the block of samples [begin, end), which starts at `first`. A block for a sort fold is cut into smaller parts.
  const auto add = [&](size_t begin, size_t end, Key block_last) {
    const auto plan = [&](Key from, Key to, size_t num_samples) {
      return PlanBlock(from, to, std::max<uint64_t>(1, num_samples) * stride, columns, sources.size(), coarse_bits);
    };
    const Block<Key> whole = plan(first, block_last, end - begin);
    // Tuples to sort should fit a smaller cache than a table, as long as cursors still find some tuples at each visit.
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
  size_t begin = 0;  // first sample of the current block
  for (size_t i = step; i < samples.size(); i += step) {
    if (samples[i] <= first) continue;
    add(begin, i, static_cast<Key>(samples[i] - 1));
    begin = i;
  }
  add(begin, samples.size(), last);
  for (const Block<Key>& block : blocks.blocks) {
    if (coarse_bits > 0 && block.tuples > tuning.max_block_values / columns) blocks.needs_full_sort = true;
  }
  return blocks;
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_BLOCKS_H_
