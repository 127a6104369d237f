#include "service/rounds/round_certificate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// So that a page with them, and the certificate with their hashes, fit into one message of an ordinary gRPC client.
constexpr uint64_t kMaxWithdrawnBytes = uint64_t{2} << 20;

}  // namespace

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

void RoundCertificate::AddWithdrawn(std::string leaf) {
  withdrawn_bytes_ += leaf.size();
  withdrawn_.push_back(std::move(leaf));
}

void RoundCertificate::RestoreWithdrawn(std::vector<std::string> leaves) {
  withdrawn_ = std::move(leaves);
  withdrawn_bytes_ = 0;
  for (const std::string& leaf : withdrawn_) withdrawn_bytes_ += leaf.size();
}

absl::Status RoundCertificate::CheckMayWithdraw(absl::string_view leaf) const {
  if (withdrawn_bytes_ + leaf.size() <= kMaxWithdrawnBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the certificate lists ", withdrawn_.size(), " withdrawn submissions, whose leaves have ",
                   withdrawn_bytes_, " bytes; up to ", kMaxWithdrawnBytes,
                   " are kept, so that no more can be withdrawn; a close with only_client_ids leaves others out"));
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
