#include "service/certificates/openssl_certifier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/certificates/cbor.h"
#include "service/certificates/content.h"
#include "service/certificates/merkle_tree.h"
#include "service/certificates/sha256.h"
#include "service/certificates/statement.h"

namespace sparseagg::service {
absl::StatusOr<std::unique_ptr<OpenSslCertifier>> OpenSslCertifier::Load(const std::string& path) {
  auto certifier = std::unique_ptr<OpenSslCertifier>(new OpenSslCertifier(path));
  MutexLock lock(&certifier->mu_);
  certifier->version_.HasChanged();
  ASSIGN_OR_RETURN(certifier->key_, SigningKey::Load(path));
  certifier->state_.Record(true);
  return certifier;
}

void OpenSslCertifier::Reload() {
  MutexLock lock(&mu_);
  if (!version_.HasChanged()) return;
  absl::StatusOr<std::shared_ptr<const SigningKey>> key = SigningKey::Load(path_);
  state_.Record(key.ok());
  if (key.ok()) {
    key_ = *std::move(key);
    Log(LogLevel::kInfo, "certificate_key_reloaded", {{"key_id", key_->id()}});
  } else {
    Log(LogLevel::kError, "certificate_key_not_reloaded", {{"reason", key.status().message()}});
  }
}

absl::StatusOr<std::string> OpenSslCertifier::MakeSaltKey(absl::string_view tenant, absl::string_view id) const {
  // Nobody without the private key can compute the signature. No envelope is signed that begins so.
  ASSIGN_OR_RETURN(const std::string signature, key()->Sign(absl::StrCat("sparseagg salts\n", tenant, "\n", id)));
  return std::string(BytesOf(Sha256Of(signature)));
}

std::string OpenSslCertifier::MakeLeaf(absl::string_view salt_key, absl::string_view client_id,
                                       absl::string_view submission_id, double weight,
                                       std::optional<uint64_t> base_version,
                                       absl::Span<const TensorContent> tensors) const {
  std::string leaf;
  cbor::AppendArray(5 + tensors.size(), &leaf);
  cbor::AppendBytes(BytesOf(HmacSha256(salt_key, client_id)), &leaf);
  cbor::AppendText(client_id, &leaf);
  cbor::AppendText(submission_id, &leaf);
  cbor::AppendFloat(weight, &leaf);
  if (base_version.has_value()) {
    cbor::AppendUint(*base_version, &leaf);
  } else {
    cbor::AppendNull(&leaf);
  }
  for (const TensorContent& tensor : tensors) {
    cbor::AppendArray(3, &leaf);
    cbor::AppendText(tensor.name, &leaf);
    cbor::AppendUint(tensor.content.num_keys, &leaf);
    cbor::AppendBytes(BytesOf(DigestOf(tensor.content)), &leaf);
  }
  return leaf;
}

std::shared_ptr<const CertificateTree> OpenSslCertifier::MakeTree(absl::Span<const absl::string_view> leaves) const {
  return std::make_shared<const MerkleTree>(leaves);
}

absl::StatusOr<IssuedCertificate> OpenSslCertifier::Certify(const RoundFacts& facts) const {
  const Sha256Digest root = MerkleTree(facts.leaves).Root();
  Sha256 content;
  content.Add(root.data(), root.size());
  std::vector<Sha256Digest> results;
  for (size_t i = 0; facts.results != nullptr && i < facts.results->size(); ++i) {
    results.push_back(DigestOf(facts.config.tensors[i], (*facts.results)[i]));
    content.Add(results.back().data(), results.back().size());
  }
  ASSIGN_OR_RETURN(std::string envelope, MakeEnvelope(kStatementType, MakeStatement(facts, root, results), *key()));
  return IssuedCertificate{std::move(envelope), std::string(BytesOf(content.Finish()))};
}

absl::StatusOr<std::string> OpenSslCertifier::Promise(const RoundConfig& config, absl::Time create_time,
                                                      absl::string_view leaf) const {
  return MakeEnvelope(kPromiseType, MakePromise(config, create_time, leaf), *key());
}

}  // namespace sparseagg::service
