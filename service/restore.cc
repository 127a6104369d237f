#include "service/restore.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/codec/model_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/sliced_message.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::service {
namespace {

using StateName = StateRecord::Name;

// What was accepted under other limits stays accepted.
Limits WithoutSizes(Limits limits) {
  limits.max_tensors = 0;
  limits.max_row_width = 0;
  limits.max_submissions = std::numeric_limits<uint32_t>::max();
  limits.max_tuples_per_submission = 0;
  limits.max_bytes_per_submission = 0;
  return limits;
}

template <typename Spec>
absl::StatusOr<Spec> ParseStored(const std::string& bytes) {
  Spec spec;
  if (!spec.ParseFromString(bytes)) return absl::DataLossError("the stored spec is damaged");
  if (const std::string unknown = FindUnknownFields(spec); !unknown.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(unknown, ": this server is older than the one that stored it"));
  }
  return spec;
}

absl::StatusOr<RoundConfig> ConfigOf(const RoundRecord& record, const Limits& limits) {
  ASSIGN_OR_RETURN(const auto spec, ParseStored<v1::RoundSpec>(record.spec));
  ASSIGN_OR_RETURN(RoundConfig config, DecodeRoundSpec(spec, WithoutSizes(limits), SpecSource::kStore));
  config.tenant = record.tenant;
  config.id = record.id;
  config.release_id = record.release_id;
  config.leaf_salt_key = record.leaf_salt_key;
  return config;
}

// Returns: the source of an upload's chunks.
Intake::ChunkSource ChunksOf(const Store& store, uint64_t round, uint64_t upload) {
  return [&store, round, upload](const std::function<absl::Status(const Chunk&)>& take) {
    return store.ForEachChunk(round, upload, [&](absl::string_view bytes) -> absl::Status {
      ChunkMessage message;
      RETURN_IF_ERROR(message.Parse(absl::MakeCordFromExternal(bytes, [] {})));
      ASSIGN_OR_RETURN(const Chunk chunk, message.Decode());
      return take(chunk);
    });
  };
}

// Restores the uploads of a round or a stream. One that cannot be restored is dropped: nobody was told that it counts.
// Adds their numbers to `kept`. Returns: how many there are.
absl::StatusOr<uint64_t> RestoreUploads(Store& store, uint64_t number_of_round, Intake& intake,
                                        std::vector<uint64_t>& kept) {
  ASSIGN_OR_RETURN(const auto uploads, store.ReadUploads(number_of_round));
  uint64_t num_uploads = 0;
  std::set<std::pair<std::string, std::string>> names;
  // From the latest one on: an older upload of the same name was replaced.
  for (auto it = uploads.rbegin(); it != uploads.rend(); ++it) {
    const auto& [number, record] = *it;
    if (record.range.has_value() || !names.emplace(record.client_id, record.submission_id).second) continue;
    uint64_t num_chunks = 0;
    absl::Status restored = intake.Restore(number, record, ChunksOf(store, number_of_round, number), &num_chunks);
    // Without chunk 0 the upload is gone as a whole, as for its client, who would take an empty one for another's.
    if (absl::IsAborted(restored) && num_chunks > 0) {
      restored = store.DeleteChunksFrom(number_of_round, number, num_chunks);
    }
    if (restored.ok()) {
      kept.push_back(number);
      ++num_uploads;
    } else {
      Log(LogLevel::kWarning, "upload_not_restored",
          {{"round", intake.config().LogName()}, {"client", record.client_id}, {"reason", restored.message()}});
    }
  }
  return num_uploads;
}

// Returns: the largest number of an upload that the store has had of the round, from which it removes all but `kept`.
absl::StatusOr<uint64_t> DeleteOtherUploads(Store& store, uint64_t round, std::vector<uint64_t> kept) {
  std::sort(kept.begin(), kept.end());
  return store.DeleteOtherUploads(round, kept);
}

// Restores one round, as far as its state says.
class RoundRestorer {
 public:
  RoundRestorer(Store& store, const Store::StoredRound& stored, Round& round)
      : store_(store), stored_(stored), round_(round) {}

  absl::Status Run() {
    RETURN_IF_ERROR(RestoreSubmissions());
    ASSIGN_OR_RETURN(std::vector<std::string> withdrawn, store_.ReadWithdrawn(stored_.number));
    round_.RestoreWithdrawn(std::move(withdrawn));
    StateRecord stored = stored_.state;
    RETURN_IF_ERROR(DropLost(&stored));
    const StateName state = stored.name;
    if (state == StateName::kOpen) {
      ASSIGN_OR_RETURN(num_uploads_, RestoreUploads(store_, stored_.number, round_.intake(), kept_));
    }
    if (state == StateName::kSealed || state == StateName::kMerged) RETURN_IF_ERROR(RestoreRanges());
    ASSIGN_OR_RETURN(const uint64_t latest, DeleteOtherUploads(store_, stored_.number, kept_));
    round_.ResumeJournal(stored_.number, latest);
    FailPoint("restored_content");
    if (state != StateName::kOpen) round_.RestoreState(stored);
    if (!IsClosed(round_.state())) return absl::OkStatus();
    absl::Notification ended;
    round_.Wait(absl::InfiniteDuration(), [&ended] { ended.Notify(); });
    ended.WaitForNotification();
    return absl::OkStatus();
  }

