// Runs a merge on several threads.
#ifndef SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_
#define SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/cpu/block_merger.h"
#include "host/cpu/blocks.h"
#include "host/cpu/merge_input.h"
#include "host/cpu/plain_output.h"
#include "host/cpu/stash.h"
#include "host/cpu/turns.h"
#include "host/float_environment.h"

namespace sparseagg::cpu {

// Takes the rows of one block to a sink, in the block's turn.
template <typename Key, typename Rows, typename Sink>
class BlockTaker {
 public:
  static constexpr bool kAtKeys = false;

  BlockTaker(Turns& turns, size_t block, Sink& sink, Stash<Key>& stash)
      : turns_(turns), block_(block), sink_(sink), stash_(stash) {}

  bool TakesPlain() const { return sink_.TakesPlain(); }

  // All pieces of a block but the last need not wait for its turn: two threads whose blocks have several pieces would
  // otherwise work one after the other.
  absl::StatusOr<PlainOutput<Key>> Room(uint64_t rows, const Piece<Key>& piece) {
    if (!piece.is_last && !turns_.IsTurnOf(block_)) return stash_.Room(rows, sink_.PlainAt(0));
    if (!turns_.Await(block_)) return absl::CancelledError();
    const uint64_t stashed = stash_.rows();
    const PlainOutput<Key> output = sink_.PlainAt(Claim(stashed + rows, piece.is_last));
    return stashed == 0 ? output : stash_.MoveTo(output);
  }
  void Written(const Piece<Key>&) {}

  absl::Status Take(Rows& rows, const Piece<Key>& piece) {
    absl::Status status = sink_.Prepare(rows);
    if (!turns_.Await(block_)) return absl::CancelledError();
    if (!status.ok()) return status;
    sink_.Write(Claim(sink_.size(), piece.is_last));
    return absl::OkStatus();
  }

  // Whether the turn is over.
  bool ended() const { return ended_; }

 private:
  uint64_t Claim(uint64_t rows, bool is_last) {
    const uint64_t at = turns_.Claim(rows);
    if (is_last) {
      ended_ = true;
      turns_.End(block_);
    }
    return at;
  }

  Turns& turns_;
  const size_t block_;
  Sink& sink_;
  Stash<Key>& stash_;
  bool ended_ = false;
};

// Calls fold_blocks() on the threads of `arena`, which take the blocks of `turns`.
template <typename FoldBlocks>
void FoldInParallel(Turns& turns, tbb::task_arena& arena, FoldBlocks fold_blocks) {
  const auto work = [&] {
    const DefaultFloatEnvironment environment;  // a worker's is that of whoever made the arena
    turns.Enter();
    fold_blocks();
    turns.Leave();
  };
  const auto num_workers = std::min(static_cast<size_t>(arena.max_concurrency()), turns.num_blocks());
  if (num_workers <= 1) {
    work();
  } else {
    arena.execute([&] {
      tbb::parallel_for(
          size_t{0}, num_workers, [&](size_t) { work(); }, tbb::simple_partitioner());
    });
  }
  turns.Join();
}

// Merges one block. It must not throw: other threads' blocks may wait for this one's turn.
template <typename Key, typename Fold, typename Taker>
absl::Status TryMergeBlock(BlockMerger<Key, Fold>& merger, const Block<Key>& block, Taker& taker) {
  try {
    return merger.MergeBlock(block, taker);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory to merge a block of keys");
  }
}

// Merges `input`, cut into `blocks`, on the threads of `arena`. A block is folded by one thread, so no key's fold is
// ever split and the number of threads cannot show in the result. FAILED_PRECONDITION: KeysChanged.
//
// make_sink() makes what takes a thread's rows: Prepare(rows) does what needs no room yet, size() tells how many rows
// stay, Write(at) puts them at row `at` of the output. Where it TakesPlain() rows, PlainAt(at) tells where finished
// ones from row `at` on go. Returns the number of rows, or the error of the smallest keys.
template <typename Key, typename Fold, typename MakeSink>
absl::StatusOr<uint64_t> ParallelMerge(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks,
                                       tbb::task_arena& arena, MakeSink make_sink) {
  Turns turns(blocks.blocks.size());
  std::atomic<uint64_t> num_tuples = 0;
  FoldInParallel(turns, arena, [&] {
    auto sink = make_sink();
    BlockMerger<Key, Fold> merger(input);
    Stash<Key> stash;
    for (size_t block; (block = turns.TakeBlock()) < turns.num_blocks();) {
      BlockTaker<Key, typename BlockMerger<Key, Fold>::Rows, decltype(sink)> taker(turns, block, sink, stash);
      absl::Status status = TryMergeBlock(merger, blocks.blocks[block], taker);
      if (status.ok()) continue;
      // First, so that the blocks that wait for the end of the turn know; that may also have been over already, with
      // room claimed for rows that have not been written.
      turns.Fail(block, std::move(status));
      if (!taker.ended()) {
        turns.Await(block);
        turns.End(block);
      }
      // The merger may have stopped within its block, with cursors that later blocks could not start from, and nobody
      // needs those: what has been taken has its own thread.
      return;
    }
    num_tuples += merger.tuples();
  });
  if (!turns.status().ok()) return turns.status();
  if (num_tuples != input.num_tuples()) return KeysChanged(*input.spec);
  return turns.claimed();
}

// The same where the place of a row is its key's, so that no block has to wait for those before it: make_taker() makes
// what MergeBlock gives a thread's rows to.
template <typename Key, typename Fold, typename MakeTaker>
absl::Status ParallelMergeAtKeys(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks, tbb::task_arena& arena,
                                 MakeTaker make_taker) {
  Turns turns(blocks.blocks.size());
  std::atomic<uint64_t> num_tuples = 0;
  FoldInParallel(turns, arena, [&] {
    auto taker = make_taker();
    BlockMerger<Key, Fold> merger(input);
    for (size_t block; (block = turns.TakeBlock()) < turns.num_blocks();) {
      absl::Status status = TryMergeBlock(merger, blocks.blocks[block], taker);
      if (status.ok()) continue;
      turns.Fail(block, std::move(status));
      return;  // as above
    }
    num_tuples += merger.tuples();
  });
  if (!turns.status().ok()) return turns.status();
  return num_tuples == input.num_tuples() ? absl::OkStatus() : KeysChanged(*input.spec);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_
