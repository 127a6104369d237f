#include "service/rounds/upload.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// Upper estimate of the memory of an upload, and of each tensor in it, without keys and values.
constexpr uint64_t kUploadOverheadBytes = 2048;
// The same of each further chunk: its hash, in a list that has twice the capacity, and two copies for the commit.
constexpr uint64_t kChunkOverheadBytes = 4 * sizeof(ContentHash);

// Columns start with at most so many times the tuples of the first chunk.
constexpr uint64_t kMaxExpectedFactor = 8;

// Returns: a number that no other call returns.
uint64_t NextNumber() {
  static std::atomic<uint64_t> next = 0;
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

absl::Status ChunkAfterLast(uint64_t sequence, uint64_t last) {
  return absl::FailedPreconditionError(
      absl::StrCat("chunk ", sequence, " after chunk ", last, ", which was marked last"));
}

Upload::Upload(std::shared_ptr<const RoundConfig> config, MemoryBudget* budget)
    : config_(std::move(config)), reservation_(budget, config_->KeepsSubmissions()) {}

uint64_t BytesOf(const Chunk& chunk) {
  uint64_t bytes = 0;
  for (const ChunkSlice& slice : chunk.slices) bytes += slice.view.keys.size() + slice.view.values.size();
  return bytes;
}

ContentHash HashOfChunk(const Chunk& chunk) {
  ContentHasher hasher;
  const auto add = [&hasher](const std::vector<uint64_t>& words) {
    hasher.Add(words.data(), words.size() * sizeof(words[0]));
  };
  const auto add_bytes = [&hasher](absl::string_view bytes) {
    hasher.Add(bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  add({chunk.last, chunk.weight.has_value(), std::bit_cast<uint64_t>(chunk.weight.value_or(0.0)), chunk.slices.size()});
  for (const ChunkSlice& slice : chunk.slices) {
    const SliceView& view = slice.view;
    add({slice.tensor.size(), static_cast<uint64_t>(view.key_type), view.first_key, view.num_keys, view.keys.size(),
         view.has_values, static_cast<uint64_t>(view.value_packing), view.values.size(),
         slice.dtype.has_value() ? 1 + static_cast<uint64_t>(*slice.dtype) : 0, slice.is_partial, slice.keys_sorted,
         slice.keys_unique, reinterpret_cast<uintptr_t>(slice.imported.get())});
    add_bytes(slice.tensor).IgnoreError();
    view.keys.ForEachBatch(1, add_bytes).IgnoreError();  // add_bytes has no error
    view.values.ForEachBatch(1, add_bytes).IgnoreError();
  }
  return hasher.Digest();
}

absl::Status CheckRepeat(const Chunk& chunk, const ContentHash& hash, absl::Span<const ContentHash> hashes) {
  if (chunk.sequence >= hashes.size()) return ChunkAfterLast(chunk.sequence, hashes.size() - 1);
  if (hashes[chunk.sequence] == hash) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "chunk ", chunk.sequence, " has other content than the chunk ", chunk.sequence,
      " that came before; another submission_id, or a chunk 0 with another upload_tag, begins a new upload"));
}

absl::Status Upload::Append(const Chunk& chunk, const ContentHash* hash) {
  if (chunk.sequence < next_sequence_ && hash != nullptr) return CheckRepeat(chunk, *hash, chunk_hashes_);
  RETURN_IF_ERROR(CheckSequence(chunk));
  RETURN_IF_ERROR(CheckWeight(chunk));
  RETURN_IF_ERROR(CheckBaseVersion(chunk));
  RETURN_IF_ERROR(reservation_.Grow(chunk.sequence == 0 ? kUploadOverheadBytes : kChunkOverheadBytes, "an upload"));
  if (chunk.sequence == 0) {
    weight_ = chunk.weight;
    base_version_ = chunk.base_version.value_or(0);
  }
  for (const ChunkSlice& slice : chunk.slices) {
    if (slice.is_partial) {
      RETURN_IF_ERROR(AppendPartial(chunk.sequence, slice));
      continue;
    }
    RETURN_IF_ERROR(AppendSlice(chunk.sequence, slice, /*more_chunks=*/!chunk.last));
  }
  if (hash != nullptr) chunk_hashes_.push_back(*hash);
  ++next_sequence_;
  complete_ = chunk.last;
  return absl::OkStatus();
}

absl::Status Upload::CheckSequence(const Chunk& chunk) const {
  if (complete_) return ChunkAfterLast(chunk.sequence, next_sequence_ - 1);
  if (chunk.sequence != next_sequence_) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", chunk.sequence, " came where chunk ", next_sequence_, " is expected next"));
  }
  return absl::OkStatus();
}

