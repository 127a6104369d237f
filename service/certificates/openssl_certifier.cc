#include "service/certificates/openssl_certifier.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/base/read_file.h"
#include "service/certificates/merkle_tree.h"
#include "service/certificates/statement.h"

namespace sparseagg::service {
namespace {

constexpr size_t kPublicKeyBytes = 32;
constexpr size_t kSignatureBytes = 64;

// Never asks a terminal for the password of a key.
int NoPassword(char*, int, int, void*) { return 0; }

}  // namespace

struct SigningKey::Key {
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> pkey;
};

SigningKey::SigningKey(std::unique_ptr<Key> key, std::string id) : key_(std::move(key)), id_(std::move(id)) {}
SigningKey::~SigningKey() = default;

absl::StatusOr<std::shared_ptr<const SigningKey>> SigningKey::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string pem, ReadSecretFile(path));
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                      &BIO_free);
  auto key = std::unique_ptr<Key>(
      new Key{{PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free}});
  ERR_clear_error();
  unsigned char bytes[kPublicKeyBytes];
  size_t size = sizeof(bytes);
  if (key->pkey == nullptr || EVP_PKEY_id(key->pkey.get()) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key->pkey.get(), bytes, &size) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no Ed25519 private key in PEM; make one with: openssl genpkey -algorithm ed25519"));
  }
  const Sha256Digest digest = Sha256Of({reinterpret_cast<const char*>(bytes), size});
  return std::shared_ptr<const SigningKey>(new SigningKey(std::move(key), absl::BytesToHexString(BytesOf(digest))));
}

absl::StatusOr<std::string> SigningKey::Sign(absl::string_view message) const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  if (context == nullptr || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_->pkey.get()) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     reinterpret_cast<const unsigned char*>(message.data()), message.size()) != 1) {
    ERR_clear_error();
    return absl::InternalError("OpenSSL did not sign with the certificate key");
  }
  return signature;
}

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
