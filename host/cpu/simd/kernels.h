// Vector kernels of the CPU engine, and the choice of their SIMD target.
//
// Each kernel is written once, with Highway, and compiled for several targets (AVX-512, AVX2, …, portable). At run time
// the best target of the machine is used. All targets give the same bits, because they do the same IEEE operations on
// each element.
#ifndef SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
#define SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "host/base/binned.h"
#include "host/cpu/rows/direct_output.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// A value v becomes (v · factor) · weight; each product is rounded to float64. A factor of 1 changes no bit.
struct ValueScale {
  double factor = 1.0;  // ValidatedUpdate::factor
  double weight = 1.0;
};

// Restricts the kernels to one of SimdTargets(), such as "AVX3" or "AVX2"; the portable one is "SCALAR" or "EMU128",
// depending on the compiler. An empty name restores the best.
// Errors: INVALID_ARGUMENT, listing this machine's targets, if it does not have this one.
// Not thread-safe: no kernel may run meanwhile.
absl::Status ForceSimdTarget(const std::string& name);

// Returns: the targets of this machine, best first.
std::vector<std::string> SimdTargets();

// Returns: the target in use.
std::string CurrentSimdTarget();

// The loading kernels write whole vectors. So their outputs need room for so many elements more than `count`.
inline constexpr size_t kVectorSlack = 16;

// terms[i] = (widen(values[i]) · factor) · weight + 0.0. Adding +0.0 turns −0.0 into +0.0 and changes nothing else.
// Values are floats of `dtype`, and may be unaligned. `readable` ≥ `count`: the number of values that may be read.
void LoadFloats(const std::byte* values, DType dtype, size_t count, size_t readable, ValueScale scale, double* terms);

// Returns: how many of the keys, which ascend, are ≤ last.
// Cost: one pass over these keys.
uint64_t CountUpTo(const uint32_t* keys, uint64_t count, uint32_t last);
uint64_t CountUpTo(const uint64_t* keys, uint64_t count, uint64_t last);

// out[i] = values[i] rounded to float32, to nearest even. NaN becomes canonical, −0.0 becomes +0.0.
void RoundToFloat32(const double* values, size_t count, float* out);
// values[i] /= divisor.
void Divide(double* values, size_t count, double divisor);

// Columns of binned sums (host/base/binned.h): WideBinnedSum of float64 values, NarrowBinnedSum of others. The kernels
// read and write whole vectors: the columns have kVectorSlack sums more, which hold sums of any kind.
struct BinnedColumns {
  int64_t* digits[WideBinnedSum::kBins] = {};  // of each bin from the top down
  uint8_t* tops = nullptr;
};

// Returns: one of the sums.
template <class Sum>
Sum BinnedAt(const BinnedColumns& sums, size_t at) {
  Sum sum;
  for (int k = 0; k < Sum::kBins; ++k) sum.digits[k] = sums.digits[k][at];
  sum.top = sums.tops[at];
  return sum;
}

template <class Sum>
void SetBinned(const Sum& sum, const BinnedColumns& sums, size_t at) {
  for (int k = 0; k < Sum::kBins; ++k) sums.digits[k][at] = sum.digits[k];
  sums.tops[at] = sum.top;
}

// Values for binned sums; may be unaligned.
struct BinnedSource {
  const std::byte* values = nullptr;
  ValueScale scale;
};

// Adds the first `count` values of each source, as floats of `dtype` and as ValueScale says, to as many sums.
// Deterministic: the sums are those of BinnedSum::Add. Fastest with a few sources at a time.
void AddBinned(const BinnedColumns& sums, DType dtype, const BinnedSource* sources, size_t num_sources, size_t count);
// out[i] = BinnedSum::Value of sum i.
void BinnedValues(const BinnedColumns& sums, DType dtype, size_t count, double* out);

// Kernel of the bucket sort (merge/bucket_sort.h): sorting networks over interleaved buckets.

// A bucket has kBucketCells cells; the cells of kGroupBuckets buckets, a group, are interleaved. Cell s of bucket b is
// word
//
//   (b / kGroupBuckets) · kGroupCells + s · kGroupBuckets + b % kGroupBuckets
//
// So a vector holds cell s of all eight buckets of a group. A sorting network, which compares fixed pairs of cells,
// sorts the eight buckets at once; each comparator is one vector minimum and one vector maximum.
inline constexpr size_t kGroupBuckets = 8;
inline constexpr size_t kBucketCells = 16;
inline constexpr size_t kGroupCells = kGroupBuckets * kBucketCells;

