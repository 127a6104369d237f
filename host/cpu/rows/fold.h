// How terms at one key are combined.
#ifndef SPARSEAGG_HOST_CPU_ROWS_FOLD_H_
#define SPARSEAGG_HOST_CPU_ROWS_FOLD_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace sparseagg::cpu {

// A fold has a Term (what submissions contribute), an Acc (what is kept at a key), the Acc that a fold starts from,
// Add for a term and Combine for another Acc. Where Combine is associative and exact, submissions may be merged as
// they arrive (kAnyOrder); the float64 sum is folded in canonical order only.

// Starts from −0.0 where the contract starts from +0.0: terms are never −0.0 (loading adds +0.0), so that the first one
// gives the same sum from either, and a slot that still holds −0.0 is one that nobody touched. That marker replaces a
// bitmap.
struct SumFloat {
  using Term = double;
  using Acc = double;
  static constexpr bool kAnyOrder = false;
  static constexpr Acc kStart = -0.0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Fixed-point sums: the bound and the number of submissions keep them within int64.
struct SumFixed {
  using Term = int64_t;
  using Acc = int64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// Integer sums are kept in 128 bits, so that only the total decides about overflow, whatever the order.
struct SumInteger {
  using Term = int64_t;
  using Acc = __int128;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

struct SumModular {
  using Term = uint64_t;
  using Acc = uint64_t;
  static constexpr bool kAnyOrder = true;
  static constexpr Acc kStart = 0;
  static void Add(Acc& acc, Term term) { acc += term; }
  static void Combine(Acc& acc, Acc other) { acc += other; }
};

// NaN wins over every number.
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
