#include "service/auth/jwt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "service/auth/authenticator.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

constexpr char kClaims[] =
    R"({"iss":"https://issuer","aud":"sparseagg","exp":1800000000,"tenant":"red","role":"client","sub":"site-1"})";
const absl::Time kTokenNow = absl::FromUnixSeconds(1'799'999'999);

std::string Encode(const std::string& bytes) { return absl::WebSafeBase64Escape(bytes); }

Key MakeKey(const std::string& algorithm) {
  EVP_PKEY* const key = algorithm == "RS256"   ? EVP_RSA_gen(2048)
                        : algorithm == "ES256" ? EVP_EC_gen("P-256")
                                               : EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  return {key, &EVP_PKEY_free};
}

// Signs as an issuer does.
std::string Sign(EVP_PKEY* key, const std::string& algorithm, const std::string& text) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestSignInit(context.get(), nullptr, algorithm == "EdDSA" ? nullptr : EVP_sha256(), nullptr, key);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  EVP_DigestSign(context.get(), nullptr, &size, bytes, text.size());
  std::string signature(size, '\0');
  EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes, text.size());
  signature.resize(size);
  if (algorithm != "ES256") return signature;
  const auto* der = reinterpret_cast<const unsigned char*>(signature.data());
  const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> pair(
      d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(signature.size())), &ECDSA_SIG_free);
  std::string raw(64, '\0');
  BN_bn2binpad(ECDSA_SIG_get0_r(pair.get()), reinterpret_cast<unsigned char*>(raw.data()), 32);
  BN_bn2binpad(ECDSA_SIG_get0_s(pair.get()), reinterpret_cast<unsigned char*>(raw.data()) + 32, 32);
  return raw;
}

class JwtTest : public ::testing::TestWithParam<std::string> {
 protected:
  JwtTest() { WriteKey(key_.get()); }
  ~JwtTest() override { std::remove(options_.key_file.c_str()); }

  void WriteKey(EVP_PKEY* key) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_file(options_.key_file.c_str(), "w"), &BIO_free);
    PEM_write_bio_PUBKEY(bio.get(), key);
  }
  std::string Token(const std::string& claims, const std::string& header = "", EVP_PKEY* key = nullptr) {
    const std::string text =
        absl::StrCat(Encode(header.empty() ? absl::StrCat(R"({"alg":")", GetParam(), R"(","typ":"JWT"})") : header),
                     ".", Encode(claims));
    return absl::StrCat(text, ".", Encode(Sign(key == nullptr ? key_.get() : key, GetParam(), text)));
  }
  absl::StatusOr<Identity> Verify(const std::string& token, absl::Time now = kTokenNow) {
    const auto verifier = JwtVerifier::Load(options_);
    EXPECT_THAT(verifier, IsOk());
    return (*verifier)->Verify(token, now);
  }

  const Key key_ = MakeKey(GetParam());
  JwtOptions options_{absl::StrCat(::testing::TempDir(), "/jwt_test.", getpid()), GetParam(), "https://issuer",
                      "sparseagg"};
};

TEST_P(JwtTest, Verify_GoodToken_IsItsIdentity) {
  EXPECT_TRUE(JwtVerifier::HasForm(Token(kClaims)));
  EXPECT_EQ(Verify(Token(kClaims))->ToString(), "red/client/site-1");
  EXPECT_EQ(Verify(Token(R"({"iss":"https://issuer","aud":["x","sparseagg"],"exp":1.8e9,"tenant":"red",)"
                         R"("role":"observer","nbf":1799999999})"))
                ->ToString(),
            "red/observer/");
}

