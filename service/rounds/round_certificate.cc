#include "service/rounds/round_certificate.h"

#include <algorithm>

#include "host/base/status_macros.h"

namespace sparseagg::service {

absl::Status ProofIndex::Prove(const std::string& key, SubmissionReceipt& receipt) const {
  const auto found = std::lower_bound(keys_.begin(), keys_.end(), key);
  if (found == keys_.end() || *found != key) return absl::InternalError("a client is not in its round's tree");
  receipt.leaf_index = static_cast<uint64_t>(found - keys_.begin());
  receipt.tree_size = keys_.size();
  receipt.path = tree_->PathOf(*receipt.leaf_index);
  return absl::OkStatus();
}

absl::Status RoundCertificate::Check(const RoundConfig& config, const RoundServices& services) {
  if (!config.has_certificate) return absl::OkStatus();
  if (config.id.empty()) {
    return absl::InvalidArgumentError("certificate: a one-shot call has no round that could get one");
  }
  if (services.certifier == nullptr) {
    return absl::FailedPreconditionError(
        "the spec asks for a certificate, and the server has no key to sign it (--certificate-key)");
  }
  if (config.allows_export && services.store == nullptr) {
    return absl::FailedPreconditionError(
        "certificate.allow_export needs a server with a data directory (--data-dir), which keeps the submissions");
  }
  return absl::OkStatus();
}

void RoundCertificate::ReserveWithdrawn(size_t number) {
  const size_t size = withdrawn_.size();
  if (withdrawn_.capacity() - size < number) withdrawn_.reserve(std::max(size + number, 2 * size));
}

void RoundCertificate::Set(absl::StatusOr<IssuedCertificate> issued) {
  error_ = issued.status();
  if (issued.ok()) issued_ = *std::move(issued);
}

absl::StatusOr<std::string> RoundCertificate::Envelope() const {
  RETURN_IF_ERROR(error_);
  return issued_.envelope;
}

}  // namespace sparseagg::service
