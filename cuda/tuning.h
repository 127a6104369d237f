// Sizes that trade speed only; no result depends on them. Chosen by thought: not yet measured on a device.
#ifndef SPARSEAGG_CUDA_TUNING_H_
#define SPARSEAGG_CUDA_TUNING_H_

#include <cstddef>
#include <cstdint>

namespace sparseagg::cuda {

struct Tuning {
  // Pinned memory: large enough that a copy's launch does not count, small enough to fill while the last one is sent.
  size_t staging_slot_bytes = size_t{8} << 20;
  size_t num_staging_slots = 4;  // at least 2
  // Entries of one batch. Positions have 32 bits.
  uint64_t max_batch_entries = uint64_t{1} << 30;
  // Segments of more entries get a block of their own. A thread alone takes about this many dependent loads.
  uint32_t long_segment = 64;
  // Values that a source should have in a tile, on average, for the tile path: the lanes of a warp.
  double min_tile_values = 32.0;
  // Memory for the arrays by key of the tile path, beyond which it is not taken.
  uint64_t max_tile_bytes = UINT64_MAX;
  // Values below which a submission is checked on the host: launches and copies cost more than the work.
  uint64_t min_check_values = uint64_t{1} << 16;
  // Memory of waiting updates below which merging on arrival waits for more.
  size_t min_pending_bytes = size_t{16} << 20;
  // How often an operation that ran out of memory is tried again, on batches of a quarter of the size.
  int num_retries = 4;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_TUNING_H_
