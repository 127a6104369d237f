// An upload: one submission in the making, its chunks validated as they come.
#ifndef SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_
#define SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/content_hash.h"
#include "host/partial.h"
#include "host/spec/dtype.h"
#include "host/updates/slice.h"
#include "host/updates/update.h"
#include "host/updates/update_builder.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/certifier.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {

// One tensor's part of a chunk. Borrows keys, values and name from the decoded message until Append returns.
struct ChunkSlice {
  absl::string_view tensor;
  SliceView view;
  std::optional<DType> dtype;  // of the values as sent; Append widens them to the tensor's. nullopt: as `view` says
  // Declarations about the keys of all slices of the tensor, in their order. One slice that declares is enough.
  // TakeUpdates checks them.
  bool is_partial = false;   // `view.values` are blocks of a partial; there are no keys
  bool keys_sorted = false;  // no key is less than the one before it; keys may repeat
  bool keys_unique = false;  // no key repeats
  // The tensor's whole update, in the memory of the engine's device (Engine::Import), in place of `view`. Only the
  // engine in a client's own process gets one; null elsewhere.
  std::shared_ptr<const ValidatedUpdate> imported = nullptr;
};

// A decoded chunk, borrowed from its message.
struct Chunk {
  uint64_t sequence = 0;  // 0, 1, …
  bool last = false;      // the submission has no further chunk
  // Of the submission, in chunk 0. Later chunks repeat it or leave it out. Left out of chunk 0: each submission counts
  // alike, which tensors weighted by_weight refuse.
  std::optional<double> weight;
  std::optional<uint64_t> base_version = std::nullopt;  // in chunk 0, of a submission to a stream
  std::vector<ChunkSlice> slices;
  absl::Span<const absl::string_view> message;  // as received, for service/store; borrowed; Upload does not read it
};

// Returns: the bytes of its keys and values, as sent.
uint64_t BytesOf(const Chunk& chunk);

// Returns: the hash of what a client sends again if it repeats the chunk: all but the sequence number, and but
// base_version, which a retry may change.
ContentHash HashOfChunk(const Chunk& chunk);

// Returns: OK if the chunk repeats the one of its number. `hash`: of the chunk. `hashes`: of the chunks that came
// before. Errors: FAILED_PRECONDITION: those were all chunks of the upload, and fewer. ALREADY_EXISTS: that chunk had
// other content.
absl::Status CheckRepeat(const Chunk& chunk, const ContentHash& hash, absl::Span<const ContentHash> hashes);

// Returns: the FAILED_PRECONDITION for a chunk that comes after the last one. `sequence`: the number of that chunk.
// `last`: the number of the chunk that was marked as the last one. For Append, and for Round once the upload has gone.
absl::Status ChunkAfterLast(uint64_t sequence, uint64_t last);

// The number of tuples of each tensor, in the order of the spec. Many uploads may share one vector.
using TuplesPerTensor = std::shared_ptr<const std::vector<uint64_t>>;

// Collects one submission's chunks in columns, validates them, and turns them into updates. Owned by UploadHandle.
//
//   Upload upload(config, &budget);
//   upload.ExpectTuples(tuples);                              // optional
//   const ContentHash chunk_hash = HashOfChunk(chunk);
//   RETURN_IF_ERROR(upload.Append(chunk, &chunk_hash));  // for each chunk, until upload.complete()
//   const ContentHash hash = upload.Hash();
//   ASSIGN_OR_RETURN(std::vector<ValidatedUpdate> updates, upload.TakeUpdates());  // once; then reservation() only
//
// Not thread-safe, not movable. After an error or std::bad_alloc of any method the upload is unusable, and keeps its
// reservation until it is destroyed. After FAILED_PRECONDITION or ALREADY_EXISTS of Append it goes on as before.
class Upload {
 public:
  // `budget`: not null; outlives the upload. Append reserves the memory for each chunk there before it allocates.
  Upload(std::shared_ptr<const RoundConfig> config, MemoryBudget* budget);

  // Validates the chunk and copies its keys and values. A chunk that came before has no effect, also when the upload is
  // complete. `hash`: HashOfChunk(chunk), of an upload by unary calls, which clients retry; null: of a stream, where a
  // chunk that came before is an error. Errors: FAILED_PRECONDITION: another chunk was expected. ALREADY_EXISTS: as of
  // CheckRepeat. INVALID_ARGUMENT: bad input, with tensor, chunk, key, position and value. RESOURCE_EXHAUSTED: the
  // submission is larger than its limit, or the memory budget is used up; the text says which.
  absl::Status Append(const Chunk& chunk, const ContentHash* hash = nullptr);