TEST_P(JwtTest, Verify_OtherClaims_AreRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"https://issuer", "https://other"},
      {R"("iss":"https://issuer",)", ""},
      {R"("aud":"sparseagg")", R"("aud":"other")"},
      {R"("aud":"sparseagg")", R"("aud":[])"},
      {R"("aud":"sparseagg",)", ""},
      {R"("exp":1800000000,)", ""},
      {R"("exp":1800000000)", R"("exp":"1800000000")"},
      {R"("exp":1800000000)", R"("exp":1799999999)"},
      {R"("exp":1800000000)", R"("exp":1800000000,"nbf":1800000030)"},
      {R"("exp":1800000000)", R"("exp":1800000000,"nbf":"now")"},
      {R"("tenant":"red",)", ""},
      {R"("tenant":"red")", R"("tenant":"r/d")"},
      {R"("role":"client",)", ""},
      {R"("role":"client")", R"("role":"root")"},
      {R"("sub":"site-1")", R"("sub":"a|b")"},
      {"}", ""},
  };
  for (const auto& [from, to] : changes) {
    const std::string claims = absl::StrReplaceAll(kClaims, {{from, to}});
    ASSERT_NE(claims, kClaims);
    EXPECT_THAT(Verify(Token(claims)), HasCode(Code::kUnauthenticated)) << claims;
  }
  EXPECT_THAT(Verify(Token(kClaims), absl::FromUnixSeconds(1'800'000'000)),
              Fails(Code::kUnauthenticated, HasSubstr("expired at 2027-01-15")));
}

// A claim of a wrong type is none that is missing: a name that is a number would be that of every client.
TEST_P(JwtTest, Verify_ClaimOfAWrongType_IsRefusedByItsName) {
  const std::pair<const char*, const char*> texts[] = {{"iss", R"("https://issuer")"},
                                                       {"aud", R"("sparseagg")"},
                                                       {"tenant", R"("red")"},
                                                       {"role", R"("client")"},
                                                       {"sub", R"("site-1")"}};
  for (const auto& [name, good] : texts) {
    for (const char* wrong :
         {"12345", "null", "true", "false", "{}", R"({"a":"site-1"})", "[1]", R"(["sparseagg",1])"}) {
      const std::string claims = absl::StrReplaceAll(
          kClaims, {{absl::StrCat("\"", name, "\":", good), absl::StrCat("\"", name, "\":", wrong)}});
      ASSERT_NE(claims, kClaims);
      EXPECT_THAT(Verify(Token(claims)), Fails(Code::kUnauthenticated, HasSubstr(absl::StrCat(name, " is n"))))
          << claims;
    }
  }
  for (const char* name : {"exp", "nbf"}) {
    for (const char* wrong : {R"("1800000000")", "null", "true", "{}", "[1800000000]", R"("NaN")"}) {
      const std::string claims = absl::StrReplaceAll(
          kClaims,
          {{R"("exp":1800000000,)", absl::StrCat(absl::string_view(name) == "nbf" ? R"("exp":1800000000,)" : "", "\"",
                                                 name, "\":", wrong, ",")}});
      ASSERT_NE(claims, kClaims);
      EXPECT_THAT(Verify(Token(claims)),
                  Fails(Code::kUnauthenticated, HasSubstr(absl::StrCat(name, " is not a number"))))
          << claims;
    }
  }
  for (const char* header : {R"({"alg":null})", R"({"alg":["ES256"]})", "{}", R"("ES256")"}) {
    EXPECT_THAT(Verify(Token(kClaims, header)), HasCode(Code::kUnauthenticated)) << header;
  }
}

TEST_P(JwtTest, Verify_EmptyOrRepeatedName_IsRefused) {
  for (const char* sub : {R"("sub":"")", R"("sub":"-")", R"("sub":"..")", R"("sub":"site-1","sub":"site-2")"}) {
    const std::string claims = absl::StrReplaceAll(kClaims, {{R"("sub":"site-1")", sub}});
    ASSERT_NE(claims, kClaims);
    EXPECT_THAT(Verify(Token(claims)), HasCode(Code::kUnauthenticated)) << claims;
  }
}

TEST_P(JwtTest, Verify_AlgorithmOfTheToken_IsNotFollowed) {
  const std::string none = absl::StrCat(Encode(R"({"alg":"none"})"), ".", Encode(kClaims), ".");
  EXPECT_THAT(Verify(none), Fails(Code::kUnauthenticated, HasSubstr("its algorithm is not")));
  // The public key, which everybody has, as the secret of an HMAC.
  std::ifstream file(options_.key_file);
  const std::string pem((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string text = absl::StrCat(Encode(R"({"alg":"HS256"})"), ".", Encode(kClaims));
  unsigned char mac[32];
  unsigned int size = 0;
  HMAC(EVP_sha256(), pem.data(), static_cast<int>(pem.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), mac, &size);
  EXPECT_THAT(Verify(absl::StrCat(text, ".", Encode({reinterpret_cast<char*>(mac), size}))),
              Fails(Code::kUnauthenticated, HasSubstr("its algorithm is not")));
  EXPECT_THAT(Verify(Token(kClaims, absl::StrCat(R"({"alg":")", GetParam(), R"(","crit":["x"]})"))),
              Fails(Code::kUnauthenticated, HasSubstr("crit")));
}

TEST_P(JwtTest, Verify_AnyChangedByteOrOtherKey_IsRefused) {
  const std::string token = Token(kClaims);
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    // The last character of a part may have bits that count for nothing.
    const bool is_last = i + 1 == token.size() || token[i + 1] == '.';
    EXPECT_FALSE(Verify(changed).ok() && !is_last) << i;
  }
  const Key other = MakeKey(GetParam());
  EXPECT_THAT(Verify(Token(kClaims, "", other.get())), Fails(Code::kUnauthenticated, HasSubstr("signature")));
  EXPECT_THAT(Verify(token.substr(0, token.rfind('.') + 1)), Fails(Code::kUnauthenticated, HasSubstr("signature")));
  for (const std::string& malformed :
       {std::string(""), std::string(".."), std::string("a.b"), token + ".x", std::string(5000, 'a')}) {
    EXPECT_THAT(Verify(malformed), AllOf(HasCode(Code::kUnauthenticated), Not(IsOk()))) << malformed;
  }
}

TEST_P(JwtTest, Load_BadOptions_AreRefused) {
  const JwtOptions good = options_;
  for (const std::string algorithm : {"", "none", "HS256", "RS512"}) {
    options_.algorithm = algorithm;
    EXPECT_THAT(JwtVerifier::Load(options_), Fails(Code::kInvalidArgument, HasSubstr("--jwt-algorithm")));
  }
  options_ = good;
  options_.issuer.clear();
  EXPECT_THAT(JwtVerifier::Load(options_), Fails(Code::kInvalidArgument, HasSubstr("--jwt-issuer")));
  options_ = good;
  options_.audience.clear();
  EXPECT_THAT(JwtVerifier::Load(options_), Fails(Code::kInvalidArgument, HasSubstr("--jwt-audience")));
  options_ = good;
  WriteKey(MakeKey(GetParam() == "RS256" ? "ES256" : "RS256").get());
  EXPECT_THAT(JwtVerifier::Load(options_), Fails(Code::kInvalidArgument, HasSubstr("no public key for")));
}

TEST_P(JwtTest, Authenticator_TakesThemAndReloadsTheKey) {
  ManualClock clock;
  Authenticator authenticator(&clock);
  ASSERT_THAT(authenticator.Configure({"", false, options_}), IsOk());
  EXPECT_TRUE(authenticator.IsRequired());
  const std::string header = "Bearer " + Token(kClaims);
  EXPECT_EQ(authenticator.Authenticate({{header}, {}})->ToString(), "red/client/site-1");
  EXPECT_THAT(authenticator.Authenticate({{"Bearer x"}, {}}), HasCode(Code::kUnauthenticated));
  std::remove(options_.key_file.c_str());  // so that the file is another one
  WriteKey(MakeKey(GetParam()).get());
  authenticator.Reload();
  EXPECT_THAT(authenticator.Authenticate({{header}, {}}), HasCode(Code::kUnauthenticated));
  options_.key_file.clear();
  EXPECT_THAT(Authenticator(&clock).Configure({"", false, options_}),
              Fails(Code::kInvalidArgument, HasSubstr("--jwt-key is missing")));
  options_.key_file = absl::StrCat(::testing::TempDir(), "/jwt_test.", getpid());
}

INSTANTIATE_TEST_SUITE_P(Algorithms, JwtTest, ::testing::Values("RS256", "ES256", "EdDSA"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace sparseagg::service
