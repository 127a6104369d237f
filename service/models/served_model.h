// One model of a server: who changes it, how it survives a restart, and who waits for its next version.
#ifndef SPARSEAGG_SERVICE_MODELS_SERVED_MODEL_H_
#define SPARSEAGG_SERVICE_MODELS_SERVED_MODEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/base/mutex.h"
#include "host/model/model.h"
#include "service/admission/memory_budget.h"
#include "service/base/clock.h"
#include "service/rounds/round.h"
#include "service/rounds/round_journal.h"
#include "service/rounds/round_life.h"
#include "service/rounds/round_services.h"
#include "service/store/records.h"
#include "service/streams/stream.h"

namespace sparseagg::service {

// The decoded spec of a model. Made by DecodeCreateModel; immutable.
struct ModelConfig {
  std::string tenant;
  std::string id;             // unique among the tenant's models; empty: the registry draws one
  std::string stream;         // id; empty: ApplyRound makes the versions
  ModelSpec spec;             // keep_versions 0: by the stream, which the registry resolves
  std::string initial_round;  // id; empty: none
  std::string wire_spec;      // serialised v1::ModelSpec; equal for two requests of the same model

  std::string LogName() const;  // as RoundConfig::LogName
};

// Returns: the NOT_FOUND status of a model that does not exist, or not any more.
absl::Status NoModelError(absl::string_view id);

// The merged rows of a round, by the tensors of a model.
struct RoundRows {
  Results results;  // owns what `delta` borrows
  ModelDelta delta;
};
// `is_initial`: for version 0. Errors: UNIMPLEMENTED: the round is a cluster's. FAILED_PRECONDITION: the round is not
// DONE, or is private, and spec.reads is kUnset. Of MatchResults.
absl::StatusOr<RoundRows> RowsOf(const ModelSpec& spec, const Round& round, bool is_initial);

// A model, its log and snapshots, and the stream that drives it.
//
// One version after the other is applied, by ApplyRound or, for a model with a stream, by a task on the worker pool
// (ApplyNext). Both hold apply_mu_, which makes them Model's one writer:
//
//   1  reserve memory in the tenant's budget                  RESOURCE_EXHAUSTED: the model stays
//   2  write the merged rows as the chunks of a new upload    RESOURCE_EXHAUSTED, UNAVAILABLE: the model stays
//   3  Model::Begin                  OUT_OF_RANGE: the upload is deleted; of a stream, the version becomes an empty one
//   4  write the log record (Store::PutModelVersion), which makes the chunks count, and wait until it is durable
//   5  Model::Commit; wake the calls that wait
//   6  if the log is larger than the latest snapshot and kMinLogBytes: write a snapshot, which removes the log
//
// After the end of the process before step 4 is durable, the version does not exist, or is replayed; the retry, or the
// stream's round, makes or finds it. After step 4, the restart replays it. A snapshot is an upload of its own. One
// batch of RocksDB names it and removes the snapshot before and the log: there is no moment with both or none. Chunks
// that no record names are removed at the restart.
//
// A version is made once: a call with an older base finds the version base + 1, and compares the name of its round.
//
// Owned by ModelRegistry. Thread-safe. Lock order: apply_mu_, then mu_. Reads take neither (host/model/model.h).
class ServedModel : public std::enable_shared_from_this<ServedModel> {
 public:
  static constexpr uint64_t kMinLogBytes = uint64_t{1} << 20;
  // Time between two attempts to apply a stream's version for which memory or disk was short.
  static constexpr absl::Duration kRetryInterval = absl::Seconds(1);

  // Makes version 0, in memory and in the store: its snapshot, then the record of the model. `number`: in the store.
  // `initial`: of RowsOf for the initial round; empty: none. The parts of `services` outlive the model. Errors: of
  // Model::Create, the budget, and Store. Blocks: for a sync.
  static absl::StatusOr<std::shared_ptr<ServedModel>> Create(ModelConfig config, const RoundServices& services,
                                                             uint64_t number, const ModelDelta& initial);
  // Reopens a model of an earlier run: reads its snapshot, replays its log, and removes what no record names. A log
  // record whose chunks did not reach the disk, when the machine ended, ends the log. Memory counts, even beyond the
  // tenant's limit. Errors: DATA_LOSS: the store is damaged.
  static absl::StatusOr<std::shared_ptr<ServedModel>> Restore(ModelConfig config, const RoundServices& services,
                                                              uint64_t number, absl::Time create_time);
  ~ServedModel();  // drops waits without calling their `done`