  // Sets how many tuples each tensor will probably get, so that later chunks need not enlarge its columns. A column
  // starts with that size, but with at most 8 times the tuples of the tensor's first slice.
  // Requires: null (unknown) or one number for each tensor; no chunk yet.
  void ExpectTuples(TuplesPerTensor tuples) { expected_ = std::move(tuples); }

  bool complete() const { return complete_; }                // the last chunk has been appended
  uint64_t next_sequence() const { return next_sequence_; }  // number of the chunk expected next
  // Of the chunks so far; empty if Append was given none.
  const std::vector<ContentHash>& chunk_hashes() const { return chunk_hashes_; }
  uint64_t num_tuples() const { return num_tuples_; }      // of all tensors, so far
  double weight() const { return weight_.value_or(1.0); }  // of the submission; 1 if none was sent
  uint64_t base_version() const { return base_version_; }  // 0 unless the config is of a stream
  uint64_t num_bytes() const { return num_bytes_; }        // of decoded keys and values; the keys of a run are none

  // Returns: the XXH3-128 of weight, tensors, keys and values as decoded, so that it does not depend on chunking,
  // packing or declarations. Values of `union`, which ignores them, are not part of it. With an imported update, which
  // the host cannot read, the hash equals no other one.
  // Requires: complete(); TakeUpdates was not called.
  ContentHash Hash() const;

  // Returns: the content of each tensor of the spec, in its order, until the next call that changes the upload.
  // Requires: as Hash.
  std::vector<TensorContent> Content() const;

  // Returns: one update per tensor, in the order of the spec; an empty one for a sparse tensor without slices.
  // Requires: complete(). Errors: INVALID_ARGUMENT: keys are not as declared, or a dense tensor lacks rows.
  // RESOURCE_EXHAUSTED: the memory budget has no room for the check of keys_unique.
  // `factor`: of a stream whose table is not all ones: each update gets the weight of its tensor times this; 1 is the
  // weight of a tensor weighted kUniform.
  absl::StatusOr<std::vector<ValidatedUpdate>> TakeUpdates(std::optional<double> factor = std::nullopt);
  // Whether the submission is a partial.
  bool is_partial() const { return partial_.has_value(); }
  // Returns: the rows of a partial, as TakeUpdates does those of updates. Errors: as of PartialBuilder::Finish.
  absl::StatusOr<std::vector<PartialBlock>> TakePartial();
  // Returns: what the upload has reserved; after TakeUpdates, the memory of the updates. A caller that keeps them
  // longer than the upload must move the reservation to its own (Reservation::Absorb).
  Reservation& reservation() { return reservation_; }
  // Returns: the number of tuples of each tensor so far, in the order of the spec.
  std::vector<uint64_t> CountTuples() const;

 private:
  absl::Status CheckSequence(const Chunk& chunk) const;
  absl::Status CheckWeight(const Chunk& chunk) const;
  absl::Status CheckBaseVersion(const Chunk& chunk) const;
  // Takes an imported update of a tensor. Errors: INVALID_ARGUMENT: the tensor has another slice. As of CheckLimits.
  absl::Status AppendImported(uint64_t chunk, size_t tensor, const ValidatedUpdate& update);
  // `chunk`: the number of the chunk. `more_chunks`: it is not the last one.
  absl::Status AppendSlice(uint64_t chunk, const ChunkSlice& slice, bool more_chunks);
  absl::Status AppendPartial(uint64_t chunk, const ChunkSlice& slice);
  // Reserves columns of the expected size for a tensor whose first slice is `first`, if there is memory.
  void ReserveExpected(size_t tensor, const CheckedSlice& first, UpdateBuilder& builder);
  absl::Status CheckLimits(const TensorSpec& spec, uint64_t chunk, uint64_t tuples, uint64_t bytes) const;
  // Reserves the memory that appending `slice` needs, working memory included. Returns: how the builder may grow.
  absl::StatusOr<Growth> ReserveFor(const UpdateBuilder& builder, const TensorSpec& spec, const CheckedSlice& slice);

  const std::shared_ptr<const RoundConfig> config_;
  Reservation reservation_;
  std::map<size_t, UpdateBuilder> builders_;    // by tensor; only tensors that a chunk has named
  std::map<size_t, ValidatedUpdate> imported_;  // by tensor; no tensor is in both
  struct Partial {
    explicit Partial(absl::Span<const TensorSpec> tensors) : blocks(tensors) {}
    PartialBuilder blocks;
    ContentHasher hash;
  };
  std::optional<Partial> partial_;
  TuplesPerTensor expected_;  // null: unknown
  std::optional<double> weight_;
  uint64_t base_version_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<ContentHash> chunk_hashes_;
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  bool complete_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_
