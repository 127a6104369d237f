// A round inside the caller's process, without network, deadlines or Python.
#ifndef SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_
#define SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/aggregation.h"
#include "host/engine.h"
#include "host/result.h"
#include "host/spec/clip.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::python {

// One tensor's part of a submission. Borrows the caller's arrays.
struct InputTensor {
  size_t tensor = 0;  // index in the specs
  InputKeys keys;
  const std::byte* values = nullptr;      // keys × row_width, in the tensor's dtype; null: none, for a union only
  bool on_device = false;                 // keys (unless they are a run) and values are in device memory
  std::array<uintptr_t, 2> streams = {};  // of those on the device, as of DeviceUpdate
  // The keys have the tensor's key type, nobody can change them, and Submission::owner keeps them: they are not copied.
  bool has_fixed_keys = false;
  // If given, the merge checks the keys, which Submission::owner keeps: 64-bit ones, of which these are the bounds, of
  // a tensor that CpuTakesUncheckedKeys names.
  std::optional<KeyBounds> unchecked = std::nullopt;
};

struct Submission {
  std::string client_id;
  std::optional<double> weight;
  // Of a submission that a server has counted: its weight in each tensor, as the server used it. Replaces `weight`, and
  // the check that a weight has an effect, which is for callers. Empty: `weight` counts.
  std::vector<double> tensor_weights;
  // Ascending by index; a missing tensor gets an empty update. Inlined, as a round of many small updates spends much of
  // its time on allocations.
  absl::InlinedVector<InputTensor, 1> tensors;
  // Keep the caller's arrays alive; released on any thread, without the GIL. `owner` keeps the values, until the engine
  // no longer needs them. `key_owner` keeps the other keys, until the round has added its copy of them.
  std::shared_ptr<const void> owner;
  std::shared_ptr<const void> key_owner;
};

// A spec's limits on submissions; 0: no limit.
struct RoundLimits {
  uint64_t max_submissions = 0;
  uint64_t max_tuples_per_submission = 0;
  uint64_t max_bytes_per_submission = 0;
  uint64_t min_submissions = 0;
};

struct LocalRoundOptions {
  int threads = 0;              // threads that prepare and merge; 0: one per core
  uint64_t memory_limit = 0;    // in bytes, as of Aggregation; 0: none
  bool device = false;          // merge with the engine of LoadCuda (local_runtime.h)
  std::string noise_key = {};   // of a private round. NOLINT(readability-redundant-member-init): may be left out
  std::string release_id = {};  // NOLINT(readability-redundant-member-init): of a private round; empty: it draws one
};

// Wall time in seconds. `prepare` and `add` are sums over all calls of Add.
struct Times {
  double prepare = 0;
  double add = 0;
  double finish = 0;
};

struct LocalRuntime;  // the engine, and the threads that prepare updates for it

// One aggregation inside the caller's process. Owned by the Aggregator of module.cc.
// Life cycle: Create; Add and MergeFrom any number of times, from any thread; Finish.
// Uses no Python. Callers release the GIL around calls that may block, so that other Python threads run meanwhile.
// Thread-safe. Deterministic: as of Aggregation; threads and batches do not affect the result.
class LocalRound {
 public:
  LocalRound(const LocalRound&) = delete;
  LocalRound& operator=(const LocalRound&) = delete;
  ~LocalRound();

  // Makes a round without submissions. Rounds with the same number of threads share one CPU engine and its threads; all
  // rounds on the device share one engine.
  // Errors: as of Aggregation::Create. FAILED_PRECONDITION: on the device, LoadCuda has not succeeded, or the process
  // has been forked since; then all calls of a round that was made before fail with it, too.
  static absl::StatusOr<std::unique_ptr<LocalRound>> Create(std::vector<TensorSpec> tensors, const RoundLimits& limits,
                                                            const LocalRoundOptions& options);

  // Validates and prepares submissions in parallel, and adds them in order. Stops at the first refused submission: all
  // submissions before it are added; neither it nor any after it is.
  // Errors: INVALID_ARGUMENT, OUT_OF_RANGE, RESOURCE_EXHAUSTED, ALREADY_EXISTS: as a server answers.
  // FAILED_PRECONDITION: beyond max_submissions, or as of Aggregation::Add, or the round is spent. Where an update is
  // at fault, the message begins with the client id. If an error may have added part of a submission, all later calls
  // fail with FAILED_PRECONDITION.
  // Blocks: until all submissions are added. Calls on several threads prepare in parallel and add one after another.
  absl::Status Add(std::vector<Submission> submissions);

  // Moves all submissions of `other` here; `other` is spent.
  // Requires: both have the same tensors.
  // Errors: INVALID_ARGUMENT: the two are the same, or only one is on the device. FAILED_PRECONDITION: beyond
  // max_submissions, or one of the two is spent, or as of Aggregation::MergeFrom. ALREADY_EXISTS, RESOURCE_EXHAUSTED:
  // as of Aggregation::MergeFrom. These errors change nothing. If std::bad_alloc is thrown halfway, a round with part
  // of the submissions fails all later calls with FAILED_PRECONDITION. Blocks: until Add calls on both have returned.
  absl::Status MergeFrom(LocalRound& other);

  // Adds what other submissions add up to, as one client's. `blocks`: whole blocks of a partial (host/partial.h) that
  // cover the keys from `first` to `last`. Blocks of all tensors.
  // Errors: INVALID_ARGUMENT: bad blocks. FAILED_PRECONDITION: beyond max_submissions, or a tensor has no partials, or
  // the round is spent. Otherwise as of Add. Nothing is added then.
  absl::Status AddPartial(const std::string& client_id, absl::Span<const absl::string_view> blocks, uint64_t first,
                          uint64_t last);

