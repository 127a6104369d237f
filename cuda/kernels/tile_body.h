// The folds of the tile path, which merges without a sort; our own, for terms are added in canonical order. They serve
// values of one column whose keys ascend in every source.
#ifndef SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
#define SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/tile_plan.h"

namespace sparseagg::cuda {

// Block kernel: each block draws one part after another and folds it.
//
// The block takes the part's tuples in groups of runs, one of a source, of sources that follow each other in canonical
// order. A group is numbered through, run after run, and thread t takes tuples t, t + kThreads, …: so all threads have
// work, however long the runs are, and neighbours read neighbours.
//
// Parts of up to kMatrixSlots keys (matrix): each tuple sets the bit of its run in the mask of its key, with an atomic
// OR, whose order does not matter, and puts its term into the place of this run and key in shared memory. Then one
// thread a key adds the key's terms in the order of the bits, which is the canonical order; the next group continues
// from there. The accumulators stay in registers until the last group.
//
// Wider parts (sort): all tuples go to shared memory, into buckets by the leading bits of their keys. A tuple's place
// among all is the begin of its bucket plus the number of tuples in the bucket that have a lower key, or the same key
// and a lower number: about one comparison for a tuple, kMaxSorted at the most. Then the terms of each key lie side by
// side in canonical order, and one thread a key adds them.
//
// So the bits are those of a fold from left to right.
//
// A block learns how many rows all parts before it have by looking back (Merrill and Garland, "Single-pass Parallel
// Prefix Scan with Decoupled Look-back", 2016): each part first says how many rows it has itself, and later how many
// there are up to its end. Parts are drawn in order, and a block finishes its part before it draws another. So a block
// waits only for parts of blocks that run, and the earliest of them waits for nobody. A message is one word, which
// holds all that it says: it needs no order with other accesses.
//
// kPlain: for float32 values of the same weight 1. The bits are the same without v · 1, which is v, and without 0 + v,
// which differs from v for −0 only, and that adds nothing to an accumulator that starts at +0.
template <typename Fold, bool kPlain>
struct TileBody {
  using Acc = typename Fold::Acc;
  using Term = std::conditional_t<kPlain, float, typename Fold::Value>;
  static constexpr uint32_t kThreads = kMatrixSlots;           // of a matrix, each thread has a key
  static constexpr uint32_t kMinBlocks = kPlain ? 6 : 4;       // as many as need no spills
  static constexpr uint32_t kMatrixRuns = 256 / sizeof(Term);  // 32 KiB of terms
  static constexpr uint32_t kLoads = 8;                        // of a thread that are under way at a time
  static constexpr uint32_t kBatch = kThreads * kLoads;
  static constexpr uint32_t kWordBits = 32;
  static constexpr uint32_t kMaxGroup = 8192;  // tuples
  static constexpr uint32_t kWords = kMaxGroup / kWordBits;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kBuckets = 1024;  // of a part that is sorted
  static_assert(kMatrixRuns * kMatrixSlots <= kMaxGroup);

  struct Matrix {
    Term terms[kMatrixRuns][kMatrixSlots];
    uint32_t masks[kMatrixRuns / 32][kMatrixSlots];  // words of one key are not adjacent: threads then hit 32 banks
  };
  struct Sorted {  // base rows first, then tuples, numbered as their canonical order is
    Term terms[kMaxSorted];
    uint32_t slots[kMaxSorted];    // the key of each
    uint32_t buckets[kBuckets];    // the end of each bucket; before that its size, or its begin
    uint16_t members[kMaxSorted];  // of one bucket after another; later the first place of each row
    uint16_t places[kMaxSorted];   // who is at each place
  };
  struct Shared {
    union {
      Matrix matrix;
      Sorted sorted;
    };
    // The group.
    uint32_t run_starts[kThreads];                // plus a tuple's number in the group: its index among all tuples
    uint32_t run_sources[kPlain ? 1 : kThreads];  // not for plain values: six blocks fit a multiprocessor just so
    struct alignas(8) Heads {
      uint32_t bits;       // of kWordBits tuples those that begin a run
      uint32_t first_run;  // of the first of these tuples
    } heads[kWords];
    uint32_t num_tuples;
    uint32_t next_source;  // where the next group begins

    uint32_t drawn;  // number of this part among all parts
    TilePart part;
    uint32_t nearest[2];  // thread whose message is the nearest that says kUpToEnd
    uint32_t num_rows;
    uint32_t num_rows_before;
  };
  struct Private {
    uint32_t begin;  // the tuples of a run
    uint32_t length;
    uint64_t message;
    // Of a matrix: the accumulator, the contributors and the row of the thread's key.
    Acc acc;
    uint32_t count;
    uint32_t row;
  };

