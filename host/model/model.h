// A model in memory: tensors of touched rows, and one version for all of them.
#ifndef SPARSEAGG_HOST_MODEL_MODEL_H_
#define SPARSEAGG_HOST_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/mutex.h"
#include "host/model/model_spec.h"
#include "host/model/row_block.h"
#include "host/model/row_table.h"
#include "host/result.h"

namespace sparseagg {

// A version, as v1::ModelVersion has it.
struct ModelVersion {
  uint64_t version = 0;
  std::string source = {};        // NOLINT(readability-redundant-member-init): "rounds/{id}"; empty: none
  uint64_t num_rows = 0;          // touched, of all tensors
  std::string empty_reason = {};  // NOLINT(readability-redundant-member-init): of an empty version: why
  std::string digest = {};        // NOLINT(readability-redundant-member-init): of all versions so far; may be empty
};

// What a read asks for. `version`: nullopt: the newest one. `since`: nullopt: all rows.
struct ReadAt {
  std::optional<uint64_t> version = std::nullopt;
  std::optional<uint64_t> since = std::nullopt;
};

// The answer to a read. Owns its memory.
struct ModelRows {
  uint64_t version = 0;
  uint64_t num_keys = 0;
  // A sparse result of num_keys: `keys` in answers to ReadRange, none to ReadKeys; `values` are the rows of those keys
  // that neither bit set has, `num_sent` of them. So codec/page_format.h encodes both.
  Result rows;
  uint64_t num_sent = 0;
  std::string untouched;  // v1::RowsPage; empty: no bit is set
  std::string unchanged;
  std::optional<uint64_t> next_key;  // ReadRange: where the next page begins; nullopt: this is the last one
};

// What a model has at one moment.
struct ModelFigures {
  uint64_t version = 0;
  uint64_t oldest_version = 0;
  struct Tensor {
    uint64_t num_rows = 0;
    uint64_t num_removed = 0;
    uint64_t oldest_since = 0;
    double learning_rate = 0.0;  // 0 with kAssign
  };
  std::vector<Tensor> tensors;
  std::deque<ModelVersion> versions;  // the newest keep_versions + 1, also those that a restart has made unreadable
};

// A model without I/O. Readers may be any number of threads, and see one version each, while one writer makes the next:
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Create(spec));
//   RETURN_IF_ERROR(model->Begin(delta));        // the writer; nobody sees it yet
//   …                                            // makes it durable; model->Abandon() if that fails
//   model->Commit({.source = "rounds/r1"});      // version 1
//   ASSIGN_OR_RETURN(ModelRows rows, model->ReadKeys(0, keys, {.version = 1}));   // any thread
//
// Writers (Begin, Commit, Abandon, Save) are called by one thread at a time, which the owner
// ensures. All other functions are thread-safe. One SharedMutex guards the state of all tensors; a read holds it shared
// for up to kReadBatch rows, and checks at each hold that its version is still kept. Between two holds the writer may
// go on, so a long read does not stop it; a read never mixes versions. Deterministic: equal specs, initial rows and
// deltas give equal bits, whatever the readers, restarts and machines. Functions that allocate throw std::bad_alloc,
// after which the model is unchanged.
class Model {
 public:
  static constexpr size_t kReadBatch = 1024;
  static constexpr uint64_t kMaxVersion = ~uint32_t{0} - 1;  // rows keep versions in 32 bits

  // Makes version 0. `initial`: empty, or as for Begin: its rows, without a step. `first`: source and digest.
  // Errors: of Validate and CheckDelta. RESOURCE_EXHAUSTED: more rows than max_rows.
  static absl::StatusOr<std::unique_ptr<Model>> Create(ModelSpec spec, const ModelDelta& initial = {},
                                                       ModelVersion first = {});

  const ModelSpec& spec() const { return spec_; }
  uint64_t version() const;
  ModelVersion newest() const;
  // The formula of v1::Model.memory_bytes.
  uint64_t memory_bytes() const;
  ModelFigures Figures() const;

  // ---- the writer ----

