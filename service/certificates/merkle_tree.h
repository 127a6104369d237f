// The Merkle tree of RFC 9162, over SHA-256.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_MERKLE_TREE_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_MERKLE_TREE_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "service/rounds/certifier.h"

namespace sparseagg::service {

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
