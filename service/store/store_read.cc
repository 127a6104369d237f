// Store: reads for restart and export, and removals during restart.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/store/chunk_files.h"
#include "service/store/database.h"
#include "service/store/keys.h"
#include "service/store/store.h"

namespace sparseagg::service {
namespace {

using keys::Kind;

// `least`: the bytes that keys of the kind have, or have at least.
absl::Status BadKey(absl::string_view key, size_t least) {
  return absl::DataLossError(absl::StrCat("the data directory has a key of ", key.size(), " bytes, expected ", least,
                                          key.size() < least ? " and more" : "", ": it is damaged"));
}

// Reads the records whose keys end with a version.
template <typename Record>
absl::StatusOr<std::map<uint64_t, Record>> ReadVersions(Database::Range& range,
                                                        absl::StatusOr<Record> (*decode)(absl::string_view)) {
  std::map<uint64_t, Record> records;
  for (; range.Valid(); range.Next()) {
    if (range.key().size() != keys::kSequenceAt) return BadKey(range.key(), keys::kSequenceAt);
    ASSIGN_OR_RETURN(Record record, decode(range.value()));
    records.emplace(keys::NumberAt(range.key().substr(keys::kRestAt)), std::move(record));
  }
  RETURN_IF_ERROR(range.status());
  return records;
}

void DeleteContent(uint64_t round, rocksdb::WriteBatch& batch) {
  batch.DeleteRange(keys::Make(round, Kind::kRound), keys::Make(round, Kind::kEnd));
}

}  // namespace

absl::StatusOr<std::vector<Store::StoredRound>> Store::ReadRounds() {
  std::vector<StoredRound> rounds;
  rocksdb::WriteBatch strays;
  std::map<std::tuple<std::string, std::string, bool>, size_t> places;  // in `rounds`, by tenant, id and is_model
  Database::Range range(*database_, "", keys::EndOfRounds());
  while (range.Valid()) {
    const absl::string_view key = range.key();
    if (key.size() < keys::kRestAt) return BadKey(key, keys::kRestAt);
    const uint64_t number = keys::NumberAt(key);
    if (static_cast<Kind>(key[keys::kKindAt]) == Kind::kRound) {
      StoredRound round;
      round.number = number;
      ASSIGN_OR_RETURN(round.record, DecodeRoundRecord(range.value()));
      range.Seek(keys::Make(number, Kind::kState));
      if (range.Valid() && range.key() == keys::Make(number, Kind::kState)) {
        ASSIGN_OR_RETURN(round.state, DecodeStateRecord(range.value()));
      }
      const auto name = std::make_tuple(round.record.tenant, round.record.id, !round.record.model_spec.empty());
      const auto [place, is_new] = places.emplace(name, rounds.size());
      if (is_new) {
        rounds.push_back(std::move(round));
      } else {
        // The earlier round was deleted or had expired, but the process ended before that was written.
        DeleteContent(rounds[place->second].number, strays);
        rounds[place->second] = std::move(round);
      }
    } else {
      // A call was about to write to the round while another one deleted the round.
      DeleteContent(number, strays);
    }
    range.Seek(keys::Make(number + 1, Kind::kRound));
  }
  RETURN_IF_ERROR(range.status());
  if (strays.Count() > 0) {
    RETURN_IF_ERROR(Write(strays).status());
    RETURN_IF_ERROR(database_->Sync().status());
  }
  std::sort(rounds.begin(), rounds.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  // Files of rounds that are gone, now: a new round may get such a number. Deleted records cannot return, because the
  // database has synced its log.
  for (const uint64_t number : files_->Rounds()) {
    const auto needs_file = [number](const StoredRound& round) {
      return round.number == number && round.state.name != StateRecord::Name::kCancelled;
    };
    if (std::any_of(rounds.begin(), rounds.end(), needs_file)) continue;
    Log(LogLevel::kInfo, "chunks_removed",
        {{"file", absl::StrCat("chunks/", number)}, {"bytes", files_->Delete(number)}});
  }
  return rounds;
}

absl::Status Store::ForEachSubmission(
    uint64_t round, const std::function<absl::Status(const std::string&, const SubmissionRecord&)>& take) const {
  Database::Range range(*database_, keys::Make(round, Kind::kSubmission), keys::Make(round, Kind::kUpload));
  for (; range.Valid(); range.Next()) {
    ASSIGN_OR_RETURN(const SubmissionRecord record, DecodeSubmissionRecord(range.value()));
    RETURN_IF_ERROR(take(std::string(range.key().substr(keys::kRestAt)), record));
  }
  return range.status();
}

absl::StatusOr<std::vector<std::pair<uint64_t, UploadRecord>>> Store::ReadUploads(uint64_t round) const {
  std::vector<std::pair<uint64_t, UploadRecord>> uploads;
  Database::Range range(*database_, keys::Make(round, Kind::kUpload), keys::Make(round, Kind::kChunk));
  for (; range.Valid(); range.Next()) {
    if (range.key().size() != keys::kSequenceAt) return BadKey(range.key(), keys::kSequenceAt);
    ASSIGN_OR_RETURN(UploadRecord record, DecodeUploadRecord(range.value()));
    uploads.emplace_back(keys::NumberAt(range.key().substr(keys::kRestAt)), std::move(record));
  }
  RETURN_IF_ERROR(range.status());
  return uploads;
}

absl::Status Store::ForEachChunk(uint64_t round, uint64_t upload,
                                 const std::function<absl::Status(absl::string_view)>& take) const {
  Database::Range range(*database_, keys::Chunks(round, upload), keys::Chunks(round, upload + 1));
  for (uint64_t sequence = 0; range.Valid() && range.key() == keys::Chunk(round, upload, sequence); ++sequence) {
    if (!keys::IsReference(range.value())) {
      RETURN_IF_ERROR(take(range.value()));
    } else {
      ASSIGN_OR_RETURN(const ChunkReference chunk, ReserveLargeChunk(round, range.value()));
      ASSIGN_OR_RETURN(const std::optional<std::string> bytes, files_->Read(round, chunk));
      if (!bytes.has_value()) return MissingChunkError(round, sequence, chunk);
      RETURN_IF_ERROR(take(*bytes));
    }
    range.Next();
  }
  return range.status();
}

absl::StatusOr<std::vector<std::string>> Store::ReadWithdrawn(uint64_t round) const {
  std::vector<std::string> leaves;
  Database::Range range(*database_, keys::Make(round, Kind::kWithdrawn), keys::Make(round, Kind::kCut));
  for (; range.Valid(); range.Next()) leaves.emplace_back(range.value());
  RETURN_IF_ERROR(range.status());
  return leaves;
}

absl::StatusOr<std::string> Store::ReadChunk(uint64_t round, uint64_t upload, uint64_t sequence) const {
  Database::Range range(*database_, keys::Chunk(round, upload, sequence), keys::Chunk(round, upload, sequence + 1));
  if (!range.Valid()) {
    RETURN_IF_ERROR(WithoutRoot(range.status()));
    return absl::NotFoundError(absl::StrCat("the data directory has no chunk ", sequence, " of the submission"));
  }
  if (!keys::IsReference(range.value())) return std::string(range.value());
  ASSIGN_OR_RETURN(const ChunkReference chunk, DecodeChunkReference(range.value().substr(1)));
  absl::StatusOr<std::optional<std::string>> bytes = files_->Read(round, chunk);
  if (!bytes.ok()) return WithoutRoot(bytes.status());
  if (!bytes->has_value()) return WithoutRoot(MissingChunkError(round, sequence, chunk));
  return *std::move(*bytes);
}

absl::Status Store::MissingChunkError(uint64_t round, uint64_t sequence, const ChunkReference& chunk) const {
  Database::Range range(*database_, keys::Make(round, Kind::kSynced), keys::Make(round, Kind::kWithdrawn));
  uint64_t synced_bytes = 0;
  if (range.Valid()) {
    ASSIGN_OR_RETURN(const SyncedRecord record, DecodeSyncedRecord(range.value()));
    synced_bytes = record.num_bytes;
  }
  RETURN_IF_ERROR(range.status());
  const std::string text = absl::StrCat("chunk ", sequence, ", ", chunk.size, " bytes at ", chunk.offset,
                                        " of the data directory's ", directory_->chunks_path(), "/", round, ", ");
  if (chunk.offset + chunk.size <= synced_bytes) return absl::DataLossError(absl::StrCat(text, "is damaged"));
  return absl::AbortedError(absl::StrCat(text, "had not reached the disk when the machine ended"));
}

absl::StatusOr<ChunkReference> Store::ReserveLargeChunk(uint64_t round, absl::string_view value) const {
  ASSIGN_OR_RETURN(const ChunkReference chunk, DecodeChunkReference(value.substr(1)));
  files_->Reserve(round, chunk);
  return chunk;
}

absl::Status Store::RemoveChunks(uint64_t round, const std::string& begin, const std::string& end,
                                 rocksdb::WriteBatch& batch, std::vector<Freed>* freed) const {
  batch.DeleteRange(begin, end);
  if (!files_->Has(round)) return absl::OkStatus();
  Database::Range range(*database_, begin, end);
  for (; range.Valid(); range.Next()) {
    if (!keys::IsReference(range.value())) continue;
    ASSIGN_OR_RETURN(const ChunkReference chunk, ReserveLargeChunk(round, range.value()));
    freed->push_back({round, chunk});
  }
  return range.status();
}

absl::StatusOr<std::map<uint64_t, CutRecord>> Store::ReadCuts(uint64_t round) const {
  Database::Range range(*database_, keys::Make(round, Kind::kCut), keys::Make(round, Kind::kModelVersion));
  return ReadVersions<CutRecord>(range, DecodeCutRecord);
}

absl::StatusOr<std::map<uint64_t, ModelVersionRecord>> Store::ReadModel(uint64_t model) const {
  Database::Range range(*database_, keys::Make(model, Kind::kModelVersion), keys::Make(model, Kind::kEnd));
  ASSIGN_OR_RETURN(auto versions, ReadVersions<ModelVersionRecord>(range, DecodeModelVersionRecord));
  if (versions.empty()) return absl::DataLossError("the data directory has no snapshot of the model");
  uint64_t next = versions.begin()->first;
  for (const auto& [version, record] : versions) {
    if (version == next++) continue;
    return absl::DataLossError(absl::StrCat("the data directory lacks the log record of version ", next - 1));
  }
  return versions;
}

absl::Status Store::DeleteChunksFrom(uint64_t round, uint64_t upload, uint64_t sequence) {
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  const std::string begin = keys::Chunk(round, upload, sequence);
  RETURN_IF_ERROR(RemoveChunks(round, begin, keys::Chunks(round, upload + 1), batch, &freed));
  return WriteRemoval(batch, std::move(freed)).status();
}

absl::StatusOr<uint64_t> Store::DeleteOtherUploads(uint64_t round, absl::Span<const uint64_t> kept) {
  std::vector<uint64_t> others;
  uint64_t largest = 0;
  Database::Range range(*database_, keys::Make(round, Kind::kChunk), keys::Make(round, Kind::kSynced));
  while (range.Valid()) {
    if (range.key().size() < keys::kSequenceAt) return BadKey(range.key(), keys::kSequenceAt);
    const uint64_t upload = keys::NumberAt(range.key().substr(keys::kRestAt));
    largest = upload;
    if (!std::binary_search(kept.begin(), kept.end(), upload)) others.push_back(upload);
    range.Seek(keys::Chunks(round, upload + 1));
  }
  RETURN_IF_ERROR(range.status());
  for (const uint64_t upload : others) RETURN_IF_ERROR(DeleteUpload(round, upload).status());
  return largest;
}

}  // namespace sparseagg::service
