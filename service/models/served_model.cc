#include "service/models/served_model.h"

#include <algorithm>
#include <cmath>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/privacy/noise.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/base/refusals.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

// Of one wait for the end of a version of a stream; another one follows. Timers take no infinite time.
constexpr absl::Duration kWaitForEnd = absl::Hours(1);

// Of ModelVersion.empty_reason.
constexpr size_t kMaxEmptyReasonBytes = 512;

// Errors: of v1::Models.ApplyRound about the learning rate.
absl::Status CheckLearningRate(const ModelSpec& spec, double rate) {
  if (!std::isfinite(rate) || rate < 0.0) {
    return absl::InvalidArgumentError(absl::StrCat("learning_rate ", rate, " is not a finite number of at least 0"));
  }
  const auto assigns = [](const ModelTensorSpec& tensor) { return tensor.optimizer.kind == OptimizerKind::kAssign; };
  if (!std::all_of(spec.tensors.begin(), spec.tensors.end(), assigns)) return absl::OkStatus();
  return absl::InvalidArgumentError("learning_rate is set, but all tensors of the model have the optimizer ASSIGN");
}

bool HasRows(const ModelDelta& delta) {
  return std::any_of(delta.begin(), delta.end(), [](const Result* result) { return result != nullptr; });
}

std::string TextOf(const privacy::Bytes32& digest) { return {digest.begin(), digest.end()}; }

// Returns: ModelVersion.digest of version 0, which has the content, since no certificate is needed for it.
std::string FirstDigest(const ModelConfig& config, const ModelDelta& initial) {
  privacy::Sha256 hash;
  hash.AddText(config.wire_spec);
  for (size_t i = 0; i < config.spec.tensors.size(); ++i) {
    const Result* const rows = initial.empty() ? nullptr : initial[i];
    hash.AddNumber(rows == nullptr ? 0 : NumPresent(*rows));
    if (rows == nullptr) continue;
    const auto add = [&](absl::Span<const uint64_t> keys, const std::byte* values) {
      for (size_t row = 0; row < keys.size(); ++row) {
        hash.AddNumber(keys[row]);
        hash.Add(values + row * rows->row_bytes(), rows->row_bytes());
      }
      return absl::OkStatus();
    };
    ForEachPart(*rows, Model::kReadBatch, add).IgnoreError();
  }
  return TextOf(hash.Finish());
}

}  // namespace

absl::Status NoModelError(absl::string_view id) { return absl::NotFoundError(absl::StrCat("no model '", id, "'")); }

std::string ModelConfig::LogName() const { return tenant == kDefaultTenant ? id : absl::StrCat(tenant, "/", id); }

absl::StatusOr<RoundRows> RowsOf(const ModelSpec& spec, const Round& round, bool is_initial) {
  const RoundConfig& config = round.config();
  if (!config.homes.servers.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("round '", config.id, "' is a cluster's; models take rounds of one server"));
  }
  if (config.HasPrivacy() && spec.reads == ReadsPolicy::kUnset) {
    return absl::FailedPreconditionError(
        absl::StrCat("round '", config.id, "' is private; create the model with reads blocks, whole or keys"));
  }
  RoundRows rows;
  ASSIGN_OR_RETURN(rows.results, round.GetResults());
  ASSIGN_OR_RETURN(rows.delta, MatchResults(spec, config.tensors, *rows.results, is_initial));
  return rows;
}

ServedModel::ServedModel(ModelConfig config, const RoundServices& services, std::unique_ptr<Model> model,
                         absl::Time create_time)
    : config_(std::move(config)),
      services_(services),
      create_time_(create_time),
      journal_(std::make_shared<RoundJournal>(services.store)),
      model_(std::move(model)),
      waits_(services.clock, services.timer),
      memory_(&services.tenants.Of(config_.tenant).budget, /*keeps_submissions=*/false) {}

ServedModel::~ServedModel() { services_.timer.Cancel(retry_timer_); }

