// The staging of one submission: its chunks, validated as they come.
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

// One tensor's part of a chunk, borrowed from the message it came in.
struct ChunkSlice {
  absl::string_view tensor;
  SliceView view;
  std::optional<DType> dtype;  // of the values, as declared; default: the tensor's
  bool keys_sorted = false;    // promises
  bool keys_unique = false;
};

struct Chunk {
  uint64_t sequence = 0;
  bool last = false;
  std::optional<double> weight;
  std::vector<ChunkSlice> slices;
};

// Whether a chunk that was received already is ignored (unary calls, which are retried) or refused (streams, which
// have no reason to repeat one).
enum class Repeats { kIgnore, kRefuse };

// What is said of a chunk that comes after the one that was marked last.
absl::Status ChunkAfterLast(uint64_t sequence, uint64_t last);

// Shared by all uploads that are expected to be like the one that it is of.
using TuplesPerTensor = std::shared_ptr<const std::vector<uint64_t>>;

// Not thread-safe. After any error but one about the sequence the upload is good for nothing and must be discarded.
class Upload {
 public:
  // All memory that the upload comes to hold is reserved from `budget` first. The round's weightings decide whether
  // chunk 0 must carry a weight.
  Upload(std::shared_ptr<const RoundConfig> config, MemoryBudget* budget);

  // FAILED_PRECONDITION, and nothing changed: not the chunk expected next; the message names that one. Otherwise as
  // in the table of bad input: INVALID_ARGUMENT names tensor, chunk, position and value; RESOURCE_EXHAUSTED the limit.
  absl::Status Append(const Chunk& chunk, Repeats repeats);

  // About how many tuples each tensor will get, by its position in the spec: chunks up to there are copied once. A
  // guess, of which only a few times the first chunk is believed.
  void Expect(TuplesPerTensor tuples) { expected_ = std::move(tuples); }

  bool complete() const { return complete_; }  // the last chunk is here
  uint64_t next_sequence() const { return next_sequence_; }
  uint64_t num_tuples() const { return num_tuples_; }
  uint64_t num_bytes() const { return num_bytes_; }  // of keys and values, decoded; implicit keys take none

  // XXH3-128 of what the update says: tensors, keys, values, weight. The same for every chunking.
  ContentHash Hash() const;

  // One update a tensor, in the order of the spec, with an empty one where no chunk named the tensor. The upload is
  // spent but for its reservation, which goes with the updates.
  absl::StatusOr<std::vector<ValidatedUpdate>> TakeUpdates();
  Reservation& reservation() { return reservation_; }
  // Tuples of each tensor, in the order of the spec.
  std::vector<uint64_t> CountTuples() const;

 private:
  absl::Status CheckSequence(const Chunk& chunk) const;
  absl::Status CheckWeight(const Chunk& chunk) const;
  absl::Status AppendSlice(uint64_t chunk, const ChunkSlice& slice, bool more_chunks);
  void MakeRoom(size_t tensor, const CheckedSlice& first, UpdateBuilder& builder);
  absl::Status CheckLimits(const TensorSpec& spec, uint64_t chunk, uint64_t tuples, uint64_t bytes) const;
  // What appending `slice` takes, all that is held at once counted. Returns how the builder is to grow.
  absl::StatusOr<Growth> ReserveFor(const UpdateBuilder& builder, const TensorSpec& spec, const CheckedSlice& slice);

  const std::shared_ptr<const RoundConfig> config_;
  Reservation reservation_;
  std::map<size_t, UpdateBuilder> builders_;  // by tensor; only of those that chunks have named
  TuplesPerTensor expected_;
  std::optional<double> weight_;
  uint64_t next_sequence_ = 0;
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  bool complete_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_UPLOAD_H_
