// RoundCertificate: the certificate of a round, the proofs that it allows, and the submissions for those who check it.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROUND_CERTIFICATE_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROUND_CERTIFICATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/rounds/certifier.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_services.h"

namespace sparseagg::service {

// What proves to a client that its submission counts.
struct SubmissionReceipt {
  std::string leaf;
  std::string promise;                 // an envelope
  std::optional<uint64_t> leaf_index;  // nullopt: there is no certificate yet
  uint64_t tree_size = 0;
  std::vector<Sha256Digest> path;  // siblings, from the leaf up
};

// Proves that submissions are in the tree of a certificate. Immutable, and so thread-safe.
class ProofIndex {
 public:
  // `keys`: of the submissions in their round, in ascending order, which is that of the leaves of `tree`.
  ProofIndex(std::vector<std::string> keys, std::shared_ptr<const CertificateTree> tree)
      : keys_(std::move(keys)), tree_(std::move(tree)) {}
  // Adds the proof to a receipt. Errors: INTERNAL: the tree has no such submission.
  absl::Status Prove(const std::string& key, SubmissionReceipt& receipt) const;

 private:
  const std::vector<std::string> keys_;
  const std::shared_ptr<const CertificateTree> tree_;
};

// The certificate of a round, from what it has to list besides the committed submissions to the proofs. It is set once,
// after the store has it, and never changes. Not thread-safe: Round guards it.
class RoundCertificate {
 public:
  // Errors: FAILED_PRECONDITION: the server cannot certify or export such a round. INVALID_ARGUMENT: it is of one call.
  static absl::Status Check(const RoundConfig& config, const RoundServices& services);

  // The leaves of submissions that were withdrawn. Reserve makes room for `number` more, so that Add allocates nothing.
  void ReserveWithdrawn(size_t number);
  void AddWithdrawn(std::string leaf);
  void RestoreWithdrawn(std::vector<std::string> leaves);
  // Checks that a client may have one more submission withdrawn. The round keeps each leaf, and the certificate each
  // hash, so that a client that submits and withdraws again and again would make both as large as it likes.
  // Errors: RESOURCE_EXHAUSTED.
  absl::Status CheckMayWithdraw(absl::string_view leaf) const;
  const std::vector<std::string>& withdrawn() const { return withdrawn_; }

  // Sets the certificate that the store has, or why it has none.
  void Set(absl::StatusOr<IssuedCertificate> issued);
  // The same for a restart; an empty one stands for none.
  void Restore(IssuedCertificate issued) { issued_ = std::move(issued); }
  // Empty if there is none.
  const IssuedCertificate& issued() const { return issued_; }
  // Returns: the envelope; empty if there is none. Errors: of Set.
  absl::StatusOr<std::string> Envelope() const;

  // Null until a receipt needs it.
  const std::shared_ptr<const ProofIndex>& proofs() const { return proofs_; }
  void SetProofs(std::shared_ptr<const ProofIndex> proofs) const { proofs_ = std::move(proofs); }

 private:
  std::vector<std::string> withdrawn_;
  uint64_t withdrawn_bytes_ = 0;  // of these leaves
  IssuedCertificate issued_;
  absl::Status error_;
  mutable std::shared_ptr<const ProofIndex> proofs_;  // a cache
};

class Round;

struct BundleChunk {
  std::string client_id;
  std::string submission_id;
  std::string bytes;  // a v1.UpdateChunk as its client has sent it
  bool last = false;
  std::optional<double> client_weight;
  std::string leaf;  // in the last chunk
};

struct BundlePage {
  std::vector<BundleChunk> chunks;
  std::string next_page_token;  // empty on the last page
};

// Returns: chunks of the submissions from the token on; from the first one on if the token is empty. At least one,
// unless the round has no submissions, and then as many as fit `max_bytes`.
// Errors: FAILED_PRECONDITION: the spec does not allow it, or the round is not DONE. INVALID_ARGUMENT: not a token of
// this round. NOT_FOUND: the round was deleted meanwhile. Blocks: for reads of the disk.
absl::StatusOr<BundlePage> ReadBundle(const Round& round, uint64_t max_bytes, absl::string_view page_token);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROUND_CERTIFICATE_H_
