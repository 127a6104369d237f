#include "host/base/content_hash.h"

#ifdef SPARSEAGG_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <new>

namespace sparseagg {

std::string HashBytes(const ContentHash& hash) {
  std::string bytes;
  for (const uint64_t half : {hash.first, hash.second}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(half >> shift));
  }
  return bytes;
}

ContentHash HashOf(const void* bytes, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {hash.high64, hash.low64};
}

ContentHasher::ContentHasher() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}
ContentHasher::ContentHasher(const ContentHasher& other) : ContentHasher() {
  XXH3_copyState(state_.get(), other.state_.get());
}

void ContentHasher::Add(const void* bytes, size_t size) { XXH3_128bits_update(state_.get(), bytes, size); }

ContentHash ContentHasher::Digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

void ContentHasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace sparseagg
