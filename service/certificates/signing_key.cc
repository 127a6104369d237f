#include "service/certificates/signing_key.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/read_file.h"
#include "service/certificates/sha256.h"

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

}  // namespace sparseagg::service
