// XXH3-128 hashes of content that comes whole or in parts.
#ifndef SPARSEAGG_HOST_BASE_CONTENT_HASH_H_
#define SPARSEAGG_HOST_BASE_CONTENT_HASH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

struct XXH3_state_s;

namespace sparseagg {

// High and low half of an XXH3-128 hash.
using ContentHash = std::pair<uint64_t, uint64_t>;

// Returns: the 16 bytes of a hash, big-endian, as programs print XXH3-128 hashes.
std::string HashBytes(const ContentHash& hash);

// Returns: the hash of bytes that are in one place.
ContentHash HashOf(const void* bytes, size_t size);

// The hash of content that is added in parts. The same content gives the same hash, however it is divided. A copy
// continues independently.
// Not thread-safe.
class ContentHasher {
 public:
  ContentHasher();
  ContentHasher(const ContentHasher& other);
  ContentHasher& operator=(const ContentHasher&) = delete;
  ContentHasher(ContentHasher&&) noexcept = default;
  ContentHasher& operator=(ContentHasher&&) noexcept = default;

  void Add(const void* bytes, size_t size);
  ContentHash Digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_CONTENT_HASH_H_
