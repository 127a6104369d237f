#include "service/certificates/merkle_tree.h"

#include <openssl/hmac.h>

#include <new>

namespace sparseagg::service {
namespace {

// Fetched once: each implicit fetch of OpenSSL 3 takes longer than the hash of a node of the tree.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), Algorithm(), nullptr) != 1) throw std::bad_alloc();
}

void Sha256::Add(const void* bytes, size_t size) { EVP_DigestUpdate(context_.get(), bytes, size); }

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
  EVP_DigestInit_ex(context_.get(), Algorithm(), nullptr);
  return digest;
}

Sha256Digest Sha256Of(absl::string_view bytes) {
  Sha256 hash;
  hash.Add(bytes.data(), bytes.size());
  return hash.Finish();
}

Sha256Digest HmacSha256(absl::string_view key, absl::string_view message) {
  Sha256Digest digest;
  HMAC(Algorithm(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(message.data()),
       message.size(), digest.data(), nullptr);
  return digest;
}

absl::string_view BytesOf(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

namespace {

// They begin what is hashed, so that no leaf can be taken for a node.
constexpr char kLeafPrefix = 0;
constexpr char kNodePrefix = 1;

Sha256Digest HashLeaf(Sha256& hash, absl::string_view leaf) {
  hash.Add(&kLeafPrefix, 1);
  hash.Add(leaf.data(), leaf.size());
  return hash.Finish();
}

}  // namespace

Sha256Digest LeafHash(absl::string_view leaf) {
  Sha256 hash;
  return HashLeaf(hash, leaf);
}

MerkleTree::MerkleTree(absl::Span<const absl::string_view> leaves) {
  Sha256 hash;
  std::vector<Sha256Digest>& first = levels_.emplace_back();
  first.reserve(leaves.size());
  for (const absl::string_view leaf : leaves) first.push_back(HashLeaf(hash, leaf));
  while (levels_.back().size() > 1) {
    std::vector<Sha256Digest> next;
    const std::vector<Sha256Digest>& level = levels_.back();
    next.reserve((level.size() + 1) / 2);
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      hash.Add(&kNodePrefix, 1);
      hash.Add(level[i].data(), level[i].size());
      hash.Add(level[i + 1].data(), level[i + 1].size());
      next.push_back(hash.Finish());
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    levels_.push_back(std::move(next));
  }
}

Sha256Digest MerkleTree::Root() const { return levels_[0].empty() ? Sha256Of("") : levels_.back()[0]; }

std::vector<Sha256Digest> MerkleTree::PathOf(size_t index) const {
  std::vector<Sha256Digest> path;
  for (const std::vector<Sha256Digest>& level : levels_) {
    const size_t sibling = index ^ 1;
    if (sibling < level.size()) path.push_back(level[sibling]);
    index /= 2;
  }
  return path;
}

}  // namespace sparseagg::service
