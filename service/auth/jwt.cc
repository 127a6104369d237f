#include "service/auth/jwt.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/base/read_file.h"

namespace sparseagg::service {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// More than any sensible token has. gRPC takes headers of twice as much.
constexpr size_t kMaxTokenBytes = 4096;
// The clocks of the issuer and the server may differ by this much, as far as nbf is concerned.
constexpr absl::Duration kClockSkew = absl::Seconds(30);
constexpr size_t kEs256Bytes = 64;  // of a signature: two numbers

absl::Status Refused(absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("JSON Web Token: ", why));
}

// Decodes base64url without padding.
bool Decode(absl::string_view part, std::string* bytes) {
  return part.find('=') == absl::string_view::npos && absl::WebSafeBase64Unescape(part, bytes);
}

absl::StatusOr<Struct> ParseObject(absl::string_view part, absl::string_view what) {
  std::string json;
  Struct object;
  if (!Decode(part, &json) || !google::protobuf::util::JsonStringToMessage(json, &object).ok()) {
    return Refused(absl::StrCat("the ", what, " is no JSON object in base64url"));
  }
  return object;
}

const Value* Find(const Struct& object, const char* name) {
  const auto found = object.fields().find(name);
  return found == object.fields().end() ? nullptr : &found->second;
}

// A member of another type, null included, is refused and not taken for a missing one: a token whose `sub` is a number
// would otherwise have no name, and a token without a name may use any client id.

// Returns: the string of this name; nullopt if there is none. Errors: UNAUTHENTICATED: a value of another type.
absl::StatusOr<std::optional<std::string>> TextOf(const Struct& object, const char* name) {
  const Value* const value = Find(object, name);
  if (value == nullptr) return std::nullopt;
  if (value->kind_case() != Value::kStringValue) return Refused(absl::StrCat(name, " is not a string"));
  return value->string_value();
}

// Returns: whether the claim aud is `audience`, or a list with it. Errors: UNAUTHENTICATED: a value of another type.
absl::StatusOr<bool> IsFor(const Struct& claims, const std::string& audience) {
  const Value* const value = Find(claims, "aud");
  if (value == nullptr) return false;
  if (value->kind_case() == Value::kStringValue) return value->string_value() == audience;
  const auto& listed = value->list_value().values();  // of another type: empty
  const bool has_strings = std::all_of(listed.begin(), listed.end(),
                                       [](const Value& each) { return each.kind_case() == Value::kStringValue; });
  if (value->kind_case() != Value::kListValue || !has_strings) {
    return Refused("aud is neither a string nor a list of strings");
  }
  return std::any_of(listed.begin(), listed.end(), [&](const Value& each) { return each.string_value() == audience; });
}

// Returns: the time of a claim in seconds since 1970; nullopt if there is none. Errors: UNAUTHENTICATED: no number.
absl::StatusOr<std::optional<absl::Time>> TimeOf(const Struct& claims, const char* name) {
  const Value* const value = Find(claims, name);
  if (value == nullptr) return std::nullopt;
  if (value->kind_case() != Value::kNumberValue || !std::isfinite(value->number_value())) {
    return Refused(absl::StrCat(name, " is not a number"));
  }
  return absl::UnixEpoch() + absl::Seconds(value->number_value());
}

// Converts the two numbers of an ES256 signature to the form of OpenSSL; empty: malformed.
std::string ToDer(const std::string& signature) {
  if (signature.size() != kEs256Bytes) return "";
  const auto* const bytes = reinterpret_cast<const unsigned char*>(signature.data());
  const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> pair(ECDSA_SIG_new(), &ECDSA_SIG_free);
  BIGNUM* const r = BN_bin2bn(bytes, kEs256Bytes / 2, nullptr);
  BIGNUM* const s = BN_bin2bn(bytes + kEs256Bytes / 2, kEs256Bytes / 2, nullptr);
  if (pair == nullptr || r == nullptr || s == nullptr || ECDSA_SIG_set0(pair.get(), r, s) != 1) {
    BN_free(r);
    BN_free(s);
    return "";
  }
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(pair.get(), &der);
  std::string converted(reinterpret_cast<const char*>(der), size < 0 ? 0 : size);
  OPENSSL_free(der);
  return converted;
}

// Returns: whether the key is of the kind that the algorithm needs.
bool Fits(EVP_PKEY* key, const std::string& algorithm) {
  if (algorithm == "RS256") return EVP_PKEY_is_a(key, "RSA") == 1 && EVP_PKEY_get_bits(key) >= 2048;
  if (algorithm == "EdDSA") return EVP_PKEY_is_a(key, "ED25519") == 1;
  char group[32] = {};
  return EVP_PKEY_is_a(key, "EC") == 1 && EVP_PKEY_get_group_name(key, group, sizeof(group), nullptr) == 1 &&
         absl::string_view(group) == "prime256v1";
}

}  // namespace