  // Messages of parts: the kind and a number of rows. 0: no message yet.
  static constexpr uint64_t kOfPart = uint64_t{1} << 62;
  static constexpr uint64_t kUpToEnd = uint64_t{2} << 62;

  FoldTiles args;

  uint64_t num_blocks() const {
    constexpr uint32_t kMaxBlocks = 1024;  // about as many as are resident on a large GPU
    return args.max_parts < kMaxBlocks ? args.max_parts : kMaxBlocks;
  }

  SPARSEAGG_HD bool has_values() const { return kPlain || args.has_values; }
  SPARSEAGG_HD bool has_base() const { return args.keys.num_base > 0; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    while (true) {
      block.Phase([&](uint32_t thread) {
        if (thread != 0) return;
        shared.drawn = AtomicAdd(&args.d_counters->num_drawn, 1);
        if (shared.drawn < args.d_counters->num_parts) shared.part = args.d_parts[shared.drawn];
        shared.nearest[0] = kThreads;
        shared.num_rows_before = 0;
      });
      if (shared.drawn >= args.d_counters->num_parts) return;
      if (shared.part.num_slots <= kMatrixSlots) {
        FoldMatrix(block, shared);
      } else {
        FoldSorted(block, shared);
      }
    }
  }

  // ---- matrix

  template <typename Block>
  SPARSEAGG_HD void FoldMatrix(Block& block, Shared& shared) const {
    Matrix& matrix = shared.matrix;
    block.Each([&](uint32_t thread) {
      Private& own = block.own(thread);
      own.acc = Fold::Start();
      own.count = 0;
      for (auto& masks : matrix.masks) masks[thread] = 0;
      if (!has_base()) return;
      const uint32_t* d_bound = BaseBound(shared);
      const uint32_t end = d_bound[args.keys.num_lists()];
      const uint32_t key = shared.part.first_key + thread;
      const uint32_t row = args.keys.LowerBound(args.keys.num_sources, d_bound[0], end, key);
      if (row == end || args.keys.d_base_keys[row] != key) return;
      own.acc = StartAt(row);
      own.count = BaseCount(row);
    });
    ForGroups(block, kMatrixRuns, shared, [&] {
      block.Phase([&](uint32_t thread) {
        for (uint32_t first = 0; first < shared.num_tuples; first += kBatch) {
          ForTuples(thread, first, shared, [&](uint32_t, uint32_t run, uint32_t slot, uint64_t bits) {
            AtomicOr(&matrix.masks[run / 32][slot], uint32_t{1} << run % 32);
            if (has_values()) matrix.terms[run][slot] = TermOf(run, bits, shared);
          });
        }
      });
      block.Each([&](uint32_t thread) {
        Private& own = block.own(thread);
        SPARSEAGG_UNROLL
        for (uint32_t first = 0; first < kMatrixRuns; first += 32) {
          uint32_t mask = matrix.masks[first / 32][thread];
          matrix.masks[first / 32][thread] = 0;
          own.count += CountBits(mask);
          if (!has_values()) continue;
          for (; mask != 0; mask &= mask - 1) {
            own.acc = Fold::Combine(own.acc, matrix.terms[first + LowestBit(mask)][thread]);
          }
        }
      });
    });
    block.ExclusiveSum([&](uint32_t thread) -> uint32_t { return block.own(thread).count != 0 ? 1 : 0; },
                       [&](uint32_t thread, uint32_t before, uint32_t total) {
                         block.own(thread).row = before;
                         if (thread == 0) AnnounceRows(total, shared);
                       });
    LookBack(block, shared);
    block.Phase([&](uint32_t thread) {
      const Private& own = block.own(thread);
      if (own.count == 0) return;
      const uint32_t row = shared.num_rows_before + own.row;
      args.d_row_keys[row] = shared.part.first_key + thread;
      StoreRow(row, own.acc, own.count);
    });
  }

  // ---- sort

