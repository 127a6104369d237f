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
// The block takes the part's tuples in groups: runs of sources that follow each other in canonical order, at most one
// run of a source. The group is numbered through, run after run, and thread t takes tuples t, t + kThreads, …: so all
// threads have work, however long the runs are, and neighbours read neighbours. Each tuple sets the bit of its run in
// the mask of its key, with an atomic OR, whose order does not matter. Then one thread a key adds the key's terms in
// the order of the bits, which is the canonical order; the next group continues from there. So the bits are those of a
// fold from left to right.
//
// Dense parts (matrix): every pair of run and key has a place of its own for its term in shared memory. The
// accumulators stay in the registers of their threads until the last group.
//
// Sparse parts (compact): a bitmap of the part's keys gives each key that occurs a row. Masks are by row, and a scan of
// their sizes gives the terms of each row a range, in which a term's place is the number of earlier bits of the mask.
// The number of rows is known before anything is folded. So the place of the rows in the result is known too, and the
// accumulators stay there between groups.
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
  static constexpr uint32_t kThreads = kMatrixSlots;      // of a dense part, each thread has a key
  static constexpr uint32_t kMinBlocks = kPlain ? 6 : 4;  // as many as need no spills
  static constexpr uint32_t kMaskRuns = 64;
  static constexpr uint32_t kMatrixRuns = 256 / sizeof(Term);  // 32 KiB of terms
  static constexpr uint32_t kMaxRows = 2048;                   // of a sparse part that are folded at a time
  static constexpr uint32_t kLoads = 8;                        // of a thread that are under way at a time
  static constexpr uint32_t kBatch = kThreads * kLoads;
  static constexpr uint32_t kWordBits = 32;
  static constexpr uint32_t kWords = kTileSlots / kWordBits;  // of a bitmap
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static_assert(kMatrixRuns <= kMaskRuns && kMatrixRuns * kMatrixSlots <= kTileSlots);

  struct Matrix {
    Term terms[kMatrixRuns][kMatrixSlots];
    uint32_t masks[kMaskRuns / 32][kMatrixSlots];  // words of one key are not adjacent: threads then hit 32 banks
  };
  struct Compact {
    Term terms[kBatch];
    uint32_t masks[kMaskRuns / 32][kMaxRows];
    uint16_t offsets[kMaxRows];  // of a row's terms
    struct alignas(8) Word {
      uint32_t present;  // bits: the keys that occur
      uint32_t rows;     // the number of those in all words before
    } words[kWords];
  };
  struct Shared {
    union {
      Matrix matrix;
      Compact compact;
    };
    // The group.
    uint32_t run_starts[kThreads];  // plus a tuple's number in the group: its index among all tuples
    uint32_t run_sources[kThreads];
    struct alignas(8) Heads {
      uint32_t bits;       // of kWordBits tuples those that begin a run
      uint32_t first_run;  // of the first of these tuples
    } heads[kWords];
    uint32_t num_tuples;
    // Where the next group begins: the source, and the number of its tuples that were taken.
    uint32_t next_source;
    uint32_t num_taken;

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
    // Of a dense part: the accumulator, the contributors and the row of the thread's key.
    Acc acc;
    uint32_t count;
    uint32_t row;
    // Of a sparse part: the terms that the thread has loaded, and for each its row × kMaskRuns + its run, or kNowhere.
    uint32_t places[kLoads];
    Term terms[kLoads];
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
      if (shared.part.is_dense != 0) {
        FoldMatrix(block, shared);
      } else {
        FoldCompact(block, shared);
      }
    }
  }

  // ---- dense parts

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
    ForGroups(block, kMatrixRuns, kTileSlots, shared, [&] {
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

  // ---- sparse parts

  template <typename Block>
  SPARSEAGG_HD void FoldCompact(Block& block, Shared& shared) const {
    auto& words = shared.compact.words;
    const auto mark = [&](uint32_t slot) {
      AtomicOr(&words[slot / kWordBits].present, uint32_t{1} << slot % kWordBits);
    };
    block.Each([&](uint32_t thread) {
      for (uint32_t word = thread; word < kWords; word += kThreads) words[word].present = 0;
      for (auto& masks : shared.compact.masks) {
        for (uint32_t row = thread; row < kMaxRows; row += kThreads) masks[row] = 0;
      }
    });
    ForGroups(block, kThreads, kTileSlots, shared, [&] {
      block.Phase([&](uint32_t thread) {
        for (uint32_t first = 0; first < shared.num_tuples; first += kBatch) {
          ForTuples<false>(thread, first, shared, [&](uint32_t, uint32_t, uint32_t slot, uint64_t) { mark(slot); });
        }
      });
    });
    if (has_base()) {
      block.Phase([&](uint32_t thread) { ForBaseKeys(shared, thread, [&](uint32_t slot, uint32_t) { mark(slot); }); });
    }
    constexpr uint32_t kOwnWords = kWords / kThreads;
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t num_rows = 0;
          for (uint32_t i = 0; i < kOwnWords; ++i) num_rows += CountBits(words[thread * kOwnWords + i].present);
          return num_rows;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          for (uint32_t i = 0; i < kOwnWords; ++i) {
            words[thread * kOwnWords + i].rows = before;
            before += CountBits(words[thread * kOwnWords + i].present);
          }
          if (thread == 0) AnnounceRows(total, shared);
        });
    LookBack(block, shared);
    block.Phase([&](uint32_t thread) {
      for (uint32_t word = thread; word < kWords; word += kThreads) {
        uint32_t row = shared.num_rows_before + words[word].rows;
        for (uint32_t bits = words[word].present; bits != 0; bits &= bits - 1, ++row) {
          args.d_row_keys[row] = shared.part.first_key + word * kWordBits + LowestBit(bits);
          if (has_base()) StoreRow(row, Fold::Start(), 0);
        }
      }
    });
    if (shared.num_rows == 0) return;
    if (has_base()) {
      block.Each([&](uint32_t thread) {
        ForBaseKeys(shared, thread, [&](uint32_t slot, uint32_t row) {
          StoreRow(shared.num_rows_before + RowOf(slot, shared), StartAt(row), BaseCount(row));
        });
      });
    }
    for (uint32_t first = 0; first < shared.num_rows; first += kMaxRows) FoldRows(block, first, shared);
  }

  // Folds the part's rows [first_row, first_row + kMaxRows).
  template <typename Block>
  SPARSEAGG_HD void FoldRows(Block& block, uint32_t first_row, Shared& shared) const {
    Compact& compact = shared.compact;
    const uint32_t left = shared.num_rows - first_row;
    const uint32_t num_rows = left < kMaxRows ? left : kMaxRows;
    const uint32_t first_result = shared.num_rows_before + first_row;
    const auto size_of = [&](uint32_t row) {
      return CountBits(compact.masks[0][row]) + CountBits(compact.masks[1][row]);
    };
    bool is_first = !has_base();  // the rows are not written yet
    ForGroups(block, kMaskRuns, kBatch, shared, [&] {
      block.Phase([&](uint32_t thread) {
        Private& own = block.own(thread);
        SPARSEAGG_UNROLL
        for (uint32_t i = 0; i < kLoads; ++i) own.places[i] = kNowhere;
        ForTuples(thread, 0, shared, [&](uint32_t i, uint32_t run, uint32_t slot, uint64_t bits) {
          const uint32_t row = RowOf(slot, shared) - first_row;
          if (row >= num_rows) return;
          AtomicOr(&compact.masks[run / 32][row], uint32_t{1} << run % 32);
          own.places[i] = row * kMaskRuns + run;
          if (has_values()) own.terms[i] = TermOf(run, bits, shared);
        });
      });
      if (has_values()) {
        // The ranges of rows may be in any order, so each thread takes some rows that lie in different banks.
        block.ExclusiveSum(
            [&](uint32_t thread) {
              uint32_t size = 0;
              for (uint32_t row = thread; row < num_rows; row += kThreads) size += size_of(row);
              return size;
            },
            [&](uint32_t thread, uint32_t before, uint32_t) {
              for (uint32_t row = thread; row < num_rows; row += kThreads) {
                compact.offsets[row] = static_cast<uint16_t>(before);
                before += size_of(row);
              }
            });
        block.Phase([&](uint32_t thread) {
          const Private& own = block.own(thread);
          SPARSEAGG_UNROLL
          for (uint32_t i = 0; i < kLoads; ++i) {
            if (own.places[i] == kNowhere) continue;
            const uint32_t row = own.places[i] / kMaskRuns;
            const uint32_t run = own.places[i] % kMaskRuns;
            const uint32_t earlier = (uint32_t{1} << run % 32) - 1;
            uint32_t place = compact.offsets[row] + CountBits(compact.masks[run / 32][row] & earlier);
            if (run >= 32) place += CountBits(compact.masks[0][row]);
            compact.terms[place] = own.terms[i];
          }
        });
      }
      block.Each([&](uint32_t thread) {
        for (uint32_t row = thread; row < num_rows; row += kThreads) {
          const uint32_t size = size_of(row);
          for (auto& masks : compact.masks) masks[row] = 0;
          if (size == 0 && !is_first) continue;
          const uint32_t result = first_result + row;
          Acc acc = Fold::Start();
          if (has_values()) {
            if (!is_first) acc = args.accs.Load<Fold, 1>(result).values[0];
            const Term* term = compact.terms + compact.offsets[row];
            for (const Term* end = term + size; term != end; ++term) acc = Fold::Combine(acc, *term);
          }
          StoreRow(result, acc, is_first || args.d_counts == nullptr ? size : args.d_counts[result] + size);
        }
      });
      is_first = false;
    });
  }

  // ---- groups of tuples

  // Calls body() for the groups of the part, one after another: of at most so many runs and tuples. A run is cut where
  // the tuples are too many; so every group has at least one, or passes kThreads sources.
  template <typename Block, typename Body>
  SPARSEAGG_HD void ForGroups(Block& block, uint32_t max_runs, uint32_t max_tuples, Shared& shared, Body&& body) const {
    uint32_t source = 0;
    uint32_t num_taken = 0;
    while (source < args.keys.num_sources) {
      FormGroup(block, source, num_taken, max_runs, max_tuples, shared);
      source = shared.next_source;
      num_taken = shared.num_taken;
      if (shared.num_tuples > 0) body();
    }
  }

  // Forms the group that begins with tuple `num_taken` of source `first`. Thread t brings source first + t.
  template <typename Block>
  SPARSEAGG_HD void FormGroup(Block& block, uint32_t first, uint32_t num_taken, uint32_t max_runs, uint32_t max_tuples,
                              Shared& shared) const {
    constexpr uint32_t kOneRun = 1 << 24;  // a sum counts the tuples below, and the runs from here on
    static_assert(kThreads * kTileSlots < kOneRun && kThreads < UINT32_MAX / kOneRun);
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
          if (thread == 0) {
            own.begin += num_taken;
            own.length -= num_taken;
          }
          return own.length == 0 ? 0 : kOneRun + own.length;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          const Private& own = block.own(thread);
          const uint32_t run = before / kOneRun;
          const uint32_t place = before % kOneRun;
          const uint32_t room = run < max_runs && place < max_tuples ? max_tuples - place : 0;
          const uint32_t length = own.length < room ? own.length : room;
          if (length > 0) {
            shared.run_starts[run] = own.begin - place;
            shared.run_sources[run] = first + thread;
            AtomicOr(&shared.heads[place / kWordBits].bits, uint32_t{1} << place % kWordBits);
            for (uint32_t word = (place + kWordBits - 1) / kWordBits; word * kWordBits < place + length; ++word) {
              shared.heads[word].first_run = run;
            }
          }
          // One thread writes the end: that of the first run which is not taken whole, or else thread 0.
          const bool all_fit = total / kOneRun <= max_runs && total % kOneRun <= max_tuples;
          if (all_fit ? thread == 0 : length < own.length && run <= max_runs && place <= max_tuples) {
            shared.num_tuples = all_fit ? total % kOneRun : place + length;
            shared.next_source = first + (all_fit ? kThreads : thread);
            shared.num_taken = all_fit ? 0 : length + (thread == 0 ? num_taken : 0);
          }
        });
  }

  // Calls body(j, run, slot, bits of the value) for the tuples first + thread + j × kThreads of the group, j < kLoads.
  // The loops have constant bounds, so that they are unrolled, and the first one uses nothing that it loads: so all
  // loads are under way at a time.
  template <bool kLoadsValues = true, typename Body>
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
      if (kLoadsValues && has_values()) bits[j] = LoadBits(args.d_values, kPlain ? Number::kFloat32 : args.type, tuple);
    }
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kLoads; ++j) {
      if (first + j * kThreads + thread >= num_tuples) continue;
      const uint32_t slot = keys[j] - part.first_key;
      if (slot < part.num_slots) {
        body(j, runs[j], slot, bits[j]);
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

  // Calls body(slot, base row) for the thread's base rows of the part.
  template <typename Body>
  SPARSEAGG_HD void ForBaseKeys(const Shared& shared, uint32_t thread, Body&& body) const {
    const uint32_t* d_bound = BaseBound(shared);
    const uint32_t end = d_bound[args.keys.num_lists()];
    for (uint32_t row = d_bound[0] + thread; row < end; row += kThreads) {
      const uint32_t slot = args.keys.d_base_keys[row] - shared.part.first_key;
      if (slot < shared.part.num_slots) body(slot, row);
    }
  }

  // ---- rows

  // Returns: the row of a key that occurs, among those of a sparse part.
  SPARSEAGG_HD static uint32_t RowOf(uint32_t slot, const Shared& shared) {
    const auto word = shared.compact.words[slot / kWordBits];
    return word.rows + CountBits(word.present & ((uint32_t{1} << slot % kWordBits) - 1));
  }

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
    if (args.has_values && args.uniform && args.type == Number::kFloat32) return run(TileBody<Fold, true>{args});
  }
  return run(TileBody<Fold, false>{args});
}

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
