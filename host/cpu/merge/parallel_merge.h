// Merge on several threads.
#ifndef SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
#define SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/float_environment.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/merge_input.h"
#include "host/cpu/merge/ordered_block_queue.h"
#include "host/cpu/merge/row_buffer.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// Row sink of one block (see BlockMerger::MergeBlock) that writes to a thread's Sink (see ParallelMerge), in the
// block's turn. Lives while its block is merged. Not thread-safe.
template <typename Key, typename Rows, typename Sink>
class BlockRowSink {
 public:
  static constexpr bool kPlacesRowsByKey = false;

  BlockRowSink(OrderedBlockQueue& queue, size_t block, Sink& sink, RowBuffer<Key>& buffer)
      : queue_(queue), block_(block), sink_(sink), buffer_(buffer) {}

  bool AcceptsDirectOutput() const { return sink_.AcceptsDirectOutput(); }

  // Key ranges before the last of a block do not wait for its turn: their rows go to the buffer. Otherwise two threads
  // whose blocks have several ranges would work one after the other.
  absl::StatusOr<DirectOutput<Key>> OutputFor(uint64_t rows, const KeyRange<Key>& range) {
    if (!range.is_last && !queue_.IsTurnOf(block_)) return buffer_.OutputFor(rows, sink_.DirectOutputAt(0));
    if (!queue_.WaitForTurn(block_)) return absl::CancelledError();
    const uint64_t buffered = buffer_.rows();
    const DirectOutput<Key> output = sink_.DirectOutputAt(Claim(buffered + rows, range.is_last));
    return buffered == 0 ? output : buffer_.MoveTo(output);
  }
  void OutputWritten(const KeyRange<Key>&) {}

  absl::Status WriteRows(Rows& rows, const KeyRange<Key>& range) {
    absl::Status status = sink_.Prepare(rows);
    if (!queue_.WaitForTurn(block_)) return absl::CancelledError();
    if (!status.ok()) return status;
    sink_.Write(Claim(sink_.size(), range.is_last));
    return absl::OkStatus();
  }

  // Returns: whether the block's turn has ended.
  bool ended() const { return ended_; }

 private:
  uint64_t Claim(uint64_t rows, bool is_last) {
    const uint64_t at = queue_.Claim(rows);
    if (is_last) {
      ended_ = true;
      queue_.EndTurn(block_);
    }
    return at;
  }

  OrderedBlockQueue& queue_;
  const size_t block_;
  Sink& sink_;
  RowBuffer<Key>& buffer_;
  bool ended_ = false;
};

// Calls fold_blocks(), which takes blocks from `queue`, on the threads of `arena`.
// Blocks: until all calls have returned.
template <typename FoldBlocks>
void FoldInParallel(OrderedBlockQueue& queue, tbb::task_arena& arena, FoldBlocks fold_blocks) {
  const auto work = [&] {
    const DefaultFloatEnvironment environment;  // workers inherit that of the thread that made the arena
    queue.Enter();
    fold_blocks();
    queue.Leave();
  };
  const auto num_workers = std::min(static_cast<size_t>(arena.max_concurrency()), queue.num_blocks());
  if (num_workers <= 1) {
    work();
  } else {
    arena.execute([&] {
      tbb::parallel_for(
          size_t{0}, num_workers, [&](size_t) { work(); }, tbb::simple_partitioner());
    });
  }
  queue.Join();
}

// Merges one block. Does not throw: other threads may wait for this block's turn.
template <typename Merger, typename Block, typename RowSink>
absl::Status TryMergeBlock(Merger& merger, const Block& block, RowSink& sink) {
  try {
    return merger.MergeBlock(block, sink);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory to merge a block of keys");
  }
}

// Merges blocks on the threads of `arena` into rows that follow each other, as ParallelMerge says. make_merger() makes
// each thread's merger, and block_at(i) is what its MergeBlock takes for block i.
template <typename Key, typename MakeMerger, typename BlockAt, typename MakeSink>
absl::StatusOr<uint64_t> MergeInTurns(size_t num_blocks, tbb::task_arena& arena, MakeMerger make_merger,
                                      BlockAt block_at, MakeSink make_sink) {
  OrderedBlockQueue queue(num_blocks);
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    auto merger = make_merger();
    RowBuffer<Key> buffer;
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      BlockRowSink<Key, typename decltype(merger)::Rows, decltype(sink)> block_sink(queue, block, sink, buffer);
      absl::Status status = TryMergeBlock(merger, block_at(block), block_sink);
      if (status.ok()) continue;
      // Fail before EndTurn, so that later blocks, which wait for the turn, see the failure. The turn may have ended
      // already, with places claimed for rows that were not written.
      queue.Fail(block, std::move(status));
      if (!block_sink.ended()) {
        queue.WaitForTurn(block);
        queue.EndTurn(block);
      }
      return;  // the merger is unusable; other threads finish the blocks that they have taken
    }
  });
  if (!queue.status().ok()) return queue.status();
  return queue.claimed();
}

// The same into rows whose place depends on their key alone, so that no block waits for another. make_sink() makes each
// thread's row sink (see BlockMerger::MergeBlock).
template <typename MakeMerger, typename BlockAt, typename MakeSink>
absl::Status MergeAtKeys(size_t num_blocks, tbb::task_arena& arena, MakeMerger make_merger, BlockAt block_at,
                         MakeSink make_sink) {
  OrderedBlockQueue queue(num_blocks);
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    auto merger = make_merger();
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      absl::Status status = TryMergeBlock(merger, block_at(block), sink);
      if (status.ok()) continue;
      queue.Fail(block, std::move(status));
      return;
    }
  });
  return queue.status();
}

// Merges `input`, cut into `blocks`, on the threads of `arena`, into rows that follow each other.
//
// make_sink() makes each thread's sink:
//   Prepare(rows)             finishes rows as far as their place does not matter; may drop some
//   size()                    the number of rows that stay
//   Write(at)                 writes them to row `at` of the output and on
//   AcceptsDirectOutput()     whether folds may finish and write rows themselves, to
//   DirectOutputAt(at)        the output from row `at` on
//
// Returns: the number of rows.
// Errors: of several failed blocks, that of the smallest keys.
// Deterministic: one thread folds a block, so no key's fold is split; the number of threads does not show in the
// result.
template <typename Key, typename Fold, typename MakeSink>
absl::StatusOr<uint64_t> ParallelMerge(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks,
                                       tbb::task_arena& arena, MakeSink make_sink) {
  return MergeInTurns<Key>(
      blocks.blocks.size(), arena, [&] { return BlockMerger<Key, Fold>(input); },
      [&](size_t block) -> const Block<Key>& { return blocks.blocks[block]; }, make_sink);
}

// The same by MergeAtKeys.
template <typename Key, typename Fold, typename MakeSink>
absl::Status ParallelMergeAtKeys(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks, tbb::task_arena& arena,
                                 MakeSink make_sink) {
  return MergeAtKeys(
      blocks.blocks.size(), arena, [&] { return BlockMerger<Key, Fold>(input); },
      [&](size_t block) -> const Block<Key>& { return blocks.blocks[block]; }, make_sink);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
