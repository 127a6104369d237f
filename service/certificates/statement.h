// The JSON that certificates and promises sign, and its envelope.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_STATEMENT_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_STATEMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "service/certificates/signing_key.h"
#include "service/rounds/certifier.h"

namespace sparseagg::service {

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
