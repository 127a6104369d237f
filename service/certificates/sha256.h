// SHA-256 and HMAC-SHA-256, by OpenSSL.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_SHA256_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_SHA256_H_

#include <openssl/evp.h>

#include <cstddef>
#include <memory>

#include "absl/strings/string_view.h"
#include "service/rounds/certifier.h"

namespace sparseagg::service {

// The hash of bytes that are added in parts: Add any number of times, then Finish once, which makes it empty again.
// OpenSSL uses the processor's SHA instructions: 1.8 GB/s where there are some. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  void Add(const void* bytes, size_t size);
  Sha256Digest Finish();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

Sha256Digest Sha256Of(absl::string_view bytes);
Sha256Digest HmacSha256(absl::string_view key, absl::string_view message);

// Returns: the digest as bytes.
absl::string_view BytesOf(const Sha256Digest& digest);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_SHA256_H_