absl::StatusOr<std::shared_ptr<ServedModel>> ServedModel::Create(ModelConfig config, const RoundServices& services,
                                                                 uint64_t number, const ModelDelta& initial) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < initial.size(); ++i) {
    if (initial[i] == nullptr) continue;
    const uint64_t row_bytes = config.spec.tensors[i].TouchedRowBytes();
    bytes = SaturatingAdd(bytes, SaturatingMultiply(NumPresent(*initial[i]), row_bytes));
  }
  Reservation reserved(&services.tenants.Of(config.tenant).budget, /*keeps_submissions=*/false);
  RETURN_IF_ERROR(reserved.Grow(bytes, "the model"));
  ModelVersion first;
  if (!config.initial_round.empty()) first.source = RoundName(config.initial_round);
  first.digest = FirstDigest(config, initial);
  ASSIGN_OR_RETURN(std::unique_ptr<Model> made, Model::Create(config.spec, initial, std::move(first)));
  const absl::Time now = services.clock.WallTime();
  std::shared_ptr<ServedModel> model(new ServedModel(std::move(config), services, std::move(made), now));
  MutexLock lock(&model->apply_mu_);
  model->memory_.Absorb(reserved);
  model->memory_.SetTo(model->model_->memory_bytes());
  if (model->journal_->HasStore()) {
    model->journal_->Start(number);
    const auto store = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(model->apply_mu_) -> absl::Status {
      RETURN_IF_ERROR(model->WriteSnapshot());
      RoundRecord record{model->config_.tenant, model->config_.id, "", now};
      record.model_spec = model->config_.wire_spec;
      record.keep_versions = model->config_.spec.keep_versions;
      RETURN_IF_ERROR(model->journal_->Write(&Store::PutRound, record));
      return model->journal_->AwaitDurable();
    };
    if (absl::Status stored = store(); !stored.ok()) {
      model->journal_->Delete().IgnoreError();
      return stored;
    }
  }
  Log(LogLevel::kInfo, "model_created",
      {{"model", model->config_.LogName()},
       {"tensors", model->config_.spec.tensors.size()},
       {"stream", model->config_.stream},
       {"bytes", model->model_->memory_bytes()}});
  return model;
}

absl::StatusOr<std::shared_ptr<ServedModel>> ServedModel::Restore(ModelConfig config, const RoundServices& services,
                                                                  uint64_t number, absl::Time create_time) {
  const absl::Duration begin = services.clock.Monotonic();
  ASSIGN_OR_RETURN(const auto stored, services.store->ReadModel(number));
  ASSIGN_OR_RETURN(std::unique_ptr<Model> made, Model::Create(config.spec));
  std::shared_ptr<ServedModel> model(new ServedModel(std::move(config), services, std::move(made), create_time));
  MutexLock lock(&model->apply_mu_);
  std::vector<uint64_t> kept;
  bool is_whole = true;
  for (const auto& [version, record] : stored) {
    const bool is_snapshot = version == stored.begin()->first;
    absl::Status restored = model->RestoreVersion(number, is_snapshot, record);
    if (restored.ok() && model->model_->version() != version) {
      restored = absl::DataLossError(absl::StrCat("there is version ", model->model_->version(), " in its place"));
    }
    is_whole = is_snapshot || !absl::IsAborted(restored);
    if (!is_whole) {
      Log(LogLevel::kWarning, "model_version_not_restored",
          {{"model", model->config_.LogName()}, {"version", version}, {"reason", restored.message()}});
      break;
    }
    if (!restored.ok())
      return absl::Status(restored.code(), absl::StrCat("version ", version, ": ", restored.message()));
    if (record.upload != 0) kept.push_back(record.upload);
    FailPoint(is_snapshot ? "restored_model_snapshot" : "restored_model_version");
  }
  ASSIGN_OR_RETURN(const uint64_t latest, services.store->DeleteOtherUploads(number, kept));
  model->journal_->Start(number, latest);
  if (!is_whole) RETURN_IF_ERROR(model->WriteSnapshot());  // removes the records that were not restored
  model->memory_.SetTo(model->model_->memory_bytes());
  Log(LogLevel::kInfo, "model_restored",
      {{"model", model->config_.LogName()},
       {"version", model->model_->version()},
       {"bytes", model->model_->memory_bytes()},
       {"ms", services.clock.Monotonic() - begin}});
  return model;
}

