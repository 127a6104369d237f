// Puts what threads make side by side into one sequence.
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

// Blocks are handed out in ascending order and folded side by side, but where a block's rows go is only known when all
// blocks before it have counted theirs. Each block has one turn: it waits for its predecessor, claims room for its
// rows, and ends; copying the rows needs no turn. The waits are short, because blocks are alike and a block's
// predecessor was always started earlier, by a running thread.
class OrderedBlockQueue {
 public:
  explicit OrderedBlockQueue(size_t num_blocks) : num_blocks_(num_blocks) {
    made_.store(true, std::memory_order_release);
  }

  // Threads Enter before they read anything and Leave when they will do no more; who started them calls Join after
  // that. The scheduler makes writes visible, too, but out of the thread sanitizer's sight.
  void Enter() { made_.load(std::memory_order_acquire); }
  void Leave() { left_.fetch_add(1, std::memory_order_release); }
  void Join() { left_.load(std::memory_order_acquire); }

  size_t num_blocks() const { return num_blocks_; }

  // The next block to fold, or num_blocks when there is none.
  size_t TakeBlock() {
    const size_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    return block < num_blocks_ ? block : num_blocks_;
  }

  bool IsTurnOf(size_t block) const { return turn_.load(std::memory_order_acquire) == block; }
  // Waits for the turn of `block`; false when an earlier block is known to have failed.
  bool Await(size_t block) {
    for (int tries = 0;; ++tries) {
      const size_t turn = turn_.load(std::memory_order_acquire);
      if (turn == block) return failed_block_.load(std::memory_order_relaxed) > block;
      if (tries < kSpins) continue;
      // Somebody else has this predecessor's core, perhaps for long.
      tries < kSpins + kYields ? std::this_thread::yield() : turn_.wait(turn, std::memory_order_acquire);
    }
  }
  // Room for `rows` rows behind what has been claimed: their offset. In this block's turn.
  uint64_t Claim(uint64_t rows) { return std::exchange(claimed_, claimed_ + rows); }
  // Ends the turn of `block`, which has been awaited.
  void End(size_t block) {
    turn_.store(block + 1, std::memory_order_release);
    turn_.notify_all();  // asks the system only if somebody sleeps
  }

  // At any time, also when the turn of `block` is over, and where there are no turns since the place of a block's rows
  // does not depend on others'.
  void Fail(size_t block, absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (block >= failed_block_.load(std::memory_order_relaxed)) return;
    failed_block_.store(block, std::memory_order_relaxed);
    status_ = std::move(status);
  }

  // After all blocks: the rows claimed, and the error of the first block that failed.
  uint64_t claimed() const { return claimed_; }
  const absl::Status& status() const { return status_; }

 private:
  static constexpr int kSpins = 1000;
  static constexpr int kYields = 1000;

  const size_t num_blocks_;
  std::atomic<bool> made_;
  std::atomic<size_t> left_{0};
  std::atomic<size_t> next_block_{0};
  std::atomic<size_t> turn_{0};
  uint64_t claimed_ = 0;  // guarded by the turn
  std::mutex mutex_;
  std::atomic<size_t> failed_block_{std::numeric_limits<size_t>::max()};  // the first one; written under mutex_
  absl::Status status_;                                                   // its error; guarded by mutex_
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_ORDERED_BLOCK_QUEUE_H_
