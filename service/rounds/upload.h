// One submission in the making: its chunks, validated as they come.
#ifndef SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_
#define SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "host/base/content_hash.h"
#include "host/spec/dtype.h"
#include "host/updates/slice.h"
#include "host/updates/update.h"
#include "host/updates/update_builder.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {

// The part of a chunk that belongs to one tensor. Borrows keys, values and name from the decoded message.
struct ChunkSlice {
  absl::string_view tensor;
  SliceView view;
  std::optional<DType> dtype;  // of the values, as declared; nullopt: the tensor's
  bool keys_sorted = false;    // declared by the client, checked when the upload is complete
  bool keys_unique = false;    // likewise
};

// A decoded chunk, borrowed from its message.
struct Chunk {
  uint64_t sequence = 0;         // 0, 1, …
  bool last = false;             // the submission has no further chunk
  std::optional<double> weight;  // of the submission; belongs into chunk 0
  std::vector<ChunkSlice> slices;
};

// The treatment of a chunk that was received before.
enum class Repeats {
  kIgnore,  // unary calls, which clients retry
  kRefuse,  // streams, in which a repeated chunk is an error
};

// Returns: the error for chunk `sequence` that comes after chunk `last`, which was marked last.
absl::Status ChunkAfterLast(uint64_t sequence, uint64_t last);

// Tuples of each tensor, in the order of the spec. Shared by all uploads that expect the same.
using TuplesPerTensor = std::shared_ptr<const std::vector<uint64_t>>;

// Collects the chunks of one submission in columns, validates them, and turns them into updates.
//
//   Upload upload(config, &budget);
//   RETURN_IF_ERROR(upload.Append(chunk, Repeats::kIgnore));  // for each chunk
//   const ContentHash hash = upload.Hash();                   // upload.complete()
//   ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.TakeUpdates());
//
// Owned by an UploadHandle. Not thread-safe. Unusable after any error but FAILED_PRECONDITION of Append; discard it.
class Upload {
 public:
  // The upload reserves all its memory from `budget` before it allocates.
  Upload(std::shared_ptr<const RoundConfig> config, MemoryBudget* budget);

  // Validates the chunk and copies its keys and values.
  // Errors: FAILED_PRECONDITION: not the chunk expected next, which the message names; nothing changes.
  // INVALID_ARGUMENT: bad input, with tensor, chunk, position and value. RESOURCE_EXHAUSTED: a limit, which is named.
  absl::Status Append(const Chunk& chunk, Repeats repeats);

  // Sets how many tuples each tensor will probably get. Columns start with that size, so that later chunks are copied
  // once; but at most with a few times the size of the first chunk.
  void ExpectTuples(TuplesPerTensor tuples) { expected_ = std::move(tuples); }

  bool complete() const { return complete_; }  // the last chunk has been appended
  uint64_t next_sequence() const { return next_sequence_; }
  uint64_t num_tuples() const { return num_tuples_; }
  uint64_t num_bytes() const { return num_bytes_; }  // of decoded keys and values; implicit keys take none

  // Returns: the XXH3-128 of tensors, keys, values and weight. Deterministic: the same for every chunking.
  ContentHash Hash() const;

  // Returns: one update per tensor, in the order of the spec; an empty one for a tensor that no chunk has named. Only
  // the reservation stays: it is the caller's to move along with the updates.
  // Errors: INVALID_ARGUMENT: keys are not sorted or unique as declared. RESOURCE_EXHAUSTED: no memory to check that.
  absl::StatusOr<std::vector<ValidatedUpdate>> TakeUpdates();
  Reservation& reservation() { return reservation_; }
  std::vector<uint64_t> CountTuples() const;  // of each tensor, in the order of the spec

 private:
  absl::Status CheckSequence(const Chunk& chunk) const;
  absl::Status CheckWeight(const Chunk& chunk) const;
  absl::Status AppendSlice(uint64_t chunk, const ChunkSlice& slice, bool more_chunks);
  // Reserves columns of the expected size for a tensor whose first slice is `first`, if there is memory.
  void ReserveExpected(size_t tensor, const CheckedSlice& first, UpdateBuilder& builder);
  absl::Status CheckLimits(const TensorSpec& spec, uint64_t chunk, uint64_t tuples, uint64_t bytes) const;
  // Reserves the memory that appending `slice` needs, working memory included. Returns: how the builder may grow.
  absl::StatusOr<Growth> ReserveFor(const UpdateBuilder& builder, const TensorSpec& spec, const CheckedSlice& slice);

  const std::shared_ptr<const RoundConfig> config_;
  Reservation reservation_;
  std::map<size_t, UpdateBuilder> builders_;  // by tensor; only tensors that a chunk has named
  TuplesPerTensor expected_;                  // null: unknown
  std::optional<double> weight_;
  uint64_t next_sequence_ = 0;
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  bool complete_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_
