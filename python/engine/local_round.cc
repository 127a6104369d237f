#include "python/engine/local_round.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/partial.h"
#include "host/spec/spec.h"
#include "host/updates/input_checks.h"
#include "python/engine/local_runtime.h"

namespace sparseagg::python {

namespace {

// Submissions are prepared in parallel, in batches of about kBatchBytes or 1 / kBatchPart of the memory limit,
// whichever is less. Where updates merge on arrival, this bounds the prepared updates in memory.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
constexpr uint64_t kBatchPart = 16;
constexpr size_t kBatchSubmissions = 4096;
// Arrays on the device take no host memory, and a batch of them costs one wait for the device.
constexpr uint64_t kDeviceBytesPerByte = 8;
// Values of a result that one task checks.
constexpr size_t kPieceValues = size_t{256} << 10;

// A timer that adds the seconds from its construction to its destruction to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  double& sum_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Returns: bytes of the keys in the tensor's key type; 0 for a run.
uint64_t KeyColumnBytes(const TensorSpec& spec, const InputTensor& tensor) {
  return std::holds_alternative<KeyRun>(tensor.keys) ? 0 : NumKeys(tensor.keys) * KeyBytes(spec);
}

// Returns: bytes of the key column and of the values.
uint64_t ArrayBytes(const TensorSpec& spec, const InputTensor& tensor) {
  const uint64_t value_bytes =
      tensor.values == nullptr ? 0 : NumKeys(tensor.keys) * SizeOf(spec.dtype) * spec.row_width;
  return KeyColumnBytes(spec, tensor) + value_bytes;
}

// Returns: keys of the tensor's key type, where they lie.
KeyColumn ColumnOf(const InputKeys& keys) {
  if (const auto* const narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return *narrow;
  return std::get<absl::Span<const uint64_t>>(keys);
}

// Returns: 64-bit keys as unsigned ones: what is negative becomes too large.
absl::Span<const uint64_t> AsWide(const InputKeys& keys) {
  if (const auto* const wide = std::get_if<absl::Span<const uint64_t>>(&keys)) return *wide;
  const auto& with_sign = std::get<absl::Span<const int64_t>>(keys);
  return absl::MakeConstSpan(reinterpret_cast<const uint64_t*>(with_sign.data()), with_sign.size());
}

double WeightOf(const Submission& submission, size_t tensor) {
  return submission.tensor_weights.empty() ? submission.weight.value_or(1.0) : submission.tensor_weights[tensor];
}

// Requires: an update in host memory.
absl::StatusOr<ValidatedUpdate> Validate(const TensorSpec& spec, const InputTensor& tensor,
                                         const Submission& submission, double weight,
                                         const std::shared_ptr<KeyArena>& arena) {
  if (tensor.unchecked.has_value()) {
    return ValidatedUpdate::CreateWithUncheckedKeys(spec, AsWide(tensor.keys), *tensor.unchecked, tensor.values,
                                                    submission.owner, weight);
  }
  if (tensor.has_fixed_keys) {
    return ValidatedUpdate::Create(spec, {ColumnOf(tensor.keys), tensor.values, submission.owner}, weight);
  }
  return ValidatedUpdate::CreateWithCopiedKeys(spec, tensor.keys, tensor.values, submission.owner, weight, arena);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRound>> LocalRound::Create(std::vector<TensorSpec> tensors,
                                                               const RoundLimits& limits,
                                                               const LocalRoundOptions& options) {
  ASSIGN_OR_RETURN(LocalRuntime* const runtime, LocalRuntimeOf(options.threads, options.device));
  std::string release_id;
  if (!tensors.empty() && tensors.front().privacy.has_value()) {
    release_id = options.release_id.empty() ? privacy::DrawReleaseId() : options.release_id;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Aggregation> aggregation,
                   Aggregation::Create(runtime->engine, tensors, options.memory_limit,
                                       {options.noise_key, /*tenant=*/"", /*round=*/"", release_id}));
  const uint64_t batch_bytes =
      options.memory_limit == 0 ? kBatchBytes : std::min(kBatchBytes, options.memory_limit / kBatchPart);
  auto round = std::unique_ptr<LocalRound>(new LocalRound(std::move(tensors), limits, batch_bytes, *runtime));
  round->aggregation_ = std::move(aggregation);
  round->release_id_ = std::move(release_id);
  return round;
}

LocalRound::~LocalRound() {
  // What the device holds for it is the parent's; a destructor would wait for the device.
  if (runtime_.is_lost) static_cast<void>(aggregation_.release());
}

absl::Status LocalRound::CheckOpen() const {
  if (runtime_.is_lost) return CudaLostInFork();
  if (aggregation_ == nullptr) return absl::FailedPreconditionError("this aggregator is finished or merged away");
  // An Add or MergeFrom failed after aggregation_ had counted a submission; part of it may be missing.
  if (aggregation_->num_submissions() != num_submissions_) {
    return absl::FailedPreconditionError("adding to this aggregator has failed before");
  }
  return absl::OkStatus();
}

uint64_t LocalRound::BytesOf(const Submission& submission) const {
  uint64_t bytes = 0;
  for (const InputTensor& tensor : submission.tensors) {
    bytes += ArrayBytes(tensors_[tensor.tensor], tensor);
  }
  return bytes;
}

uint64_t LocalRound::BatchBytesOf(const Submission& submission) const {
  uint64_t bytes = 0;
  for (const InputTensor& tensor : submission.tensors) {
    bytes += ArrayBytes(tensors_[tensor.tensor], tensor) / (tensor.on_device ? kDeviceBytesPerByte : 1);
  }
  return bytes;
}

absl::Status LocalRound::Add(std::vector<Submission> submissions) {
  std::shared_lock alive(life_);
  for (size_t begin = 0; begin < submissions.size();) {
    uint64_t bytes = 0;
    size_t end = begin;
    do {
      bytes += BatchBytesOf(submissions[end]);
      ++end;
    } while (end < submissions.size() && end - begin < kBatchSubmissions && bytes < batch_bytes_);
    RETURN_IF_ERROR(AddBatch(absl::MakeSpan(submissions).subspan(begin, end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status LocalRound::AddBatch(absl::Span<Submission> batch) {
  {
    std::lock_guard lock(mu_);
    RETURN_IF_ERROR(CheckOpen());
  }
  Times times;
  std::vector<Prepared> prepared(batch.size());
  const std::shared_ptr<KeyArena> arena = MakeArena(batch);
  {
    Stopwatch watch(times.prepare);
    size_t num_good = 0;  // none is added after the first one that is refused
    for (; num_good < batch.size(); ++num_good) {
      Prepared& out = prepared[num_good];
      out.status = CheckSubmission(batch[num_good], out.size);
      if (!out.status.ok()) break;
    }
    Imported imported = Import(batch.first(num_good), absl::MakeSpan(prepared));
    const auto prepare = [&](size_t i) {
      prepared[i].status = Prepare(batch[i], arena, imported, prepared[i]);
      return prepared[i].status.ok();
    };
    if (num_good <= 1 || runtime_.arena.max_concurrency() == 1) {
      for (size_t i = 0; i < num_good && prepare(i); ++i) {
      }
    } else {
      runtime_.arena.execute([&] { tbb::parallel_for(size_t{0}, num_good, prepare); });
    }
  }
  std::lock_guard lock(mu_);
  absl::Status status;
  {
    Stopwatch watch(times.add);
    for (size_t i = 0; i < batch.size() && status.ok(); ++i) {
      status = prepared[i].status;
      if (status.ok()) {
        status = AddPrepared(batch[i], prepared[i]);
      } else {
        status =
            absl::Status(status.code(), absl::StrCat("client ", QuotedId(batch[i].client_id), ": ", status.message()));
      }
    }
  }
  times_.prepare += times.prepare;
  times_.add += times.add;
  return status;
}

std::shared_ptr<KeyArena> LocalRound::MakeArena(absl::Span<const Submission> batch) const {
  size_t bytes = 0;
  for (const Submission& submission : batch) {
    for (const InputTensor& tensor : submission.tensors) {
      if (tensor.on_device || tensor.has_fixed_keys || tensor.unchecked.has_value()) continue;
      bytes += KeyArena::BytesFor(KeyColumnBytes(tensors_[tensor.tensor], tensor));
    }
  }
  return std::make_shared<KeyArena>(bytes);
}

LocalRound::Imported LocalRound::Import(absl::Span<const Submission> batch, absl::Span<Prepared> prepared) const {
  std::vector<DeviceUpdate> updates;
  for (size_t i = 0; i < batch.size(); ++i) {
    prepared[i].first_imported = updates.size();
    for (const InputTensor& tensor : batch[i].tensors) {
      if (!tensor.on_device) continue;
      updates.push_back({&tensors_[tensor.tensor], tensor.keys, tensor.values, batch[i].owner,
                         WeightOf(batch[i], tensor.tensor), tensor.streams});
    }
  }
  Imported imported;
  if (!updates.empty()) imported.refusal = runtime_.engine.Import(absl::MakeSpan(updates), imported.updates);
  return imported;
}

absl::Status LocalRound::Prepare(const Submission& submission, const std::shared_ptr<KeyArena>& arena,
                                 Imported& imported, Prepared& out) const {
  std::vector<ValidatedUpdate> updates;
  updates.reserve(tensors_.size());
  const auto* next = submission.tensors.data();
  const auto* const end = next + submission.tensors.size();
  size_t next_imported = out.first_imported;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const bool touched = next != end && next->tensor == t;
    const InputTensor& tensor = touched ? *next++ : InputTensor{.tensor = t, .keys = {}};
    if (tensor.on_device) {
      if (next_imported >= imported.updates.size()) return imported.refusal;
      updates.push_back(std::move(imported.updates[next_imported++]));
      continue;
    }
    ASSIGN_OR_RETURN(ValidatedUpdate update, Validate(tensors_[t], tensor, submission, WeightOf(submission, t), arena));
    updates.push_back(std::move(update));
  }
  ASSIGN_OR_RETURN(out.submission, aggregation_->Prepare(std::move(updates)));
  out.size.clip = out.submission.clip;
  return absl::OkStatus();
}

absl::Status LocalRound::CheckSubmission(const Submission& submission, Size& size) const {
  RETURN_IF_ERROR(CheckId(submission.client_id, "client_id"));
  if (submission.tensor_weights.empty()) {  // otherwise each update's own is checked with it
    for (const TensorSpec& spec : tensors_) {
      if (submission.weight.has_value()) {
        RETURN_IF_ERROR(ValidateWeight(spec, *submission.weight));
      } else if (spec.aggregation.weighting == Weighting::kByWeight) {
        return absl::InvalidArgumentError(absl::StrCat(
            Quoted(spec), ": the weight is missing, which by_weight needs: weight=…, or a pair (update, weight)"));
      }
    }
    RETURN_IF_ERROR(CheckWeightHasEffect(tensors_, submission.weight));
  }
  for (const InputTensor& tensor : submission.tensors) size.num_tuples += NumKeys(tensor.keys);
  size.num_bytes = BytesOf(submission);
  const auto check = [](absl::string_view limit, uint64_t value, uint64_t max) -> absl::Status {
    if (max == 0 || value <= max) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the submission has ", value, ", beyond ", limit, " ", max));
  };
  RETURN_IF_ERROR(check("max_tuples_per_submission", size.num_tuples, limits_.max_tuples_per_submission));
  return check("max_bytes_per_submission", size.num_bytes, limits_.max_bytes_per_submission);
}

absl::Status LocalRound::AddPrepared(Submission& submission, Prepared& prepared) {
  RETURN_IF_ERROR(CheckOpen());
  const uint64_t more = prepared.submission.num_submissions;
  if (limits_.max_submissions != 0 && aggregation_->num_counted() + more > limits_.max_submissions) {
    if (more == 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("there are max_submissions ", limits_.max_submissions, " submissions already"));
    }
    return absl::FailedPreconditionError(absl::StrCat(aggregation_->num_counted(), " submissions, and ", more,
                                                      " of a partial, are beyond max_submissions ",
                                                      limits_.max_submissions));
  }
  sizes_.push_back(prepared.size);  // before the Add, since memory may run out
  if (absl::Status added = aggregation_->Add(submission.client_id, std::move(prepared.submission)); !added.ok()) {
    sizes_.pop_back();
    return added;
  }
  ++num_submissions_;
  num_counted_ += more;
  num_tuples_ += prepared.size.num_tuples;
  num_bytes_ += prepared.size.num_bytes;
  clip_.Add(prepared.size.clip);
  // The engine holds its own references to the values that it still needs.
  submission.owner.reset();
  submission.key_owner.reset();
  return absl::OkStatus();
}

absl::Status LocalRound::AddPartial(const std::string& client_id, absl::Span<const absl::string_view> blocks,
                                    uint64_t first, uint64_t last) {
  RETURN_IF_ERROR(CheckId(client_id, "client_id"));
  std::shared_lock alive(life_);
  PartialBuilder builder(tensors_, first, last);
  for (const absl::string_view block : blocks) RETURN_IF_ERROR(builder.Append(block));
  Submission submission;
  submission.client_id = client_id;
  Prepared prepared;
  prepared.size.num_tuples = builder.num_rows();
  prepared.size.num_bytes = builder.num_bytes();
  ASSIGN_OR_RETURN(std::vector<PartialBlock> partial, std::move(builder).Finish());
  std::lock_guard lock(mu_);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(prepared.submission, aggregation_->PreparePartial(std::move(partial)));
  return AddPrepared(submission, prepared);
}

absl::StatusOr<LocalRound::ExportedBlock> LocalRound::ExportPartial(size_t tensor, uint64_t first, uint64_t last,
                                                                    uint64_t max_bytes) {
  std::shared_lock alive(life_);
  std::lock_guard lock(mu_);
  RETURN_IF_ERROR(CheckOpen());
  RETURN_IF_ERROR(aggregation_->CheckExportsPartial(tensor));
  const TensorSpec& spec = tensors_[tensor];
  const uint64_t room = max_bytes - std::min(max_bytes, PartialBlockBytes(spec, 0));
  const uint64_t max_rows = std::max<uint64_t>(1, room / UnfinishedRowBytes(spec));
  ASSIGN_OR_RETURN(const PartialBlock block, aggregation_->ExportPartial(tensor, first, last, max_rows));
  ExportedBlock exported;
  AppendPartialBlock(spec, block, exported.bytes);
  if (block.last != last) exported.next = block.last + 1;
  return exported;
}

void LocalRound::DeferMerges() {
  std::lock_guard lock(mu_);
  if (CheckOpen().ok()) aggregation_->DeferMerges();
}

absl::Status LocalRound::MergeFrom(LocalRound& other) {
  if (this == &other) return absl::InvalidArgumentError("an aggregator cannot be merged with itself");
  if (runtime_.device != other.runtime_.device) {
    return absl::InvalidArgumentError("one of the two aggregators merges on the CPU, the other on the GPU");
  }
  std::scoped_lock lock(life_, other.life_, mu_, other.mu_);
  RETURN_IF_ERROR(CheckOpen());
  RETURN_IF_ERROR(other.CheckOpen());
  if (limits_.max_submissions != 0 &&
      aggregation_->num_counted() + other.aggregation_->num_counted() > limits_.max_submissions) {
    return absl::FailedPreconditionError(
        absl::StrCat(aggregation_->num_counted(), " and ", other.aggregation_->num_counted(),
                     " submissions are beyond max_submissions ", limits_.max_submissions));
  }
  ReserveMore(other.sizes_.size(), sizes_);
  RETURN_IF_ERROR(aggregation_->MergeFrom(std::move(*other.aggregation_)));
  other.aggregation_.reset();
  num_submissions_ += std::exchange(other.num_submissions_, 0);
  num_counted_ += std::exchange(other.num_counted_, 0);
  num_tuples_ += std::exchange(other.num_tuples_, 0);
  num_bytes_ += std::exchange(other.num_bytes_, 0);
  sizes_.insert(sizes_.end(), other.sizes_.begin(), other.sizes_.end());
  for (const Size& size : other.sizes_) clip_.Add(size.clip);
  other.clip_ = {};
  times_.prepare += other.times_.prepare;
  times_.add += other.times_.add;
  return absl::OkStatus();
}

absl::StatusOr<bool> LocalRound::Withdraw(absl::string_view client_id) {
  if (tensors_.front().privacy.has_value()) {
    return absl::FailedPreconditionError("privacy refuses withdrawals: each would be one more look at the same data");
  }
  std::shared_lock alive(life_);
  std::lock_guard lock(mu_);
  RETURN_IF_ERROR(CheckOpen());
  uint32_t index = 0;
  while (index < num_submissions_ && aggregation_->client_ids()[index] != client_id) ++index;
  if (index == num_submissions_) return false;
  RETURN_IF_ERROR(aggregation_->CheckKeepsAll());
  aggregation_->Remove({index});
  num_tuples_ -= sizes_[index].num_tuples;
  num_bytes_ -= sizes_[index].num_bytes;
  clip_.Add(sizes_[index].clip, -1);
  sizes_.erase(sizes_.begin() + index);
  --num_submissions_;
  --num_counted_;
  return true;
}

template <typename Results, typename Merge>
Results LocalRound::FinishWith(const Merge& merge) {
  std::unique_lock alive(life_);
  RETURN_IF_ERROR(CheckOpen());
  if (aggregation_->num_counted() < limits_.min_submissions) {
    return absl::FailedPreconditionError(absl::StrCat("there are ", aggregation_->num_counted(),
                                                      " submissions, below min_submissions ", limits_.min_submissions));
  }
  Times times;
  Results results;
  {
    Stopwatch watch(times.finish);
    const std::unique_ptr<Aggregation> aggregation = std::move(aggregation_);
    results = merge(std::move(*aggregation));
  }
  std::lock_guard lock(mu_);
  times_.finish = times.finish;
  return results;
}

absl::StatusOr<std::vector<Result>> LocalRound::Finish() {
  return FinishWith<absl::StatusOr<std::vector<Result>>>(
      [](Aggregation&& aggregation) { return std::move(aggregation).Finish(); });
}

absl::StatusOr<std::vector<DeviceResult>> LocalRound::FinishOnDevice() {
  return FinishWith<absl::StatusOr<std::vector<DeviceResult>>>(
      [](Aggregation&& aggregation) { return std::move(aggregation).FinishOnDevice(); });
}

bool LocalRound::IsFinite(const Result& result) const {
  TensorSpec spec;
  spec.dtype = result.dtype;
  const size_t value_bytes = SizeOf(result.dtype);
  const size_t num_values = result.values.size() / value_bytes;
  const size_t num_pieces = (num_values + kPieceValues - 1) / kPieceValues;
  std::atomic<bool> finite = true;
  runtime_.arena.execute([&] {
    tbb::parallel_for(size_t{0}, num_pieces, [&](size_t piece) {
      const size_t begin = piece * kPieceValues;
      const auto* values = reinterpret_cast<const char*>(result.values.data()) + begin * value_bytes;
      const size_t count = std::min(kPieceValues, num_values - begin);
      const auto no_key = [](uint64_t) { return uint64_t{0}; };  // nobody reads the error
      if (!internal::CheckValues({&spec, std::nullopt}, begin, values, count, no_key).ok()) finite = false;
    });
  });
  return finite;
}

std::string LocalRound::engine_name() const { return runtime_.Describe(); }

uint64_t LocalRound::num_submissions() const {
  std::lock_guard lock(mu_);
  return num_counted_;
}

uint64_t LocalRound::num_tuples() const {
  std::lock_guard lock(mu_);
  return num_tuples_;
}

uint64_t LocalRound::num_bytes() const {
  std::lock_guard lock(mu_);
  return num_bytes_;
}

size_t LocalRound::memory_bytes() const {
  std::shared_lock alive(life_);
  std::lock_guard lock(mu_);
  return aggregation_ == nullptr ? 0 : aggregation_->memory_bytes();
}

ClipSummary LocalRound::clip() const {
  std::lock_guard lock(mu_);
  return clip_;
}

Times LocalRound::times() const {
  std::lock_guard lock(mu_);
  return times_;
}

}  // namespace sparseagg::python
