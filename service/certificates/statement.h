// The JSON that certificates and promises sign, and its envelope.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_STATEMENT_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_STATEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update_builder.h"
#include "service/certificates/openssl_certifier.h"
#include "service/rounds/certifier.h"

namespace sparseagg::service::cbor {

// Deterministic CBOR (RFC 8949, 4.2.1) of the few types that certificates hash. Each appends one item to `*out`;
// AppendArray the head of an array, whose items follow.
void AppendUint(uint64_t value, std::string* out);
void AppendBytes(absl::string_view bytes, std::string* out);
void AppendText(absl::string_view utf8, std::string* out);
void AppendArray(uint64_t num_items, std::string* out);
void AppendBool(bool value, std::string* out);
void AppendNull(std::string* out);
// Uses the shortest of float16, float32 and float64 that has the value.
void AppendFloat(double value, std::string* out);

}  // namespace sparseagg::service::cbor

namespace sparseagg::service {

// Returns: SHA-256 over the SHA-256 of each 1 MiB of keys, as uint64, and then of each 1 MiB of values. All numbers are
// little-endian. Deterministic: depends on what was sent, in its order, and neither on chunks nor on encodings.
Sha256Digest DigestOf(const UpdateContent& content);

// Returns: SHA-256 over a CBOR array of the result's form, and then its columns.
Sha256Digest DigestOf(const TensorSpec& spec, const Result& result);

inline constexpr absl::string_view kStatementType = "application/vnd.in-toto+json";
inline constexpr absl::string_view kPromiseType = "application/vnd.sparseagg.promise+json";

// Returns: an in-toto v1 statement. Its subjects are the tree of submissions and, of a round that is DONE, the results.
// `results`: digests of facts.results. Deterministic.
std::string MakeStatement(const RoundFacts& facts, const Sha256Digest& root, absl::Span<const Sha256Digest> results);

// Returns: the promise to count a leaf. Deterministic.
std::string MakePromise(const RoundConfig& config, absl::Time create_time, absl::string_view leaf);

// Returns: a DSSE envelope, in JSON. Errors: as of SigningKey::Sign.
absl::StatusOr<std::string> MakeEnvelope(absl::string_view payload_type, absl::string_view payload,
                                         const SigningKey& key);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_STATEMENT_H_
