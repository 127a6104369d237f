#include "tests/host/wire/plain_keys.h"

#include <algorithm>

namespace sparseagg::wire {
namespace {

unsigned Bit(absl::string_view bytes, uint64_t index) {
  return static_cast<unsigned>(static_cast<uint8_t>(bytes[index / 8])) >> (index % 8) & 1u;
}

}  // namespace

std::optional<std::vector<Wide>> PlainDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys) {
  constexpr uint64_t kBlock = 128;
  const Wide num_blocks = (Wide{num_keys} + kBlock - 1) / kBlock;
  if (num_blocks > bytes.size()) return std::nullopt;
  std::vector<Wide> keys;
  Wide next = first_key;
  auto at = static_cast<uint64_t>(num_blocks);
  for (uint64_t block = 0; block < num_blocks; ++block) {
    const uint64_t width = static_cast<uint8_t>(bytes[block]);
    const uint64_t count = std::min<uint64_t>(kBlock, num_keys - block * kBlock);
    const uint64_t size = (count * width + 7) / 8;
    if (width > 64 || bytes.size() - at < size) return std::nullopt;
    const absl::string_view bits = bytes.substr(at, size);
    at += size;
    for (uint64_t i = 0; i < count; ++i) {
      Wide gap = 0;
      for (uint64_t b = 0; b < width; ++b) gap |= Wide{Bit(bits, i * width + b)} << b;
      keys.push_back(next + gap);
      next = keys.back() + 1;
    }
    for (uint64_t b = count * width; b < 8 * size; ++b) {
      if (Bit(bits, b) != 0) return std::nullopt;
    }
  }
  if (at != bytes.size()) return std::nullopt;
  return keys;
}

std::vector<uint64_t> AscendingKeys(std::mt19937_64& random, size_t count, uint64_t first, int bits) {
  const uint64_t widest = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  const size_t at_widest = count < 2 ? 0 : 1 + random() % (count - 1);
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t gap = i == at_widest ? widest : random() & widest;
    keys.push_back(i == 0 ? first : keys.back() + gap + 1);
  }
  return keys;
}

Exact::Exact(absl::string_view bytes) : data_(std::make_unique<char[]>(bytes.size())), size_(bytes.size()) {
  std::copy(bytes.begin(), bytes.end(), data_.get());
}

}  // namespace sparseagg::wire
