// What the store keeps of rounds, and its coding.
#ifndef SPARSEAGG_SERVICE_STORE_RECORDS_H_
#define SPARSEAGG_SERVICE_STORE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/content_hash.h"

namespace sparseagg::service {

// Errors: DATA_LOSS: the bytes are not a `Message`.
template <typename Message>
absl::StatusOr<Message> ParseRecord(absl::string_view bytes) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return message;
  return absl::DataLossError(
      absl::StrCat("a record of ", bytes.size(), " bytes is not a ", Message::descriptor()->full_name()));
}

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
  std::string model_spec = {};  // NOLINT(readability-redundant-member-init): this is a model
  uint32_t keep_versions = 0;   // of a model, with the default that its stream had
};

// A version of a model: the first one that the store has is a snapshot, and those after it are the log.
struct ModelVersionRecord {
  // Of the log.
  std::string source;                                  // "rounds/{id}"; empty: none
  std::string empty_reason;                            // of an empty version
  std::optional<double> learning_rate = std::nullopt;  // set before the step
  std::string digest = {};                             // NOLINT(readability-redundant-member-init)
  // Whose chunks are the merged rows (host/model/row_block.h), or the pieces of Model::Save; 0: there are no rows.
  uint64_t upload = 0;
  uint64_t num_chunks = 0;
  uint64_t num_bytes = 0;  // of the chunks
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
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt: a partial
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
std::string EncodeRecord(const ModelVersionRecord& record);

// Errors: DATA_LOSS: the bytes are not such a record.
absl::StatusOr<RoundRecord> DecodeRoundRecord(absl::string_view bytes);
absl::StatusOr<StateRecord> DecodeStateRecord(absl::string_view bytes);
absl::StatusOr<SubmissionRecord> DecodeSubmissionRecord(absl::string_view bytes);
absl::StatusOr<UploadRecord> DecodeUploadRecord(absl::string_view bytes);
absl::StatusOr<ChunkReference> DecodeChunkReference(absl::string_view bytes);
absl::StatusOr<SyncedRecord> DecodeSyncedRecord(absl::string_view bytes);
absl::StatusOr<CutRecord> DecodeCutRecord(absl::string_view bytes);
absl::StatusOr<ModelVersionRecord> DecodeModelVersionRecord(absl::string_view bytes);

// What the store keeps of tasks, and its coding.
enum class TaskState {
  kOpen,    // waits for a worker
  kLeased,  // a worker has it
  kCompleted,
  kFailed,
  kCancelled,
};
inline constexpr size_t kNumTaskStates = 5;

// The client-visible description of one task.
struct TaskSpec {
  std::string payload;
  std::vector<std::string> labels;  // what a worker must have: ascending, each once
  int32_t priority = 0;
  absl::Duration deadline = absl::InfiniteDuration();  // from the creation
  uint32_t max_attempts = 0;
  std::string round;   // id of the round that a submission has to be in; empty: none
  absl::Duration ttl;  // how long the ended task is kept
};

// A task as it was created. It never changes.
struct TaskRecord {
  std::string tenant;
  std::string id;
  std::string owner;  // the coordinator
  TaskSpec spec;
  absl::Time create_time;
};

// Who has, or had, a lease of a task.
struct LeaseHolder {
  std::string client_id;
  std::string lease_id;

  friend bool operator==(const LeaseHolder& a, const LeaseHolder& b) {
    return a.client_id == b.client_id && a.lease_id == b.lease_id;
  }
};

// What has happened to a task since.
struct TaskStateRecord {
  TaskState state = TaskState::kOpen;
  // One for each attempt, the latest one last; of an ended task only that which ended it. Its size is the number of
  // attempts of a task that has not ended.
  std::vector<LeaseHolder> leases;
  uint32_t attempts = 0;
  absl::Time lease_expire_time = absl::InfinitePast();       // of the latest lease
  absl::Duration lease_duration = absl::InfiniteDuration();  // from its grant or extension; infinite: there was none
  std::string reason;                          // kFailed, kCancelled: why; kOpen: of the latest failed attempt
  std::string submission_id;                   // kCompleted
  std::string result;                          // kCompleted
  absl::Time end_time = absl::InfinitePast();  // of the last three states
};

std::string EncodeRecord(const TaskRecord& record);
std::string EncodeRecord(const TaskStateRecord& record);

// Errors: DATA_LOSS: the bytes are not such a record.
absl::StatusOr<TaskRecord> DecodeTaskRecord(absl::string_view bytes);
absl::StatusOr<TaskStateRecord> DecodeTaskStateRecord(absl::string_view bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_RECORDS_H_
