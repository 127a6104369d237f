#include "host/wire/bitmap_keys.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "host/wire/unpack_kernels.h"

namespace sparseagg::wire {
namespace {

const uint8_t* Begin(absl::string_view bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

// Returns: the first key beyond `largest`.
// Requires: there is one.
DecodedKeys FindBadKey(absl::string_view bytes, uint64_t first_key, uint64_t largest) {
  DecodedKeys bad;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      if ((Begin(bytes)[i] >> bit & 1) == 0) continue;
      const uint64_t offset = 8 * i + static_cast<uint64_t>(bit);
      bad.bad_key = first_key + offset;
      bad.wraps = bad.bad_key < offset;
      if (bad.wraps || bad.bad_key > largest) return bad;
      ++bad.count;
    }
  }
  return bad;
}

// Whether no key is beyond `largest`.
bool Fits(absl::string_view bytes, uint64_t first_key, uint64_t largest) {
  if (bytes.empty()) return true;
  const auto last = static_cast<uint8_t>(bytes.back());
  const uint64_t highest_bit = 8 * bytes.size() - 1 - static_cast<uint64_t>(std::countl_zero(last));
  return first_key <= largest && highest_bit <= largest - first_key;
}

template <typename Key>
uint64_t CountBytes(absl::Span<const Key> keys) {
  return keys.empty() ? 0 : (uint64_t{keys.back()} - keys.front()) / 8 + 1;
}

template <typename Key>
std::string Encode(absl::Span<const Key> keys) {
  std::string bytes(CountBytes(keys), '\0');
  for (const Key key : keys) {
    const uint64_t bit = key - keys.front();
    bytes[bit / 8] = static_cast<char>(static_cast<uint8_t>(bytes[bit / 8]) | 1u << (bit % 8));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<uint64_t> CountBitmapKeys(absl::string_view bytes) {
  if (!bytes.empty() && bytes.back() == '\0') {
    return absl::InvalidArgumentError(absl::StrCat("the last of ", bytes.size(), " bytes of a bitmap is zero"));
  }
  return internal::CountBits(Begin(bytes), bytes.size());
}

DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint32_t* out) {
  if (!Fits(bytes, first_key, largest)) return FindBadKey(bytes, first_key, largest);
  internal::UnpackBits32(Begin(bytes), bytes.size(), static_cast<uint32_t>(first_key), num_keys, out);
  return {num_keys, 0, false};
}

DecodedKeys DecodeBitmapKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                             uint64_t* out) {
  if (!Fits(bytes, first_key, largest)) return FindBadKey(bytes, first_key, largest);
  constexpr size_t kStretchBytes = 128;
  uint32_t offsets[8 * kStretchBytes];
  uint64_t done = 0;
  for (size_t begin = 0; begin < bytes.size(); begin += kStretchBytes) {
    const size_t size = std::min(kStretchBytes, bytes.size() - begin);
    const size_t count = internal::UnpackBits32(Begin(bytes) + begin, size, 0, 8 * kStretchBytes, offsets);
    for (size_t i = 0; i < count; ++i) out[done + i] = first_key + 8 * begin + offsets[i];
    done += count;
  }
  return {num_keys, 0, false};
}

uint64_t BitmapKeyBytes(absl::Span<const uint32_t> keys) { return CountBytes(keys); }
uint64_t BitmapKeyBytes(absl::Span<const uint64_t> keys) { return CountBytes(keys); }

std::string EncodeBitmapKeys(absl::Span<const uint32_t> keys) { return Encode(keys); }
std::string EncodeBitmapKeys(absl::Span<const uint64_t> keys) { return Encode(keys); }

}  // namespace sparseagg::wire