  // What ExportPartial returns.
  struct ExportedBlock {
    std::string bytes;
    std::optional<uint64_t> next;  // the first key behind the block; nullopt: `last` is in the block
  };
  // Returns: a block of up to `max_bytes`, or of one row, of what all submissions of a tensor add up to, for keys from
  // `first` to `last`. Merges what is pending. Errors: as of Aggregation::CheckExportsPartial and ExportPartial.
  absl::StatusOr<ExportedBlock> ExportPartial(size_t tensor, uint64_t first, uint64_t last, uint64_t max_bytes);

  // Leaves the merging to Finish, for a caller that keeps all updates until then. Does nothing to a round that is
  // spent.
  void DeferMerges();

  // Takes a client's submission out, as if it had never been added. The client may be added again.
  // Returns: whether there was one.
  // Errors: FAILED_PRECONDITION: as of Aggregation::CheckKeepsAll, or the round is spent. Nothing is taken out.
  // Blocks: while another call adds.
  absl::StatusOr<bool> Withdraw(absl::string_view client_id);

  // Merges everything. The round is spent, unless there are fewer than min_submissions.
  // Returns: one result for each tensor.
  // Errors: as of Accumulator::Finish. FAILED_PRECONDITION: below min_submissions, or the round is spent.
  // Blocks: until Add calls have returned and everything is merged.
  absl::StatusOr<std::vector<Result>> Finish();

  // The same, with the results in the device's memory; they must not outlive the runtime. Errors: also those of
  // Accumulator::FinishOnDevice; the round is spent.
  absl::StatusOr<std::vector<DeviceResult>> FinishOnDevice();

  // Returns: whether no value of `result` is NaN or ±Inf. Cost: one parallel pass.
  bool IsFinite(const Result& result) const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Returns: about the bytes of submissions that Add prepares in parallel, or imports in one call of the engine, as
  // BatchBytesOf counts them. Passing more to one Add is not faster.
  uint64_t batch_bytes() const { return batch_bytes_; }
  uint64_t BatchBytesOf(const Submission& submission) const;
  // Returns: bytes of the submission's keys, in the tensor's key type, and of its values.
  uint64_t BytesOf(const Submission& submission) const;
  const LocalRuntime& runtime() const { return runtime_; }
  // Returns: of which the noise of a private round is derived; empty: the round is not private.
  const std::string& release_id() const { return release_id_; }
  std::string engine_name() const;  // "cpu (CPU, 2 threads)"
  // The getters of counts, bytes and times may block while another thread adds, merges or finishes.
  uint64_t num_submissions() const;  // with those in partials
  uint64_t num_tuples() const;
  uint64_t num_bytes() const;
  size_t memory_bytes() const;
  ClipSummary clip() const;  // what the bounds have done to the submissions
  Times times() const;

 private:
  struct Size {
    uint64_t num_tuples = 0;
    uint64_t num_bytes = 0;
    ClipOutcome clip;
  };
  struct Prepared {
    absl::Status status;
    PreparedSubmission submission;
    Size size;
    size_t first_imported = 0;  // in Imported::updates
  };
  // The updates of a batch that are on the device, in order, up to the first one that the engine refuses.
  struct Imported {
    std::vector<ValidatedUpdate> updates;
    absl::Status refusal;
  };

  LocalRound(std::vector<TensorSpec> tensors, const RoundLimits& limits, uint64_t batch_bytes, LocalRuntime& runtime)
      : tensors_(std::move(tensors)), limits_(limits), batch_bytes_(batch_bytes), runtime_(runtime) {}

  absl::Status CheckOpen() const;
  // Finish and FinishOnDevice: `merge` makes the results of the spent aggregation.
  template <typename Results, typename Merge>
  Results FinishWith(const Merge& merge);
  absl::Status AddBatch(absl::Span<Submission> batch);
  // Makes the memory for the copied keys of a batch.
  std::shared_ptr<KeyArena> MakeArena(absl::Span<const Submission> batch) const;
  Imported Import(absl::Span<const Submission> batch, absl::Span<Prepared> prepared) const;
  absl::Status Prepare(const Submission& submission, const std::shared_ptr<KeyArena>& arena, Imported& imported,
                       Prepared& out) const;
  // Checks what needs no look at the arrays. Sets `size`.
  absl::Status CheckSubmission(const Submission& submission, Size& size) const;
  absl::Status AddPrepared(Submission& submission, Prepared& prepared);

  const std::vector<TensorSpec> tensors_;
  const RoundLimits limits_;
  const uint64_t batch_bytes_;
  LocalRuntime& runtime_;
  std::string release_id_;  // set by Create

  // Held shared by calls that use aggregation_, exclusively by MergeFrom and Finish. Locked before mu_.
  mutable std::shared_mutex life_;
  std::unique_ptr<Aggregation> aggregation_;  // null: spent
  mutable std::mutex mu_;                     // guards adding to *aggregation_, and the members below
  uint64_t num_submissions_ = 0;              // a partial is one
  uint64_t num_counted_ = 0;                  // with those in partials
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  ClipSummary clip_;
  std::vector<Size> sizes_;  // of the submissions, in order of Add
  Times times_;
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_LOCAL_ROUND_H_
