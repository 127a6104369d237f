// Folds: how the terms at one key are combined.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLD_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLD_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace sparseagg::cpu {

// Each fold below has these members:
//   Term       what one submission contributes to a key
//   Acc        the accumulator that is kept for a key
//   kStart     the accumulator before the first term
//   Add        adds a term to an accumulator
//   Combine    adds another accumulator
//   kAnyOrder  whether Combine is associative and exact, so that submissions may be merged as they arrive. The float64
//              sum is neither; it is folded in canonical order.

// Float64 sum. The contract starts from +0.0; this fold starts from −0.0. The sums are the same, because terms are
// never −0.0 (loading adds +0.0): −0.0 + t = +0.0 + t. So an accumulator that still holds −0.0 belongs to an untouched
// key. This marker replaces a bitmap of touched keys, which made merges 25 to 40 % slower.
struct SumFloat {
  using Term = double;
  using Acc = double;
  static constexpr bool kAnyOrder = false;
  static constexpr Acc kStart = -0.0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Fixed-point sum. value_bound and max_submissions keep it within int64.
struct SumFixed {
  using Term = int64_t;
  using Acc = int64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Integer sum, in 128 bits: only the total decides about overflow, whatever the order of the terms.
struct SumInteger {
  using Term = int64_t;
  using Acc = __int128;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Sum modulo 2^64; the result takes the low 32 or 64 bits.
struct SumModular {
  using Term = uint64_t;
  using Acc = uint64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Minimum and maximum of floats. NaN wins over every number.
struct MinFloat {
  using Term = double;
  using Acc = double;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = std::numeric_limits<double>::infinity();
  static void Add(Acc& acc, Term term) {
    if (term < acc || std::isnan(term)) acc = term;
  }
  static void Combine(Acc& acc, Acc other) { Add(acc, other); }
};

struct MaxFloat {
  using Term = double;
  using Acc = double;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = -std::numeric_limits<double>::infinity();
  static void Add(Acc& acc, Term term) {
    if (term > acc || std::isnan(term)) acc = term;
  }
  static void Combine(Acc& acc, Acc other) { Add(acc, other); }
};

struct MinInteger {
  using Term = int64_t;
  using Acc = int64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = std::numeric_limits<int64_t>::max();
  static void Add(Acc& acc, Term term) {
    if (term < acc) acc = term;
  }
  static void Combine(Acc& acc, Acc other) { Add(acc, other); }
};

struct MaxInteger {
  using Term = int64_t;
  using Acc = int64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = std::numeric_limits<int64_t>::min();
  static void Add(Acc& acc, Term term) {
    if (term > acc) acc = term;
  }
  static void Combine(Acc& acc, Acc other) { Add(acc, other); }
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_FOLD_H_
