// Kernels that turn folded rows into a result: division, rounding, dropping rows, layout.
#ifndef SPARSEAGG_CUDA_KERNELS_FINISH_H_
#define SPARSEAGG_CUDA_KERNELS_FINISH_H_

#include <cmath>
#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "host/base/binned.h"

namespace sparseagg::cuda {

enum class Divisor : uint8_t { kNone, kTotal, kKeyWeight };
// Folded rows, and the parameters of their division and rounding.
struct FoldedRows {
  bool rounded = false;  // accs.d_accs has the values of the result, in place of accumulators
  uint32_t num_rows = 0;
  uint32_t columns = 1;
  uint32_t key_bytes = 4;
  FoldKind fold = FoldKind::kSumFloat;
  DType type = DType::kFloat32;  // of the result
  Divisor divisor = Divisor::kNone;
  WeightKind weights = WeightKind::kCounts;
  double total_weight = 0.0;
  const void* d_keys = nullptr;
  Accs accs;
  const uint32_t* d_counts = nullptr;
  const void* d_weights = nullptr;  // as `weights` says

  SPARSEAGG_HD double KeyWeight(uint64_t row) const {
    switch (weights) {
      case WeightKind::kFloat:
        return static_cast<const double*>(d_weights)[row];
      case WeightKind::kBinned:
        return static_cast<const BinnedWeights*>(d_weights)[row].Sum().Value();
      default:
        return static_cast<double>(d_counts[row]);
    }
  }
  SPARSEAGG_HD double DivisorOf(uint64_t row) const {
    if (divisor == Divisor::kNone) return 1.0;
    return divisor == Divisor::kTotal ? total_weight : KeyWeight(row);
  }
  SPARSEAGG_HD static double Divide(double value, double by) { return by == 1.0 ? value : DivRn(value, by); }
  // Returns: whether the weights of the row's contributors add up to 0, so that it has no mean and leaves the result.
  SPARSEAGG_HD bool HasNoMean(uint64_t row) const { return divisor == Divisor::kKeyWeight && KeyWeight(row) == 0.0; }

  // Stores kCount neighbouring accumulators of a row, from number pack × kCount on: rounded, or as they are.
  template <typename Fold, uint32_t kCount>
  SPARSEAGG_HD void Store(uint64_t row, uint64_t pack, const Pack<typename Fold::Acc, kCount>& sums) const {
    if constexpr (IsOfFloats(Fold::kKind)) {
      if (rounded) {
        const double by = DivisorOf(row);
        uint64_t bits[kCount];
        ForColumns<kCount>([&](uint32_t c) { bits[c] = RoundTo(type, Divide(ValueOf(sums.values[c]), by)); });
        if constexpr (kCount == 4) {  // 16 bytes at once
          if (type == DType::kFloat32) {
            static_cast<Pack<uint64_t, 2>*>(accs.d_accs)[pack] = {bits[0] | bits[1] << 32, bits[2] | bits[3] << 32};
            return;
          }
        }
        ForColumns<kCount>([&](uint32_t c) { StoreBits(accs.d_accs, type, pack * kCount + c, bits[c]); });
        return;
      }
    }
    accs.Store<Fold, kCount>(pack, sums);
  }

  // Sets `bits` to a value of the result. Returns: false if it is beyond int64.
  SPARSEAGG_HD bool ValueAt(uint64_t row, uint32_t column, uint64_t& bits) const {
    const uint64_t i = row * columns + column;
    if (rounded) {
      bits = LoadBits(accs.d_accs, type, i);
      return true;
    }
    switch (fold) {
      case FoldKind::kSumModular:
        bits = static_cast<const uint64_t*>(accs.d_accs)[i];
        if (type == DType::kUInt32) bits &= 0xffffffffu;
        return true;
      case FoldKind::kSumInteger: {
        const __int128 sum = static_cast<const __int128*>(accs.d_accs)[i];
        if (sum < INT64_MIN || sum > INT64_MAX) return false;
        return RoundInteger(row, static_cast<int64_t>(sum), bits);
      }
      case FoldKind::kMinInteger:
      case FoldKind::kMaxInteger:
        return RoundInteger(row, static_cast<const int64_t*>(accs.d_accs)[i], bits);
      case FoldKind::kSumNarrowBinned:
        bits = RoundTo(type, Divide(ValueOf(accs.Load<SumNarrowBinned, 1>(i).values[0]), DivisorOf(row)));
        return true;
      case FoldKind::kSumWideBinned:
        bits = RoundTo(type, Divide(ValueOf(accs.Load<SumWideBinned, 1>(i).values[0]), DivisorOf(row)));
        return true;
      default:
        bits = RoundTo(type, Divide(static_cast<const double*>(accs.d_accs)[i], DivisorOf(row)));
        return true;
    }
  }