absl::Status Upload::CheckWeight(const Chunk& chunk) const {
  if (chunk.sequence > 0) {
    if (!chunk.weight.has_value() || chunk.weight == weight_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.sequence, ": weight ", *chunk.weight, " differs from the weight of chunk 0"));
  }
  const bool is_partial = !chunk.slices.empty() && chunk.slices.front().is_partial;
  if (is_partial && chunk.weight.has_value()) {
    return absl::InvalidArgumentError("chunk 0: a partial has the weights of its submissions, and none of its own");
  }
  if (is_partial) return absl::OkStatus();
  for (const TensorSpec& spec : config_->tensors) {
    if (chunk.weight.has_value()) {
      RETURN_IF_ERROR(ValidateWeight(spec, *chunk.weight));
    } else if (spec.aggregation.weighting == Weighting::kByWeight) {
      return InvalidSlice(spec, 0, "the weight is missing, but the tensor is weighted by_weight");
    }
  }
  return absl::OkStatus();
}

absl::Status Upload::CheckBaseVersion(const Chunk& chunk) const {
  if (!config_->takes_base_version) {
    if (!chunk.base_version.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.sequence, ": base_version is of submissions to streams, and this is a round"));
  }
  if (chunk.sequence == 0) {
    if (chunk.base_version.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "chunk 0: base_version is missing; a submission to a stream says which version it was computed from");
  }
  if (!chunk.base_version.has_value() || chunk.base_version == base_version_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.sequence, ": base_version ", *chunk.base_version,
                                                 " differs from that of chunk 0, ", base_version_));
}

absl::Status Upload::CheckLimits(const TensorSpec& spec, uint64_t chunk, uint64_t tuples, uint64_t bytes) const {
  const auto exhausted = [&](absl::string_view limit, uint64_t value, uint64_t max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ", chunk ", chunk, ": the submission has ", value, ", more than ", limit, " ", max));
  };
  const uint64_t max_tuples = config_->max_tuples_per_submission;
  if (max_tuples != 0 && tuples > max_tuples) return exhausted("max_tuples_per_submission", tuples, max_tuples);
  const uint64_t max_bytes = config_->max_bytes_per_submission;
  if (max_bytes != 0 && bytes > max_bytes) return exhausted("max_bytes_per_submission", bytes, max_bytes);
  // Implicit keys without values take no memory here, but their result does. Refused now, before they are hashed.
  const uint64_t max_keys = reservation_.limit() / sizeof(uint32_t);
  if (max_keys != 0 && tuples > max_keys) {
    return exhausted("the keys that rounds have memory for,", tuples, max_keys);
  }
  return absl::OkStatus();
}