absl::Status ServedModel::RestoreVersion(uint64_t number, bool is_snapshot, const ModelVersionRecord& record) {
  std::vector<Result> results;
  uint64_t num_chunks = 0;
  if (record.upload != 0) {
    RETURN_IF_ERROR(services_.store->ForEachChunk(number, record.upload, [&](absl::string_view chunk) {
      ++num_chunks;
      return is_snapshot ? model_->Restore(chunk, /*is_last=*/num_chunks == record.num_chunks)
                         : ReadDelta(chunk, config_.spec, &results);
    }));
  }
  if (num_chunks != record.num_chunks) {
    return absl::DataLossError(absl::StrCat("there are ", num_chunks, " of ", record.num_chunks, " chunks"));
  }
  (is_snapshot ? snapshot_bytes_ : log_bytes_) += record.num_bytes;
  if (is_snapshot) return absl::OkStatus();
  ModelDelta delta;
  for (const Result& result : results) delta.push_back(result.num_keys == 0 ? nullptr : &result);
  RETURN_IF_ERROR(model_->Begin(delta, record.learning_rate));
  model_->Commit({.source = record.source, .empty_reason = record.empty_reason, .digest = record.digest});
  return absl::OkStatus();
}

std::optional<absl::StatusOr<ModelVersion>> ServedModel::AnswerRetry(uint64_t base, const std::string& source) const {
  if (base == model_->version()) return std::nullopt;
  const ModelFigures figures = model_->Figures();
  if (base > figures.version) {
    return absl::InvalidArgumentError(absl::StrCat("base_version ", base, ": version ", base,
                                                   " does not exist yet; the newest is ", figures.version));
  }
  for (const ModelVersion& made : figures.versions) {
    if (made.version != base + 1) continue;
    if (made.source == source) return made;
    const auto named = [](const std::string& name) { return name.empty() ? "no round" : name; };
    return absl::FailedPreconditionError(absl::StrCat("base_version ", base, ": version ", made.version,
                                                      " was made of ", named(made.source), ", not of ", named(source)));
  }
  return absl::FailedPreconditionError(absl::StrCat("base_version ", base, ": version ", base + 1,
                                                    " is not kept any more; the oldest version is ",
                                                    figures.oldest_version));
}

absl::StatusOr<ModelVersion> ServedModel::ApplyRound(uint64_t base, const std::string& round_name,
                                                     const std::shared_ptr<const Round>& round,
                                                     std::optional<double> learning_rate) {
  if (!config_.stream.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the model's versions are made by ", StreamName(config_.stream)));
  }
  if (learning_rate.has_value()) RETURN_IF_ERROR(CheckLearningRate(config_.spec, *learning_rate));
  if (round_name.empty() && !learning_rate.has_value()) {
    return absl::InvalidArgumentError("neither round nor learning_rate is set: there is nothing to apply");
  }
  MutexLock lock(&apply_mu_);
  if (is_deleted_) return NoModelError(config_.id);
  if (const auto answer = AnswerRetry(base, round_name)) return *answer;
  RoundRows rows;
  if (!round_name.empty()) {
    if (round == nullptr) return absl::NotFoundError(absl::StrCat("there is no ", round_name));
    ASSIGN_OR_RETURN(rows, RowsOf(config_.spec, *round, /*is_initial=*/false));
  }
  return Apply(rows.delta, round.get(), {round_name, "", learning_rate});
}

std::string ServedModel::NextDigest(const Round* round, const ModelVersionRecord& record) const {
  const std::string last = model_->newest().digest;
  const std::string certificate = round == nullptr ? "" : round->GetCertificate().value_or("");
  if (last.empty() || (round != nullptr && certificate.empty())) return "";
  privacy::Sha256 hash;
  for (const std::string* text : {&last, &record.source, &record.empty_reason, &certificate}) hash.AddText(*text);
  hash.AddNumber(record.learning_rate.has_value() ? 1 : 0);
  hash.AddNumber(absl::bit_cast<uint64_t>(record.learning_rate.value_or(0.0)));
  return TextOf(hash.Finish());
}

