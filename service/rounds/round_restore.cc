// Round: the restart of a server, from the records of an earlier run.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// Returns: the place of a stored commit in the log of its stream. `config`: of a version.
StreamPlace StreamPlaceOf(const RoundConfig& config, const SubmissionRecord& record) {
  return {config.stream->version, record.position.value_or(0), record.base_version, record.client_weight.value_or(1.0)};
}

}  // namespace

absl::Status Round::StartJournal(uint64_t number) {
  if (services_.store == nullptr) return absl::OkStatus();
  journal_->Start(number);
  std::string noise_key_id;
  if (config_->HasPrivacy()) noise_key_id = privacy::NoiseKeyId(*services_.noise_key);
  RoundRecord record{config_->tenant,         config_->id,         config_->wire_spec,    create_time_,
                     std::move(noise_key_id), config_->release_id, config_->leaf_salt_key};
  if (config_->IsIntake()) record.stream_spec = config_->stream->spec;
  if (config_->IsVersion()) {
    record.stream = config_->stream->id;
    record.version = config_->stream->version;
  }
  return journal_->Write(&Store::PutRound, record);
}

absl::Status Round::CheckNoiseKey(absl::string_view noise_key_id) const {
  if (!config_->HasPrivacy() || privacy::NoiseKeyId(*services_.noise_key) == noise_key_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the noise key is another one than that which the round was created with: with it the result would have other "
      "noise, and two results of the same submissions tell more than one");
}

absl::Status Round::RestoreSubmission(const std::string& client_id, const SubmissionRecord& record,
                                      const ChunkSource& chunks) {
  std::shared_ptr<UploadHandle> upload;
  {
    MutexLock lock(&mu_);
    next_upload_ = record.upload;
    ASSIGN_OR_RETURN(upload, OpenUploadLocked({client_id, record.submission_id}, /*is_named=*/false, record.tag, {}));
  }
  if (config_->IsVersion()) {
    MutexLock lock(&mu_);
    upload->stream_ = StreamPlaceOf(*config_, record);
    upload->client_of_key_ = record.client_id;
  }
  const absl::Status read = chunks([&](const Chunk& chunk) { return AppendChunk(*upload, chunk, nullptr); });
  if (!read.ok()) Discard(*upload);
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(Commit(*upload).status());
  MutexLock lock(&mu_);
  if (record.client_weight.has_value()) committed_.SetClientWeight(client_id, *record.client_weight);
  if (upload->hash_ == record.hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the stored chunks of client '", client_id, "' in round '",
                                          config_->LogName(), "' are not those that the client committed"));
}

void Round::RestoreWithdrawn(std::vector<std::string> leaves) {
  MutexLock lock(&mu_);
  certificate_.RestoreWithdrawn(std::move(leaves));
}

void Round::RestoreReceipt(const std::string& client_id, const SubmissionRecord& record) {
  Receipt receipt{client_id, record.submission_id, /*duplicate=*/false, record.num_tuples, record.num_bytes};
  if (config_->IsVersion()) {
    receipt.client_id = record.client_id;
    receipt.stream = StreamPlaceOf(*config_, record);
  }
  SubmissionTable::Map records;
  records.emplace(client_id, CommittedSubmission{record.hash,
                                                 receipt,
                                                 record.num_chunks,
                                                 record.tag,
                                                 record.upload,
                                                 "",
                                                 "",
                                                 {},
                                                 record.weight,
                                                 record.client_weight,
                                                 record.num_submissions,
                                                 record.leaf});
  MutexLock lock(&mu_);
  committed_.Insert(records.extract(records.begin()));
}

absl::Status Round::RestoreUpload(uint64_t number, const UploadRecord& record, const ChunkSource& chunks,
                                  uint64_t* num_chunks) {
  std::shared_ptr<UploadHandle> upload;
  {
    MutexLock lock(&mu_);
    next_upload_ = number;
    ASSIGN_OR_RETURN(upload,
                     OpenUploadLocked({record.client_id, record.submission_id}, /*is_named=*/true, record.tag, {}));
  }
  {
    MutexLock one_at_a_time(&upload->mu_);
    upload->has_stored_chunks_ = true;
  }
  absl::Status read = chunks([&](const Chunk& chunk) {
    const ContentHash hash = HashOfChunk(chunk);
    absl::Status appended = AppendChunk(*upload, chunk, &hash);
    if (appended.ok()) ++*num_chunks;
    return appended;
  });
  if (!read.ok() && (!absl::IsAborted(read) || *num_chunks == 0)) Discard(*upload);
  return read;
}

void Round::RestoreState(const StateRecord& record) {
  const bool is_undone = record.name == StateRecord::Name::kClosed || record.name == StateRecord::Name::kDone;
  {
    MutexLock merge(&merge_mu_);
    MutexLock lock(&mu_);
    if (is_undone && !config_->IsVersion()) MultiplyStoredWeightsLocked();
    certificate_.Restore({record.certificate, record.certificate_content});
    const bool is_merged = record.name == StateRecord::Name::kMerged;
    if (record.name == StateRecord::Name::kSealed || is_merged) {
      life_.Seal();
      frozen_waits_.End();  // there are none yet; later ones end at once
      if (!is_merged) return;
    }
    // The time of day may have been set back since: nothing has ended in the future.
    const Moment now = services_.clock.Now();
    if (record.name != StateRecord::Name::kClosed) {
      const absl::Time end = std::min(record.end_time, now.wall);
      const absl::Time seen = std::min(services_.store->last_seen(), now.wall);
      life_.RestoreEndTime(end, std::max(seen - end, absl::ZeroDuration()));
    }
    if (is_undone && life_.is_open()) FinalizeLocked(PrepareToFinalizeLocked(), now);
    if (is_merged) {
      EndLocked(RoundState::kDone, absl::OkStatus(), "", now);
      life_.KeepSum();
    }
    if (record.name == StateRecord::Name::kFailed) {
      EndLocked(RoundState::kFailed, absl::FailedPreconditionError(record.reason), record.reason, now);
    }
    if (record.name == StateRecord::Name::kCancelled) {
      EndLocked(RoundState::kCancelled, absl::CancelledError(absl::StrCat("the round was cancelled: ", record.reason)),
                record.reason, now);
    }
    life_.RestoreCloseTime(std::min(record.close_time, now.wall));
  }
  if (!is_undone) AnnounceEnd();
}

void Round::ResumeJournal(uint64_t number, uint64_t latest_upload) {
  {
    MutexLock lock(&mu_);
    next_upload_ = std::max(next_upload_, latest_upload + 1);
  }
  journal_->Start(number);
}

}  // namespace sparseagg::service