  uint64_t num_submissions() const { return num_submissions_; }
  uint64_t num_uploads() const { return num_uploads_; }

 private:
  absl::Status RestoreSubmissions() {
    return store_.ForEachSubmission(
        stored_.number, [&](const std::string& client, const SubmissionRecord& record) -> absl::Status {
          FailPoint("restored_submission");
          absl::Status restored;
          if (stored_.state.name == StateName::kFailed) {
            round_.RestoreReceipt(client, record);
          } else if (stored_.state.name != StateName::kCancelled) {
            restored = round_.RestoreSubmission(client, record, ChunksOf(store_, stored_.number, record.upload));
          }
          if (absl::IsAborted(restored)) {
            lost_.emplace_back(client, record.upload);
            Log(LogLevel::kWarning, "submission_not_restored",
                {{"round", round_.config().LogName()}, {"client", client}, {"reason", restored.message()}});
            return absl::OkStatus();
          }
          kept_.push_back(record.upload);
          ++num_submissions_;
          if (restored.ok()) return restored;
          return absl::Status(restored.code(), absl::StrCat("client '", client, "': ", restored.message()));
        });
  }

  // Removes the submissions whose chunks had not reached the disk when the machine ended: their clients were not
  // answered, or by --durability=async. A result that was there with them is not given again with other bits. By
  // --durability=async it may have been there if the round is closed, or full.
  absl::Status DropLost(StateRecord* state) {
    for (const auto& [client, upload] : lost_) {
      RETURN_IF_ERROR(store_.DeleteSubmission(stored_.number, client, upload).status());
    }
    const uint64_t most = round_.config().max_submissions;
    const bool is_full = most != 0 && num_submissions_ + lost_.size() >= most;
    const bool is_closed = state->name == StateName::kClosed || (state->name == StateName::kOpen && is_full);
    // Of a sealed round somebody may have been told which submissions count.
    const bool is_sealed = state->name == StateName::kSealed;
    const bool is_done = state->name == StateName::kDone || state->name == StateName::kMerged;
    const bool has_given_result = is_done || ((is_closed || is_sealed) && !store_.syncs());
    if (lost_.empty() || !has_given_result) return absl::OkStatus();
    const absl::Time now = round_.clock().WallTime();
    if (state->name == StateName::kOpen || is_sealed) state->close_time = now;
    if (!is_done) state->end_time = now;
    state->name = StateName::kFailed;
    state->certificate.clear();  // it states more submissions than there are
    state->certificate_content.clear();
    state->reason = absl::StrCat("the end of the machine lost submissions that ",
                                 is_sealed ? "the sealed round had" : "are in the result", ", of '",
                                 lost_.front().first, "'", lost_.size() > 1 ? " and others" : "");
    return store_.PutState(stored_.number, *state).status();
  }

  absl::Status RestoreRanges() {
    ASSIGN_OR_RETURN(const auto uploads, store_.ReadUploads(stored_.number));
    for (const auto& [number, record] : uploads) {
      if (!record.range.has_value()) continue;
      absl::StatusOr<std::string> page = store_.ReadChunk(stored_.number, number, 0);
      if (page.ok()) {
        round_.ranges().Restore(number, *record.range, *std::move(page));
        kept_.push_back(number);
        continue;
      }
      Log(LogLevel::kWarning, "range_not_restored",
          {{"round", round_.config().LogName()},
           {"tensor", record.range->tensor},
           {"reason", page.status().message()}});
      if (!absl::IsAborted(page.status())) return page.status();
    }
    return absl::OkStatus();
  }

  Store& store_;
  const Store::StoredRound& stored_;
  Round& round_;
  std::vector<uint64_t> kept_;                          // uploads
  std::vector<std::pair<std::string, uint64_t>> lost_;  // clients and uploads of submissions
  uint64_t num_submissions_ = 0;
  uint64_t num_uploads_ = 0;
};

// The streams that the store has, by tenant and id.
struct StoredStream {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  Stream::Stored stored;
};
using StoredStreams = std::map<std::pair<std::string, std::string>, StoredStream>;

absl::StatusOr<StreamConfig> StreamConfigOf(const RoundRecord& record, const Limits& limits) {
  ASSIGN_OR_RETURN(const auto spec, ParseStored<v1::StreamSpec>(record.stream_spec));
  ASSIGN_OR_RETURN(StreamConfig config, DecodeStreamSpec(spec, WithoutSizes(limits), SpecSource::kStore));
  if (config.staleness_weights.empty()) config.staleness_weights = {1.0};
  config.round.tenant = record.tenant;
  config.round.id = record.id;
  return config;
}

// What all restored rounds, streams and models share.
struct Restored {
  Store& store;
  Registry& rounds;
  StreamRegistry& streams;
  ModelRegistry& models;
  const Limits& limits;
  StoredStreams stored_streams;
  std::vector<std::shared_ptr<const void>> holds;  // of versions that models need, until these follow their streams
};