  template <typename Block>
  SPARSEAGG_HD void FoldSorted(Block& block, Shared& shared) const {
    Sorted& sorted = shared.sorted;
    uint32_t shift = 0;
    for (uint32_t last = shared.part.num_slots - 1; last >> shift >= kBuckets;) ++shift;
    uint32_t first_base = 0;
    uint32_t num_base = 0;
    if (has_base()) {
      first_base = BaseBound(shared)[0];
      num_base = BaseBound(shared)[args.keys.num_lists()] - first_base;
    }
    bool fits = num_base <= kMaxSorted;
    const auto put = [&](uint32_t i, uint32_t slot) {
      sorted.slots[i] = slot;
      AtomicAdd(&sorted.buckets[slot >> shift], 1);
    };
    block.Phase([&](uint32_t thread) {
      for (uint32_t bucket = thread; bucket < kBuckets; bucket += kThreads) sorted.buckets[bucket] = 0;
      for (uint32_t i = thread; i < kMaxSorted; i += kThreads) sorted.slots[i] = kNowhere;
    });
    if (fits) {
      block.Each([&](uint32_t thread) {
        for (uint32_t i = thread; i < num_base; i += kThreads) {
          const uint32_t slot = args.keys.d_base_keys[first_base + i] - shared.part.first_key;
          if (slot < shared.part.num_slots) put(i, slot);
        }
      });
    }
    uint32_t num_put = num_base;
    ForGroups(block, kThreads, shared, [&] {
      fits = fits && num_put + shared.num_tuples <= kMaxSorted;
      if (!fits) return;
      block.Phase([&](uint32_t thread) {
        for (uint32_t first = 0; first < shared.num_tuples; first += kBatch) {
          ForTuples(thread, first, shared, [&](uint32_t i, uint32_t run, uint32_t slot, uint64_t bits) {
            put(num_put + i, slot);
            if (has_values()) sorted.terms[num_put + i] = TermOf(run, bits, shared);
          });
        }
      });
      num_put += shared.num_tuples;
    });
    if (!fits) {
      block.Phase([&](uint32_t thread) {
        if (thread == 0) AnnounceRows(0, shared);
      });
      LookBack(block, shared);
      block.Phase([&](uint32_t thread) {
        if (thread == 0) StoreRelaxed(&args.d_counters->is_skewed, uint32_t{1});
      });
      return;
    }
    constexpr uint32_t kOwnBuckets = kBuckets / kThreads;
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t size = 0;
          for (uint32_t i = 0; i < kOwnBuckets; ++i) size += sorted.buckets[thread * kOwnBuckets + i];
          return size;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          for (uint32_t i = 0; i < kOwnBuckets; ++i) {
            uint32_t& bucket = sorted.buckets[thread * kOwnBuckets + i];
            const uint32_t size = bucket;
            bucket = before;
            before += size;
          }
          if (thread == 0) shared.num_tuples = total;
        });
    block.Phase([&](uint32_t thread) {
      for (uint32_t i = thread; i < num_put; i += kThreads) {
        const uint32_t slot = sorted.slots[i];
        if (slot == kNowhere) continue;  // malformed
        sorted.members[AtomicAdd(&sorted.buckets[slot >> shift], 1)] = static_cast<uint16_t>(i);
      }
    });
    const uint32_t num_places = shared.num_tuples;
    block.Phase([&](uint32_t thread) {
      for (uint32_t m = thread; m < num_places; m += kThreads) {
        const uint16_t i = sorted.members[m];
        const uint32_t slot = sorted.slots[i];
        const uint32_t bucket = slot >> shift;
        const uint32_t begin = bucket == 0 ? 0 : sorted.buckets[bucket - 1];
        uint32_t place = begin;
        for (uint32_t other = begin; other < sorted.buckets[bucket]; ++other) {
          const uint16_t k = sorted.members[other];
          if (sorted.slots[k] < slot || (sorted.slots[k] == slot && k < i)) ++place;
        }
        sorted.places[place] = i;
      }
    });
    const auto slot_at = [&](uint32_t place) { return sorted.slots[sorted.places[place]]; };
    const auto for_first_places = [&](uint32_t thread, const auto& body) {
      const uint32_t share = (num_places + kThreads - 1) / kThreads;
      const uint32_t end = (thread + 1) * share < num_places ? (thread + 1) * share : num_places;
      for (uint32_t place = thread * share; place < end; ++place) {
        if (place == 0 || slot_at(place) != slot_at(place - 1)) body(place);
      }
    };
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t num_rows = 0;
          for_first_places(thread, [&](uint32_t) { ++num_rows; });
          return num_rows;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          for_first_places(thread, [&](uint32_t place) { sorted.members[before++] = static_cast<uint16_t>(place); });
          if (thread == 0) AnnounceRows(total, shared);
        });
    LookBack(block, shared);
    block.Phase([&](uint32_t thread) {
      for (uint32_t row = thread; row < shared.num_rows; row += kThreads) {
        uint32_t place = sorted.members[row];
        const uint32_t end = row + 1 < shared.num_rows ? sorted.members[row + 1] : num_places;
        const uint32_t result = shared.num_rows_before + row;
        args.d_row_keys[result] = shared.part.first_key + slot_at(place);
        Acc acc = Fold::Start();
        uint32_t count = 0;
        if (sorted.places[place] < num_base) {
          const uint32_t base_row = first_base + sorted.places[place++];
          acc = StartAt(base_row);
          count = BaseCount(base_row);
        }
        count += end - place;
        for (; has_values() && place < end; ++place) acc = Fold::Combine(acc, sorted.terms[sorted.places[place]]);
        StoreRow(result, acc, count);
      }
    });
  }

  // ---- groups of tuples

  // Calls body() for the groups of the part, one after another, of at most so many runs.
  template <typename Block, typename Body>
  SPARSEAGG_HD void ForGroups(Block& block, uint32_t max_runs, Shared& shared, Body&& body) const {
    for (uint32_t source = 0; source < args.keys.num_sources; source = shared.next_source) {
      FormGroup(block, source, max_runs, shared);
      if (shared.num_tuples > 0) body();
    }
  }

  // Forms the group that begins with source `first`. Thread t brings source first + t. A group of more than kMaxGroup
  // tuples, which only a part to be sorted can have, is not formed whole: its number of tuples says so.
  template <typename Block>
  SPARSEAGG_HD void FormGroup(Block& block, uint32_t first, uint32_t max_runs, Shared& shared) const {
    constexpr uint32_t kOneRun = 1 << 24;  // a sum counts the tuples below, and the runs from here on
    static_assert(kThreads * (kMaxSorted + 1) < kOneRun && kThreads < UINT32_MAX / kOneRun);
    block.ExclusiveSum(
        [&](uint32_t thread) -> uint32_t {
          for (uint32_t word = thread; word < kWords; word += kThreads) shared.heads[word].bits = 0;
          Private& own = block.own(thread);
          own.length = 0;
          if (first + thread >= args.keys.num_sources) return 0;
          const uint32_t num_lists = args.keys.num_lists();
          const uint32_t* d_bound = args.d_bounds + (uint64_t{shared.drawn} * num_lists + first + thread);
          own.begin = d_bound[0];
          own.length = d_bound[num_lists] - own.begin;
          if (own.length > shared.part.num_slots) {  // not ascending: a key repeats, or is outside of the part
            own.length = 0;
            AtomicOr(&args.d_counters->is_malformed, 1);
          }
          if (own.length > kMaxSorted) own.length = kMaxSorted + 1;  // too many, whatever follows
          return own.length == 0 ? 0 : kOneRun + own.length;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          const uint32_t length = block.own(thread).length;
          const uint32_t run = before / kOneRun;
          const uint32_t place = before % kOneRun;
          if (length > 0 && run < max_runs && place + length <= kMaxGroup) {
            shared.run_starts[run] = block.own(thread).begin - place;
            if (!kPlain) shared.run_sources[run] = first + thread;
            AtomicOr(&shared.heads[place / kWordBits].bits, uint32_t{1} << place % kWordBits);
            for (uint32_t word = (place + kWordBits - 1) / kWordBits; word * kWordBits < place + length; ++word) {
              shared.heads[word].first_run = run;
            }
          }
          // One thread writes the end: that of the first run which is not taken, or else thread 0.
          const bool all_fit = total / kOneRun <= max_runs;
          if (all_fit ? thread == 0 : length > 0 && run == max_runs) {
            shared.num_tuples = all_fit ? total % kOneRun : place;
            shared.next_source = first + (all_fit ? kThreads : thread);
          }
        });
  }

  // Calls body(i, run, slot, bits of the value) for the thread's tuples i of the group in [first, first + kBatch). The
  // loops have constant bounds, so that they are unrolled, and the first one uses nothing that it loads: so all
  // loads are under way at a time.
  template <typename Body>
  SPARSEAGG_HD void ForTuples(uint32_t thread, uint32_t first, const Shared& shared, Body&& body) const {
    const uint32_t num_tuples = shared.num_tuples;
    const TilePart part = shared.part;
    // Of a word's tuples the thread's one and those before it, but for the first, whose run is known. `first` and
    // kThreads are multiples of kWordBits.
    const uint32_t up_to_this = (uint32_t{2} << thread % kWordBits) - 2;
    uint32_t runs[kLoads] = {};
    uint32_t keys[kLoads] = {};
    uint64_t bits[kLoads] = {};
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kLoads; ++j) {
      const uint32_t i = first + j * kThreads + thread;
      if (i >= num_tuples) continue;
      const auto heads = shared.heads[i / kWordBits];
      runs[j] = heads.first_run + CountBits(heads.bits & up_to_this);
      const uint32_t tuple = shared.run_starts[runs[j]] + i;
      keys[j] = args.keys.d_keys[tuple];
      if (has_values()) bits[j] = LoadBits(args.d_values, kPlain ? DType::kFloat32 : args.type, tuple);
    }
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kLoads; ++j) {
      const uint32_t i = first + j * kThreads + thread;
      if (i >= num_tuples) continue;
      const uint32_t slot = keys[j] - part.first_key;
      if (slot < part.num_slots) {
        body(i, runs[j], slot, bits[j]);
      } else {
        AtomicOr(&args.d_counters->is_malformed, 1);
      }
    }
  }

  SPARSEAGG_HD Term TermOf(uint32_t run, uint64_t bits, const Shared& shared) const {
    if constexpr (kPlain) {
      return BitsAs<float>(static_cast<uint32_t>(bits));
    } else {
      const auto value = Fold::Plus(Fold::Zero(), Fold::Of(args.type, bits));
      return Fold::Term(value, args.uniform ? Source() : args.d_sources[shared.run_sources[run]]);
    }
  }

  // ---- base rows

  SPARSEAGG_HD const uint32_t* BaseBound(const Shared& shared) const {
    return args.d_bounds + (uint64_t{shared.drawn} * args.keys.num_lists() + args.keys.num_sources);
  }
  SPARSEAGG_HD Acc StartAt(uint32_t row) const {
    return has_values() ? Fold::Combine(Fold::Start(), args.base.Load<Fold, 1>(row).values[0]) : Fold::Start();
  }
  SPARSEAGG_HD uint32_t BaseCount(uint32_t row) const {
    return args.d_base_counts == nullptr ? 1 : args.d_base_counts[row];
  }

  // ---- rows

  SPARSEAGG_HD void StoreRow(uint32_t row, const Acc& acc, uint32_t count) const {
    if (has_values()) args.accs.Store<Fold, 1>(row, {acc});
    if (args.d_counts != nullptr) args.d_counts[row] = count;
  }

  SPARSEAGG_HD void AnnounceRows(uint32_t num_rows, Shared& shared) const {
    shared.num_rows = num_rows;
    StoreRelaxed(args.d_messages + shared.drawn, kOfPart | num_rows);
  }

  // Sets shared.num_rows_before. All threads look at one message each, window by window, until one of the messages says
  // how many rows there are up to its part's end.
  template <typename Block>
  SPARSEAGG_HD void LookBack(Block& block, Shared& shared) const {
    uint32_t half = 0;
    for (uint32_t end = shared.drawn; end > 0; end = end > kThreads ? end - kThreads : 0, half = 1 - half) {
      block.Phase([&](uint32_t thread) {
        uint64_t& message = block.own(thread).message;
        message = thread < end ? block.WaitFor(args.d_messages + (end - 1 - thread)) : kOfPart;
        if (message >= kUpToEnd) AtomicMin(&shared.nearest[half], thread);
      });
      block.ExclusiveSum(
          [&](uint32_t thread) {
            return thread <= shared.nearest[half] ? static_cast<uint32_t>(block.own(thread).message) : 0;
          },
          [&](uint32_t thread, uint32_t, uint32_t total) {
            if (thread != 0) return;
            shared.num_rows_before += total;
            shared.nearest[1 - half] = kThreads;
          });
      if (shared.nearest[half] < kThreads) break;
    }
    block.Each([&](uint32_t thread) {
      if (thread != 0) return;
      const uint32_t up_to_end = shared.num_rows_before + shared.num_rows;
      StoreRelaxed(args.d_messages + shared.drawn, kUpToEnd | up_to_end);
      if (shared.drawn + 1 == args.d_counters->num_parts) args.d_counters->num_rows = up_to_end;
    });
  }
};

// Calls run(kernel) with the TileBody that serves `args`. Returns: what `run` returns.
template <typename Fold, typename Run>
auto RunTiles(const FoldTiles& args, Run&& run) {
  if constexpr (Fold::kKind == FoldKind::kSumFloat) {
    if (args.has_values && args.uniform && args.type == DType::kFloat32) return run(TileBody<Fold, true>{args});
  }
  return run(TileBody<Fold, false>{args});
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
