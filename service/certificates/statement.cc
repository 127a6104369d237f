#include "service/certificates/statement.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "host/base/status_macros.h"
#include "service/certificates/merkle_tree.h"
#include "service/certificates/sha256.h"
#include "service/version.h"

namespace sparseagg::service {
namespace {

std::string Quote(absl::string_view utf8) {
  std::string quoted = "\"";
  for (const char c : utf8) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  quoted += '"';
  return quoted;
}

std::string Hex(const Sha256Digest& digest) { return absl::BytesToHexString(BytesOf(digest)); }

std::string Subject(absl::string_view name, const Sha256Digest& digest) {
  return absl::StrCat(R"({"name":)", Quote(name), R"(,"digest":{"sha256":")", Hex(digest), "\"}}");
}

// Returns: RFC 3339 in UTC, with nanoseconds.
std::string QuoteTime(absl::Time time) {
  return Quote(absl::FormatTime("%Y-%m-%dT%H:%M:%E9SZ", time, absl::UTCTimeZone()));
}

// Returns: the members of JSON objects that name the round.
std::string RoundMembers(const RoundConfig& config, absl::Time create_time) {
  return absl::StrCat(R"("round":)", Quote(absl::StrCat("rounds/", config.id)), R"(,"tenant":)", Quote(config.tenant),
                      R"(,"specSha256":")", Hex(Sha256Of(config.wire_spec)), R"(","createTime":)",
                      QuoteTime(create_time));
}

// Returns: the digest of the factors, or null if the close had none.
std::string WeightsDigest(absl::Span<const double> weights) {
  if (weights.empty()) return "null";
  Sha256 hash;
  hash.Add(weights.data(), weights.size() * sizeof(double));
  return absl::StrCat("\"", Hex(hash.Finish()), "\"");
}

// Returns: the hashes of leaves, in ascending order.
std::string LeafHashes(absl::Span<const absl::string_view> leaves) {
  std::vector<std::string> hashes;
  hashes.reserve(leaves.size());
  for (const absl::string_view leaf : leaves) hashes.push_back(absl::StrCat("\"", Hex(LeafHash(leaf)), "\""));
  std::sort(hashes.begin(), hashes.end());
  return absl::StrJoin(hashes, ",");
}

}  // namespace

std::string MakeStatement(const RoundFacts& facts, const Sha256Digest& root, absl::Span<const Sha256Digest> results) {
  std::string subjects = Subject("submissions", root);
  for (size_t i = 0; i < results.size(); ++i) {
    absl::StrAppend(&subjects, ",", Subject(absl::StrCat("results/", facts.config.tensors[i].name), results[i]));
  }
  return absl::StrCat(R"({"_type":"https://in-toto.io/Statement/v1","subject":[)", subjects,
                      R"(],"predicateType":"urn:sparseagg:round:v1","predicate":{)",
                      RoundMembers(facts.config, facts.create_time), R"(,"closeTime":)", QuoteTime(facts.close_time),
                      R"(,"spec":")", absl::Base64Escape(facts.config.wire_spec), R"(","state":)",
                      Quote(Name(facts.state)), R"(,"stateReason":)", Quote(facts.reason), R"(,"numSubmissions":)",
                      facts.leaves.size(), R"(,"withdrawnSha256":[)", LeafHashes(facts.withdrawn),
                      R"(],"clientWeightsSha256":)", WeightsDigest(facts.client_weights), R"(,"engine":)",
                      Quote(facts.engine), R"(,"version":)", Quote(kVersion), "}}");
}

std::string MakePromise(const RoundConfig& config, absl::Time create_time, absl::string_view leaf) {
  return absl::StrCat("{", RoundMembers(config, create_time), R"(,"leafSha256":")", Hex(LeafHash(leaf)), "\"}");
}

absl::StatusOr<std::string> MakeEnvelope(absl::string_view payload_type, absl::string_view payload,
                                         const SigningKey& key) {
  const std::string signed_bytes =
      absl::StrCat("DSSEv1 ", payload_type.size(), " ", payload_type, " ", payload.size(), " ", payload);
  ASSIGN_OR_RETURN(const std::string signature, key.Sign(signed_bytes));
  return absl::StrCat(R"({"payloadType":)", Quote(payload_type), R"(,"payload":")", absl::Base64Escape(payload),
                      R"(","signatures":[{"keyid":")", key.id(), R"(","sig":")", absl::Base64Escape(signature),
                      "\"}]}");
}

}  // namespace sparseagg::service
