#include "service/certificates/sha256.h"

#include <openssl/hmac.h>

#include <new>

namespace sparseagg::service {
namespace {

// Fetched once: each implicit fetch of OpenSSL 3 takes longer than the hash of a node of the tree.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), Algorithm(), nullptr) != 1) throw std::bad_alloc();
}

void Sha256::Add(const void* bytes, size_t size) { EVP_DigestUpdate(context_.get(), bytes, size); }

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
  EVP_DigestInit_ex(context_.get(), Algorithm(), nullptr);
  return digest;
}

Sha256Digest Sha256Of(absl::string_view bytes) {
  Sha256 hash;
  hash.Add(bytes.data(), bytes.size());
  return hash.Finish();
}

Sha256Digest HmacSha256(absl::string_view key, absl::string_view message) {
  Sha256Digest digest;
  HMAC(Algorithm(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(message.data()),
       message.size(), digest.data(), nullptr);
  return digest;
}

absl::string_view BytesOf(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace sparseagg::service
