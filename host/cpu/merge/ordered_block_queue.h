// Queue of a merge's blocks, whose rows go to the result in the order of the blocks.
#ifndef SPARSEAGG_HOST_CPU_MERGE_ORDERED_BLOCK_QUEUE_H_
#define SPARSEAGG_HOST_CPU_MERGE_ORDERED_BLOCK_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"

namespace sparseagg::cpu {

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

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_ORDERED_BLOCK_QUEUE_H_