absl::Status Upload::AppendPartial(uint64_t chunk, const ChunkSlice& slice) {
  ASSIGN_OR_RETURN(const size_t tensor, config_->FindTensor(slice.tensor));
  const TensorSpec& spec = config_->tensors[tensor];
  if (!config_->accepts_partials) {
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(spec), ", chunk ", chunk, ": the round takes no partials (RoundSpec.accept_partials)"));
  }
  if (!builders_.empty() || !imported_.empty()) {
    return InvalidSlice(spec, chunk, "rows of a partial in a submission with others");
  }
  if (!partial_.has_value()) partial_.emplace(config_->tensors);
  PartialBuilder& blocks = partial_->blocks;
  const uint64_t size = slice.view.values.size();
  const uint64_t bytes = SaturatingAdd(num_bytes_, size);
  RETURN_IF_ERROR(CheckLimits(spec, chunk, num_tuples_, bytes));
  const uint64_t held_bytes = reservation_.bytes() - blocks.memory_bytes();
  // The bytes in one place, the rows of a block, and those of all blocks, which may move as they grow.
  RETURN_IF_ERROR(reservation_.Grow(SaturatingAdd(SaturatingMultiply(size, 4), blocks.memory_bytes()),
                                    absl::StrCat("a partial of ", Quoted(spec))));
  Column<char> copy;
  const absl::string_view whole = slice.view.values.Flatten(copy);
  const uint64_t rows_before = blocks.num_rows(tensor);
  const uint64_t all_before = blocks.num_rows();
  const absl::Status appended = blocks.Append(whole);
  if (!appended.ok()) {
    return absl::Status(appended.code(), absl::StrCat(Quoted(spec), ", chunk ", chunk, ": ", appended.message()));
  }
  if (blocks.num_rows() - all_before != blocks.num_rows(tensor) - rows_before) {
    return InvalidSlice(spec, chunk, "the partial has rows of another tensor");
  }
  RETURN_IF_ERROR(CheckLimits(spec, chunk, blocks.num_rows(), bytes));
  partial_->hash.Add(whole.data(), whole.size());
  reservation_.SetTo(held_bytes + blocks.memory_bytes());
  num_tuples_ = blocks.num_rows();
  num_bytes_ = bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PartialBlock>> Upload::TakePartial() { return std::move(partial_->blocks).Finish(); }

