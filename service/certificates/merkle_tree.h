// The Merkle tree of RFC 9162, over SHA-256.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_MERKLE_TREE_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_MERKLE_TREE_H_

#include <openssl/evp.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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

// Keeps all nodes: 64 bytes a leaf. Immutable, and so thread-safe.
class MerkleTree final : public CertificateTree {
 public:
  // Cost: two hashes a leaf. `leaves`: before hashing.
  explicit MerkleTree(absl::Span<const absl::string_view> leaves);

  // Returns: the hash of the whole tree (RFC 9162, 2.1.1); that of no bytes if there are no leaves.
  Sha256Digest Root() const;
  size_t num_leaves() const override { return levels_[0].size(); }
  std::vector<Sha256Digest> PathOf(size_t index) const override;

 private:
  // From the leaves to the root. A node without a sibling is the same node one level up.
  std::vector<std::vector<Sha256Digest>> levels_;
};

// Returns: the hash of a leaf.
Sha256Digest LeafHash(absl::string_view leaf);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_MERKLE_TREE_H_
