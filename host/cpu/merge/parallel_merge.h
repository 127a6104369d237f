// Runs a merge on several threads.
#ifndef SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
#define SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
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

// Takes the rows of one block to a sink, in the block's turn.
template <typename Key, typename Rows, typename Sink>
class BlockRowSink {
 public:
  static constexpr bool kAtKeys = false;

  BlockRowSink(OrderedBlockQueue& queue, size_t block, Sink& sink, RowBuffer<Key>& buffer)
      : queue_(queue), block_(block), sink_(sink), buffer_(buffer) {}

  bool TakesDirect() const { return sink_.TakesDirect(); }

  // All pieces of a block but the last need not wait for its turn: two threads whose blocks have several pieces would
  // otherwise work one after the other.
  absl::StatusOr<DirectOutput<Key>> Room(uint64_t rows, const KeyRange<Key>& range) {
    if (!range.is_last && !queue_.IsTurnOf(block_)) return buffer_.Room(rows, sink_.DirectAt(0));
    if (!queue_.Await(block_)) return absl::CancelledError();
    const uint64_t buffered = buffer_.rows();
    const DirectOutput<Key> output = sink_.DirectAt(Claim(buffered + rows, range.is_last));
    return buffered == 0 ? output : buffer_.MoveTo(output);
  }
  void Written(const KeyRange<Key>&) {}

  absl::Status Take(Rows& rows, const KeyRange<Key>& range) {
    absl::Status status = sink_.Prepare(rows);
    if (!queue_.Await(block_)) return absl::CancelledError();
    if (!status.ok()) return status;
    sink_.Write(Claim(sink_.size(), range.is_last));
    return absl::OkStatus();
  }

  // Whether the turn is over.
  bool ended() const { return ended_; }

 private:
  uint64_t Claim(uint64_t rows, bool is_last) {
    const uint64_t at = queue_.Claim(rows);
    if (is_last) {
      ended_ = true;
      queue_.End(block_);
    }
    return at;
  }

  OrderedBlockQueue& queue_;
  const size_t block_;
  Sink& sink_;
  RowBuffer<Key>& buffer_;
  bool ended_ = false;
};

// Calls fold_blocks() on the threads of `arena`, which take the blocks of `queue`.
template <typename FoldBlocks>
void FoldInParallel(OrderedBlockQueue& queue, tbb::task_arena& arena, FoldBlocks fold_blocks) {
  const auto work = [&] {
    const DefaultFloatEnvironment environment;  // a worker's is that of whoever made the arena
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

// Merges one block. It must not throw: other threads' blocks may wait for this one's turn.
template <typename Key, typename Fold, typename RowSink>
absl::Status TryMergeBlock(BlockMerger<Key, Fold>& merger, const Block<Key>& block, RowSink& sink) {
  try {
    return merger.MergeBlock(block, sink);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory to merge a block of keys");
  }
}

// Merges `input`, cut into `blocks`, on the threads of `arena`. A block is folded by one thread, so no key's fold is
// ever split and the number of threads cannot show in the result. FAILED_PRECONDITION: KeysChanged.
//
// make_sink() makes what takes a thread's rows: Prepare(rows) does what needs no room yet, size() tells how many rows
// stay, Write(at) puts them at row `at` of the output. Where it TakesDirect() rows, DirectAt(at) tells where finished
// ones from row `at` on go. Returns the number of rows, or the error of the smallest keys.
template <typename Key, typename Fold, typename MakeSink>
absl::StatusOr<uint64_t> ParallelMerge(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks,
                                       tbb::task_arena& arena, MakeSink make_sink) {
  OrderedBlockQueue queue(blocks.blocks.size());
  std::atomic<uint64_t> num_tuples = 0;
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    BlockMerger<Key, Fold> merger(input);
    RowBuffer<Key> buffer;
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      BlockRowSink<Key, typename BlockMerger<Key, Fold>::Rows, decltype(sink)> block_sink(queue, block, sink, buffer);
      absl::Status status = TryMergeBlock(merger, blocks.blocks[block], block_sink);
      if (status.ok()) continue;
      // First, so that the blocks that wait for the end of the turn know; that may also have been over already, with
      // room claimed for rows that have not been written.
      queue.Fail(block, std::move(status));
      if (!block_sink.ended()) {
        queue.Await(block);
        queue.End(block);
      }
      // The merger may have stopped within its block, with cursors that later blocks could not start from, and nobody
      // needs those: what has been taken has its own thread.
      return;
    }
    num_tuples += merger.tuples();
  });
  if (!queue.status().ok()) return queue.status();
  if (num_tuples != input.num_tuples()) return KeysChanged(*input.spec);
  return queue.claimed();
}

// The same where the place of a row is its key's, so that no block has to wait for those before it: make_sink() makes
// what MergeBlock gives a thread's rows to.
template <typename Key, typename Fold, typename MakeSink>
absl::Status ParallelMergeAtKeys(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks, tbb::task_arena& arena,
                                 MakeSink make_sink) {
  OrderedBlockQueue queue(blocks.blocks.size());
  std::atomic<uint64_t> num_tuples = 0;
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    BlockMerger<Key, Fold> merger(input);
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      absl::Status status = TryMergeBlock(merger, blocks.blocks[block], sink);
      if (status.ok()) continue;
      queue.Fail(block, std::move(status));
      return;  // as above
    }
    num_tuples += merger.tuples();
  });
  if (!queue.status().ok()) return queue.status();
  return num_tuples == input.num_tuples() ? absl::OkStatus() : KeysChanged(*input.spec);
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
