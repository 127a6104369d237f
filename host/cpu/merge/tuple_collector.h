// Collecting the tuples of one block from all updates, for the sort fold.
#ifndef SPARSEAGG_HOST_CPU_MERGE_TUPLE_COLLECTOR_H_
#define SPARSEAGG_HOST_CPU_MERGE_TUPLE_COLLECTOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "host/base/column.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/cpu/simd/kernels.h"
#include "host/spec/dtype.h"

namespace sparseagg::cpu {

// Collector of a block's tuples: (offset of the key, 32-bit payload), update after update, in canonical order. The
// payload stands for the tuple's row while the tuples are sorted. It is
//   the value itself, of a sum of floats, if it fits 32 bits and one conversion to terms serves all updates; else
//   the index, in order of collection, of the tuple's term, weight and origin, which the collector keeps in columns.
// Owned by a SortFold. Life cycle, block after block: FindTuples, Collect, then the columns are read. Not thread-safe.
template <typename Key, typename Fold>
class TupleCollector {
 public:
  using Term = typename Fold::Term;
  using Rows = FoldedRows<Key, Fold>;
  using WeightSum = typename Rows::WeightSum;

  // `base`: rows merged earlier that are collected before the updates' tuples; may be null.
  TupleCollector(const MergeInput<Key, Fold>& input, Sources<Key, Fold>& sources, const Rows* base)
      : sources_(sources),
        base_(base),
        columns_(input.shape.columns),
        sums_weights_(input.shape.weights),
        payload_is_value_(PayloadIsValue(input)) {}

  // Finds the tuples of `block`, from where the cursors stand.
  // Returns: their number, rows of the base included.
  uint64_t FindTuples(const Block<Key>& block) {
    first_ = block.first;
    const uint64_t base_rows = base_ != nullptr ? sources_.base.Advance(block.last) : 0;
    tuples_ = base_rows + sources_.Advance(block.last) + FindBuckets(block);
    return tuples_;
  }

  // Calls put(offset, payload) for each tuple found, and moves the cursors behind them.
  template <typename Put>
  void Collect(Put put) {
    if (!payload_is_value_) {
      CollectIndexes(put);
    } else if (SizeOf(sources_.cursors[0].dtype) == sizeof(uint32_t)) {
      CollectValues<uint32_t>(put);
    } else {
      CollectValues<uint16_t>(put);
    }
  }

  bool payload_is_value() const { return payload_is_value_; }
  // Returns: whether rows are found by origin: rows of several values, and rows of the base, have no term of their own.
  bool needs_origins() const { return columns_ > 1 || base_ != nullptr; }

  // Columns of the collected tuples, by payload. Empty if the payload is the value.
  const Column<Term>& terms() const { return terms_; }           // of rows of one value
  const Column<WeightSum>& weights() const { return weights_; }  // empty if not summed
  const Column<RowOrigin>& origins() const { return origins_; }  // if needs_origins()

 private:
  static bool PayloadIsValue(const MergeInput<Key, Fold>& input) {
    if (!std::is_same_v<Fold, SumFloat>) return false;
    if (input.shape.columns != 1 || input.shape.weights || input.base_is_first) return false;
    for (const CpuUpdate* update : input.updates) {
      const CpuUpdate& first = *input.updates[0];
      if (update->dtype != first.dtype || update->weight != first.weight || update->factor != first.factor)
        return false;
    }
    return !input.updates.empty() && SizeOf(input.updates[0]->dtype) <= sizeof(uint32_t);
  }

  // Finds the buckets of packed updates that the block covers. Blocks begin where buckets begin.
  // Returns: the number of their tuples.
  uint64_t FindBuckets(const Block<Key>& block) {
    uint64_t tuples = 0;
    for (const CoarseWords* words : sources_.words) {
      if (words == nullptr) continue;
      first_bucket_ = static_cast<uint64_t>(block.first) >> words->low_bits;
      last_bucket_ = static_cast<uint64_t>(block.last) >> words->low_bits;
      tuples += words->ends[last_bucket_] - words->BeginOf(first_bucket_);
    }
    return tuples;
  }

  // Calls take(key, index of the tuple) for the tuples of a cursor up to its stop, and moves the cursor there. Calls
  // prefetch(index) once for each cache line of keys.
  template <typename Prefetch, typename Take>
  static void ForTuples(Cursor<Key>& cursor, Prefetch prefetch, Take take) {
    constexpr uint64_t kLine = 64 / sizeof(Key);
    const Key* const keys = cursor.keys;
    uint64_t i = cursor.position;
    if (keys != nullptr) {
      for (; cursor.stop - i >= kLine; i += kLine) {
        prefetch(i);
        for (uint64_t j = i; j < i + kLine; ++j) take(keys[j], j);
      }
      for (; i < cursor.stop; ++i) take(keys[i], i);
    } else {
      for (; i < cursor.stop; ++i) take(cursor[i], i);
    }
    cursor.position = cursor.stop;
  }

