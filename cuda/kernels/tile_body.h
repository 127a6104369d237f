// The fold of the tile path, which merges without a sort; our own, for terms are added in canonical order. It serves
// values of one column whose keys ascend in every source.
#ifndef SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_
#define SPARSEAGG_CUDA_KERNELS_TILE_BODY_H_

#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"
#include "cuda/kernels/segments.h"
#include "cuda/kernels/tile_plan.h"

namespace sparseagg::cuda {

// Block kernel, one block of one warp a part. The accumulators of the part's keys, its slots, are in shared memory.
//
// The warp takes one source after another, in canonical order, one tuple a thread, and each thread adds its value to
// its slot. A source has a key at most once, so its threads never meet in a slot, and each slot gets its terms in
// canonical order: the bits are those of a fold from left to right. The barrier between sources is that of a warp,
// which waits for nobody else; and the tuples of kAhead sources are loaded at a time.
//
// Then the block counts its rows and writes them behind those of all parts before it. It learns the number of those by
// looking back (Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016): each part
// first says how many rows it has itself, and later how many there are up to its end. Parts are drawn in order, so that
// a block waits only for blocks that have started.
template <typename Fold>
struct TileBody {
  using Acc = typename Fold::Acc;
  static constexpr uint32_t kThreads = kWarpThreads;
  static constexpr uint32_t kMinBlocks = 16;
  static constexpr uint32_t kGroupSources = kThreads;
  static constexpr uint32_t kAhead = 8;
  static constexpr uint32_t kWordBits = 32;  // slots of a word of Shared::present
  static_assert(kTileSlots == kThreads * kWordBits, "each thread has a word");
  static constexpr uint32_t kNowhere = UINT32_MAX;

  struct Shared {
    Acc accs[kTileSlots];
    uint32_t counts[kTileSlots];  // contributors
    // Of the sources of the group that have tuples in the part: their weights, and these tuples. The ranges after the
    // last one are empty, as many as may be loaded ahead.
    double weights[kGroupSources];
    int64_t integer_weights[kGroupSources];
    uint32_t begin[kGroupSources + kAhead];
    uint32_t end[kGroupSources + kAhead];
    uint32_t num_sources;
    uint32_t present[kThreads];  // bits: the slots that occurred
    uint32_t rows[kThreads];     // the number of those in all words before
    uint64_t window[kThreads];   // messages of the parts before this one, the nearest first
    uint32_t nearest[2];         // index in the window of the nearest message that says kUpToEnd
    uint32_t drawn;              // number of this part among all parts
    uint32_t num_rows;
    uint32_t num_rows_before;
  };
  struct Private {
    // Of the tuples that the thread has loaded: the slot, or kNowhere; and the value.
    uint32_t slots[kAhead];
    typename Fold::Value values[kAhead];
    uint32_t more;  // bits: the sources of these tuples that have more tuples than the block has threads
    // Of the source that the thread brings into the next group: its tuples in the part. Loaded a group ahead.
    uint32_t next_begin;
    uint32_t next_end;
  };

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

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    block.Phase([&](uint32_t thread) {
      if (thread == 0) shared.drawn = AtomicAdd(args.d_num_drawn, 1);
      for (uint32_t slot = thread; slot < kTileSlots; slot += kThreads) {
        shared.accs[slot] = Fold::Start();
        shared.counts[slot] = 0;
      }
    });
    const uint32_t drawn = shared.drawn;
    const uint32_t count = *args.d_count;
    if (drawn >= count) return;
    const Part part = PartOf(args.d_parts[drawn]);
    if (args.d_base_bounds != nullptr) AddBase(block, part, drawn, shared);
    LoadBounds(block, drawn, 0);
    for (uint32_t first = 0; first < args.num_sources; first += kGroupSources) {
      AddGroup(block, part, drawn, first, shared);
    }
    WriteRows(block, part, drawn, count, shared);
  }