  // Returns: the most bytes by which Begin may increase memory_bytes, and needs besides. Saturates.
  uint64_t BeginBytes(const ModelDelta& delta) const;
  // Computes the next version. Readers see the present one until Commit. An empty delta makes an empty version, without
  // steps, but with removals. `learning_rate`: of all tensors but those of kAssign, from this step on; finite, ≥ 0.
  // Requires: the tensors of `delta` have passed CheckFits. Errors: OUT_OF_RANGE, RESOURCE_EXHAUSTED: of
  // RowTable::Begin, or more than kMaxVersion versions; nothing has changed then.
  absl::Status Begin(const ModelDelta& delta, std::optional<double> learning_rate = std::nullopt);
  // Makes the version that Begin computed the newest one, and drops the oldest one beyond keep_versions. `made`: its
  // texts; the other fields are filled in. Returns: the version. Does not throw.
  ModelVersion Commit(ModelVersion made);
  // Undoes Begin.
  void Abandon();

  // Calls `take` with the pieces of a snapshot of the newest version: first a header, then row blocks. Reads go on.
  absl::Status Save(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const;
  // Adds a piece of a snapshot to a model that is fresh from Create(spec), in the order of Save; the model then has the
  // snapshot's version, and no older one. Errors: DATA_LOSS: not a snapshot of such a model, or `is_last` too early.
  absl::Status Restore(absl::string_view piece, bool is_last);

  // ---- readers ----

  // Errors of both: INVALID_ARGUMENT: a version or `since` above the newest one, a key that is not below num_rows (the
  // error names both), or begin > end. FAILED_PRECONDITION: the version is not kept, or not any more: "the oldest
  // version is X"; `since` is below oldest_since: "read the whole tensor".
  //
  // Reads the rows of some keys, in any order. `with_initial`: also sends untouched rows.
  // Cost: 60 to 100 ns a row, and a binary search for each version that has changed it since.
  absl::StatusOr<ModelRows> ReadKeys(size_t tensor, absl::Span<const uint64_t> keys, const ReadAt& at,
                                     bool with_initial) const;
  // Reads the touched rows with keys from `begin` on, below `end` (0: all), in ascending order, up to `max_rows` of
  // them. With `since` also the keys that were removed, as untouched.
  absl::StatusOr<ModelRows> ReadRange(size_t tensor, uint64_t begin, uint64_t end, const ReadAt& at,
                                      uint64_t max_rows) const;

 private:
  explicit Model(ModelSpec spec);
  // Returns: the version to read. Errors: of the reads.
  absl::StatusOr<uint32_t> ResolveLocked(const ReadAt& at, const RowTable& table) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Finds up to kReadBatch keys at at.version, under one hold of the lock, and appends rows and bits to `out` for those
  // that the read sends. `is_range`: whether absent keys are left out, and the others appended.
  absl::Status Gather(size_t tensor, absl::Span<const uint64_t> keys, const ReadAt& at, bool is_range,
                      bool with_initial, ModelRows& out) const;
  ModelRows StartRows(size_t tensor, uint64_t most_keys) const;
  absl::Status BeginTables(const ModelDelta& delta, std::optional<double> learning_rate);
  absl::Status RestoreHeader(absl::string_view piece);

  const ModelSpec spec_;
  mutable SharedMutex mu_;
  std::vector<std::unique_ptr<RowTable>> tables_;  // by tensor; they guard their parts by mu_
  uint32_t version_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t oldest_version_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<ModelVersion> versions_ ABSL_GUARDED_BY(mu_);  // the last one may be of a Begin
  std::optional<uint64_t> num_missing_;  // Restore: rows that the header has announced and no block has had yet
};

// Returns: for each tensor of the model its result, and null for those without rows. Errors: INVALID_ARGUMENT,
// FAILED_PRECONDITION: of CheckFits; INVALID_ARGUMENT: a tensor that the model does not have. `specs`, `results`: of a
// round, in the same order.
absl::StatusOr<ModelDelta> MatchResults(const ModelSpec& spec, absl::Span<const TensorSpec> specs,
                                        absl::Span<const Result> results, bool is_initial);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_MODEL_H_
