// The fold of the tile path, which merges without a sort. It serves values of one column whose keys ascend in every
// source.
#ifndef SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
#define SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_

#include <cstdint>

#include "cuda/kernels/atomics.h"
#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/fold_tiles.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/tile_plan.h"

namespace sparseagg::cuda {

// Block kernel, one block a part. Shared memory: 43 KiB. Accumulators are registers.
//
// Each thread owns four slots, which are keys of the part. The block takes sources in groups, in canonical order: up
// to 64 sources, and as many tuples as it has room for. For each group:
//
//   mark    each tuple sets the bit of its source in the mask of its slot
//   offset  the numbers of bits, scanned over the slots, are the places of the slots' values
//   place   each tuple goes to its slot's place, plus the number of lower bits in the slot's mask
//   fold    the owner of a slot folds the slot's values from left to right
//
// Deterministic: a source has a key at most once, so bits tell tuples apart, and their order is that of the sources.
// The atomics only set bits, in any order. So each slot gets its terms in canonical order from one thread.
//
// Then the block counts its rows and writes them behind those of all parts before it. It learns the number of those by
// looking back (Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016): each part
// first says how many rows it has itself, and later how many there are up to its end. Parts are drawn in order, so that
// a block waits only for blocks that have started.
template <typename Fold>
struct TileBody {
  using Acc = typename Fold::Acc;
  using Value = typename Fold::Value;
  static constexpr uint32_t kThreads = 512;
  static constexpr uint32_t kMinBlocks = sizeof(Acc) > sizeof(uint64_t) ? 1 : 2;
  static constexpr uint32_t kOwnSlots = kTileSlots / kThreads;
  static constexpr uint32_t kGroupSources = 64;
  static constexpr uint32_t kMaskWords = kGroupSources / 32;
  static constexpr uint32_t kOwnTuples = 4;
  static constexpr uint32_t kGroupTuples = kOwnTuples * kThreads;
  static_assert(kGroupTuples >= kTileSlots, "one source must always fit");

  struct Shared {
    uint32_t masks[kMaskWords][kTileSlots];
    // Of each slot: the place of its first value; at first, 1 + the index of its base row, or 0; at last, its row.
    uint16_t offsets[kTileSlots];
    Value values[kGroupTuples];
    // Of each source of the group: its weights, its first tuple in the part, the number of tuples of the sources
    // before.
    double weights[kGroupSources];
    int64_t integer_weights[kGroupSources];
    uint32_t begin[kGroupSources];
    uint32_t prefix[kGroupSources + 1];
    uint32_t taken;             // sources of the group for whose tuples there is room
    uint64_t window[kThreads];  // messages of the parts before this one, the nearest first
    uint32_t nearest[2];        // index in the window of the nearest message that says kUpToEnd
    uint32_t drawn;             // number of this part among all parts
    uint32_t num_rows;
    uint32_t num_rows_before;
  };
  struct Private {
    Acc accs[kOwnSlots];
    uint32_t counts[kOwnSlots];
    // Of the tuples that the thread marks and places: slot + source × kTileSlots, or kNowhere; and the bits of the
    // value.
    uint32_t tuple_places[kOwnTuples];
    uint64_t tuple_values[kOwnTuples];
    // Of the source that the thread brings into the next group: its tuples in the part. Loaded a group ahead.
    uint32_t next_begin;
    uint32_t next_end;
  };
  static constexpr uint32_t kNowhere = UINT32_MAX;

  // The keys of a part.
  struct Part {
    uint32_t slots;
    uint32_t first_key;
  };

  // Messages of parts: the kind and a number of rows. 0: no message yet.
  static constexpr uint64_t kOfPart = uint64_t{1} << 62;
  static constexpr uint64_t kUpToEnd = uint64_t{2} << 62;
  SPARSEAGG_HD static bool IsUpToEnd(uint64_t message) { return message >> 62 == 2; }

  FoldTiles args;

  uint64_t num_blocks() const { return args.max_count; }

