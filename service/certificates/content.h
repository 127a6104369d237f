// Digests of submissions and results, in the layouts of docs/certificates.md.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_CONTENT_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_CONTENT_H_

#include "host/result.h"
#include "host/spec/spec.h"
#include "host/updates/update_builder.h"
#include "service/rounds/certifier.h"

namespace sparseagg::service {

// Returns: SHA-256 over the SHA-256 of each 1 MiB of keys, as uint64, and then of each 1 MiB of values. All numbers are
// little-endian. Deterministic: depends on what was sent, in its order, and neither on chunks nor on encodings.
Sha256Digest DigestOf(const UpdateContent& content);

// Returns: SHA-256 over a CBOR array of the result's form, and then its columns.
Sha256Digest DigestOf(const TensorSpec& spec, const Result& result);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_CONTENT_H_