  // Calls put(offset, value bits) for the tuples of a packed update. `ahead`: tuples to prefetch ahead.
  template <typename Put>
  void CollectWords(const CoarseWords& words, uint64_t ahead, Put put) {
    words.WithUnits([&]<size_t kUnits>(std::integral_constant<size_t, kUnits>) {
      constexpr uint64_t kLine = 64 / (kUnits * sizeof(uint32_t));  // or a little less
      const uint32_t* const units = words.units.data();
      uint64_t i = words.BeginOf(first_bucket_);
      for (uint64_t bucket = first_bucket_; bucket <= last_bucket_; ++bucket) {
        const uint64_t base = (bucket << words.low_bits) - static_cast<uint64_t>(first_);
        const uint64_t end = words.ends[bucket];
        const auto take = [&](const uint32_t* tuple) { put(base + CoarseWords::LowBits<kUnits>(tuple), tuple[0]); };
        for (; end - i >= kLine; i += kLine) {
          __builtin_prefetch(units + (i + ahead) * kUnits);
          for (uint64_t j = 0; j < kLine; ++j) take(units + (i + j) * kUnits);
        }
        for (; i < end; ++i) take(units + i * kUnits);
      }
    });
  }

  // Prefetches the first values of update k. `Bits`: an unsigned integer of a value's size.
  template <typename Bits>
  void PrefetchValues(size_t k) const {
    if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
      const uint64_t begin = words->BeginOf(first_bucket_);
      words->WithUnits([&](auto units) { __builtin_prefetch(words->units.data() + begin * units); });
    } else {
      const Cursor<Key>& cursor = sources_.cursors[k];
      __builtin_prefetch(cursor.values + cursor.position * sizeof(Bits));
    }
  }

  // Collects tuples whose payload is the value. Memory is prefetched by hand, since there are more cursors than the
  // hardware prefetcher can follow.
  template <typename Bits, typename Put>
  void CollectValues(Put put) {
    const uint64_t ahead = sources_.TuplesAhead();
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      if (k + sources_.kPrefetch < sources_.cursors.size()) PrefetchValues<Bits>(k + sources_.kPrefetch);
      if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
        CollectWords(*words, ahead, put);
        continue;
      }
      Cursor<Key>& cursor = sources_.cursors[k];
      const std::byte* values = cursor.values;
      const auto prefetch = [&](uint64_t i) {
        __builtin_prefetch(cursor.keys + i + ahead);
        __builtin_prefetch(values + (i + ahead) * sizeof(Bits));
      };
      ForTuples(cursor, prefetch, [&](Key key, uint64_t i) {
        Bits bits;
        std::memcpy(&bits, values + i * sizeof(Bits), sizeof(bits));
        put(static_cast<Key>(key - first_), bits);
      });
    }
  }

  // Collects tuples whose payload is an index, and fills the columns.
  template <typename Put>
  void CollectIndexes(Put put) {
    if (columns_ == 1) terms_.resize(tuples_ + kVectorSlack);
    if (needs_origins()) origins_.resize(tuples_);
    if (sums_weights_) weights_.resize(tuples_);
    uint32_t index = 0;
    if (base_ != nullptr) {
      Cursor<Key>& base = sources_.base;
      for (; base.position < base.stop; ++base.position, ++index) {
        origins_[index] = {sources_.BaseIndex(), base.position};
        if (sums_weights_) weights_[index] = base_->weights[base.position];
        put(static_cast<Key>(base.keys[base.position] - first_), index);
      }
    }
    const uint64_t ahead = sources_.TuplesAhead();
    for (size_t k = 0; k < sources_.cursors.size(); ++k) {
      const uint32_t first_index = index;
      if (const CoarseWords* const words = sources_.WordsOf(k); words != nullptr) {
        const uint64_t n = words->ends[last_bucket_] - words->BeginOf(first_bucket_);
        unpacked_values_.resize(n * sizeof(uint32_t));
        std::byte* value = unpacked_values_.data();
        CollectWords(*words, ahead, [&](uint64_t offset, uint32_t bits) {
          std::memcpy(value, &bits, sizeof(bits));
          value += sizeof(bits);
          put(offset, index++);
        });
        if (n > 0) sources_.LoadValues(k, unpacked_values_.data(), n, terms_.data() + first_index);
      } else {
        Cursor<Key>& cursor = sources_.cursors[k];
        const uint64_t begin = cursor.position;
        const uint64_t n = cursor.stop - begin;
        // LoadRows writes whole vectors: the next update's terms overwrite the surplus, or it lands in the slack.
        if (columns_ == 1 && n > 0) sources_.LoadRows(k, begin, n, 1, terms_.data() + index);
        if (needs_origins()) {
          for (uint64_t i = 0; i < n; ++i) origins_[index + i] = {static_cast<uint32_t>(k), begin + i};
        }
        const size_t value_bytes = columns_ == 1 ? SizeOf(cursor.dtype) : 0;  // rows of several values are read later
        const auto prefetch = [&](uint64_t i) {
          __builtin_prefetch(cursor.keys + i + ahead);
          __builtin_prefetch(cursor.values + (i + ahead) * value_bytes);
        };
        ForTuples(cursor, prefetch, [&](Key key, uint64_t) { put(static_cast<Key>(key - first_), index++); });
      }
      if (sums_weights_)
        std::fill_n(weights_.data() + first_index, index - first_index, sources_.sources[k].key_weight);
    }
  }

  Sources<Key, Fold>& sources_;
  const Rows* const base_;
  const size_t columns_;
  const bool sums_weights_;
  const bool payload_is_value_;
  // The block found last.
  Key first_ = 0;
  uint64_t tuples_ = 0;
  uint64_t first_bucket_ = 0;  // of packed updates
  uint64_t last_bucket_ = 0;
  // Columns of its tuples.
  Column<Term> terms_;
  Column<WeightSum> weights_;
  Column<RowOrigin> origins_;
  Column<std::byte> unpacked_values_;  // scratch: values of one packed update
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_TUPLE_COLLECTOR_H_
