// The answer to a commit.
#ifndef SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_
#define SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "host/base/content_hash.h"

namespace sparseagg::service {

// A submission that counts in its round.
struct Receipt {
  std::string client_id;
  std::string submission_id;  // the id under which the submission was first committed
  bool duplicate = false;     // true: the submission was counted before this commit
  uint64_t num_tuples = 0;
  uint64_t num_bytes = 0;  // of decoded keys and values
};

// A submission of a list.
struct ListedSubmission : Receipt {
  ContentHash hash;
  std::optional<double> weight = std::nullopt;         // as sent, 1 if none was; nullopt: an older server stored it
  std::optional<double> client_weight = std::nullopt;  // its factor, if the round was closed with factors
  std::string leaf = {};  // NOLINT(readability-redundant-member-init): of a round with a certificate
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_RECEIPT_H_
