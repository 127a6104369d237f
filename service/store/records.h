// What the store keeps of rounds, and its coding.
#ifndef SPARSEAGG_SERVICE_STORE_RECORDS_H_
#define SPARSEAGG_SERVICE_STORE_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/content_hash.h"

namespace sparseagg::service {

// A round that was created and not deleted.
struct RoundRecord {
  std::string tenant;
  std::string id;
  std::string spec;  // serialised v1::RoundSpec
  absl::Time create_time;
  // NoiseKeyId of a private round's key; empty: the round is not private. Initialised, so that GCC does not warn where
  // an initialiser leaves it out.
  std::string noise_key_id = {};   // NOLINT(readability-redundant-member-init)
  std::string release_id = {};     // NOLINT(readability-redundant-member-init): of a private round's noise
  std::string leaf_salt_key = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
  std::string stream_spec = {};    // NOLINT(readability-redundant-member-init): this is a stream
  std::string stream = {};         // NOLINT(readability-redundant-member-init): id of the stream of this version
  uint64_t version = 0;
};

// The cut of a version of a stream.
struct CutRecord {
  int cause = 0;  // v1::CutCause
  absl::Time time;
  uint64_t next_position = 0;  // above those of all commits that had begun
};

// The state of a round that is not open.
struct StateRecord {
  enum class Name { kOpen, kClosed, kDone, kFailed, kCancelled, kSealed, kMerged };
  Name name = Name::kOpen;  // kOpen: the store has no state of the round
  std::string reason;       // kFailed and kCancelled
  absl::Time close_time;
  absl::Time end_time;  // kDone, kFailed, kCancelled and kMerged
  // Of a round with a certificate, kDone and kFailed: as in IssuedCertificate.
  std::string certificate = {};          // NOLINT(readability-redundant-member-init)
  std::string certificate_content = {};  // NOLINT(readability-redundant-member-init)
};

// The committed submission of a client.
struct SubmissionRecord {
  std::string submission_id;
  std::string tag;
  uint64_t upload = 0;  // number in the round of the upload whose chunks are the content
  uint64_t num_chunks = 0;
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;
  ContentHash hash;
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt in older records
  std::optional<double> client_weight = std::nullopt;  // its factor, if the round was closed with factors
  uint64_t num_submissions = 1;                        // that count; more than 1 in a partial
  std::string leaf = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
  // Of a commit to a stream: its place; client_weight is its staleness weight.
  std::optional<uint64_t> position = std::nullopt;
  uint64_t base_version = 0;
  std::string client_id = {};  // NOLINT(readability-redundant-member-init): the key may have more
};

// A committed submission that is taken out of its round.
struct WithdrawnSubmission {
  std::string client_id;
  uint64_t upload = 0;
  // NOLINTNEXTLINE(readability-redundant-member-init)
  std::string leaf = {};  // kept after the removal, if the round has a certificate; else empty
};

// Names a range of a cluster's result that is kept in a round.
struct RangeRecord {
  std::string only;    // which clients count
  std::string plan;    // how the result is cut
  std::string tensor;  // empty: this is the list of all ranges
  uint64_t begin = 0;  // keys; an end of 0 is behind the last one
  uint64_t end = 0;
};

// A named upload that is not committed; or a range, whose page is chunk 0.
struct UploadRecord {
  std::string client_id;
  std::string submission_id;
  std::string tag;
  std::optional<RangeRecord> range = std::nullopt;
};

// Where a large chunk lies in the file of its round, and the hash of its bytes.
struct ChunkReference {
  uint64_t offset = 0;
  uint64_t size = 0;
  ContentHash hash;
};

// How much of a round's file outlives the machine, at least.
struct SyncedRecord {
  uint64_t num_bytes = 0;
};

std::string EncodeRecord(const RoundRecord& record);
std::string EncodeRecord(const StateRecord& record);
std::string EncodeRecord(const SubmissionRecord& record);
std::string EncodeRecord(const UploadRecord& record);
std::string EncodeRecord(const ChunkReference& record);
std::string EncodeRecord(const SyncedRecord& record);
std::string EncodeRecord(const CutRecord& record);

// Errors: DATA_LOSS: the bytes are not such a record.
absl::StatusOr<RoundRecord> DecodeRoundRecord(absl::string_view bytes);
absl::StatusOr<StateRecord> DecodeStateRecord(absl::string_view bytes);
absl::StatusOr<SubmissionRecord> DecodeSubmissionRecord(absl::string_view bytes);
absl::StatusOr<UploadRecord> DecodeUploadRecord(absl::string_view bytes);
absl::StatusOr<ChunkReference> DecodeChunkReference(absl::string_view bytes);
absl::StatusOr<SyncedRecord> DecodeSyncedRecord(absl::string_view bytes);
absl::StatusOr<CutRecord> DecodeCutRecord(absl::string_view bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_RECORDS_H_