// Returns: the word in cell s while the cell is free. It is larger than any tuple, so that free cells are sorted to the
// end, and the upper halves of a bucket's free cells differ, so that they do not look like equal keys.
constexpr uint64_t FreeCell(size_t s) { return (uint64_t{0xffffffff} - s) << 32; }
inline constexpr uint64_t kMaxBucketOffset = 0xffffffff - kBucketCells;

// Flag in BucketGroups::next: the bucket was full when another tuple came.
inline constexpr uint32_t kOverflowed = uint32_t{1} << 31;

// Returns: whether the SIMD target has 512-bit vectors. Others have shorter vectors and no instruction for the minimum
// of 64-bit integers; a radix sort is faster there.
bool HasBucketKernel();

struct BucketGroups {
  uint64_t* cells = nullptr;
  const uint32_t* next = nullptr;  // for each bucket: the word of its next free cell, or of the cell behind its last
  bool stable = false;             // among equal upper halves, the lower halves came in ascending order
};

// Sorts the words of the groups [begin, end), writes them to `out` from `written` on, advances `written`, and frees the
// cells. Stops before a group with an overflowed bucket. Unless `stable`, it also stops before a group in which three
// words of a bucket have equal upper halves: a network would not keep their order. (Two may change places.)
// Returns: the group it stopped at, or `end`.
// Requires: HasBucketKernel(); room for kBucketCells words more at `out`.
size_t SortGroups(const BucketGroups& groups, size_t begin, size_t end, uint64_t* out, size_t& written);

// The rows of one update, or of the base: the rows that earlier merges have folded.
struct RowSource {
  const std::byte* values = nullptr;
  uint64_t num_values = 0;
  ValueScale scale;
  DType dtype = DType::kFloat32;
  bool is_folded = false;  // of the base: the values are accumulators, kFloat64
};

// Where a row is: its source, and its number there.
struct RowOrigin {
  uint32_t source;  // index of a RowSource
  uint64_t row;
};

// The rows to sum, grouped by key.
struct CollectedRows {
  const RowSource* sources = nullptr;
  const RowOrigin* origins = nullptr;
  const uint32_t* order = nullptr;   // indexes of origins: by key, and within a key in canonical order
  const uint32_t* ends = nullptr;    // for each key, the end of its part of `order`
  const double* divisors = nullptr;  // for each key, if the output divides by count or weight; else null
  const uint64_t* places = nullptr;  // for each key, its row of the output; null: rows follow each other
  size_t num_keys = 0;
  bool all_float32 = false;  // the values of all sources are kFloat32, and none of them is the base
  ValueScale folded;         // multiplies each row's sum. For repeated keys of one update, summed unscaled
};

// Folds the rows of each key from left to right and writes one finished row a key. Terms are those of AddToTable.
// Deterministic: the bits are those of a scalar left fold.
void FoldRowsTo(const CollectedRows& rows, const DirectValues& output);

// Tuples of float updates, one value a key, sorted by key and within a key in canonical order.
struct CollectedTuples {
  // Upper half: offset of the key from the block's first key. Lower half, the payload: the value itself, in the lowest
  // bits, if `terms` is null; else an index into `terms`.
  const uint64_t* words = nullptr;
  size_t size = 0;
  // Null: all values have one dtype and one ValueScale, and are in the words.
  const double* terms = nullptr;
  const double* weights = nullptr;  // one for each term; null: not summed
  // Of values in the words:
  DType dtype = DType::kFloat32;  // of at most 32 bits
  ValueScale value_scale;
};

// Returns: the number of distinct keys.
size_t CountKeys(const CollectedTuples& tuples);