absl::StatusOr<ModelVersion> ServedModel::Apply(const ModelDelta& delta, const Round* round,
                                                ModelVersionRecord record) {
  const absl::Duration begin = services_.clock.Monotonic();
  const absl::Status reserved = memory_.Grow(model_->BeginBytes(delta), "a version of the model");
  record.digest = NextDigest(round, record);
  const auto made = reserved.ok() ? MakeVersion(delta, record) : absl::StatusOr<ModelVersion>(reserved);
  memory_.SetTo(model_->memory_bytes());
  services_.metrics.CountModelVersion(!made.ok() ? "refused" : made->num_rows == 0 ? "empty" : "applied");
  if (!made.ok()) return made;
  Log(LogLevel::kDebug, "model_version",
      {{"model", config_.LogName()},
       {"version", made->version},
       {"round", made->source},
       {"rows", made->num_rows},
       {"reason", made->empty_reason},
       {"ms", services_.clock.Monotonic() - begin}});
  if (log_bytes_ <= std::max(kMinLogBytes, snapshot_bytes_)) return made;
  if (const absl::Status status = WriteSnapshot(); !status.ok()) {  // the next version tries again
    Log(LogLevel::kWarning, "model_snapshot_failed", {{"model", config_.LogName()}, {"reason", status.message()}});
  }
  return made;
}

absl::StatusOr<ModelVersion> ServedModel::MakeVersion(const ModelDelta& delta, ModelVersionRecord record) {
  if (HasRows(delta) && journal_->IsActive()) {
    RETURN_IF_ERROR(WriteUpload([&](Take take) { return WriteDelta(delta, take); }, record));
  }
  FailPoint("model_rows_written");
  absl::Status status = ToStatus([&] { return model_->Begin(delta, record.learning_rate); });
  if (status.ok()) status = journal_->Write(&Store::PutModelVersion, model_->version() + 1, record);
  if (!status.ok()) DeleteUpload(record);
  // If the sync fails, the record and its chunks stay: the next attempt replaces the record, or a restart replays it.
  if (status.ok()) status = journal_->AwaitDurable();
  if (!status.ok()) {
    model_->Abandon();
    return status;
  }
  FailPoint("model_version_durable");
  log_bytes_ += record.num_bytes;
  ModelVersion made;
  {
    MutexLock lock(&mu_);
    made = model_->Commit({.source = std::move(record.source),
                           .empty_reason = std::move(record.empty_reason),
                           .digest = std::move(record.digest)});
  }
  waits_.Release();
  return made;
}

absl::Status ServedModel::WriteUpload(absl::FunctionRef<absl::Status(Take)> save, ModelVersionRecord& record) {
  record.upload = journal_->TakeNumber();
  const auto take = [&](absl::Span<const absl::string_view> bytes) -> absl::Status {
    RETURN_IF_ERROR(journal_->Write(&Store::PutChunk, record.upload, record.num_chunks, bytes, nullptr));
    ++record.num_chunks;
    for (const absl::string_view span : bytes) record.num_bytes += span.size();
    return absl::OkStatus();
  };
  absl::Status saved = ToStatus([&] { return save(take); });
  if (!saved.ok()) DeleteUpload(record);
  return saved;
}

void ServedModel::DeleteUpload(const ModelVersionRecord& record) {
  if (record.num_chunks > 0) journal_->Write(&Store::DeleteUpload, record.upload).IgnoreError();
}

absl::Status ServedModel::WriteSnapshot() {
  const absl::Duration begin = services_.clock.Monotonic();
  ModelVersionRecord record;
  RETURN_IF_ERROR(WriteUpload([&](Take take) { return model_->Save(take); }, record));
  if (absl::Status put = journal_->Write(&Store::PutModelSnapshot, model_->version(), record); !put.ok()) {
    DeleteUpload(record);
    return put;
  }
  snapshot_bytes_ = record.num_bytes;
  log_bytes_ = 0;
  Log(LogLevel::kInfo, "model_snapshot",
      {{"model", config_.LogName()},
       {"version", model_->version()},
       {"bytes", record.num_bytes},
       {"ms", services_.clock.Monotonic() - begin}});
  return absl::OkStatus();
}

