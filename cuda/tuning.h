// Sizes that affect speed only, never a result. Estimates, but for what docs/gpu.md says was measured.
#ifndef SPARSEAGG_CUDA_TUNING_H_
#define SPARSEAGG_CUDA_TUNING_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cuda {

struct Tuning {
  // Size of a pinned buffer: large enough to hide the cost of starting a copy, small enough to fill during the previous
  // copy.
  size_t staging_buffer_bytes = size_t{4} << 20;
  size_t num_staging_buffers = 8;  // at least 2
  // Pinned host memory for results, in use and kept (PinnedArena): at most, and the smallest block. Other results go
  // through the buffers.
  size_t max_pinned_bytes = size_t{1} << 30;
  size_t min_pinned_bytes = size_t{256} << 10;
  // What one host thread copies at a time.
  size_t copy_part_bytes = size_t{256} << 10;
  // Bytes of keys and values of an update from which on it is sent to the device when it arrives, which takes as long
  // as copying so much; and the share of the device's memory that updates may take there.
  size_t min_resident_bytes = size_t{64} << 10;
  double max_resident_share = 0.5;
  // Size from which on a piece of an array that is pinned, or one that is on the device, is a copy of its own, so that
  // its bytes outweigh the call. A kernel copies all smaller ones of a batch (kernels/fetch.h).
  size_t min_copy_bytes = size_t{256} << 10;
  size_t min_copy_within_bytes = size_t{4} << 20;
  // Bytes of keys and values of a slab (SlabPlan): few, so that the first copy in and the last copy out take little
  // of the time, but enough to outweigh a merge's launches and waits. And the mean number of tuples of one update in a
  // slab, which outweigh finding them. 0: rounds are not cut into slabs.
  size_t slab_bytes = size_t{14} << 20;
  double min_slab_run = 256.0;
  // Entries of one batch. Positions have 32 bits.
  uint64_t max_batch_entries = uint64_t{1} << 30;
  // The same of updates that repeat keys, where one thread has to add all repetitions of a key: few enough that no
  // kernel takes as long as the engine waits for one (CudaDevice).
  uint64_t max_repeating_tuples = uint64_t{1} << 26;
  // A segment with more entries than medium_segment is folded by a block of one warp, a shorter one by a single thread
  // for each column. A segment with more than long_segment values, of up to 32 columns, is folded by a block of 256
  // threads, so that each of them has a few values to load.
  uint32_t medium_segment = 32;
  uint32_t long_segment = 1024;
  // The tile path is taken from this mean number of tuples of a tile on, so that they outweigh its begin and end, and
  // from this mean number of tuples of one source in a part on, so that they outweigh the bounds.
  double min_tile_tuples = 512.0;
  double min_tile_run = 2.0;
  // The most that is expected in a tile of more than kMinTileSlots keys (kernels/tile_plan.h): fewer than kMaxSorted,
  // so that few tiles have more than these.
  uint32_t max_tile_tuples = 1536;
  // A tile is dense from so many tuples on in each kMatrixSlots keys.
  uint32_t min_matrix_tuples = 512;
  // Number of values below which a round that is still all in host memory is merged by the CPU engine, because
  // launches, copies and waits would take longer. 0: none is. DeviceWork::kLarge asks for kMinLargeMergeValues: a merge
  // on a device takes 0.1 to 0.2 ms whatever its size, and one thread of the CPU engine folds about a million values in
  // each millisecond.
  uint64_t min_merge_values = 0;
  static constexpr uint64_t kMinLargeMergeValues = uint64_t{1} << 17;
  // Memory of pending updates from which on they are merged on arrival.
  size_t min_pending_bytes = size_t{16} << 20;
  // How often an operation that ran out of memory is retried, each time on batches of a quarter of the size.
  int num_retries = 4;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TUNING_H_