  // Slot `j` of a thread. Neighbouring threads own neighbouring slots, so that they write neighbouring rows.
  SPARSEAGG_HD static uint32_t SlotOf(uint32_t thread, uint32_t j) { return j * kThreads + thread; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    block.Phase([&](uint32_t thread) {
      if (thread == 0) shared.drawn = AtomicAdd(args.d_num_drawn, 1);
      Private& own = block.own(thread);
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnSlots; ++j) {
        own.accs[j] = Fold::Start();
        own.counts[j] = 0;
        SPARSEAGG_UNROLL
        for (uint32_t word = 0; word < kMaskWords; ++word) shared.masks[word][SlotOf(thread, j)] = 0;
        shared.offsets[SlotOf(thread, j)] = 0;
      }
    });
    const uint32_t drawn = shared.drawn;
    const uint32_t count = *args.d_count;
    if (drawn < count) {
      const Part part = PartOf(args.d_parts[drawn]);
      if (args.d_base_bounds != nullptr) AddBase(block, part, drawn, shared);
      LoadBounds(block, drawn, 0);
      for (uint32_t first = 0; first < args.num_sources;) first += AddGroup(block, part, drawn, first, shared);
      WriteRows(block, part, drawn, count, shared);
    }
  }

  SPARSEAGG_HD Part PartOf(uint32_t index) const {
    const uint32_t tile = index / kMaxTileParts;
    Part part;
    part.slots = kTileSlots / args.d_num_parts[tile];
    part.first_key = tile * kTileSlots + index % kMaxTileParts * part.slots;
    return part;
  }