  const ModelConfig& config() const { return config_; }
  // For Figures, ReadKeys and ReadRange.
  const Model& model() const { return *model_; }
  absl::Time create_time() const { return create_time_; }
  // Why the stream's next version is not applied, though it has ended, or will never be; empty: no reason.
  std::string waiting_reason() const;
  const RoundJournal& journal() const { return *journal_; }

  // ---- changes ----

  // Makes version base + 1 of a round. `round`: null: `round_name` is empty, or there is no such round any more, which
  // matters only if the version is not there already. `learning_rate`: from this version on. Returns: the version,
  // which is durable. Errors: of v1::Models.ApplyRound. Blocks: for the step, a sync, and perhaps a snapshot.
  absl::StatusOr<ModelVersion> ApplyRound(uint64_t base, const std::string& round_name,
                                          const std::shared_ptr<const Round>& round,
                                          std::optional<double> learning_rate);
  // Starts to apply the versions of the stream, from the next one on, as they end. The stream keeps them until then,
  // and names no later version to workers than the model has (Stream::KeepFrom). Call it once, after Create or when all
  // rounds are restored. Errors: INVALID_ARGUMENT, FAILED_PRECONDITION: of CheckFits. Of Stream::KeepFrom.
  absl::Status Follow(std::shared_ptr<Stream> stream);
  // Applies no further version of the stream. `reason`: for waiting_reason.
  void StopFollowing(absl::string_view reason);
  // Removes the model from the store, and stops following. Calls that wait end. Errors: of Store. Blocks: while a
  // version is made.
  absl::Status Delete();
  bool is_deleted() const { return is_deleted_; }

  // ---- waits: as Round::Wait ----

  using WaitId = RoundWaits::Id;
  // Calls `done` once: within Wait if version() > `after`; else at the next version, at Delete, after `timeout`, or on
  // ReleaseWaiters.
  WaitId Wait(uint64_t after, absl::Duration timeout, std::function<void()> done);
  bool StopWaiting(WaitId id) { return waits_.Remove(id); }
  void ReleaseWaiters() { waits_.Release(); }

 private:
  using Take = absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)>;

  ServedModel(ModelConfig config, const RoundServices& services, std::unique_ptr<Model> model, absl::Time create_time);

  // Returns: the answer to a call whose base is not the newest version; nullopt: it is.
  std::optional<absl::StatusOr<ModelVersion>> AnswerRetry(uint64_t base, const std::string& source) const;
  // Steps 1 to 6. `round`: null: none. `record`: empty_reason and learning_rate; the rest is filled in.
  absl::StatusOr<ModelVersion> Apply(const ModelDelta& delta, const Round* round, ModelVersionRecord record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(apply_mu_);
  // Returns: ModelVersion.digest of the next version.
  std::string NextDigest(const Round* round, const ModelVersionRecord& record) const;
  // Steps 2 to 5.
  absl::StatusOr<ModelVersion> MakeVersion(const ModelDelta& delta, ModelVersionRecord record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(apply_mu_);
  // Restores the snapshot, or replays a version of the log. Errors: ABORTED: as of Store::ForEachChunk. DATA_LOSS.
  absl::Status RestoreVersion(uint64_t number, bool is_snapshot, const ModelVersionRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(apply_mu_);
  // Writes the pieces that `save` has as chunks of a new upload, the record's. After an error, none is left.
  absl::Status WriteUpload(absl::FunctionRef<absl::Status(Take)> save, ModelVersionRecord& record);
  void DeleteUpload(const ModelVersionRecord& record);
  absl::Status WriteSnapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(apply_mu_);

  void PostNext();
  // Applies the stream's next version if it has ended, else waits for its end; then goes on with the one after it.
  // Tries again after kRetryInterval if that fails. Runs on the worker pool, one at a time.
  void ApplyNext();
  absl::Status ApplyVersion(const Round& round);
  void SetWaitingReason(absl::string_view reason);

  const ModelConfig config_;
  const RoundServices services_;
  const absl::Time create_time_;
  const std::shared_ptr<RoundJournal> journal_;
  const std::unique_ptr<Model> model_;
  RoundWaits waits_;  // all end at each version
  std::atomic<bool> is_deleted_ = false;

  Mutex apply_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // held while a version or a snapshot is made
  Reservation memory_ ABSL_GUARDED_BY(apply_mu_);
  uint64_t snapshot_bytes_ ABSL_GUARDED_BY(apply_mu_) = 0;
  uint64_t log_bytes_ ABSL_GUARDED_BY(apply_mu_) = 0;  // since the snapshot

  mutable Mutex mu_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // null: none is followed
  std::string waiting_reason_ ABSL_GUARDED_BY(mu_);
  Timer::Id retry_timer_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_MODELS_SERVED_MODEL_H_
