// Merge on several threads.
#ifndef SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
#define SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/column.h"
#include "host/base/float_environment.h"
#include "host/cpu/merge/block_merger.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/merge/sources.h"
#include "host/cpu/rows/direct_output.h"

namespace sparseagg::cpu {

// Rows of one block, finished before the block's turn has come (see OrderedBlockQueue), so that the thread can go on
// folding. The buffer is small and stays in the cache. Each thread of a merge owns one. Life cycle, block after block:
// OutputFor (write rows there), OutputFor, …, MoveTo. Not thread-safe.
template <typename Key>
class RowBuffer {
 public:
  size_t rows() const { return rows_; }

  // Returns: the direct output, inside this buffer, for the next `rows` rows. `like`: an output of the result; its
  // columns and conversions are taken over, and must be the same until MoveTo.
  DirectOutput<Key> OutputFor(size_t rows, const DirectOutput<Key>& like) {
    const size_t row_bytes = like.row_bytes();
    DirectOutput<Key> room = like;
    keys_.resize(rows_ + rows);
    values_.resize((rows_ + rows) * row_bytes);
    room.keys = keys_.data() + rows_;
    room.values = values_.data() + rows_ * row_bytes;
    if (like.counts != nullptr) {
      counts_.resize(rows_ + rows);
      room.counts = counts_.data() + rows_;
    }
    if (like.weights != nullptr) {
      weights_.resize(rows_ + rows);
      room.weights = weights_.data() + rows_;
    }
    rows_ += rows;
    return room;
  }

  // Moves all rows to `output`.
  // Returns: the output that begins behind them.
  DirectOutput<Key> MoveTo(DirectOutput<Key> output) {
    std::copy_n(keys_.data(), rows_, output.keys);
    std::copy_n(values_.data(), values_.size(), output.values);
    output.keys += rows_;
    output.values += values_.size();
    if (output.counts != nullptr) {
      std::copy_n(counts_.data(), rows_, output.counts);
      output.counts += rows_;
    }
    if (output.weights != nullptr) {
      std::copy_n(weights_.data(), rows_, output.weights);
      output.weights += rows_;
    }
    rows_ = 0;
    keys_.clear();
    values_.clear();
    counts_.clear();
    weights_.clear();
    return output;
  }

 private:
  size_t rows_ = 0;
  Column<Key> keys_;
  Column<std::byte> values_;
  Column<uint32_t> counts_;
  Column<double> weights_;
};

// Queue shared by the threads of one merge. Threads take blocks in ascending order and fold them side by side. Where a
// block's rows go in the result is known only when all earlier blocks have counted their rows. So each block has one
// turn, which begins when the turn of the block before it has ended. In its turn a block claims places for its rows; it
// writes them after that, outside its turn. The waits are short: blocks hold about equally many tuples, and the block
// before was taken earlier, by a thread that runs.
//
//   for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
//     FoldBlock(block);                                // side by side
//     if (!queue.WaitForTurn(block)) break;            // an earlier block failed
//     const uint64_t at = queue.Claim(num_rows);
//     queue.EndTurn(block);
//     WriteRows(at);                                   // side by side
//   }
//
// Thread-safe, except claimed() and status().
class OrderedBlockQueue {
 public:
  explicit OrderedBlockQueue(size_t num_blocks) : num_blocks_(num_blocks) {
    made_.store(true, std::memory_order_release);
  }

  // Each thread calls Enter first and Leave last; the thread that started them then calls Join. They make the writes of
  // one side visible to the other. oneTBB's scheduler does that, too, but its library is not built for the thread
  // sanitizer, which would report races. Remove when oneTBB is built with it.
  void Enter() { made_.load(std::memory_order_acquire); }
  void Leave() { left_.fetch_add(1, std::memory_order_release); }
  void Join() { left_.load(std::memory_order_acquire); }

  size_t num_blocks() const { return num_blocks_; }

  // Returns: the next block to fold, or num_blocks() if there is none.
  size_t TakeBlock() {
    const size_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    return block < num_blocks_ ? block : num_blocks_;
  }

  bool IsTurnOf(size_t block) const { return turn_.load(std::memory_order_acquire) == block; }

