// Order statistics of the values at one key and column.
#ifndef SPARSEAGG_CUDA_KERNELS_ORDER_H_
#define SPARSEAGG_CUDA_KERNELS_ORDER_H_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"

namespace sparseagg::cuda {

// Most sources of a batch; larger ones go to the CPU, since the ranking compares every value with all others.
inline constexpr uint32_t kMaxOrderSources = 4096;

enum class OrderOp : uint8_t { kMedian, kTrimmedMean, kQuantile };

// The parameters of the statistic, for float values of equal votes. Must match TrimOf and QuantileIndex in
// host/spec/spec.cc.
struct OrderRule {
  OrderOp op = OrderOp::kMedian;
  double trim_fraction = 0.0;
  double quantile = 0.5;
  bool absent_is_zero = false;  // submissions without the key vote for 0
  bool may_be_nan = false;
  uint64_t num_submissions = 0;

  SPARSEAGG_HD uint64_t Votes(uint32_t num_values) const { return absent_is_zero ? num_submissions : num_values; }
  // Values to drop at either end.
  SPARSEAGG_HD uint64_t TrimOf(uint64_t votes) const {
    return static_cast<uint64_t>(floor(MulRn(trim_fraction, static_cast<double>(votes))));
  }
  SPARSEAGG_HD uint64_t QuantileIndex(uint64_t votes) const {
    const double rank = ceil(MulRn(quantile, static_cast<double>(votes)));
    const uint64_t index = rank > 1.0 ? static_cast<uint64_t>(rank) : 1;
    return (index < votes ? index : votes) - 1;
  }
};

// The values of one complete batch: it holds every value of its keys, and no source repeats a key. Entries of a segment
// are in canonical order. −0 reads as +0.
struct OrderValues {
  Segments segments;
  uint32_t columns = 1;
  const void* d_values = nullptr;  // by position
  Number type = Number::kFloat32;

  SPARSEAGG_HD double At(uint32_t entry, uint32_t column) const {
    return AddRn(LoadFloat(d_values, type, uint64_t{segments.Position(entry)} * columns + column), 0.0);
  }
  SPARSEAGG_HD uint64_t IndexOf(uint32_t entry, uint32_t column) const { return uint64_t{entry} * columns + column; }
};

// Element-wise kernels: operator()(i) for all i in [0, size()), in any order.

// Writes the segment of every entry.
struct NumberSegments {
  Segments segments;
  uint32_t* d_segment_of = nullptr;

  uint64_t size() const { return segments.count; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const auto segment = static_cast<uint32_t>(i);
    const uint32_t end = segments.End(segment);
    for (uint32_t entry = segments.Begin(segment); entry < end; ++entry) d_segment_of[entry] = segment;
  }
};

// Ranks every value in its segment and column, by (value, canonical order). `by_rank` false: writes each entry's rank.
// True: writes, at each rank, its entry. A thread counts the values below its own: n² comparisons for n values, but
// without a barrier, and neighbouring threads read the same values. With NaN, ranks repeat, and `by_rank` leaves slots
// unwritten.
struct RankValues {
  OrderValues values;
  const uint32_t* d_segment_of = nullptr;
  bool by_rank = false;
  uint32_t* d_ranks = nullptr;  // num_entries · columns

  uint64_t size() const { return uint64_t{values.segments.num_entries} * values.columns; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, values.columns);
    const auto entry = static_cast<uint32_t>(cell.row);
    const uint32_t segment = d_segment_of[entry];
    const uint32_t begin = values.segments.Begin(segment);
    const uint32_t end = values.segments.End(segment);
    const double own = values.At(entry, cell.column);
    uint32_t rank = 0;
    for (uint32_t other = begin; other < end; ++other) {
      const double value = values.At(other, cell.column);
      rank += value < own || (value == own && other < entry) ? 1 : 0;
    }
    if (by_rank) {
      d_ranks[values.IndexOf(begin + rank, cell.column)] = entry;
    } else {
      d_ranks[values.IndexOf(entry, cell.column)] = rank;
    }
  }
};

// Writes the statistic of every segment and column, as a float64 to be rounded to the result's dtype.
struct PickStatistics {
  OrderValues values;
  OrderRule rule;
  const uint32_t* d_ranks = nullptr;  // of RankValues, by rank unless the op is a trimmed mean
  double* d_statistics = nullptr;     // count · columns

  uint64_t size() const { return uint64_t{values.segments.count} * values.columns; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, values.columns);
    Ballot ballot;
    ballot.begin = values.segments.Begin(static_cast<uint32_t>(cell.row));
    ballot.end = values.segments.End(static_cast<uint32_t>(cell.row));
    ballot.column = cell.column;
    ballot.votes = rule.Votes(ballot.end - ballot.begin);
    ballot.zeros = ballot.votes - (ballot.end - ballot.begin);
    d_statistics[i] = Statistic(ballot);
  }

 private:
  struct Ballot {
    uint32_t begin;
    uint32_t end;
    uint32_t column;
    uint64_t votes;
    uint64_t zeros;  // votes of submissions without the key
  };

  SPARSEAGG_HD double Statistic(const Ballot& ballot) const {
    if (rule.may_be_nan) {
      for (uint32_t entry = ballot.begin; entry < ballot.end; ++entry) {
        if (const double value = values.At(entry, ballot.column); IsNan(value)) return value;
      }
    }
    if (rule.op == OrderOp::kTrimmedMean) return TrimmedMean(ballot);
    if (rule.op == OrderOp::kQuantile) return VoteAt(ballot, rule.QuantileIndex(ballot.votes));
    const double high = VoteAt(ballot, ballot.votes / 2);
    if (ballot.votes % 2 == 1) return high;
    const double low = VoteAt(ballot, ballot.votes / 2 - 1);
    const double sum = AddRn(low, high);
    return IsFinite(sum) ? MulRn(0.5, sum) : AddRn(MulRn(0.5, low), MulRn(0.5, high));
  }

  // Negative values come before the zeros of absent submissions, the others after them.
  SPARSEAGG_HD double VoteAt(const Ballot& ballot, uint64_t rank) const {
    if (rank < ballot.end - ballot.begin) {
      const double value = ValueAt(ballot, rank);
      if (ballot.zeros == 0 || value < 0.0) return value;
    }
    if (rank < ballot.zeros) return 0.0;
    const double value = ValueAt(ballot, rank - ballot.zeros);
    return value < 0.0 ? 0.0 : value;  // negative: `rank` falls on an absent zero
  }

  SPARSEAGG_HD double ValueAt(const Ballot& ballot, uint64_t rank) const {
    const auto place = static_cast<uint32_t>(ballot.begin + rank);
    return values.At(d_ranks[values.IndexOf(place, ballot.column)], ballot.column);
  }

  // Zeros of absent submissions add nothing, so their places among other zeros do not matter.
  SPARSEAGG_HD double TrimmedMean(const Ballot& ballot) const {
    const uint64_t trim = rule.TrimOf(ballot.votes);
    double sum = 0.0;
    for (uint32_t entry = ballot.begin; entry < ballot.end; ++entry) {
      const double value = values.At(entry, ballot.column);
      const uint64_t rank = d_ranks[values.IndexOf(entry, ballot.column)] + (value < 0.0 ? 0 : ballot.zeros);
      if (rank >= trim && rank < ballot.votes - trim) sum = AddRn(sum, value);
    }
    return DivRn(sum, static_cast<double>(ballot.votes - 2 * trim));
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_ORDER_H_
