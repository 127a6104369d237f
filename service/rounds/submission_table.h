// The committed submissions of a round, by client, and what calls are told of them.
#ifndef SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_TABLE_H_
#define SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/content_hash.h"
#include "host/spec/clip.h"
#include "service/store/records.h"

namespace sparseagg::service {

// Client id and submission id.
using UploadName = std::pair<absl::string_view, absl::string_view>;

// How far an upload has come.
struct UploadProgress {
  uint64_t next_sequence = 0;  // the chunk expected next
  uint64_t received_tuples = 0;
  bool complete = false;   // the last chunk has been received
  bool committed = false;  // the submission counts
};

// The place of a commit in its stream.
struct StreamPlace {
  uint64_t version = 0;   // that the commit belongs to
  uint64_t position = 0;  // in the log of the stream's commits
  uint64_t base_version = 0;
  double weight = 1.0;  // by which that of the submission is multiplied, as the table has it for staleness()

  uint64_t staleness() const { return version - 1 - base_version; }
};

// A submission that counts in its round.
struct Receipt {
  std::string client_id;
  std::string submission_id;  // the id under which the submission was first committed
  bool duplicate = false;     // true: the submission was counted before this commit
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;  // of decoded keys and values
  std::optional<StreamPlace> stream = std::nullopt;
};

// A submission of a list.
struct ListedSubmission : Receipt {
  std::string key;  // in the round: the client id, and in a stream perhaps a position behind it
  ContentHash hash;
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt: a partial
  std::optional<double> client_weight = std::nullopt;  // its factor, if the round was closed with factors
  std::string leaf = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
};

// Some submissions of a round.
struct SubmissionPage {
  std::vector<ListedSubmission> submissions;  // in ascending order of client ids
  std::string next_page_token;                // empty on the last page
  std::vector<std::string> withdrawn_leaves;  // on the last page: of the submissions that were withdrawn
};

// The committed submission of a client, for answers to retries.
struct CommittedSubmission {
  ContentHash hash;
  Receipt receipt;
  uint64_t num_chunks = 0;
  std::string tag;
  uint64_t upload = 0;   // number in the store of the upload that was committed
  std::string retry_id;  // the latest other submission id with the same content, and its tag
  std::string retry_tag;
  ClipOutcome clip = {};
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt: a partial
  std::optional<double> client_weight = std::nullopt;  // its factor, if the round was closed with factors
  uint64_t num_submissions = 1;                        // that count; more than 1 in a partial
  std::string leaf = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
  // As of Upload::chunk_hashes; the second of retry_id and retry_tag.
  std::vector<ContentHash> chunk_hashes = {};        // NOLINT(readability-redundant-member-init)
  std::vector<ContentHash> retry_chunk_hashes = {};  // NOLINT(readability-redundant-member-init)

  // Returns: what the store keeps of it.
  SubmissionRecord Record() const {
    SubmissionRecord record{receipt.submission_id,
                            tag,
                            upload,
                            num_chunks,
                            receipt.num_tuples,
                            receipt.num_bytes,
                            hash,
                            weight,
                            client_weight,
                            num_submissions,
                            leaf};
    if (!receipt.stream.has_value()) return record;
    record.position = receipt.stream->position;
    record.base_version = receipt.stream->base_version;
    record.client_id = receipt.client_id;
    return record;
  }
  // Returns: the hashes of the chunks of the upload with these ids; empty: unknown.
  absl::Span<const ContentHash> ChunkHashesOf(absl::string_view submission_id, absl::string_view upload_tag) const {
    const bool is_first = submission_id == receipt.submission_id && upload_tag == tag;
    return is_first ? chunk_hashes : retry_chunk_hashes;
  }
  UploadProgress progress() const { return {num_chunks, receipt.num_tuples, /*complete=*/true, /*committed=*/true}; }
};

// One submission per client at most, and the figures of those that count. Not thread-safe: Round guards it.
class SubmissionTable {
 public:
  // A std::map, because a node is allocated before the round changes and inserted without an allocation.
  // absl::flat_hash_map of Abseil 20220623 is broken by an allocation that fails while it grows.
  using Map = std::map<std::string, CommittedSubmission, std::less<>>;

  size_t size() const { return submissions_.size(); }
  // Submissions inserted and not withdrawn, with those in partials; and their tuples and bytes; also after DropAll.
  uint64_t num_submissions() const { return num_submissions_; }
  uint64_t num_tuples() const { return num_tuples_; }
  uint64_t num_bytes() const { return num_bytes_; }
  uint64_t num_withdrawn() const { return num_withdrawn_; }
  // What the bounds have done to them.
  const ClipSummary& clip() const { return clip_; }

  // Returns: the client's submission, or null. `submission_id`: that of its first commit or of its latest retry; empty:
  // any.
  const CommittedSubmission* Find(absl::string_view client_id, absl::string_view submission_id = "") const;
  // Returns: the submission of a client, with its key. `submission_id`: as in Find. `has_positions`: the keys may have
  // a position behind the client id, as in a version of a stream. Errors: NOT_FOUND: there is none.
  // FAILED_PRECONDITION: there are several, and `submission_id` is empty.
  absl::StatusOr<Map::const_iterator> FindOfClient(absl::string_view client_id, absl::string_view submission_id,
                                                   bool has_positions) const;
  // Returns: whether an upload of this name and tag, or with the same content, has been committed.
  bool HasUpload(UploadName name, absl::string_view tag) const;
  // Notes the ids of a repeated commit of the client's submission, and its chunks if they are not more than those of
  // the first. Requires: there is one.
  void SetRetry(absl::string_view client_id, const std::string& submission_id, const std::string& tag,
                const std::vector<ContentHash>& chunk_hashes);
  // Sets the factor of the client's weight. Requires: there is a submission.
  void SetClientWeight(absl::string_view client_id, double factor) {
    submissions_.find(client_id)->second.client_weight = factor;
  }
  // Returns: all submissions, in ascending order of client ids.
  const Map& all() const { return submissions_; }
  // Returns: up to `max_size` submissions in ascending order of client ids, from the first one after `client_id` on;
  // from the first of all on if that is null. Cost: O(max_size).
  std::vector<ListedSubmission> List(const absl::string_view* client_id, size_t max_size) const;

  // Counts a submission. Requires: its client has none. Allocates nothing.
  void Insert(Map::node_type submission);
  // Takes the client's submission out of the figures and moves it to `withdrawn`. Requires: there is one. Allocates
  // nothing.
  void Withdraw(absl::string_view client_id, Map& withdrawn);
  // Forgets all submissions, but not the figures, until TakeDropped returns them: to free a million takes time.
  // Allocates nothing.
  void DropAll() { dropped_.swap(submissions_); }
  Map TakeDropped() { return std::exchange(dropped_, {}); }

 private:
  Map submissions_;
  Map dropped_;
  uint64_t num_submissions_ = 0;
  uint64_t num_tuples_ = 0;
  uint64_t num_bytes_ = 0;
  uint64_t num_withdrawn_ = 0;
  ClipSummary clip_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_SUBMISSION_TABLE_H_