absl::Status RestoreModel(const Store::StoredRound& stored, Restored& all) {
  const RoundRecord& record = stored.record;
  v1::CreateModelRequest request;
  request.set_model_id(record.id);
  ASSIGN_OR_RETURN(*request.mutable_spec(), ParseStored<v1::ModelSpec>(record.model_spec));
  ASSIGN_OR_RETURN(ModelConfig config, DecodeCreateModel(request, all.limits, SpecSource::kStore));
  config.tenant = record.tenant;
  config.spec.keep_versions = record.keep_versions;
  return all.models.Restore(std::move(config), stored.number, record.create_time);
}

// Restores a stream without its versions, whose records come later.
absl::Status RestoreStream(const Store::StoredRound& stored, Restored& all) {
  const RoundRecord& record = stored.record;
  ASSIGN_OR_RETURN(StreamConfig config, StreamConfigOf(record, all.limits));
  ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream,
                   all.streams.Reopen(std::move(config), stored.number, record.create_time));
  std::vector<uint64_t> kept;
  RETURN_IF_ERROR(RestoreUploads(all.store, stored.number, stream->intake(), kept).status());
  ASSIGN_OR_RETURN(const uint64_t latest, DeleteOtherUploads(all.store, stored.number, std::move(kept)));
  stream->ResumeJournal(stored.number, latest);
  all.stored_streams[{record.tenant, record.id}] = {std::move(stream), stored.number, {}};
  return absl::OkStatus();
}

absl::Status RestoreRound(const Store::StoredRound& stored, Restored& all) {
  const RoundRecord& record = stored.record;
  if (!record.stream_spec.empty()) return RestoreStream(stored, all);
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(RoundConfig config, ConfigOf(record, all.limits));
  StoredStream* stream = nullptr;  // of which the round is a version
  if (!record.stream.empty()) {
    const auto found = all.stored_streams.find({record.tenant, record.stream});
    // The run ended while it deleted the stream.
    if (found == all.stored_streams.end()) return all.store.DeleteRound(stored.number).status();
    stream = &found->second;
    std::string salt_key = std::move(config.leaf_salt_key);
    config = stream->stream->VersionConfig(record.version);
    config.leaf_salt_key = std::move(salt_key);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Round> round,
                   all.rounds.Restore(std::move(config), stored.number, record.create_time));
  const uint64_t needed = stream == nullptr ? 0 : all.models.NeededFrom(record.tenant, record.stream);
  if (needed != 0 && record.version >= needed) all.holds.push_back(round->Hold());
  RETURN_IF_ERROR(round->CheckNoiseKey(record.noise_key_id));
  RoundRestorer restorer(all.store, stored, *round);
  RETURN_IF_ERROR(restorer.Run());
  round->StartDeadline();
  if (stream != nullptr) stream->stored.versions[record.version] = round;
  Log(LogLevel::kInfo, "round_restored",
      {{"round", round->config().LogName()},
       {"state", Name(round->state())},
       {"submissions", restorer.num_submissions()},
       {"uploads", restorer.num_uploads()},
       {"ms", absl::Now() - begin}});
  return absl::OkStatus();
}

}  // namespace

absl::Status RestoreRounds(Store& store, Registry& registry, StreamRegistry& streams, ModelRegistry& models,
                           const Limits& limits) {
  Restored all{store, registry, streams, models, limits, {}, {}};
  ASSIGN_OR_RETURN(const std::vector<Store::StoredRound> rounds, store.ReadRounds());
  const auto restore = [](absl::string_view kind, const std::string& tenant, const std::string& id,
                          const std::function<absl::Status()>& restore_one) {
    absl::Status restored = ToStatus(restore_one);
    if (restored.ok()) return restored;
    return absl::Status(restored.code(), absl::StrCat("cannot restore ", kind, " '", id, "' of tenant '", tenant,
                                                      "' from the data directory: ", restored.message()));
  };
  for (const Store::StoredRound& stored : rounds) {
    const RoundRecord& record = stored.record;
    if (record.model_spec.empty()) continue;
    RETURN_IF_ERROR(restore("model", record.tenant, record.id, [&] { return RestoreModel(stored, all); }));
  }
  for (const Store::StoredRound& stored : rounds) {
    const RoundRecord& record = stored.record;
    if (!record.model_spec.empty()) continue;
    RETURN_IF_ERROR(restore("round", record.tenant, record.id, [&] { return RestoreRound(stored, all); }));
  }
  for (auto& [name, stream] : all.stored_streams) {
    ASSIGN_OR_RETURN(stream.stored.cuts, store.ReadCuts(stream.number));
    RETURN_IF_ERROR(restore("stream", name.first, name.second,
                            [&, &found = stream] { return streams.Restore(found.stream, found.stored); }));
  }
  RETURN_IF_ERROR(store.FinishRestore());
  models.FollowAll();
  return absl::OkStatus();
}

}  // namespace sparseagg::service
