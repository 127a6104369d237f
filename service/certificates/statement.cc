#include "service/certificates/statement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "host/base/status_macros.h"
#include "service/certificates/merkle_tree.h"
#include "service/version.h"

namespace sparseagg::service::cbor {
namespace {

enum class Major : uint8_t { kUint = 0, kBytes = 2, kText = 3, kArray = 4 };

void AppendBigEndian(uint64_t value, int num_bytes, std::string* out) {
  for (int shift = 8 * (num_bytes - 1); shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendHead(Major major, uint64_t argument, std::string* out) {
  const auto type = static_cast<uint8_t>(static_cast<uint8_t>(major) << 5);
  if (argument < 24) {
    out->push_back(static_cast<char>(type | argument));
    return;
  }
  const int log_bytes = argument >> 8 == 0 ? 0 : argument >> 16 == 0 ? 1 : argument >> 32 == 0 ? 2 : 3;
  out->push_back(static_cast<char>(type | (24 + log_bytes)));
  AppendBigEndian(argument, 1 << log_bytes, out);
}

// Returns: the float16 that equals `value`; nullopt if none does.
std::optional<uint16_t> ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  const uint32_t fraction = bits & 0x7fffff;
  if ((bits & 0x7fffffff) == 0) return sign;
  if (exponent >= -14 && exponent <= 15) {
    if ((fraction & 0x1fff) != 0) return std::nullopt;
    return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction >> 13);
  }
  if (exponent < -24 || exponent > 15) return std::nullopt;
  const uint32_t significand = fraction | 0x800000;  // of a subnormal float16
  const int shift = -1 - exponent;
  if ((significand & ((1U << shift) - 1)) != 0) return std::nullopt;
  return static_cast<uint16_t>(sign | significand >> shift);
}

}  // namespace

void AppendUint(uint64_t value, std::string* out) { AppendHead(Major::kUint, value, out); }

void AppendBytes(absl::string_view bytes, std::string* out) {
  AppendHead(Major::kBytes, bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

void AppendText(absl::string_view utf8, std::string* out) {
  AppendHead(Major::kText, utf8.size(), out);
  out->append(utf8.data(), utf8.size());
}

void AppendArray(uint64_t num_items, std::string* out) { AppendHead(Major::kArray, num_items, out); }

void AppendBool(bool value, std::string* out) { out->push_back(static_cast<char>(value ? 0xf5 : 0xf4)); }

void AppendNull(std::string* out) { out->push_back(static_cast<char>(0xf6)); }

void AppendFloat(double value, std::string* out) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) {
    out->push_back(static_cast<char>(0xfb));
    return AppendBigEndian(std::bit_cast<uint64_t>(value), 8, out);
  }
  if (const auto half = ToHalf(narrow); half.has_value()) {
    out->push_back(static_cast<char>(0xf9));
    return AppendBigEndian(*half, 2, out);
  }
  out->push_back(static_cast<char>(0xfa));
  AppendBigEndian(std::bit_cast<uint32_t>(narrow), 4, out);
}

}  // namespace sparseagg::service::cbor

namespace sparseagg::service {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are hashed as they are");

constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

// Calls `take` with the keys as uint64, a few thousand at a time.
template <typename KeyAt, typename Take>
void ForEachBatch(uint64_t num_keys, KeyAt key_at, Take take) {
  constexpr uint64_t kBatch = 4096;  // divides a block
  static_assert(kBlockBytes % (kBatch * sizeof(uint64_t)) == 0);
  std::array<uint64_t, kBatch> batch;
  for (uint64_t begin = 0; begin < num_keys; begin += kBatch) {
    const uint64_t n = std::min(kBatch, num_keys - begin);
    for (uint64_t i = 0; i < n; ++i) batch[i] = key_at(begin + i);
    take(batch.data(), n * sizeof(uint64_t));
  }
}

template <typename Take>
void ForEachKeyBatch(const UpdateContent& content, Take take) {
  if (const auto* run = std::get_if<KeyRun>(&content.keys)) {
    ForEachBatch(
        content.num_keys, [run](uint64_t i) { return run->first + i; }, take);
  } else if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&content.keys)) {
    ForEachBatch(
        content.num_keys, [narrow](uint64_t i) { return uint64_t{(*narrow)[i]}; }, take);
  } else {
    const auto& wide = std::get<absl::Span<const uint64_t>>(content.keys);
    take(wide.data(), wide.size() * sizeof(uint64_t));
  }
}

// Hashes bytes in blocks, and adds the hash of each block to `digests`.
class BlockHash {
 public:
  explicit BlockHash(Sha256* digests) : digests_(*digests) {}
  void Add(const void* bytes, size_t size) {
    const auto* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const size_t part = std::min<uint64_t>(size, kBlockBytes - filled_);
      block_.Add(at, part);
      filled_ += part;
      at += part;
      size -= part;
      if (filled_ == kBlockBytes) End();
    }
  }
  // Ends a block that is not full.
  void End() {
    if (filled_ == 0) return;
    const Sha256Digest digest = block_.Finish();
    digests_.Add(digest.data(), digest.size());
    filled_ = 0;
  }

 private:
  Sha256& digests_;
  Sha256 block_;
  uint64_t filled_ = 0;
};

}  // namespace

Sha256Digest DigestOf(const UpdateContent& content) {
  Sha256 digests;
  BlockHash blocks(&digests);
  ForEachKeyBatch(content, [&](const void* bytes, size_t size) { blocks.Add(bytes, size); });
  blocks.End();
  blocks.Add(content.values.data(), content.values.size());
  blocks.End();
  return digests.Finish();
}

Sha256Digest DigestOf(const TensorSpec& spec, const Result& result) {
  std::string form;
  cbor::AppendArray(11, &form);
  cbor::AppendText("sparseagg result 1", &form);
  cbor::AppendText(spec.name, &form);
  cbor::AppendText(result.layout == Layout::kDense ? "dense" : "sparse", &form);
  cbor::AppendText(Name(result.dtype), &form);
  cbor::AppendUint(result.row_width, &form);
  cbor::AppendUint(result.num_rows, &form);
  cbor::AppendUint(result.num_keys, &form);
  cbor::AppendBool(result.has_values, &form);
  cbor::AppendBool(ReturnsCounts(spec), &form);
  cbor::AppendBool(spec.aggregation.return_weights, &form);
  cbor::AppendBool(spec.aggregation.return_moments, &form);
  Sha256 hash;
  hash.Add(form.data(), form.size());
  if (result.layout == Layout::kSparse) {
    ForEachBatch(
        result.num_keys, [&](uint64_t i) { return result.KeyAt(i); },
        [&](const void* bytes, size_t size) { hash.Add(bytes, size); });
  }
  if (result.has_values) hash.Add(result.values.data(), result.values.size());
  hash.Add(result.counts.data(), result.counts.size() * sizeof(uint32_t));
  hash.Add(result.weights.data(), result.weights.size() * sizeof(double));
  hash.Add(result.moments.data(), result.moments.size() * sizeof(double));
  return hash.Finish();
}

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
