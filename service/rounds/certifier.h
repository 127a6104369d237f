// The cryptography of certificates, as rounds use it.
#ifndef SPARSEAGG_SERVICE_ROUNDS_CERTIFIER_H_
#define SPARSEAGG_SERVICE_ROUNDS_CERTIFIER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "host/result.h"
#include "host/updates/update_builder.h"
#include "service/rounds/round_config.h"
#include "service/rounds/round_snapshot.h"

namespace sparseagg::service {

using Sha256Digest = std::array<uint8_t, 32>;

// One tensor of a submission. Borrowed.
struct TensorContent {
  absl::string_view name;
  UpdateContent content;
};

// The tree of a certificate, for proofs of inclusion. Immutable, and so thread-safe.
class CertificateTree {
 public:
  virtual ~CertificateTree() = default;
  virtual size_t num_leaves() const = 0;
  // Returns: the siblings of leaf `index` from the leaf up (RFC 9162, 2.1.3.1). Requires: index < num_leaves().
  virtual std::vector<Sha256Digest> PathOf(size_t index) const = 0;
};

// What a certificate states of a round. Borrowed.
struct RoundFacts {
  const RoundConfig& config;
  RoundState state;  // kDone or kFailed
  absl::string_view reason;
  absl::Time create_time;
  absl::Time close_time;
  absl::Span<const absl::string_view> leaves;     // in fold order
  absl::Span<const absl::string_view> withdrawn;  // leaves of submissions that were withdrawn
  absl::Span<const double> client_weights;        // factors of the close, in fold order; empty: the close had none
  const std::vector<Result>* results;             // null of a failed round
  absl::string_view engine;
};

// A signed certificate.
struct IssuedCertificate {
  std::string envelope;  // DSSE, JSON
  std::string content;   // SHA-256 of the tree's root and of the results' digests; the same however often it is issued
};

// Hashes and signs. It is an interface so that rounds in a process without OpenSSL have none.
// docs/certificates.md defines all bytes. Owned by ServerContext. Thread-safe.
class Certifier {
 public:
  virtual ~Certifier() = default;

  // Returns: the secret of the salts of a round's leaves. The same for one key, tenant and id, so that servers with one
  // key give a submission the same leaf. Errors: as of Certify.
  virtual absl::StatusOr<std::string> MakeSaltKey(absl::string_view tenant, absl::string_view id) const = 0;
  // Returns: the leaf of a submission, in CBOR. `base_version`: of a commit to a stream; nullopt: of a round.
  // `tensors`: all of the spec, in its order.
  // Cost: SHA-256 over keys, as 8 bytes each, and values.
  virtual std::string MakeLeaf(absl::string_view salt_key, absl::string_view client_id, absl::string_view submission_id,
                               double weight, std::optional<uint64_t> base_version,
                               absl::Span<const TensorContent> tensors) const = 0;
  virtual std::shared_ptr<const CertificateTree> MakeTree(absl::Span<const absl::string_view> leaves) const = 0;
  // Cost: SHA-256 over the results. Errors: INTERNAL: OpenSSL does not sign.
  virtual absl::StatusOr<IssuedCertificate> Certify(const RoundFacts& facts) const = 0;
  // Returns: the envelope of a promise to count the leaf. Errors: as of Certify.
  virtual absl::StatusOr<std::string> Promise(const RoundConfig& config, absl::Time create_time,
                                              absl::string_view leaf) const = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_CERTIFIER_H_
