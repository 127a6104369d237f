#include "service/rounds/submission_table.h"

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

const CommittedSubmission* SubmissionTable::Find(absl::string_view client_id, absl::string_view submission_id) const {
  const auto found = submissions_.find(client_id);
  if (found == submissions_.end()) return nullptr;
  const CommittedSubmission& submission = found->second;
  const bool is_same = submission_id.empty() || submission_id == submission.receipt.submission_id ||
                       submission_id == submission.retry_id;
  return is_same ? &submission : nullptr;
}

absl::StatusOr<SubmissionTable::Map::const_iterator> SubmissionTable::FindOfClient(absl::string_view client_id,
                                                                                   absl::string_view submission_id,
                                                                                   bool has_positions) const {
  auto found = submissions_.end();
  if (Find(client_id, submission_id) != nullptr) {
    found = submissions_.find(client_id);
  } else if (has_positions) {
    const std::string prefix = absl::StrCat(client_id, absl::string_view("\0", 1));
    for (auto each = submissions_.lower_bound(prefix); each != submissions_.end(); ++each) {
      if (each->first.compare(0, prefix.size(), prefix) != 0) break;
      if (!submission_id.empty() && each->second.receipt.submission_id != submission_id) continue;
      if (found != submissions_.end()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "client '", client_id, "' has several commits in the version; submission_id must say which is meant"));
      }
      found = each;
    }
  }
  if (found != submissions_.end()) return found;
  return absl::NotFoundError(absl::StrCat("client '", client_id, "' has no submission ",
                                          submission_id.empty() ? "" : absl::StrCat("'", submission_id, "' "),
                                          "that counts in the round"));
}

bool SubmissionTable::HasUpload(UploadName name, absl::string_view tag) const {
  const CommittedSubmission* const found = Find(name.first);
  if (found == nullptr) return false;
  return (found->receipt.submission_id == name.second && found->tag == tag) ||
         (found->retry_id == name.second && found->retry_tag == tag);
}

void SubmissionTable::SetRetry(absl::string_view client_id, const std::string& submission_id, const std::string& tag,
                               const std::vector<ContentHash>& chunk_hashes) {
  CommittedSubmission& submission = submissions_.find(client_id)->second;
  submission.retry_id = submission_id;
  submission.retry_tag = tag;
  // The round has reserved memory for as many as the first upload has.
  const bool has_room = chunk_hashes.size() <= submission.chunk_hashes.size();
  submission.retry_chunk_hashes = has_room ? chunk_hashes : std::vector<ContentHash>();
}

std::vector<ListedSubmission> SubmissionTable::List(const absl::string_view* client_id, size_t max_size) const {
  std::vector<ListedSubmission> listed;
  auto it = client_id == nullptr ? submissions_.begin() : submissions_.upper_bound(*client_id);
  for (; it != submissions_.end() && listed.size() < max_size; ++it) {
    const CommittedSubmission& submission = it->second;
    listed.push_back(
        {submission.receipt, it->first, submission.hash, submission.weight, submission.client_weight, submission.leaf});
  }
  return listed;
}

void SubmissionTable::Insert(Map::node_type submission) {
  const Receipt& receipt = submission.mapped().receipt;
  num_submissions_ += submission.mapped().num_submissions;
  num_tuples_ += receipt.num_tuples;
  num_bytes_ += receipt.num_bytes;
  clip_.Add(submission.mapped().clip);
  submissions_.insert(std::move(submission));
}

void SubmissionTable::Withdraw(absl::string_view client_id, Map& withdrawn) {
  Map::node_type submission = submissions_.extract(submissions_.find(client_id));
  const Receipt& receipt = submission.mapped().receipt;
  num_submissions_ -= submission.mapped().num_submissions;
  num_tuples_ -= receipt.num_tuples;
  num_bytes_ -= receipt.num_bytes;
  clip_.Add(submission.mapped().clip, -1);
  ++num_withdrawn_;
  withdrawn.insert(std::move(submission));
}

}  // namespace sparseagg::service
