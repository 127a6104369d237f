// Round: its beginning in the store, and the restart of a server from the records of an earlier run.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// Returns: the place of a stored commit in the log of its stream; nullopt of a round that is no version.
std::optional<StreamPlace> PlaceOf(const RoundConfig& config, const SubmissionRecord& record) {
  if (config.stream == nullptr) return std::nullopt;
  return StreamPlace{config.stream->version, record.position.value_or(0), record.base_version,
                     record.client_weight.value_or(1.0)};
}

}  // namespace

absl::Status Round::StartJournal(uint64_t number) {
  if (services_.store == nullptr) return absl::OkStatus();
  journal_->Start(number);
  std::string noise_key_id;
  if (config_->HasPrivacy()) noise_key_id = privacy::NoiseKeyId(*services_.noise_key);
  RoundRecord record{config_->tenant,         config_->id,         config_->wire_spec,    create_time_,
                     std::move(noise_key_id), config_->release_id, config_->leaf_salt_key};
  if (config_->stream != nullptr) {
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

absl::Status Round::RestoreSubmission(const std::string& key, const SubmissionRecord& record,
                                      const Intake::ChunkSource& chunks) {
  Upload content(config_->stream == nullptr ? config_ : config_->stream->uploads, &tenant_.budget);
  RETURN_IF_ERROR(chunks([&](const Chunk& chunk) {
    const absl::Duration begin = services_.clock.Monotonic();
    absl::Status appended = content.Append(chunk);
    meter_.RecordStage(RoundStage::kDecode, services_.clock.Monotonic() - begin, absl::ZeroDuration(), BytesOf(chunk));
    return appended;
  }));
  if (!content.complete()) return absl::DataLossError("the last chunk is missing");
  const std::optional<StreamPlace> place = PlaceOf(*config_, record);
  CompleteUpload upload{place.has_value() ? record.client_id : key, record.submission_id, record.tag, content,
                        content.Hash()};
  if (upload.hash != record.hash) {
    return absl::DataLossError(absl::StrCat("the stored chunks of client '", key, "' in round '", config_->LogName(),
                                            "' are not those that the client committed"));
  }
  RETURN_IF_ERROR(BeginCommit());
  upload.number = record.upload;
  RETURN_IF_ERROR(AddBegun(upload, key, place).status());
  MutexLock lock(&mu_);
  if (record.client_weight.has_value()) committed_.SetClientWeight(key, *record.client_weight);
  return absl::OkStatus();
}

void Round::RestoreReceipt(const std::string& key, const SubmissionRecord& record) {
  const std::optional<StreamPlace> place = PlaceOf(*config_, record);
  Receipt receipt{place.has_value() ? record.client_id : key,
                  record.submission_id,
                  /*duplicate=*/false,
                  record.num_tuples,
                  record.num_bytes,
                  place};
  SubmissionTable::Map records;
  records.emplace(key, CommittedSubmission{record.hash,
                                           std::move(receipt),
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

void Round::RestoreWithdrawn(std::vector<std::string> leaves) {
  MutexLock lock(&mu_);
  certificate_.RestoreWithdrawn(std::move(leaves));
}

void Round::RestoreState(const StateRecord& record) {
  const bool is_undone = record.name == StateRecord::Name::kClosed || record.name == StateRecord::Name::kDone;
  {
    MutexLock merge(&merge_mu_);
    MutexLock lock(&mu_);
    if (is_undone && config_->stream == nullptr) MultiplyStoredWeightsLocked();
    certificate_.Restore({record.certificate, record.certificate_content});
    const bool is_merged = record.name == StateRecord::Name::kMerged;
    if (record.name == StateRecord::Name::kSealed || is_merged) {
      life_.Seal();
      intake_.AnnounceClosed();  // there are none yet; later ones end at once
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

}  // namespace sparseagg::service
