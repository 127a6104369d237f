#include "cuda/tile_merge.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/kernels/tiles.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

// Returns: bytes of the arrays by key, and of the tile bounds.
double ScratchBytes(const TensorShape& shape, uint32_t slots, uint32_t num_sources) {
  const auto dimension = static_cast<double>(shape.dimension);
  const double key_bytes =
      sizeof(uint8_t) + sizeof(uint32_t) + static_cast<double>(AccBytes(shape.fold)) * shape.columns;
  return dimension * key_bytes + (dimension / slots + 2) * (num_sources + 1) * sizeof(uint32_t);
}

}  // namespace

bool TileMerge::Suits(Session& session, const TensorShape& shape, const DeviceRows& base, const Batch& batch) {
  const uint32_t slots = TileSlots(shape.fold, shape.columns);
  if (slots == 0 || shape.dimension == 0 || shape.dimension > std::numeric_limits<int32_t>::max()) return false;
  if (!batch.unique || !base.ascends || batch.num_tuples == 0) return false;
  if (shape.key_weights != WeightKind::kCounts) return false;
  // The merged rows must fit too, and the next batch, which is sent during the merge.
  const uint64_t max_rows = std::min<uint64_t>(shape.dimension, uint64_t{base.num_rows} + batch.num_tuples);
  const double scratch = ScratchBytes(shape, slots, batch.num_sources);
  if (scratch > static_cast<double>(session.tuning().max_tile_bytes)) return false;
  const double needed = scratch + static_cast<double>(max_rows * shape.RowBytes() + batch.num_bytes());
  const DeviceMemory& memory = session.memory();
  if (needed > static_cast<double>(memory.budget_bytes() - std::min(memory.budget_bytes(), memory.used_bytes()))) {
    return false;
  }
  const double tuples_of_source = static_cast<double>(batch.num_tuples) / batch.num_sources;
  const double share_of_tile = std::min(1.0, static_cast<double>(slots) / static_cast<double>(shape.dimension));
  return tuples_of_source * share_of_tile * std::max(1u, shape.columns) >= session.tuning().min_tile_values;
}

absl::StatusOr<TileMerge> TileMerge::Start(Session& session, const TensorShape& shape, const DeviceRows& base,
                                           const Batch& batch) {
  Device& device = session.device();
  TileMerge merge;
  FoldTiles call;
  call.kind = shape.fold;
  call.columns = shape.columns;
  call.slots = TileSlots(shape.fold, shape.columns);
  call.num_tiles = static_cast<uint32_t>((shape.dimension + call.slots - 1) / call.slots);
  call.dimension = shape.dimension;
  call.key_bytes = shape.key_bytes;
  call.d_keys = batch.d_keys.get();
  call.d_values = batch.d_values.get();
  call.type = shape.type;
  call.d_sources = batch.d_sources.as<Source>();
  call.num_sources = batch.num_sources;
  call.scale = shape.scale;

  FindTileBounds find;
  find.d_keys = batch.d_keys.get();
  find.key_bytes = shape.key_bytes;
  find.d_begin = batch.d_begin.as<uint32_t>();
  find.num_sources = batch.num_sources;
  find.slots = call.slots;
  find.num_tiles = call.num_tiles;
  ASSIGN_OR_RETURN(const DeviceBuffer bounds, session.Allocate(find.size() * sizeof(uint32_t)));
  find.d_bounds = bounds.as<uint32_t>();
  RETURN_IF_ERROR(device.Launch(find));
  call.d_bounds = find.d_bounds;

  DeviceBuffer base_bounds;
  if (base.num_rows > 0) {
    find.d_keys = base[RowColumn::kKeys].get();
    find.d_begin = nullptr;
    find.num_sources = 1;
    find.num_keys = base.num_rows;
    ASSIGN_OR_RETURN(base_bounds, session.Allocate(find.size() * sizeof(uint32_t)));
    find.d_bounds = base_bounds.as<uint32_t>();
    RETURN_IF_ERROR(device.Launch(find));
    call.d_base_keys = find.d_keys;
    call.d_base_accs = base[RowColumn::kAccs].get();
    call.d_base_counts = base[RowColumn::kCounts].as<uint32_t>();
    call.d_base_bounds = find.d_bounds;
  }

  const size_t acc_bytes = size_t{shape.columns} * AccBytes(shape.fold);
  ASSIGN_OR_RETURN(const DeviceBuffer touched, session.Allocate(shape.dimension));
  ASSIGN_OR_RETURN(merge.d_accs_, session.Allocate(shape.dimension * acc_bytes));
  ASSIGN_OR_RETURN(merge.d_counts_, session.Allocate(shape.counts ? shape.dimension * sizeof(uint32_t) : 0));
  call.d_touched = touched.as<uint8_t>();
  call.d_accs = merge.d_accs_.get();
  call.d_counts = merge.d_counts_.as<uint32_t>();
  RETURN_IF_ERROR(device.Launch(call));
  const uint64_t max_rows = std::min<uint64_t>(shape.dimension, uint64_t{base.num_rows} + batch.num_tuples);
  ASSIGN_OR_RETURN(merge.touched_, session.StartSelect(touched, static_cast<uint32_t>(shape.dimension),
                                                       static_cast<uint32_t>(max_rows)));
  return merge;
}

absl::StatusOr<DeviceRows> TileMerge::Finish(Session& session, const TensorShape& shape) && {
  ASSIGN_OR_RETURN(const Session::Selection touched, session.FinishSelect(std::move(touched_)));
  ASSIGN_OR_RETURN(DeviceRows rows, session.AllocateRows(shape, touched.count));
  GatherTouched gather;
  gather.d_touched_keys = touched.d_indices.as<uint32_t>();
  gather.num_rows = touched.count;
  gather.key_bytes = shape.key_bytes;
  gather.words = shape.columns * AccBytes(shape.fold) / sizeof(uint64_t);
  gather.d_from_accs = d_accs_.as<uint64_t>();
  gather.d_from_counts = d_counts_.as<uint32_t>();
  gather.d_keys = rows[RowColumn::kKeys].get();
  gather.d_accs = rows[RowColumn::kAccs].as<uint64_t>();
  gather.d_counts = rows[RowColumn::kCounts].as<uint32_t>();
  RETURN_IF_ERROR(session.device().Launch(gather));
  return rows;
}

}  // namespace sparseagg::cuda