// Folds the tuples of each key from left to right and writes one finished row a key. Terms are those of AddToTable.
// `first`: the block's first key. `rows`: CountKeys(tuples); nothing behind these rows is written.
void FoldTo(const CollectedTuples& tuples, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void FoldTo(const CollectedTuples& tuples, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

// Bytes of one counter of contributors. A table fold takes the narrowest counter that can count its updates, since
// narrow counters leave more of the cache to the sums.
enum class CountBytes : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kFour = 4 };

// Position of a merge in one update, or in the base. It moves through the keys in ascending order, block by block. A
// cache line large with 32-bit keys, as a merge of many small updates spends its time on little else. Owned by Sources.
template <typename Key>
struct Cursor {
  const Key* keys = nullptr;  // null: the keys are the run first, first + 1, …
  const std::byte* values = nullptr;
  uint64_t position = 0;
  uint64_t stop = 0;  // end of the current block's tuples, after Advance
  uint64_t end = 0;
  ValueScale scale;
  Key first = 0;
  DType dtype = DType::kFloat32;
  // `keys` points to 64-bit integers that nobody has checked and that may change at any time. AddToTable checks each
  // that it takes; other members only look for places, and Advance is not for them.
  bool unchecked = false;

  Key operator[](uint64_t index) const {
    if (unchecked) {
      constexpr uint64_t kMost = std::numeric_limits<Key>::max();
      return static_cast<Key>(std::min(reinterpret_cast<const uint64_t*>(keys)[index], kMost));
    }
    return keys != nullptr ? keys[index] : static_cast<Key>(first + index);
  }

  // Returns: where the key at `position` lies. Requires: keys are not a run.
  const std::byte* KeyMemory() const {
    return reinterpret_cast<const std::byte*>(keys) + position * (unchecked ? sizeof(uint64_t) : sizeof(Key));
  }

  // Returns: the number of tuples, from `position` on, with keys ≤ last.
  uint64_t CountTo(Key last) const {
    const uint64_t left = end - position;
    if (keys != nullptr) return CountUpTo(keys + position, left, last);
    if (left == 0 || (*this)[position] > last) return 0;
    return std::min<uint64_t>(left - 1, last - (*this)[position]) + 1;
  }

  // Moves `stop` behind the last tuple with key ≤ last.
  // Returns: the number of tuples from `position` to `stop`.
  uint64_t Advance(Key last) {
    const uint64_t passed = CountTo(last);
    stop = position + passed;
    return passed;
  }

  // Moves `position` to the first tuple with key ≥ to.
  // Cost: O(log of the distance): doubling steps, then bisection.
  void SkipTo(Key to) {
    uint64_t low = position;
    uint64_t step = 1;
    while (low + step <= end && (*this)[low + step - 1] < to) {
      low += step;
      step *= 2;
    }
    uint64_t high = std::min(low + step - 1, end);
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      if ((*this)[middle] < to) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    position = low;
  }
};

// A window of keys, from `first` to `last`, and its table of `columns` ≥ 1 accumulators a key. Updates are of floats.
template <typename Key>
struct TableWindow {
  Cursor<Key>* cursors = nullptr;
  size_t num_cursors = 0;
  Key first = 0;
  Key last = 0;
  Key last_row = 0;  // the last key of the tensor, if that is less than `last`; else `last`
  size_t columns = 1;
  double* table = nullptr;
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;     // unsigned, count_bytes wide; kNone or kFour if weights are summed
  double* weights = nullptr;  // sums of weights; null: not summed
  size_t tuples_ahead = 0;    // tuples ahead of a cursor to prefetch
};

// Adds the tuples with keys up to `last`, cursor after cursor, and moves the cursors behind them. For a tuple at slot
// s = key − first, it adds
//   v + 0.0 to table[s], where v is the value as ValueScale says, each sum rounded to float64
//   1 to counts[s]
//   the weight to weights[s]
// Of a cursor with unchecked keys it takes those that strictly ascend from `first` to `last_row`, and stops at the
// first other one. Returns: the number of tuples. Deterministic: the bits do not depend on the SIMD target.
uint64_t AddToTable(const TableWindow<uint32_t>& window);
uint64_t AddToTable(const TableWindow<uint64_t>& window);

// A table of 64-bit accumulators, one slot a key. With counters, a slot is touched if its count is not 0; without, if
// its accumulator is not `untouched`. All columns have kVectorSlack untouched slots more.
struct SlotTable {
  void* accs = nullptr;
  CountBytes count_bytes = CountBytes::kNone;
  void* counts = nullptr;
  double* weights = nullptr;  // null: not summed
  size_t slots = 0;
  uint64_t untouched = 0;  // bits of an accumulator that no term was added to
};

// Moves the touched slots to finished rows of direct output, in ascending order, in two steps, so that a thread can
// claim places for its rows in between. CountTouched returns the number of rows. CompactTo finishes and writes these
// `rows` rows, nothing behind them, and resets the table. To an output of kInt64 go unfinished accumulators of any
// type.
size_t CountTouched(const SlotTable& table);
void CompactTo(const SlotTable& table, uint32_t first, size_t rows, const DirectOutput<uint32_t>& output);
void CompactTo(const SlotTable& table, uint64_t first, size_t rows, const DirectOutput<uint64_t>& output);

// Finishes all slots, writes them one behind another, and resets the table. An untouched slot gives value 0, count 0
// and weight 0.
void WriteAllSlots(const SlotTable& table, const DirectValues& output);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_SIMD_KERNELS_H_
