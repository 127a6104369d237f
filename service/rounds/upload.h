// An upload: one submission in the making, its chunks validated as they come.
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
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/content_hash.h"
#include "host/spec/dtype.h"
#include "host/updates/slice.h"
#include "host/updates/update.h"
#include "host/updates/update_builder.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {

// One tensor's part of a chunk. Borrows keys, values and name from the decoded message until Append returns.
struct ChunkSlice {
  absl::string_view tensor;
  SliceView view;
  std::optional<DType> dtype;  // of the values as sent; Append widens them to the tensor's. nullopt: as `view` says
  bool keys_sorted =
      false;  // declares that all keys of the tensor ascend or repeat, in whichever slice; TakeUpdates checks
  bool keys_unique = false;  // likewise
};

// A decoded chunk, borrowed from its message.
struct Chunk {
  uint64_t sequence = 0;         // 0, 1, …
  bool last = false;             // the submission has no further chunk
  std::optional<double> weight;  // of the submission, in chunk 0; later chunks may repeat it. nullopt: as 1
  std::vector<ChunkSlice> slices;
  absl::Span<const absl::string_view> message;  // as received, for the store; borrowed; empty if nothing is stored
};

// What Append does with a chunk whose sequence number came before. It does not compare the content.
enum class Repeats {
  kIgnore,  // nothing, and returns OK: for unary calls, which clients retry
  kRefuse,  // returns FAILED_PRECONDITION: for streams
};

// The FAILED_PRECONDITION, of Append and of the round, for chunk `sequence` when chunk `last` was marked as the last.
absl::Status ChunkAfterLast(uint64_t sequence, uint64_t last);

// The number of tuples of each tensor, in the order of the spec. Many uploads may share one vector.
using TuplesPerTensor = std::shared_ptr<const std::vector<uint64_t>>;

// Collects one submission's chunks in columns, validates them, and turns them into updates. Owned by UploadHandle.
//
//   Upload upload(config, &budget);
//   upload.ExpectTuples(tuples);                              // optional
//   RETURN_IF_ERROR(upload.Append(chunk, Repeats::kIgnore));  // for each chunk, until upload.complete()
//   const ContentHash hash = upload.Hash();
//   ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.TakeUpdates());  // once; then reservation() only
//
// Not thread-safe, not movable. After an error or exception, except FAILED_PRECONDITION of Append, the upload is
// unusable and keeps its reservation until it is destroyed.
class Upload {
 public:
  // `budget`: not null; outlives the upload. Append reserves the memory for each chunk there before it allocates.
  Upload(std::shared_ptr<const RoundConfig> config, MemoryBudget* budget);

  // Validates the chunk and copies its keys and values.
  // Errors: FAILED_PRECONDITION: not the expected chunk, nor a repeated chunk that `repeats` allows; nothing changes.
  // INVALID_ARGUMENT: bad input, with tensor, chunk, position and value. RESOURCE_EXHAUSTED names the limit: the
  // largest size of a submission, which a new upload would exceed again, or the memory budget, which may have room
  // later.
  absl::Status Append(const Chunk& chunk, Repeats repeats);

  // Sets how many tuples each tensor will probably get. Columns start with that size, or with 8 times that of the first
  // chunk, whichever is less, so that later chunks need not enlarge them.
  // Requires: null (unknown) or one number for each tensor; no chunk yet.
  void ExpectTuples(TuplesPerTensor tuples) { expected_ = std::move(tuples); }

  bool complete() const { return complete_; }                // the last chunk has been appended
  uint64_t next_sequence() const { return next_sequence_; }  // number of the chunk expected next
  uint64_t num_tuples() const { return num_tuples_; }        // of all tensors, so far
  uint64_t num_bytes() const { return num_bytes_; }  // of decoded keys and values; without implicit keys (SliceView)

  // Returns: the XXH3-128 of weight, tensors, keys and kept values as decoded. Declarations and packing are not part of
  // it. Requires: complete(). Deterministic: the same for every chunking.
  ContentHash Hash() const;

  // Returns: one update per tensor, in the order of the spec; an empty one for a sparse tensor without slices.
  // Requires: complete(); Hash and CountTuples are not called afterwards.
  // Errors: INVALID_ARGUMENT: keys are not as declared; a dense tensor lacks rows, or slices. RESOURCE_EXHAUSTED: no
  // memory.
  absl::StatusOr<std::vector<ValidatedUpdate>> TakeUpdates();
  // Returns: what the upload has reserved; after TakeUpdates, the memory of the updates. A caller that keeps them
  // longer than the upload must move the reservation to its own (Reservation::Absorb).
  Reservation& reservation() { return reservation_; }
  std::vector<uint64_t> CountTuples() const;  // of each tensor, in the order of the spec

 private:
  absl::Status CheckSequence(const Chunk& chunk) const;
  absl::Status CheckWeight(const Chunk& chunk) const;
  // `more_chunks`: chunk number `chunk` is not the last one.
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
