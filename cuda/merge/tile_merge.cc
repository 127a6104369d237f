#include "cuda/merge/tile_merge.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/kernels/fold_tiles.h"
#include "cuda/kernels/tile_plan.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

uint64_t NumTiles(const TensorShape& shape) { return (shape.num_rows + kTileSlots - 1) / kTileSlots; }

uint64_t MaxRows(const TensorShape& shape, const DeviceRows& base, const Batch& batch) {
  return std::min<uint64_t>(shape.num_rows, uint64_t{base.num_rows} + batch.num_tuples);
}

// Returns: the tuples from which on a tile is cut: few sources of a part should have more tuples than a warp has
// threads.
uint32_t PartTuples(const Tuning& tuning, uint32_t num_sources) {
  constexpr uint64_t kLeast = 1024;  // outweigh a part's rows
  const uint64_t few = std::max(kLeast, uint64_t{kWarpThreads} * num_sources);
  return static_cast<uint32_t>(std::min<uint64_t>(few, tuning.tile_part_tuples));
}

// Returns: bytes of the bounds of tiles and of parts, the plan and the messages of the parts.
double ScratchBytes(const TensorShape& shape, uint32_t num_sources, uint64_t max_parts) {
  const auto num_tiles = static_cast<double>(NumTiles(shape));
  const double num_bounds = (num_tiles + 1 + static_cast<double>(max_parts) + 1) * (num_sources + 1);
  return num_bounds * sizeof(uint32_t) + num_tiles * (kMaxTileParts + 1) +
         static_cast<double>(max_parts * (sizeof(uint32_t) + sizeof(uint64_t)));
}

// What the parts tell each other, all of it 0 at the start.
struct Counters {
  uint32_t num_drawn;
  uint32_t num_rows;
  uint32_t is_malformed;
};

template <typename Find>
absl::StatusOr<DeviceBuffer> FindBounds(Session& session, Find find) {
  ASSIGN_OR_RETURN(DeviceBuffer bounds, session.Allocate(find.size() * sizeof(uint32_t)));
  find.d_bounds = bounds.as<uint32_t>();
  RETURN_IF_ERROR(session.device().Launch(find));
  return bounds;
}

}  // namespace

bool TileMerge::ShouldMerge(Session& session, const TensorShape& shape, const DeviceRows& base, const Batch& batch) {
  const Tuning& tuning = session.tuning();
  if (shape.order.has_value() || shape.columns > 1 || shape.key_bytes != sizeof(uint32_t) || shape.num_rows == 0 ||
      shape.num_rows > std::numeric_limits<int32_t>::max())
    return false;
  if (!batch.unique || !base.ascends || batch.num_tuples == 0) return false;
  if (shape.key_weights != WeightKind::kCounts || shape.scaled) return false;  // tiles have no room for factors
  const uint64_t entries = uint64_t{base.num_rows} + batch.num_tuples;
  const double scratch =
      ScratchBytes(shape, batch.num_sources, MaxParts(NumTiles(shape), entries, PartTuples(tuning, batch.num_sources)));
  if (scratch > static_cast<double>(tuning.max_tile_bytes)) return false;
  // The merged rows must fit too, and the next batch, which is sent during the merge.
  const double needed =
      scratch + static_cast<double>(MaxRows(shape, base, batch) * shape.RowBytes() + batch.num_bytes());
  const DeviceMemory& memory = session.memory();
  if (needed > static_cast<double>(memory.budget_bytes() - std::min(memory.budget_bytes(), memory.used_bytes()))) {
    return false;
  }
  const double tile_tuples = static_cast<double>(batch.num_tuples) / static_cast<double>(NumTiles(shape));
  return tile_tuples >= tuning.min_tile_tuples && tile_tuples / batch.num_sources >= tuning.min_tile_run;
}

