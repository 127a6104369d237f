#include "cuda/merge/batch.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

HostPart KeyPart(const ValidatedUpdate& update, size_t first, size_t bytes) {
  return {KeyArray(update.keys()), first, bytes, update.on_device(), update.pinned_keys()};
}

HostPart ValuePart(const ValidatedUpdate& update, size_t first, size_t bytes) {
  return {update.values(), first, bytes, update.on_device(), update.pinned_values()};
}

uint64_t KeyAt(const ValidatedUpdate& update, uint64_t index) {
  const KeyColumn& keys = update.keys();
  if (const auto* run = std::get_if<KeyRun>(&keys)) return run->first + index;
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return (*narrow)[index];
  return std::get<absl::Span<const uint64_t>>(keys)[index];
}

BatchCursor::BatchCursor(const std::vector<const ValidatedUpdate*>& updates) : updates_(updates) {
  for (const ValidatedUpdate* update : updates) num_left_ += update->num_keys();
  SkipEmpty();
}

void BatchCursor::SkipEmpty() {
  while (next_ < updates_.size() && next_tuple_ == updates_[next_]->num_keys()) {
    ++next_;
    next_tuple_ = 0;
  }
}

std::vector<UpdateRange> BatchCursor::Next(uint64_t max_tuples) {
  std::vector<UpdateRange> ranges;
  uint64_t room = max_tuples;
  while (!done() && room > 0) {
    const ValidatedUpdate* update = updates_[next_];
    const uint64_t left = update->num_keys() - next_tuple_;
    if (left > room && !update->unique()) {
      if (!ranges.empty()) break;
      room = left;
    }
    const uint64_t count = std::min(left, room);
    ranges.push_back({update, next_tuple_, count});
    next_tuple_ += count;
    room -= count;
    num_left_ -= count;
    SkipEmpty();
  }
  return ranges;
}

namespace {

// Sends one column of all ranges, piece after piece. Runs of keys have no array.
absl::Status SendColumn(Session& session, const std::vector<UpdateRange>& ranges, size_t row_bytes, void* d_column,
                        HostPart (*part_of)(const ValidatedUpdate& update, size_t first, size_t bytes)) {
  // Small pieces of halves, some of which are not of words, would break up what goes through a buffer together.
  const bool is_of_words = row_bytes % sizeof(uint32_t) == 0;
  size_t next = 0;
  for (const auto& [update, first, count] : ranges) {
    HostPart part = part_of(*update, first * row_bytes, count * row_bytes);
    part.pinned = part.pinned && (is_of_words || part.bytes >= session.tuning().min_copy_bytes);
    if (part.array != nullptr) RETURN_IF_ERROR(session.staging().CopyIn(d_column, next, part));
    next += part.bytes;
  }
  return absl::OkStatus();
}

// Sends what the kernels know of each range, and lists the runs.
absl::Status SendSources(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges,
                         Batch& batch) {
  std::vector<uint32_t> begin = {0};
  std::vector<Source> sources;
  for (const auto& [update, first, count] : ranges) {
    if (const auto* run = std::get_if<KeyRun>(&update->keys())) {
      std::byte* const d_keys = batch.d_keys.as<std::byte>() + size_t{begin.back()} * shape.key_bytes;
      batch.runs.push_back({d_keys, shape.key_bytes, run->first + first, count});
    }
    begin.push_back(begin.back() + static_cast<uint32_t>(count));
    sources.push_back(shape.MakeSource(*update));
  }
  RETURN_IF_ERROR(session.staging().Stage(batch.d_begin.get(), 0, begin.data(), batch.d_begin.bytes()));
  RETURN_IF_ERROR(session.staging().Stage(batch.d_sources.get(), 0, sources.data(), batch.d_sources.bytes()));
  return session.staging().Flush();
}

}  // namespace

absl::StatusOr<Batch> SendBatch(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges) {
  Batch batch;
  uint64_t num_tuples = 0;
  const uint64_t largest_key = shape.num_rows - 1;
  for (const auto& [update, first, count] : ranges) {
    num_tuples += count;
    batch.unique = batch.unique && update->unique();
    const bool is_known = update->unique() && !update->on_device();
    // Bounded, because the owner may have changed the keys since they were validated.
    batch.range.Include(is_known ? std::min(KeyAt(*update, first), largest_key) : 0);
    batch.range.Include(is_known ? std::min(KeyAt(*update, first + count - 1), largest_key) : largest_key);
  }
  if (num_tuples > std::numeric_limits<int32_t>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat("a batch of ", num_tuples, " tuples; positions have 32 bits"));
  }
  batch.num_tuples = static_cast<uint32_t>(num_tuples);
  batch.num_sources = static_cast<uint32_t>(ranges.size());
  const auto allocate = [&](size_t bytes) { return session.memory().Allocate(bytes, Lane::kCopy); };
  ASSIGN_OR_RETURN(batch.d_keys, allocate(num_tuples * shape.key_bytes));
  ASSIGN_OR_RETURN(batch.d_values, allocate(num_tuples * shape.row_bytes));
  ASSIGN_OR_RETURN(batch.d_begin, allocate((ranges.size() + 1) * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(batch.d_sources, allocate(ranges.size() * sizeof(Source)));
  RETURN_IF_ERROR(SendColumn(session, ranges, shape.key_bytes, batch.d_keys.get(), KeyPart));
  RETURN_IF_ERROR(SendColumn(session, ranges, shape.row_bytes, batch.d_values.get(), ValuePart));
  RETURN_IF_ERROR(SendSources(session, shape, ranges, batch));
  ASSIGN_OR_RETURN(batch.sent, session.Mark(Lane::kCopy));
  return batch;
}

absl::StatusOr<DeviceRows> SendRows(Session& session, const TensorShape& shape, const std::vector<RowRange>& ranges) {
  uint64_t num_rows = 0;
  DeviceRows sent;
  for (const auto& [rows, first, count] : ranges) {
    num_rows += count;
    sent.range.Include(KeysOf(shape, *rows, first, count));
  }
  sent.num_rows = static_cast<uint32_t>(num_rows);
  sent.ascends = ranges.size() <= 1;
  for (const RowColumn column : kRowColumns) {
    const size_t row_bytes = BytesPerRow(shape, column);
    ASSIGN_OR_RETURN(sent[column], session.memory().Allocate(num_rows * row_bytes, Lane::kCopy));
    size_t next = 0;
    for (const auto& [rows, first, count] : ranges) {
      const HostPart part = {ColumnOf(*rows, column).data(), first * row_bytes, count * row_bytes};
      RETURN_IF_ERROR(session.staging().CopyIn(sent[column].get(), next, part));
      next += part.bytes;
    }
  }
  RETURN_IF_ERROR(session.staging().Flush());
  return sent;
}

absl::Status ReceiveBatch(Session& session, Batch& batch) {
  RETURN_IF_ERROR(session.device().Wait(Lane::kCompute, batch.sent));
  for (DeviceBuffer* buffer : {&batch.d_keys, &batch.d_values, &batch.d_begin, &batch.d_sources}) {
    buffer->HandTo(Lane::kCompute);
  }
  for (const ExpandRun& run : batch.runs) RETURN_IF_ERROR(session.device().Launch(run));
  return absl::OkStatus();
}

}  // namespace sparseagg::cuda