absl::Status Upload::AppendSlice(uint64_t chunk, const ChunkSlice& slice, bool more_chunks) {
  ASSIGN_OR_RETURN(const size_t tensor, config_->FindTensor(slice.tensor));
  const TensorSpec& spec = config_->tensors[tensor];
  if (partial_.has_value()) return InvalidSlice(spec, chunk, "rows of one client in a partial");
  if (slice.imported != nullptr) return AppendImported(chunk, tensor, *slice.imported);
  if (imported_.contains(tensor)) return InvalidSlice(spec, chunk, "the tensor came before, in the memory of a device");
  SliceView view = slice.view;
  if (slice.dtype.has_value()) {
    const auto packing = wire::PackingOf(*slice.dtype, spec.dtype);
    if (!packing.has_value()) {
      return InvalidSlice(spec, chunk,
                          absl::StrCat("values are ", Name(*slice.dtype), ", but the tensor is ", Name(spec.dtype)));
    }
    view.value_packing = *packing;
  }
  ASSIGN_OR_RETURN(const CheckedSlice checked, CheckedSlice::Create(spec, chunk, view));
  const uint64_t tuples = SaturatingAdd(num_tuples_, checked.num_keys());
  const uint64_t bytes = SaturatingAdd(num_bytes_, SaturatingAdd(checked.key_bytes(), checked.value_bytes()));
  RETURN_IF_ERROR(CheckLimits(spec, chunk, tuples, bytes));

  auto found = builders_.find(tensor);
  if (found == builders_.end()) {
    RETURN_IF_ERROR(reservation_.Grow(kUploadOverheadBytes, "an upload"));
    found = builders_.try_emplace(tensor, &spec).first;
  }
  UpdateBuilder& builder = found->second;
  const uint64_t other_bytes = reservation_.bytes() - builder.memory_bytes();
  if (more_chunks && builder.num_keys() == 0) ReserveExpected(tensor, checked, builder);
  ASSIGN_OR_RETURN(const Growth growth, ReserveFor(builder, spec, checked));
  RETURN_IF_ERROR(builder.Append(checked, growth));
  // Releases the working memory of growing columns.
  reservation_.SetTo(other_bytes + builder.memory_bytes());
  if (slice.keys_sorted) builder.DeclareSorted();
  if (slice.keys_unique) builder.DeclareUnique();
  num_tuples_ = tuples;
  num_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status Upload::AppendImported(uint64_t chunk, size_t tensor, const ValidatedUpdate& update) {
  const TensorSpec& spec = config_->tensors[tensor];
  if (builders_.contains(tensor) || imported_.contains(tensor)) {
    return InvalidSlice(spec, chunk, "the tensor came before, but an update in the memory of a device is whole");
  }
  const uint64_t key_bytes = std::holds_alternative<KeyRun>(update.keys()) ? 0 : KeyBytes(spec);
  const uint64_t row_bytes = update.values() == nullptr ? 0 : SizeOf(spec.dtype) * uint64_t{spec.row_width};
  const uint64_t tuples = SaturatingAdd(num_tuples_, update.num_keys());
  const uint64_t bytes = SaturatingAdd(num_bytes_, SaturatingMultiply(update.num_keys(), key_bytes + row_bytes));
  RETURN_IF_ERROR(CheckLimits(spec, chunk, tuples, bytes));
  RETURN_IF_ERROR(reservation_.Grow(kUploadOverheadBytes, "an upload"));
  imported_.emplace(tensor, update);
  num_tuples_ = tuples;
  num_bytes_ = bytes;
  return absl::OkStatus();
}

void Upload::ReserveExpected(size_t tensor, const CheckedSlice& first, UpdateBuilder& builder) {
  if (expected_ == nullptr || first.view().key_type == SliceView::Keys::kImplicit) return;
  const uint64_t num_keys = std::min((*expected_)[tensor], SaturatingMultiply(kMaxExpectedFactor, first.num_keys()));
  if (num_keys <= first.num_keys()) return;
  // If memory is short, columns grow chunk by chunk instead.
  if (reservation_.Grow(builder.ReserveBytes(num_keys), "").ok()) builder.Reserve(num_keys);
}

absl::StatusOr<Growth> Upload::ReserveFor(const UpdateBuilder& builder, const TensorSpec& spec,
                                          const CheckedSlice& slice) {
  if (reservation_.Grow(builder.AppendBytes(slice, Growth::kAhead), "").ok()) return Growth::kAhead;
  // Memory is short: grow by this chunk only.
  RETURN_IF_ERROR(
      reservation_.Grow(builder.AppendBytes(slice, Growth::kExact), absl::StrCat("an upload to ", Quoted(spec))));
  return Growth::kExact;
}

ContentHash Upload::Hash() const {
  if (partial_.has_value()) return partial_->hash.Digest();
  std::vector<uint64_t> words = {weight_.has_value(), std::bit_cast<uint64_t>(weight_.value_or(0.0))};
  for (const auto& [tensor, builder] : builders_) {
    if (builder.num_keys() == 0) continue;  // the same as a tensor that no chunk has named
    const auto [high, low] = builder.HashContent();
    words.insert(words.end(), {tensor, builder.num_keys(), high, low});
  }
  for (const auto& [tensor, update] : imported_) {
    words.insert(words.end(), {tensor, update.num_keys(), NextNumber(), UINT64_MAX});
  }
  return HashOf(words.data(), words.size() * sizeof(words[0]));
}

std::vector<TensorContent> Upload::Content() const {
  std::vector<TensorContent> content;
  for (const TensorSpec& spec : config_->tensors) content.push_back({spec.name, {}});
  for (const auto& [tensor, builder] : builders_) content[tensor].content = builder.Content();
  return content;
}

std::vector<uint64_t> Upload::CountTuples() const {
  std::vector<uint64_t> tuples(config_->tensors.size());
  for (const auto& [tensor, builder] : builders_) tuples[tensor] = builder.num_keys();
  for (const auto& [tensor, update] : imported_) tuples[tensor] = update.num_keys();
  return tuples;
}

absl::StatusOr<std::vector<ValidatedUpdate>> Upload::TakeUpdates(std::optional<double> factor) {
  std::vector<ValidatedUpdate> updates;
  updates.reserve(config_->tensors.size());
  for (size_t tensor = 0; tensor < config_->tensors.size(); ++tensor) {
    if (const auto found = imported_.find(tensor); found != imported_.end()) {
      const ValidatedUpdate& update = found->second;
      updates.push_back(factor.has_value() ? update.WithWeight(update.weight() * *factor) : update);
      continue;
    }
    UpdateBuilder& builder = builders_.try_emplace(tensor, &config_->tensors[tensor]).first->second;
    const uint64_t held_bytes = reservation_.bytes();
    RETURN_IF_ERROR(reservation_.Grow(builder.FinishBytes(), "the search for repeated keys"));
    ASSIGN_OR_RETURN(ValidatedUpdate update, std::move(builder).Finish(weight_.value_or(1.0)));
    reservation_.SetTo(held_bytes);
    updates.push_back(factor.has_value() ? update.WithWeight(update.weight() * *factor) : std::move(update));
  }
  builders_.clear();
  imported_.clear();
  return updates;
}

}  // namespace sparseagg::service