  SPARSEAGG_HD Part PartOf(uint32_t index) const {
    const uint32_t tile = index / kMaxTileParts;
    Part part;
    part.slots = kTileSlots / args.d_num_parts[tile];
    part.first_key = args.first_key + tile * kTileSlots + index % kMaxTileParts * part.slots;
    return part;
  }

  template <typename Block>
  SPARSEAGG_HD void AddBase(Block& block, const Part& part, uint32_t drawn, Shared& shared) const {
    block.Phase([&](uint32_t thread) {
      const uint32_t end = args.d_base_bounds[drawn + 1];
      for (uint32_t row = args.d_base_bounds[drawn] + thread; row < end; row += kThreads) {
        const uint32_t slot = args.d_base_keys[row] - part.first_key;
        if (args.has_values) {
          shared.accs[slot] = Fold::Combine(shared.accs[slot], args.base.Load<Fold, 1>(row).values[0]);
        }
        shared.counts[slot] = args.d_base_counts == nullptr ? 1 : args.d_base_counts[row];
      }
    });
  }

  // Loads the bounds of the group that begins with source `first`.
  template <typename Block>
  SPARSEAGG_HD void LoadBounds(Block& block, uint32_t drawn, uint32_t first) const {
    block.Each([&](uint32_t thread) {
      if (first + thread >= args.num_sources) return;
      const uint32_t* d_bound = args.d_bounds + (uint64_t{drawn} * args.num_sources + first + thread);
      block.own(thread).next_begin = d_bound[0];
      block.own(thread).next_end = d_bound[args.num_sources];
    });
  }

  // Adds the sources first, first + 1, …, as many as a group has.
  template <typename Block>
  SPARSEAGG_HD void AddGroup(Block& block, const Part& part, uint32_t drawn, uint32_t first, Shared& shared) const {
    const auto has_tuples = [&](uint32_t thread) {
      const Private& own = block.own(thread);
      return first + thread < args.num_sources && own.next_begin != own.next_end;
    };
    block.ExclusiveSum([&](uint32_t thread) -> uint32_t { return has_tuples(thread) ? 1 : 0; },
                       [&](uint32_t thread, uint32_t before, uint32_t total) {
                         if (thread == 0) shared.num_sources = total;
                         if (thread < kAhead) shared.begin[total + thread] = shared.end[total + thread] = 0;
                         if (!has_tuples(thread)) return;
                         const Private& own = block.own(thread);
                         shared.begin[before] = own.next_begin;
                         shared.end[before] = own.next_end;
                         if (own.next_end - own.next_begin > part.slots) {  // not ascending: a key of it repeats
                           shared.end[before] = own.next_begin;
                           AtomicOr(args.d_is_malformed, 1);
                         }
                         if (args.uniform) return;
                         shared.weights[before] = args.d_sources[first + thread].weight;
                         shared.integer_weights[before] = args.d_sources[first + thread].integer_weight;
                       });
    const uint32_t num_sources = shared.num_sources;
    LoadBounds(block, drawn, first + kGroupSources);
    for (uint32_t source = 0; source < num_sources; source += kAhead) {
      block.Each([&](uint32_t thread) { Load(part, source, thread, shared, block.own(thread)); });
      SPARSEAGG_UNROLL
      for (uint32_t j = 0; j < kAhead; ++j) {
        block.Phase([&](uint32_t thread) {
          const Private& own = block.own(thread);
          if (own.slots[j] != kNowhere) Add(own.slots[j], own.values[j], source + j, shared);
          if ((own.more >> j & 1) == 0) return;
          const uint32_t end = shared.end[source + j];
          for (uint32_t tuple = shared.begin[source + j] + kThreads + thread; tuple < end; tuple += kThreads) {
            const uint32_t slot = SlotOf(part, args.d_keys[tuple]);
            const auto value = args.has_values ? ValueOf(LoadBits(args.d_values, args.type, tuple)) : Fold::Zero();
            if (slot != kNowhere) Add(slot, value, source + j, shared);
          }
        });
      }
    }
  }

