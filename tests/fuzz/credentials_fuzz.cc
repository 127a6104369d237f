// Files of tokens, and JSON Web Tokens with and without a good signature: an identity or a refusal, and no identity
// without a signature.
#include <fuzzer/FuzzedDataProvider.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "service/auth/authorize.h"
#include "service/auth/jwt.h"
#include "service/auth/token_table.h"
#include "tests/fuzz/fuzz.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// Signs as an issuer would whom the verifier trusts.
class Issuer {
 public:
  Issuer() {
    const std::string path = folder_ / "key.pem";
    std::FILE* const file = std::fopen(path.c_str(), "w");
    PEM_write_PUBKEY(file, key_);
    std::fclose(file);
    auto loaded = JwtVerifier::Load({path, "EdDSA", "https://issuer", "sparseagg"});
    Require(loaded.ok(), "the key is good", loaded.status().ToString());
    verifier_ = *std::move(loaded);
  }

  std::string Token(const std::string& claims) const {
    const std::string text = absl::WebSafeBase64Escape(R"({"alg":"EdDSA"})") + "." + absl::WebSafeBase64Escape(claims);
    std::string signature(64, '\0');
    size_t size = signature.size();
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
    EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_);
    EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                   reinterpret_cast<const unsigned char*>(text.data()), text.size());
    return text + "." + absl::WebSafeBase64Escape(signature);
  }
  const JwtVerifier& verifier() const { return *verifier_; }

 private:
  const TemporaryDirectory folder_;
  EVP_PKEY* const key_ = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  std::shared_ptr<const JwtVerifier> verifier_;
};

}  // namespace
}  // namespace sparseagg::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  static const Issuer issuer;
  FuzzedDataProvider input(data, size);
  const int kind = input.ConsumeIntegralInRange(0, 2);
  const std::string text = input.ConsumeRemainingBytesAsString();
  if (kind == 0) {
    const auto table = TokenTable::Parse(text);
    if (table.ok()) table->Find("token", kNow).IgnoreError();
    return 0;
  }
  const std::string token = kind == 1 ? text : issuer.Token(text);
  if (!JwtVerifier::HasForm(token)) return 0;
  const auto identity = issuer.verifier().Verify(token, kNow);
  if (!identity.ok()) {
    Require(absl::IsUnauthenticated(identity.status()), "a refusal", identity.status().ToString());
    return 0;
  }
  Require(kind == 2, "only a signed token is believed");
  return 0;
}