  SPARSEAGG_HD bool RoundInteger(uint64_t row, int64_t sum, uint64_t& bits) const {
    if (divisor == Divisor::kNone) {
      if (type == DType::kFloat32) {
        bits = BitsAs<uint32_t>(static_cast<float>(sum));  // by way of float64 there would be two roundings
      } else if (type == DType::kFloat64) {
        bits = BitsAs<uint64_t>(static_cast<double>(sum));
      } else {
        bits = static_cast<uint64_t>(sum);
      }
      return true;
    }
    const double mean = Divide(static_cast<double>(sum), DivisorOf(row));
    if (type == DType::kFloat32 || type == DType::kFloat64) {
      bits = RoundTo(type, mean);
      return true;
    }
    const double nearest = rint(mean);
    if (!(nearest >= -0x1p63 && nearest < 0x1p63)) return false;
    bits = static_cast<uint64_t>(static_cast<int64_t>(nearest));
    return true;
  }
};

// What a look at all rows finds: the smallest position of each kind, or kNowhere.
inline constexpr uint64_t kNowhere = ~uint64_t{0};
struct Findings {
  uint64_t no_mean = kNowhere;   // a row of HasNoMean
  uint64_t overflow = kNowhere;  // a value, which fails the round: row × columns + column
};

// Element-wise over rows: finds rows without a mean, and flags the rows to keep.
struct FlagKeptRows {
  FoldedRows rows;
  uint32_t min_contributors = 1;
  bool prunes_zeros = false;  // FlagNonzeroRows, which runs after this kernel, flags the rows
  uint8_t* d_keep = nullptr;  // null: all rows are kept
  Findings* d_findings = nullptr;

  uint64_t size() const { return rows.num_rows; }
  SPARSEAGG_HD bool HasContributors(uint64_t row) const {
    return min_contributors <= 1 || rows.d_counts[row] >= min_contributors;
  }
  SPARSEAGG_HD void operator()(uint64_t row) const {
    const bool has_no_mean = rows.HasNoMean(row);
    if (has_no_mean) AtomicMin(&d_findings->no_mean, row);
    if (d_keep != nullptr) d_keep[row] = !prunes_zeros && HasContributors(row) && !has_no_mean ? 1 : 0;
  }
};

// Element-wise over values: finds values beyond int64, and if zeros are pruned, flags the rows that have another value.
struct FlagNonzeroRows {
  FlagKeptRows flag;

  uint64_t size() const { return uint64_t{flag.rows.num_rows} * flag.rows.columns; }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, flag.rows.columns);
    if (flag.rows.HasNoMean(cell.row)) return;
    uint64_t bits = 0;
    if (!flag.rows.ValueAt(cell.row, cell.column, bits)) AtomicMin(&flag.d_findings->overflow, i);
    // Several threads may write the same 1.
    const bool keeps = flag.prunes_zeros && bits != 0 && flag.HasContributors(cell.row);
    if (keeps) StoreRelaxed(flag.d_keep + cell.row, uint8_t{1});
  }
};

// The rows to write, and their positions in the result.
struct Placement {
  const uint32_t* d_kept = nullptr;  // indices of `count` rows; null: all rows
  uint64_t count = 0;
  bool dense = false;  // true: the row of key k goes to row k; false: rows go one after another

  SPARSEAGG_HD uint64_t From(uint64_t i) const { return d_kept == nullptr ? i : d_kept[i]; }
};

// Element-wise over values, or over rows that have none: writes the result. What is not needed is null; values are not
// needed only where there are none.
struct WriteResult {
  FoldedRows rows;
  Placement placement;
  void* d_keys = nullptr;
  void* d_values = nullptr;
  uint32_t* d_counts = nullptr;
  double* d_weights = nullptr;

  SPARSEAGG_HD uint32_t PerRow() const { return rows.columns > 0 ? rows.columns : 1; }
  uint64_t size() const { return placement.count * PerRow(); }
  SPARSEAGG_HD void operator()(uint64_t i) const {
    const Cell cell = CellOf(i, PerRow());
    const uint64_t from = placement.From(cell.row);
    const bool is_first = cell.column == 0;
    const uint64_t key = placement.dense || is_first ? LoadKey(rows.d_keys, rows.key_bytes, from) : 0;
    const uint64_t to = placement.dense ? key : cell.row;
    if (rows.columns > 0) {
      uint64_t bits = 0;
      rows.ValueAt(from, cell.column, bits);
      StoreBits(d_values, rows.type, to * rows.columns + cell.column, bits);
    }
    if (!is_first) return;
    if (d_keys != nullptr) StoreKey(d_keys, rows.key_bytes, to, key);
    if (d_counts != nullptr) d_counts[to] = rows.d_counts[from];
    if (d_weights != nullptr) d_weights[to] = rows.KeyWeight(from);
  }
};

// Element-wise: fills a dense result, before rows are written to it.
struct FillValues {
  void* d_values = nullptr;
  uint64_t count = 0;
  DType type = DType::kFloat32;
  uint64_t bits = 0;

  uint64_t size() const { return count; }
  SPARSEAGG_HD void operator()(uint64_t i) const { StoreBits(d_values, type, i, bits); }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_FINISH_H_