  // Loads the thread's first tuples of the sources source, source + 1, …, kAhead of them. The loops have constant
  // bounds, so that they are unrolled, and the first ones use nothing that they load: so all loads are under way at a
  // time. A thread without a tuple loads that of another.
  SPARSEAGG_HD void Load(const Part& part, uint32_t source, uint32_t thread, const Shared& shared, Private& own) const {
    uint32_t tuples[kAhead];
    uint32_t keys[kAhead];
    uint64_t bits[kAhead] = {};
    own.more = 0;
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) {
      const uint32_t begin = shared.begin[source + j];
      const uint32_t count = shared.end[source + j] - begin;
      if (count > kThreads) own.more |= uint32_t{1} << j;
      own.slots[j] = thread < count ? 0 : kNowhere;
      tuples[j] = thread < count ? begin + thread : begin;
      keys[j] = args.d_keys[tuples[j]];
    }
    if (args.has_values) {
      switch (BytesOf(args.type)) {
        case 2:
          LoadWords<uint16_t>(tuples, bits);
          break;
        case 4:
          LoadWords<uint32_t>(tuples, bits);
          break;
        default:
          LoadWords<uint64_t>(tuples, bits);
      }
    }
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) {
      own.values[j] = ValueOf(bits[j]);
      if (own.slots[j] != kNowhere) own.slots[j] = SlotOf(part, keys[j]);
    }
  }

  template <typename Word>
  SPARSEAGG_HD void LoadWords(const uint32_t (&tuples)[kAhead], uint64_t (&bits)[kAhead]) const {
    SPARSEAGG_UNROLL
    for (uint32_t j = 0; j < kAhead; ++j) bits[j] = static_cast<const Word*>(args.d_values)[tuples[j]];
  }

  SPARSEAGG_HD typename Fold::Value ValueOf(uint64_t bits) const {
    return Fold::Plus(Fold::Zero(), Fold::Of(args.type, bits));
  }

  // Returns: the slot of a key of the part, else kNowhere.
  SPARSEAGG_HD uint32_t SlotOf(const Part& part, uint32_t key) const {
    const uint32_t slot = key - part.first_key;
    if (slot < part.slots) return slot;
    AtomicOr(args.d_is_malformed, 1);
    return kNowhere;
  }

  // Adds a value of the group's source `source`.
  SPARSEAGG_HD void Add(uint32_t slot, typename Fold::Value value, uint32_t source, Shared& shared) const {
    ++shared.counts[slot];
    if (!args.has_values) return;
    Source weights;
    if (!args.uniform) {
      weights.weight = shared.weights[source];
      weights.integer_weight = shared.integer_weights[source];
    }
    shared.accs[slot] = Fold::Add(shared.accs[slot], value, weights);
  }

  // Writes the rows of the slots that occurred.
  template <typename Block>
  SPARSEAGG_HD void WriteRows(Block& block, const Part& part, uint32_t drawn, uint32_t count, Shared& shared) const {
    // Each thread reads the slots of one word. Threads read them in different orders, so that they read from different
    // banks.
    block.ExclusiveSum(
        [&](uint32_t thread) {
          uint32_t bits = 0;
          for (uint32_t i = 0; i < kWordBits; ++i) {
            const uint32_t bit = (i + thread) % kWordBits;
            if (shared.counts[thread * kWordBits + bit] != 0) bits |= uint32_t{1} << bit;
          }
          shared.present[thread] = bits;
          return CountBits(bits);
        },
        [&](uint32_t thread, uint32_t before, uint32_t total) {
          shared.rows[thread] = before;
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
      for (uint32_t slot = thread; slot < part.slots; slot += kThreads) {
        const uint32_t bits = shared.present[slot / kWordBits];
        const uint32_t bit = uint32_t{1} << slot % kWordBits;
        if ((bits & bit) == 0) continue;
        const uint32_t row = before + shared.rows[slot / kWordBits] + CountBits(bits & (bit - 1));
        args.d_row_keys[row] = part.first_key + slot;
        if (args.has_values) args.accs.Store<Fold, 1>(row, {shared.accs[slot]});
        if (args.d_counts != nullptr) args.d_counts[row] = shared.counts[slot];
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
