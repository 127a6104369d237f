#include "cuda/merge/batch.h"

#include <algorithm>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

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

absl::Status SendKeys(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges,
                      Batch& batch) {
  size_t next = 0;
  for (const UpdateRange& range : ranges) {
    HostPart part;
    part.array = KeyArray(range.update->keys());
    part.first = range.first * shape.key_bytes;
    part.bytes = range.count * shape.key_bytes;
    part.on_device = range.update->on_device();
    part.pinned = range.update->pinned_keys();
    if (const auto* run = std::get_if<KeyRun>(&range.update->keys())) {
      batch.runs.push_back(
          {batch.d_keys.as<std::byte>() + next, shape.key_bytes, run->first + range.first, range.count});
    } else {
      RETURN_IF_ERROR(session.staging().CopyIn(batch.d_keys.get(), next, part));
    }
    next += part.bytes;
  }
  return absl::OkStatus();
}

absl::Status SendValues(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges,
                        Batch& batch) {
  if (shape.row_bytes == 0) return absl::OkStatus();
  size_t next = 0;
  for (const UpdateRange& range : ranges) {
    HostPart part;
    part.array = range.update->values();
    part.first = range.first * shape.row_bytes;
    part.bytes = range.count * shape.row_bytes;
    part.on_device = range.update->on_device();
    // Small pieces of halves, some of which are not of words, would break up what goes through a buffer together.
    const bool is_of_words = shape.row_bytes % sizeof(uint32_t) == 0;
    part.pinned = range.update->pinned_values() && (is_of_words || part.bytes >= session.tuning().min_copy_bytes);
    RETURN_IF_ERROR(session.staging().CopyIn(batch.d_values.get(), next, part));
    next += part.bytes;
  }
  return absl::OkStatus();
}

absl::Status SendSources(Session& session, const TensorShape& shape, const std::vector<UpdateRange>& ranges,
                         Batch& batch) {
  std::vector<uint32_t> begin = {0};
  std::vector<Source> sources;
  for (const UpdateRange& range : ranges) {
    begin.push_back(begin.back() + static_cast<uint32_t>(range.count));
    sources.push_back(shape.MakeSource(*range.update));
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
  RETURN_IF_ERROR(SendKeys(session, shape, ranges, batch));
  RETURN_IF_ERROR(SendValues(session, shape, ranges, batch));
  RETURN_IF_ERROR(SendSources(session, shape, ranges, batch));
  ASSIGN_OR_RETURN(batch.sent, session.Mark(Lane::kCopy));
  return batch;
}

absl::StatusOr<DeviceRows> SendRows(Session& session, const TensorShape& shape, const UnfinishedRows& rows,
                                    uint64_t first, uint64_t count) {
  DeviceRows sent;
  sent.num_rows = static_cast<uint32_t>(count);
  sent.range = KeysOf(shape, rows, first, count);
  for (const RowColumn column : kRowColumns) {
    const size_t row_bytes = BytesPerRow(shape, column);
    ASSIGN_OR_RETURN(sent[column], session.memory().Allocate(count * row_bytes, Lane::kCopy));
    if (count * row_bytes == 0) continue;
    const HostPart part = {ColumnOf(rows, column).data(), first * row_bytes, count * row_bytes};
    RETURN_IF_ERROR(session.staging().CopyIn(sent[column].get(), 0, part));
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
