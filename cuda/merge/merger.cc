#include "cuda/merge/merger.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/kernels/fold_listed.h"
#include "cuda/kernels/tile_plan.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

KeyRange RangeOf(const DeviceRows& base, const Batch& batch) {
  KeyRange range = base.range;
  range.Include(batch.range);
  return range;
}

// The division of a merge into tiles.
struct Tiling {
  Tiling(const Tuning& tuning, const DeviceRows& base, const Batch& batch)
      : range(RangeOf(base, batch)), num_entries(uint64_t{base.num_rows} + batch.num_tuples) {
    while (2 * sizes.tile_slots * num_entries <= tuning.max_tile_tuples * num_keys() &&
           sizes.tile_slots < kMaxTileSlots) {
      sizes.tile_slots *= 2;
    }
    sizes.matrix_tuples = std::max(tuning.min_matrix_tuples, 1u);
  }
  uint64_t num_keys() const { return range.last - range.first + 1; }
  uint64_t num_tiles() const { return (num_keys() - 1) / sizes.tile_slots + 1; }
  uint64_t max_parts() const { return sizes.MaxParts(num_tiles(), num_entries); }
  uint64_t max_rows() const { return std::min(num_keys(), num_entries); }

  KeyRange range;
  uint64_t num_entries;
  PartSizes sizes;
};

// Returns: bytes of the bounds of tiles and of parts, and of the plan.
double ScratchBytes(uint64_t num_tiles, uint32_t num_sources, uint64_t max_parts) {
  const auto tiles = static_cast<double>(num_tiles);
  const auto parts = static_cast<double>(max_parts);
  return ((tiles + parts + 2) * (num_sources + 1) + tiles) * sizeof(uint32_t) +
         parts * (sizeof(TilePart) + sizeof(uint64_t));
}

// Returns: whether the tile path can and should merge this batch: the keys of every source ascend strictly, rows have
// one value or none, weights are not summed per key, and tiles have enough tuples (Tuning::min_tile_…).
bool ShouldMergeByTiles(Session& session, const TensorShape& shape, const DeviceRows& base, const Batch& batch) {
  const Tuning& tuning = session.tuning();
  if (shape.columns > 1 || shape.key_bytes != sizeof(uint32_t) || shape.num_rows == 0 ||
      shape.num_rows > std::numeric_limits<int32_t>::max())
    return false;
  if (!batch.unique || !base.ascends || batch.num_tuples == 0 || shape.key_weights != WeightKind::kCounts) return false;
  const Tiling tiling(tuning, base, batch);
  const double scratch = ScratchBytes(tiling.num_tiles(), batch.num_sources, tiling.max_parts());
  // The merged rows must fit too, and the next batch, which is sent during the merge.
  const double needed = scratch + static_cast<double>(tiling.max_rows() * shape.RowBytes() + batch.num_bytes());
  const DeviceMemory& memory = session.memory();
  if (needed > static_cast<double>(memory.budget_bytes() - std::min(memory.budget_bytes(), memory.used_bytes()))) {
    return false;
  }
  // As if all tiles had equally many tuples.
  const auto num_keys = static_cast<uint32_t>(std::min<uint64_t>(tiling.sizes.tile_slots, tiling.num_keys()));
  const uint64_t tile_tuples = batch.num_tuples / tiling.num_tiles();
  const double part_share = std::min(1.0, static_cast<double>(tiling.sizes.SlotsOf(tile_tuples, num_keys)) / num_keys);
  const double run = static_cast<double>(tile_tuples) * part_share / batch.num_sources;
  return static_cast<double>(tile_tuples) >= tuning.min_tile_tuples && run >= tuning.min_tile_run;
}

// A merge by tiles under way.
struct TileMerge {
  DeviceRows rows;          // with room for as many rows as there can be
  DeviceBuffer d_counters;  // TileCounters
};

