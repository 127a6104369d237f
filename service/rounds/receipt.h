// The answer to a commit.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_
#define SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/base/content_hash.h"

namespace sparseagg::service {

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
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt: an older server stored it
  std::optional<double> client_weight = std::nullopt;  // its factor, if the round was closed with factors
  std::string leaf = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
};

// Some submissions of a round.
struct SubmissionPage {
  std::vector<ListedSubmission> submissions;  // in ascending order of client ids
  std::string next_page_token;                // empty on the last page
  std::vector<std::string> withdrawn_leaves;  // on the last page: of the submissions that were withdrawn
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_