absl::Status ServedModel::Delete() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock apply(&apply_mu_);
    RETURN_IF_ERROR(journal_->Delete());
    MutexLock lock(&mu_);
    is_deleted_ = true;
    services_.timer.Cancel(retry_timer_);
    stream.swap(stream_);
  }
  if (stream != nullptr) stream->Release(config_.id);
  waits_.End();
  return absl::OkStatus();
}

ServedModel::WaitId ServedModel::Wait(uint64_t after, absl::Duration timeout, std::function<void()> done) {
  {
    MutexLock lock(&mu_);  // under which versions are committed
    if (model_->version() <= after) return waits_.Add(timeout, std::move(done), weak_from_this());
  }
  done();
  return 0;
}

std::string ServedModel::waiting_reason() const {
  MutexLock lock(&mu_);
  return waiting_reason_;
}

absl::Status ServedModel::Follow(std::shared_ptr<Stream> stream) {
  for (const TensorSpec& tensor : stream->config().round.tensors) {
    ASSIGN_OR_RETURN(const size_t index, config_.spec.ChooseTensor(tensor.name));
    RETURN_IF_ERROR(CheckFits(config_.spec.tensors[index], tensor, /*is_initial=*/false));
  }
  RETURN_IF_ERROR(stream->KeepFrom(model_->version() + 1, config_.id));
  {
    MutexLock lock(&mu_);
    stream_ = std::move(stream);
  }
  PostNext();
  return absl::OkStatus();
}

void ServedModel::StopFollowing(absl::string_view reason) {
  SetWaitingReason(reason);
  std::shared_ptr<Stream> stream;
  MutexLock lock(&mu_);
  stream.swap(stream_);
}

void ServedModel::SetWaitingReason(absl::string_view reason) {
  {
    MutexLock lock(&mu_);
    if (waiting_reason_ == reason) return;
    waiting_reason_ = std::string(reason);
  }
  if (reason.empty()) return;
  Log(LogLevel::kWarning, "model_waits",
      {{"model", config_.LogName()}, {"version", model_->version() + 1}, {"reason", reason}});
}

void ServedModel::PostNext() {
  services_.pool.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->ApplyNext();
  });
}

void ServedModel::ApplyNext() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    stream = stream_;
  }
  if (stream == nullptr) return;
  const absl::Status status = ToStatus([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> next, stream->FirstAfter(model_->version()));
    if (!HasEnded(next->state())) {
      next->Wait(kWaitForEnd, [weak = weak_from_this(), pool = &services_.pool] {
        pool->Post([weak] {
          if (const auto self = weak.lock()) self->ApplyNext();
        });
      });
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(ApplyVersion(*next));
    RETURN_IF_ERROR(stream->KeepFrom(model_->version() + 1, config_.id));
    PostNext();
    return absl::OkStatus();
  });
  if (is_deleted_) return;
  if (status.ok()) return SetWaitingReason("");
  if (absl::IsNotFound(status)) return StopFollowing(status.message());  // the stream was deleted
  SetWaitingReason(status.message());
  MutexLock lock(&mu_);
  if (stream_ == nullptr) return;  // the model was deleted just now
  retry_timer_ = services_.timer.Schedule(services_.clock.Monotonic() + kRetryInterval, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->PostNext();
  });
}

absl::Status ServedModel::ApplyVersion(const Round& round) {
  MutexLock lock(&apply_mu_);
  if (is_deleted_) return NoModelError(config_.id);
  ModelVersionRecord record{RoundName(round.config().id), ""};
  RoundRows rows;
  if (round.state() == RoundState::kDone) {
    ASSIGN_OR_RETURN(rows, RowsOf(config_.spec, round, /*is_initial=*/false));
  } else if (round.state() == RoundState::kFailed) {
    record.empty_reason = std::string(Shorten(round.Snapshot().reason, kMaxEmptyReasonBytes));
  } else {
    return absl::NotFoundError(absl::StrCat("no ", StreamName(config_.stream)));  // it is being deleted
  }
  absl::StatusOr<ModelVersion> made = Apply(rows.delta, &round, record);
  if (absl::IsOutOfRange(made.status())) {
    record.empty_reason = std::string(Shorten(made.status().message(), kMaxEmptyReasonBytes));
    made = Apply({}, &round, record);
  }
  return made.status();
}

}  // namespace sparseagg::service