  template <typename Block>
  SPARSEAGG_HD void AddBase(Block& block, const Part& part, uint32_t drawn, Shared& shared) const {
    const uint32_t begin = args.d_base_bounds[drawn];
    const uint32_t end = args.d_base_bounds[drawn + 1];
    block.Phase([&](uint32_t thread) {
      for (uint32_t row = begin + thread; row < end; row += block.num_threads()) {
        shared.offsets[args.d_base_keys[row] - part.first_key] = static_cast<uint16_t>(row - begin + 1);
      }
    });
    block.Each([&](uint32_t thread) {
      Private& own = block.own(thread);
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnSlots; ++j) {
        const uint32_t offset = shared.offsets[SlotOf(thread, j)];
        if (offset == 0) continue;
        const uint32_t row = begin + offset - 1;
        if (args.has_values) own.accs[j] = Fold::Combine(own.accs[j], static_cast<const Acc*>(args.d_base_accs)[row]);
        own.counts[j] = args.d_base_counts == nullptr ? 1 : args.d_base_counts[row];
      }
    });
  }

  // Loads the bounds of the group that begins with source `first`.
  template <typename Block>
  SPARSEAGG_HD void LoadBounds(Block& block, uint32_t drawn, uint32_t first) const {
    block.Each([&](uint32_t thread) {
      if (thread >= kGroupSources || first + thread >= args.num_sources) return;
      const uint32_t* d_bound = args.d_bounds + (uint64_t{drawn} * args.num_sources + first + thread);
      block.own(thread).next_begin = d_bound[0];
      block.own(thread).next_end = d_bound[args.num_sources];
    });
  }

  // Adds the sources first, first + 1, … as far as there is room. Returns: how many, at least 1.
  template <typename Block>
  SPARSEAGG_HD uint32_t AddGroup(Block& block, const Part& part, uint32_t drawn, uint32_t first, Shared& shared) const {
    const uint32_t left = args.num_sources - first;
    const uint32_t available = left < kGroupSources ? left : kGroupSources;
    block.ExclusiveSum(
        [&](uint32_t thread) -> uint32_t {
          if (thread >= available) return 0;
          const Private& own = block.own(thread);
          shared.begin[thread] = own.next_begin;
          if (!args.uniform) {
            shared.weights[thread] = args.d_sources[first + thread].weight;
            shared.integer_weights[thread] = args.d_sources[first + thread].integer_weight;
          }
          return own.next_end - own.next_begin;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          if (thread < kGroupSources) shared.prefix[thread] = before;
          if (thread == kGroupSources - 1) shared.prefix[kGroupSources] = total;
          if (thread == 0 && total <= kGroupTuples) shared.taken = available;
          if (thread >= available || before > kGroupTuples) return;
          const Private& own = block.own(thread);
          if (before + (own.next_end - own.next_begin) > kGroupTuples) shared.taken = thread;
        });
    const uint32_t taken = shared.taken;
    if (taken == 0) {  // one source alone has more tuples than the part has keys
      block.Each([&](uint32_t thread) {
        if (thread == 0) AtomicOr(args.d_is_malformed, 1);
      });
      return left;
    }
    const uint32_t num_tuples = shared.prefix[taken];
    LoadBounds(block, drawn, first + taken);
    if (num_tuples > 0) Merge(block, part, taken, num_tuples, shared);
    return taken;
  }

  // Returns: the last of `count` ascending numbers that is at most `limit`, as an index. Requires: the first one is.
  SPARSEAGG_HD static uint32_t LastAtMost(const uint32_t* numbers, uint32_t count, uint32_t limit) {
    uint32_t low = 0;
    uint32_t high = count;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (numbers[middle] <= limit) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Adds the tuples of the first `num_sources` sources of the group.
  template <typename Block>
  SPARSEAGG_HD void Merge(Block& block, const Part& part, uint32_t num_sources, uint32_t num_tuples,
                          Shared& shared) const {
    // Mark. The loops have constant bounds, so that they are unrolled, and atomics come after all loads, which the
    // compiler does not move across them: so the loads of a thread are under way at a time.
    block.Phase([&](uint32_t thread) {
      Private& own = block.own(thread);
      uint32_t sources[kOwnTuples];
      uint32_t keys[kOwnTuples];
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnTuples; ++j) {
        const uint32_t i = j * kThreads + thread;
        if (i >= num_tuples) continue;
        sources[j] = LastAtMost(shared.prefix, num_sources, i);
        const uint32_t tuple = shared.begin[sources[j]] + (i - shared.prefix[sources[j]]);
        keys[j] = args.d_keys[tuple];
        if (args.has_values) own.tuple_values[j] = LoadBits(args.d_values, args.type, tuple);
      }
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnTuples; ++j) {
        if (j * kThreads + thread >= num_tuples) continue;
        const uint32_t slot = keys[j] - part.first_key;
        own.tuple_places[j] = slot < part.slots ? slot + sources[j] * kTileSlots : kNowhere;
        if (slot < part.slots) {
          AtomicOr(&shared.masks[sources[j] / 32][slot], uint32_t{1} << sources[j] % 32);
        } else {
          AtomicOr(args.d_is_malformed, 1);
        }
      }
    });
    // Offset.
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t bits = 0;
          SPARSEAGG_UNROLL
          for (uint32_t j = 0; j < kOwnSlots; ++j) bits += NumBits(shared, SlotOf(thread, j));
          return bits;
        },
        [&](uint32_t thread, uint32_t before, uint32_t) {
          uint32_t offset = before;
          SPARSEAGG_UNROLL
          for (uint32_t j = 0; j < kOwnSlots; ++j) {
            shared.offsets[SlotOf(thread, j)] = static_cast<uint16_t>(offset);
            offset += NumBits(shared, SlotOf(thread, j));
          }
        });
    // Place.
    if (args.has_values) {
      block.Phase([&](uint32_t thread) {
        const Private& own = block.own(thread);
        SPARSEAGG_UNROLL
        for (uint32_t j = 0; j < kOwnTuples; ++j) {
          if (j * kThreads + thread >= num_tuples || own.tuple_places[j] == kNowhere) continue;
          const uint32_t slot = own.tuple_places[j] % kTileSlots;
          const uint32_t source = own.tuple_places[j] / kTileSlots;
          uint32_t place = shared.offsets[slot];
          for (uint32_t word = 0; word < source / 32; ++word) place += CountBits(shared.masks[word][slot]);
          place += CountBits(shared.masks[source / 32][slot] & ((uint32_t{1} << source % 32) - 1));
          shared.values[place] = Fold::Plus(Fold::Zero(), Fold::Of(args.type, own.tuple_values[j]));
        }
      });
    }
    // Fold, and clear the masks for the next group.
    block.Phase([&](uint32_t thread) {
      Private& own = block.own(thread);
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnSlots; ++j) {
        const uint32_t slot = SlotOf(thread, j);
        uint32_t place = shared.offsets[slot];
        own.counts[j] += NumBits(shared, slot);
        SPARSEAGG_UNROLL
        for (uint32_t word = 0; word < kMaskWords; ++word) {
          uint32_t bits = shared.masks[word][slot];
          shared.masks[word][slot] = 0;
          for (; args.has_values && bits != 0; bits &= bits - 1) {
            Source source;
            if (!args.uniform) {
              source.weight = shared.weights[32 * word + LowestBit(bits)];
              source.integer_weight = shared.integer_weights[32 * word + LowestBit(bits)];
            }
            own.accs[j] = Fold::Add(own.accs[j], shared.values[place++], source, args.scale);
          }
        }
      }
    });
  }

  SPARSEAGG_HD static uint32_t NumBits(const Shared& shared, uint32_t slot) {
    uint32_t bits = 0;
    SPARSEAGG_UNROLL
    for (uint32_t word = 0; word < kMaskWords; ++word) bits += CountBits(shared.masks[word][slot]);
    return bits;
  }

  // Writes the rows of the slots that occurred.
  template <typename Block>
  SPARSEAGG_HD void WriteRows(Block& block, const Part& part, uint32_t drawn, uint32_t count, Shared& shared) const {
    block.Phase([&](uint32_t thread) {
      const Private& own = block.own(thread);
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnSlots; ++j) shared.offsets[SlotOf(thread, j)] = own.counts[j] != 0 ? 1 : 0;
    });
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t rows = 0;
          SPARSEAGG_UNROLL
          for (uint32_t j = 0; j < kOwnSlots; ++j) rows += shared.offsets[thread * kOwnSlots + j];
          return rows;
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          uint32_t row = before;
          SPARSEAGG_UNROLL
          for (uint32_t j = 0; j < kOwnSlots; ++j) {
            uint16_t& offset = shared.offsets[thread * kOwnSlots + j];
            row += offset;
            offset = static_cast<uint16_t>(row - offset);
          }
          if (thread != 0) return;
          shared.num_rows = total;
          StoreRelaxed(args.d_messages + drawn, kOfPart | total);
          shared.nearest[0] = kThreads;
          shared.num_rows_before = 0;
        });
    LookBack(block, drawn, shared);
    const uint32_t before = shared.num_rows_before;
    block.Phase([&](uint32_t thread) {
      if (thread == 0) {
        const uint32_t up_to_end = before + shared.num_rows;
        StoreRelaxed(args.d_messages + drawn, kUpToEnd | up_to_end);
        if (drawn + 1 == count) *args.d_num_rows = up_to_end;
      }
      const Private& own = block.own(thread);
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kOwnSlots; ++j) {
        if (own.counts[j] == 0) continue;
        const uint32_t slot = SlotOf(thread, j);
        const uint32_t row = before + shared.offsets[slot];
        args.d_row_keys[row] = part.first_key + slot;
        if (args.has_values) static_cast<Acc*>(args.d_accs)[row] = own.accs[j];
        if (args.d_counts != nullptr) args.d_counts[row] = own.counts[j];
      }
    });
  }

  // Sets shared.num_rows_before. All threads look at one message each, window by window, until one of the messages says
  // how many rows there are up to its part's end.
  template <typename Block>
  SPARSEAGG_HD void LookBack(Block& block, uint32_t drawn, Shared& shared) const {
    uint32_t half = 0;
    for (uint32_t end = drawn; end > 0; end = end > kThreads ? end - kThreads : 0, half = 1 - half) {
      block.Phase([&](uint32_t thread) {
        if (thread >= end) return;
        shared.window[thread] = block.WaitFor(args.d_messages + (end - 1 - thread));
        if (IsUpToEnd(shared.window[thread])) AtomicMin(&shared.nearest[half], thread);
      });
      block.ExclusiveSum(
          [&](uint32_t thread) {
            const bool counts = thread < end && thread <= shared.nearest[half];
            return counts ? static_cast<uint32_t>(shared.window[thread]) : 0;
          },
          [&](uint32_t thread, uint32_t, uint32_t total) {
            if (thread != 0) return;
            shared.num_rows_before += total;
            shared.nearest[1 - half] = kThreads;
          });
      if (shared.nearest[half] < kThreads) return;
    }
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
