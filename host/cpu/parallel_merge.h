// Runs a merge on several threads.
#ifndef SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_
#define SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/cpu/block_merger.h"
#include "host/cpu/blocks.h"
#include "host/cpu/merge_input.h"
#include "host/cpu/turns.h"

namespace sparseagg::cpu {

// Merges `input`, cut into `blocks`, on the threads of `arena`. A block is folded by one thread, so no key's fold is
// ever split and the number of threads cannot show in the result.
//
// make_sink() makes what takes a thread's rows: Prepare(rows) does what needs no room yet, size() tells how many rows
// stay, Write(at) puts them at row `at` of the output. Returns the number of rows, or the error of the smallest keys.
template <typename Key, typename Fold, typename MakeSink>
absl::StatusOr<uint64_t> ParallelMerge(const MergeInput<Key, Fold>& input, const Blocks<Key>& blocks,
                                       tbb::task_arena& arena, MakeSink make_sink) {
  const size_t num_blocks = blocks.blocks.size();
  Turns turns(num_blocks);
  const auto work = [&] {
    auto sink = make_sink();
    BlockMerger<Key, Fold> merger(input);
    for (size_t block; (block = turns.TakeBlock()) < num_blocks;) {
      bool ended = false;
      const auto take = [&](typename BlockMerger<Key, Fold>::Rows& rows, bool is_last) -> absl::Status {
        absl::Status status = sink.Prepare(rows);
        if (!turns.Await(block)) return absl::CancelledError();
        if (!status.ok()) return status;
        const uint64_t at = turns.Claim(sink.size());
        if (is_last) {
          ended = true;
          turns.End(block, absl::OkStatus());
        }
        sink.Write(at);
        return absl::OkStatus();
      };
      absl::Status status;
      try {
        status = merger.MergeBlock(blocks.blocks[block], take);
      } catch (const std::bad_alloc&) {
        // Were it to leave here, the blocks behind would wait for this one's turn for ever.
        status = absl::ResourceExhaustedError("no memory to merge a block of keys");
      }
      if (ended) continue;
      turns.Await(block);
      turns.End(block, std::move(status));
      // It failed. The merger may have stopped within its block, with cursors that later blocks could not start from,
      // and nobody needs those: what has been taken has its own thread.
      return;
    }
  };
  const auto num_workers = std::min(static_cast<size_t>(arena.max_concurrency()), num_blocks);
  if (num_workers <= 1) {
    work();
  } else {
    arena.execute([&] {
      tbb::parallel_for(
          size_t{0}, num_workers, [&](size_t) { work(); }, tbb::simple_partitioner());
    });
  }
  if (!turns.status().ok()) return turns.status();
  return turns.claimed();
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PARALLEL_MERGE_H_