// Launches all work. Requires: the batch and the base live until FinishTiles returns.
absl::StatusOr<TileMerge> StartTiles(Session& session, const TensorShape& shape, const DeviceRows& base,
                                     const Batch& batch) {
  Device& device = session.device();
  const Tiling tiling(session.tuning(), base, batch);
  TileKeys keys;
  keys.d_keys = batch.d_keys.as<uint32_t>();
  keys.d_begin = batch.d_begin.as<uint32_t>();
  keys.num_sources = batch.num_sources;
  keys.d_base_keys = base[RowColumn::kKeys].as<uint32_t>();
  keys.num_base = base.num_rows;
  keys.first_key = static_cast<uint32_t>(tiling.range.first);
  keys.last_key = static_cast<uint32_t>(tiling.range.last);
  keys.tile_slots = tiling.sizes.tile_slots;
  const auto max_parts = static_cast<uint32_t>(tiling.max_parts());

  TileMerge merge;
  ASSIGN_OR_RETURN(merge.d_counters, session.Allocate(sizeof(TileCounters)));
  auto* const d_counters = merge.d_counters.as<TileCounters>();
  FindTileBounds find = {keys};
  ASSIGN_OR_RETURN(const DeviceBuffer tile_bounds, session.Allocate(find.size() * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(const DeviceBuffer tuples, session.Allocate(keys.num_tiles() * sizeof(uint32_t)));
  RETURN_IF_ERROR(device.Fill(tuples.get(), 0, tuples.bytes(), Lane::kCompute));
  find.d_bounds = tile_bounds.as<uint32_t>();
  find.d_tuples = tuples.as<uint32_t>();
  RETURN_IF_ERROR(device.Launch(find));
  ASSIGN_OR_RETURN(const DeviceBuffer parts, session.Allocate(uint64_t{max_parts} * sizeof(TilePart)));
  RETURN_IF_ERROR(device.Launch(ListParts{keys, tiling.sizes, find.d_tuples, parts.as<TilePart>(), d_counters}));
  FindPartBounds narrow = {keys, find.d_bounds, parts.as<TilePart>(), d_counters, max_parts};
  ASSIGN_OR_RETURN(const DeviceBuffer bounds, session.Allocate(narrow.num_bounds() * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(const DeviceBuffer messages, session.Allocate(uint64_t{max_parts} * sizeof(uint64_t)));
  narrow.d_bounds = bounds.as<uint32_t>();
  narrow.d_messages = messages.as<uint64_t>();
  RETURN_IF_ERROR(device.Launch(narrow));

  FoldTiles fold;
  fold.kind = shape.fold;
  fold.has_values = shape.columns > 0;
  fold.keys = keys;
  fold.d_values = batch.d_values.get();
  fold.type = shape.type;
  fold.d_sources = batch.d_sources.as<Source>();
  fold.uniform = shape.uniform;
  fold.base = AccsOf(base);
  fold.d_base_counts = base[RowColumn::kCounts].as<uint32_t>();
  fold.d_bounds = narrow.d_bounds;
  fold.d_parts = narrow.d_parts;
  fold.max_parts = max_parts;
  fold.d_messages = narrow.d_messages;
  fold.d_counters = d_counters;
  ASSIGN_OR_RETURN(merge.rows, AllocateRows(session, shape, static_cast<uint32_t>(tiling.max_rows())));
  fold.d_row_keys = merge.rows[RowColumn::kKeys].as<uint32_t>();
  fold.accs = AccsOf(merge.rows);
  fold.d_counts = merge.rows[RowColumn::kCounts].as<uint32_t>();
  RETURN_IF_ERROR(device.Launch(fold));
  return merge;
}

// Returns: nothing if too many tuples have neighbouring keys. Blocks: until the number of rows is known.
absl::StatusOr<std::optional<DeviceRows>> FinishTiles(Session& session, const TensorShape& shape, TileMerge merge) {
  TileCounters counters = {};
  RETURN_IF_ERROR(session.CopyOut(&counters, merge.d_counters.get(), sizeof(counters)));
  if (counters.is_malformed != 0) {
    return absl::InternalError("the keys of an update do not ascend: they were changed after the update was validated");
  }
  if (counters.is_skewed != 0) return std::nullopt;
  merge.rows.num_rows = counters.num_rows;
  for (const RowColumn column : kRowColumns) merge.rows[column].Shrink(counters.num_rows * BytesPerRow(shape, column));
  return std::move(merge.rows);
}

// Most earlier rows that a batch may sort again for each of its tuples. With more, the merge leaves the device.
constexpr uint64_t kMaxRowsPerTuple = 16;

// Returns: the most segments that can have more than `length` entries. Each has `length` entries beyond its first, and
// num_entries − count entries are not the first of their segment.
uint32_t MaxLonger(const Segments& segments, uint32_t length) {
  return length == 0 ? segments.count : (segments.num_entries - segments.count) / length;
}

// Returns: the classes, with empty lists. One thread folds the entries of a short segment one after another, so their
// number is the limit, whatever the row width. The threads of a block share the loads of a medium or long segment. So
// the number of values is the limit between these two: a warp would take as long for 32 entries of 32 columns as for
// 1024 entries of one.
SegmentClasses ClassesOf(const Tuning& tuning, uint32_t columns, const Segments& segments) {
  const uint32_t group = std::clamp(columns, 1u, kMaxGroupColumns);
  SegmentClasses classes;
  classes.max_short = tuning.medium_segment;
  classes.max_medium = std::max(tuning.long_segment / group, classes.max_short);
  if (classes.max_medium > classes.max_short) classes.medium.max_count = MaxLonger(segments, classes.max_short);
  classes.longs.max_count = MaxLonger(segments, classes.max_medium);
  return classes;
}

}  // namespace

absl::StatusOr<DeviceRows> Merger::Merge(absl::Span<const UnfinishedRows> bases,
                                         const std::vector<const ValidatedUpdate*>& updates,
                                         const FoldedRows& rounding) {
  ASSIGN_OR_RETURN(DeviceRows rows, SendBases(bases));
  BatchCursor cursor(updates);
  const bool repeats =
      std::any_of(updates.begin(), updates.end(), [](const auto* update) { return !update->unique(); });
  if (repeats && !IsLinear(shape_.fold) && shape_.fold != FoldKind::kSumFloat) {
    max_tuples_ = session_.tuning().max_repeating_tuples;
  }
  bool is_merged = bases.size() <= 1;
  if (is_merged && cursor.done()) return rows;
  ASSIGN_OR_RETURN(Batch batch, SendNext(rows, cursor));
  while (true) {
    std::optional<Batch> next;
    // The host stages the next batch while the device works. The number of rows that this merge makes is not known yet.
    // If their largest possible number leaves too little room for a batch, the next batch is sent after the merge.
    const auto send_ahead = [&]() -> absl::Status {
      if (cursor.done()) return absl::OkStatus();
      const uint64_t size = BatchSize(MaxRows(rows.num_rows, batch.num_tuples), cursor.num_left());
      if (size == 0) return absl::OkStatus();
      ASSIGN_OR_RETURN(next, SendBatch(session_, shape_, cursor.Next(size)));
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(rows, MergeBatch(rows, batch, send_ahead, cursor.done() ? rounding : FoldedRows()));
    batch = Batch();
    if (next.has_value()) {
      batch = *std::move(next);
    } else if (cursor.done()) {
      return rows;
    } else {
      ASSIGN_OR_RETURN(batch, SendNext(rows, cursor));
    }
  }
}

absl::StatusOr<Batch> Merger::SendNext(const DeviceRows& rows, BatchCursor& cursor) {
  const uint64_t size = BatchSize(rows.num_rows, cursor.num_left());
  if (size == 0) {  // smaller batches would not help: the merge leaves the device
    return NoRoom(absl::StrCat("device memory: too little room beside ", rows.num_rows, " rows for ", cursor.num_left(),
                               " more tuples"));
  }
  return SendBatch(session_, shape_, cursor.Next(size));
}

absl::StatusOr<DeviceRows> Merger::MergeBatch(const DeviceRows& base, Batch& batch,
                                              const std::function<absl::Status()>& meanwhile,
                                              const FoldedRows& rounding) {
  if (!batch.unique && batch.num_tuples > max_tuples_) {
    return NoRoom(absl::StrCat("an update of ", batch.num_tuples, " tuples that repeats keys; a thread folds up to ",
                               max_tuples_));
  }
  RETURN_IF_ERROR(ReceiveBatch(session_, batch));
  std::optional<DeviceRows> rows;
  const bool by_tiles = ShouldMergeByTiles(session_, shape_, base, batch);
  if (by_tiles) {
    ASSIGN_OR_RETURN(TileMerge tiles, StartTiles(session_, shape_, base, batch));
    RETURN_IF_ERROR(meanwhile());
    ASSIGN_OR_RETURN(rows, FinishTiles(session_, shape_, std::move(tiles)));
  }
  if (!rows.has_value()) {
    ASSIGN_OR_RETURN(SortedKeys sorted, StartSort(base, batch));
    if (!by_tiles) RETURN_IF_ERROR(meanwhile());
    RETURN_IF_ERROR(session_.FinishSelect(sorted.heads));
    ASSIGN_OR_RETURN(rows, FoldSegments(base, batch, sorted, rounding));
  }
  rows->range = RangeOf(base, batch);
  return *std::move(rows);
}

absl::StatusOr<DeviceRows> Merger::SendBases(absl::Span<const UnfinishedRows> bases) {
  uint64_t num_rows = 0;
  std::vector<RowRange> ranges;
  for (const UnfinishedRows& base : bases) {
    num_rows += base.num_rows;
    ranges.push_back({&base, 0, base.num_rows});
  }
  if (num_rows > session_.tuning().max_batch_entries) {
    return NoRoom(absl::StrCat(num_rows, " rows are more than positions can number"));
  }
  ASSIGN_OR_RETURN(DeviceRows rows, SendRows(session_, shape_, ranges));
  RETURN_IF_ERROR(session_.Join(Lane::kCompute, Lane::kCopy));
  for (DeviceBuffer& column : rows.columns) column.HandTo(Lane::kCompute);
  return rows;
}

uint64_t Merger::MaxRows(uint64_t num_rows, uint64_t num_tuples) const {
  const uint64_t rows = num_rows + num_tuples;
  return shape_.num_rows == 0 ? rows : std::min(rows, shape_.num_rows);
}

uint64_t Merger::RoomBeside(uint64_t num_rows) const {
  const uint64_t entry_bytes = 2 * (shape_.key_bytes + sizeof(uint32_t))  // key and position, twice during the sort
                               + 2                                        // scratch of the sort
                               + sizeof(uint32_t)                         // the begin of its segment
                               + sizeof(uint8_t)     // in the lists of segments, or to keep its row
                               + shape_.RowBytes();  // its folded row
  // Bytes of an earlier row: the row itself, and its entry.
  const uint64_t base_bytes = num_rows * (shape_.RowBytes() + entry_bytes);
  // Bytes of a tuple: the tuple as sent, one of the next batch, and its entry.
  const uint64_t tuple_bytes = 2 * (shape_.key_bytes + shape_.row_bytes) + entry_bytes;
  const uint64_t budget = session_.room_bytes();
  const uint64_t tuples = (budget - std::min(budget, base_bytes)) / tuple_bytes;
  const uint64_t max_entries = session_.tuning().max_batch_entries;
  return std::min(tuples, max_entries - std::min(num_rows, max_entries));
}

uint64_t Merger::BatchSize(uint64_t num_rows, uint64_t num_left) const {
  uint64_t size = RoomBeside(num_rows);
  if (size < num_left) {
    // Finds the largest size at which a second batch of that size fits beside the rows that the first one leaves.
    uint64_t fits = 0;
    while (fits < size) {
      const uint64_t middle = size - (size - fits) / 2;
      if (RoomBeside(MaxRows(num_rows, middle)) >= middle) {
        fits = middle;
      } else {
        size = middle - 1;
      }
    }
  }
  size = std::min(size >> (2 * shrink_), max_tuples_);  // a quarter for each retry
  // Every batch sorts the earlier rows again, so with small batches the device is far slower than the CPU engine.
  const uint64_t too_few = std::min(num_left, num_rows / kMaxRowsPerTuple);
  if (size < too_few || (size == 0 && num_left > 0 && shrink_ == 0)) return 0;
  return std::max<uint64_t>(1, size);  // also without tuples, since the bases still have to be merged
}

absl::StatusOr<SortedKeys> Merger::StartSort(const DeviceRows& base, Batch& batch) {
  DeviceBuffer d_keys;
  // Below 2^32 − kBlockThreads, so that no kernel's index wraps around: a batch has at most INT32_MAX tuples, and
  // max_batch_entries, the most rows, is by kBlockThreads less.
  const uint32_t num_entries = base.num_rows + batch.num_tuples;
  if (base.num_rows == 0) {
    d_keys = std::move(batch.d_keys);
  } else {
    ASSIGN_OR_RETURN(d_keys, session_.Allocate(size_t{num_entries} * shape_.key_bytes));
    const DeviceBuffer& base_keys = base[RowColumn::kKeys];
    auto* d_to = d_keys.as<std::byte>();
    RETURN_IF_ERROR(session_.device().CopyWithin(d_to, base_keys.get(), base_keys.bytes(), Lane::kCompute));
    if (batch.num_tuples > 0) {
      RETURN_IF_ERROR(session_.device().CopyWithin(d_to + base_keys.bytes(), batch.d_keys.get(), batch.d_keys.bytes(),
                                                   Lane::kCompute));
    }
    batch.d_keys.Release();
  }
  // Sorts the 4-byte values themselves in place of positions: without earlier rows, weights and duplicates, a fold
  // needs nothing but the values in order.
  const bool carries = base.num_rows == 0 && batch.unique && shape_.uniform &&
                       shape_.key_weights == WeightKind::kCounts && shape_.row_bytes == sizeof(uint32_t) &&
                       shape_.columns == 1;
  return cuda::StartSort(session_, std::move(d_keys), num_entries, shape_.key_bytes, shape_.key_bits,
                         carries ? std::move(batch.d_values) : DeviceBuffer());
}

absl::StatusOr<DeviceRows> Merger::FoldSegments(const DeviceRows& base, const Batch& batch, const SortedKeys& sorted,
                                                const FoldedRows& rounding) {
  Device& device = session_.device();
  const Segments segments = sorted.segments();
  ASSIGN_OR_RETURN(DeviceRows rows, AllocateRows(session_, shape_, segments.count, rounding));
  SegmentClasses classes = ClassesOf(session_.tuning(), shape_.columns, segments);
  DeviceBuffer d_lists;  // the numbers of medium and of long segments, then the medium ones, then the long ones
  if (classes.medium.max_count > 0 || classes.longs.max_count > 0) {
    const size_t num_listed = size_t{classes.medium.max_count} + classes.longs.max_count;
    ASSIGN_OR_RETURN(d_lists, session_.Allocate((2 + num_listed) * sizeof(uint32_t)));
    classes.medium.d_count = d_lists.as<uint32_t>();
    classes.longs.d_count = classes.medium.d_count + 1;
    classes.medium.d_segments = classes.longs.d_count + 1;
    classes.longs.d_segments = classes.medium.d_segments + classes.medium.max_count;
    RETURN_IF_ERROR(device.Fill(d_lists.get(), 0, 2 * sizeof(uint32_t), Lane::kCompute));
  }
  const uint32_t num_base = base.num_rows;
  GatherSegments gather = {sorted.d_keys.get(), shape_.key_bytes, segments, rows[RowColumn::kKeys].get(), classes};
  if (batch.unique) {
    gather.d_counts = rows[RowColumn::kCounts].as<uint32_t>();
    gather.d_base_counts = base[RowColumn::kCounts].as<uint32_t>();
    gather.num_base = num_base;
  }
  RETURN_IF_ERROR(device.Launch(gather));
  FoldValues call;
  call.segments = segments;
  call.num_base = num_base;
  call.sources = {batch.d_begin.as<uint32_t>(), batch.d_sources.as<Source>(), batch.num_sources, num_base};
  call.unique = batch.unique;
  call.classes = classes;
  const auto fold_sources = [&](FoldKind kind, RowColumn column) {
    call.kind = kind;
    call.base.d_accs = base[column].get();
    call.rows.accs.d_accs = rows[column].get();
    return device.Launch(call);
  };
  if (shape_.counts && !batch.unique) {
    RETURN_IF_ERROR(fold_sources(FoldKind::kCountSources, RowColumn::kCounts));
  }
  if (shape_.key_weights != WeightKind::kCounts) {
    const bool is_binned = shape_.key_weights == WeightKind::kBinned;
    RETURN_IF_ERROR(fold_sources(is_binned ? FoldKind::kSumBinnedWeights : FoldKind::kSumWeights, RowColumn::kWeights));
  }
  if (shape_.columns > 0) {  // after the sums of weights, by which values may be divided
    call.kind = shape_.fold;
    call.columns = shape_.columns;
    call.base = AccsOf(base);
    call.d_values = sorted.d_values.get() != nullptr ? sorted.d_values.get() : batch.d_values.get();
    call.type = shape_.type;
    call.unique = batch.unique || IsLinear(shape_.fold);
    call.uniform = shape_.uniform;
    call.rows = rounding;
    call.rows.accs = AccsOf(rows);
    call.rows.d_counts = rows[RowColumn::kCounts].as<uint32_t>();
    call.rows.d_weights = rows[RowColumn::kWeights].get();
    RETURN_IF_ERROR(device.Launch(call));
  }
  return rows;
}

}  // namespace sparseagg::cuda