absl::StatusOr<TileMerge> TileMerge::Start(Session& session, const TensorShape& shape, const DeviceRows& base,
                                           const Batch& batch) {
  Device& device = session.device();
  TileMerge merge;
  FoldTiles call;
  call.kind = shape.fold;
  call.has_values = shape.columns > 0;
  call.d_keys = batch.d_keys.as<uint32_t>();
  call.d_values = batch.d_values.get();
  call.type = shape.type;
  call.d_sources = batch.d_sources.as<Source>();
  call.num_sources = batch.num_sources;
  call.uniform = shape.uniform;
  call.scale = shape.scale;

  FindTileBounds find;
  find.d_keys = call.d_keys;
  find.d_begin = batch.d_begin.as<uint32_t>();
  find.num_sources = batch.num_sources;
  find.num_tiles = static_cast<uint32_t>(NumTiles(shape));
  ASSIGN_OR_RETURN(const DeviceBuffer tile_bounds, FindBounds(session, find));
  DeviceBuffer base_tile_bounds;
  if (base.num_rows > 0) {
    find.d_keys = base[RowColumn::kKeys].as<uint32_t>();
    find.d_begin = nullptr;
    find.num_sources = 1;
    find.num_keys = base.num_rows;
    ASSIGN_OR_RETURN(base_tile_bounds, FindBounds(session, find));
    call.d_base_keys = find.d_keys;
    call.d_base_accs = base[RowColumn::kAccs].get();
    call.d_base_counts = base[RowColumn::kCounts].as<uint32_t>();
  }

  PlanTiles plan;
  plan.d_bounds = tile_bounds.as<uint32_t>();
  plan.num_sources = batch.num_sources;
  plan.d_base_bounds = base_tile_bounds.as<uint32_t>();
  plan.num_tiles = find.num_tiles;
  plan.part_tuples = PartTuples(session.tuning(), batch.num_sources);
  call.max_count =
      static_cast<uint32_t>(MaxParts(plan.num_tiles, uint64_t{base.num_rows} + batch.num_tuples, plan.part_tuples));
  ASSIGN_OR_RETURN(const DeviceBuffer num_parts, session.Allocate(plan.num_tiles));
  ASSIGN_OR_RETURN(const DeviceBuffer is_part, session.Allocate(uint64_t{plan.num_tiles} * kMaxTileParts));
  plan.d_num_parts = num_parts.as<uint8_t>();
  plan.d_is_part = is_part.as<uint8_t>();
  RETURN_IF_ERROR(device.Launch(plan));
  ASSIGN_OR_RETURN(const Session::PendingSelection parts,
                   session.StartSelect(is_part, plan.num_tiles * kMaxTileParts, call.max_count));
  call.d_num_parts = plan.d_num_parts;
  call.d_parts = parts.d_indices.as<uint32_t>();
  call.d_count = parts.d_count.as<uint32_t>();

  FindPartBounds narrow;
  narrow.d_keys = call.d_keys;
  narrow.d_tile_bounds = plan.d_bounds;
  narrow.num_sources = batch.num_sources;
  narrow.num_tiles = plan.num_tiles;
  narrow.d_num_parts = call.d_num_parts;
  narrow.d_parts = call.d_parts;
  narrow.d_count = call.d_count;
  narrow.max_count = call.max_count;
  ASSIGN_OR_RETURN(const DeviceBuffer bounds, FindBounds(session, narrow));
  call.d_bounds = bounds.as<uint32_t>();
  DeviceBuffer base_bounds;
  if (base.num_rows > 0) {
    narrow.d_keys = call.d_base_keys;
    narrow.d_tile_bounds = plan.d_base_bounds;
    narrow.num_sources = 1;
    ASSIGN_OR_RETURN(base_bounds, FindBounds(session, narrow));
    call.d_base_bounds = base_bounds.as<uint32_t>();
  }

  ASSIGN_OR_RETURN(const DeviceBuffer messages, session.Allocate(uint64_t{call.max_count} * sizeof(uint64_t)));
  ASSIGN_OR_RETURN(merge.d_counters_, session.Allocate(sizeof(Counters)));
  RETURN_IF_ERROR(device.Fill(messages.get(), 0, messages.bytes(), Lane::kCompute));
  RETURN_IF_ERROR(device.Fill(merge.d_counters_.get(), 0, merge.d_counters_.bytes(), Lane::kCompute));
  call.d_messages = messages.as<uint64_t>();
  call.d_num_drawn = &merge.d_counters_.as<Counters>()->num_drawn;
  call.d_num_rows = &merge.d_counters_.as<Counters>()->num_rows;
  call.d_is_malformed = &merge.d_counters_.as<Counters>()->is_malformed;
  ASSIGN_OR_RETURN(merge.rows_, AllocateRows(session, shape, static_cast<uint32_t>(MaxRows(shape, base, batch))));
  call.d_row_keys = merge.rows_[RowColumn::kKeys].as<uint32_t>();
  call.d_accs = merge.rows_[RowColumn::kAccs].get();
  call.d_counts = merge.rows_[RowColumn::kCounts].as<uint32_t>();
  RETURN_IF_ERROR(device.Launch(call));
  return merge;
}

absl::StatusOr<DeviceRows> TileMerge::Finish(Session& session, const TensorShape& shape) && {
  Counters counters = {};
  RETURN_IF_ERROR(session.CopyOut(&counters, d_counters_.get(), sizeof(counters)));
  if (counters.is_malformed != 0) {
    return absl::InternalError("the keys of an update do not ascend: they were changed after the update was validated");
  }
  rows_.num_rows = counters.num_rows;
  for (const RowColumn column : kRowColumns) rows_[column].Shrink(rows_.num_rows * BytesPerRow(shape, column));
  return std::move(rows_);
}

}  // namespace sparseagg::cuda