  // Waits for the turn of `block`.
  // Returns: false if an earlier block has failed.
  // Blocks: until the turns of all earlier blocks have ended.
  bool WaitForTurn(size_t block) {
    for (int tries = 0;; ++tries) {
      const size_t turn = turn_.load(std::memory_order_acquire);
      if (turn == block) return failed_block_.load(std::memory_order_relaxed) > block;
      if (tries < kSpins) continue;
      // The thread of the earlier block has lost its core to another process, perhaps for long.
      tries < kSpins + kYields ? std::this_thread::yield() : turn_.wait(turn, std::memory_order_acquire);
    }
  }

  // Claims places for `rows` rows behind those claimed so far. May be called several times in one turn.
  // Returns: the first of these places, as a row of the result.
  // Requires: the caller's block has its turn.
  uint64_t Claim(uint64_t rows) { return std::exchange(claimed_, claimed_ + rows); }

  // Ends the turn of `block`.
  // Requires: WaitForTurn(block) has returned.
  void EndTurn(size_t block) {
    turn_.store(block + 1, std::memory_order_release);
    turn_.notify_all();  // a system call only if a thread sleeps
  }

  // Records the error of `block`. May be called at any time, also after the block's turn, and in merges without turns.
  void Fail(size_t block, absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (block >= failed_block_.load(std::memory_order_relaxed)) return;
    failed_block_.store(block, std::memory_order_relaxed);
    status_ = std::move(status);
  }

  // After Join: the number of rows claimed, and the error of the first block that failed, in the order of blocks.
  uint64_t claimed() const { return claimed_; }
  const absl::Status& status() const { return status_; }

 private:
  // Tries of WaitForTurn that only look again, and tries that yield the core, before the thread sleeps.
  static constexpr int kSpins = 1000;
  static constexpr int kYields = 1000;

  const size_t num_blocks_;
  std::atomic<bool> made_;
  std::atomic<size_t> left_{0};
  std::atomic<size_t> next_block_{0};
  std::atomic<size_t> turn_{0};
  uint64_t claimed_ = 0;  // written by the block whose turn it is
  std::mutex mutex_;
  std::atomic<size_t> failed_block_{std::numeric_limits<size_t>::max()};  // the first that failed; written under mutex_
  absl::Status status_;                                                   // its error; written under mutex_
};

// Row sink of one block (see BlockMerger::MergeBlock) that writes to a thread's Sink (see MergeInTurns), in the
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
template <typename Merger, typename RowSink>
absl::Status TryMergeBlock(Merger& merger, size_t block, RowSink& sink) {
  try {
    return merger.MergeBlock(block, sink);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory to merge a block of keys");
  }
}

// Merges blocks on the threads of `arena` into rows that follow each other. make_merger() makes each thread's merger,
// such as a BlockMerger; make_sink() its sink:
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
template <typename Key, typename MakeMerger, typename MakeSink>
absl::StatusOr<uint64_t> MergeInTurns(size_t num_blocks, tbb::task_arena& arena, MakeMerger make_merger,
                                      MakeSink make_sink) {
  OrderedBlockQueue queue(num_blocks);
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    auto merger = make_merger();
    RowBuffer<Key> buffer;
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      BlockRowSink<Key, typename decltype(merger)::Rows, decltype(sink)> block_sink(queue, block, sink, buffer);
      absl::Status status = TryMergeBlock(merger, block, block_sink);
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
template <typename MakeMerger, typename MakeSink>
absl::Status MergeAtKeys(size_t num_blocks, tbb::task_arena& arena, MakeMerger make_merger, MakeSink make_sink) {
  OrderedBlockQueue queue(num_blocks);
  FoldInParallel(queue, arena, [&] {
    auto sink = make_sink();
    auto merger = make_merger();
    for (size_t block; (block = queue.TakeBlock()) < queue.num_blocks();) {
      absl::Status status = TryMergeBlock(merger, block, sink);
      if (status.ok()) continue;
      queue.Fail(block, std::move(status));
      return;
    }
  });
  return queue.status();
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_PARALLEL_MERGE_H_