struct JwtVerifier::Key {
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key;
};

JwtVerifier::JwtVerifier(const JwtOptions& options, std::unique_ptr<Key> key)
    : options_(options), key_(std::move(key)) {}

JwtVerifier::~JwtVerifier() = default;

absl::StatusOr<std::shared_ptr<const JwtVerifier>> JwtVerifier::Load(const JwtOptions& options) {
  if (options.algorithm != "RS256" && options.algorithm != "ES256" && options.algorithm != "EdDSA") {
    return absl::InvalidArgumentError("--jwt-algorithm is one of RS256, ES256 and EdDSA");
  }
  if (options.issuer.empty()) return absl::InvalidArgumentError("--jwt-issuer is missing");
  if (options.audience.empty()) return absl::InvalidArgumentError("--jwt-audience is missing");
  absl::StatusOr<std::string> pem = ReadFile(options.key_file);
  if (!pem.ok()) return absl::Status(pem.status().code(), absl::StrCat("--jwt-key: ", pem.status().message()));
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())),
                                                      &BIO_free);
  auto key = std::make_unique<Key>(Key{{PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free}});
  const bool fits = key->key != nullptr && Fits(key->key.get(), options.algorithm);
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("--jwt-key: ", options.key_file, " has no public key for ", options.algorithm, " in PEM"));
  }
  return std::shared_ptr<const JwtVerifier>(new JwtVerifier(options, std::move(key)));
}

bool JwtVerifier::HasForm(absl::string_view token) { return std::count(token.begin(), token.end(), '.') == 2; }

bool JwtVerifier::IsSigned(absl::string_view signed_part, const std::string& signature) const {
  const std::string checked = options_.algorithm == "ES256" ? ToDer(signature) : signature;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const EVP_MD* const digest = options_.algorithm == "EdDSA" ? nullptr : EVP_sha256();
  const bool good =
      !checked.empty() && context != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key_->key.get()) == 1 &&
      EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(checked.data()), checked.size(),
                       reinterpret_cast<const unsigned char*>(signed_part.data()), signed_part.size()) == 1;
  ERR_clear_error();
  return good;
}

absl::StatusOr<Identity> JwtVerifier::Verify(absl::string_view token, absl::Time now) const {
  if (token.size() > kMaxTokenBytes) return Refused(absl::StrCat("longer than ", kMaxTokenBytes, " bytes"));
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  if (parts.size() != 3) return Refused("not three parts");
  // Nothing of the token is believed before its signature has been checked, and its header only to refuse it.
  ASSIGN_OR_RETURN(const Struct header, ParseObject(parts[0], "header"));
  ASSIGN_OR_RETURN(const std::optional<std::string> algorithm, TextOf(header, "alg"));
  if (algorithm != options_.algorithm) {
    return Refused(absl::StrCat("its algorithm is not ", options_.algorithm));
  }
  if (Find(header, "crit") != nullptr) return Refused("it has an extension (crit) that the server does not know");
  std::string signature;
  const absl::string_view signed_part = token.substr(0, parts[0].size() + 1 + parts[1].size());
  if (!Decode(parts[2], &signature) || !IsSigned(signed_part, signature)) return Refused("the signature is wrong");
  ASSIGN_OR_RETURN(const Struct claims, ParseObject(parts[1], "payload"));
  ASSIGN_OR_RETURN(const std::optional<std::string> issuer, TextOf(claims, "iss"));
  if (issuer != options_.issuer) return Refused("of another issuer");
  ASSIGN_OR_RETURN(const bool is_for_us, IsFor(claims, options_.audience));
  if (!is_for_us) return Refused("for another audience");
  ASSIGN_OR_RETURN(const std::optional<absl::Time> end, TimeOf(claims, "exp"));
  if (!end.has_value()) return Refused("without an end of validity (exp)");
  if (now >= *end) {
    return Refused(absl::StrCat("expired at ", absl::FormatTime(absl::RFC3339_sec, *end, absl::UTCTimeZone())));
  }
  ASSIGN_OR_RETURN(const std::optional<absl::Time> begin, TimeOf(claims, "nbf"));
  if (begin.has_value() && now + kClockSkew < *begin) return Refused("not valid yet (nbf)");
  ASSIGN_OR_RETURN(const std::optional<std::string> tenant, TextOf(claims, "tenant"));
  ASSIGN_OR_RETURN(const std::optional<std::string> role, TextOf(claims, "role"));
  ASSIGN_OR_RETURN(const std::optional<std::string> name, TextOf(claims, "sub"));
  if (!tenant.has_value() || !role.has_value()) return Refused("without tenant or role");
  absl::StatusOr<Identity> identity = ParseIdentity(*tenant, *role, name);
  if (!identity.ok()) return Refused(identity.status().message());
  return identity;
}

}  // namespace sparseagg::service
