// A digest of content that comes bit by bit.
#ifndef SPARSEAGG_HOST_CONTENT_HASH_H_
#define SPARSEAGG_HOST_CONTENT_HASH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

struct XXH3_state_s;

namespace sparseagg {

// XXH3-128 of everything it is given, the same however that was divided. Copies go on independently. Not thread-safe.
class ContentHasher {
 public:
  ContentHasher();
  ContentHasher(const ContentHasher& other);
  ContentHasher& operator=(const ContentHasher& other);
  ContentHasher(ContentHasher&&) noexcept = default;
  ContentHasher& operator=(ContentHasher&&) noexcept = default;

  void Add(const void* bytes, size_t size);
  // High and low half.
  std::pair<uint64_t, uint64_t> Digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CONTENT_HASH_H_
