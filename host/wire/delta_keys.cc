#include "host/wire/delta_keys.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparseagg::wire {
namespace {

constexpr uint64_t kBlockKeys = 128;
constexpr int kMaxWidth = 64;
// Widest gaps that one 64-bit load holds wherever they begin, and whose sum over a block is below 2^64.
constexpr int kMaxWordWidth = 57;

uint64_t NumBlocks(uint64_t num_keys) { return num_keys / kBlockKeys + (num_keys % kBlockKeys != 0 ? 1 : 0); }

// Bytes of `count` ≤ kBlockKeys gaps.
constexpr uint64_t BlockBytes(uint64_t count, int width) { return (count * static_cast<uint64_t>(width) + 7) / 8; }

// Returns: gap `index` of a block of `size` bytes.
uint64_t ReadGap(const uint8_t* block, uint64_t size, uint64_t index, int width) {
  if (width == 0) return 0;
  const uint64_t bit = index * static_cast<uint64_t>(width);
  uint8_t around[9] = {};  // 64 bits may begin within a byte
  const uint64_t begin = bit / 8;
  if (size - begin >= sizeof(around)) {
    std::memcpy(around, block + begin, sizeof(around));
  } else {
    std::memcpy(around, block + begin, size - begin);
  }
  uint64_t low;
  std::memcpy(&low, around, sizeof(low));
  const int shift = static_cast<int>(bit % 8);
  uint64_t gap = low >> shift;
  if (shift != 0) gap |= static_cast<uint64_t>(around[8]) << (64 - shift);
  return width == 64 ? gap : gap & ((uint64_t{1} << width) - 1);
}

// The progress of decoding: the smallest key that may come next.
struct Position {
  uint64_t next = 0;
  bool past_the_end = false;  // key 2^64-1 has been decoded, so that no key may follow
};

// Decodes a block key by key and checks each key. For the last block, for the widest gaps, and to find a bad key.
template <typename Key>
DecodedKeys DecodeSlowly(const uint8_t* block, uint64_t count, int width, uint64_t largest, Position& position,
                         Key* out) {
  const uint64_t size = BlockBytes(count, width);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t gap = ReadGap(block, size, i, width);
    const uint64_t key = position.next + gap;
    const bool wraps = position.past_the_end || key < gap;
    if (wraps || key > largest) return {i, key, wraps};
    out[i] = static_cast<Key>(key);
    position.next = key + 1;
    position.past_the_end = position.next == 0;
  }
  return {count, 0, false};
}

// Decodes a whole block of gaps of up to kMaxWordWidth bits. Reads up to 8 bytes behind the block.
// Returns: false if a key is beyond `largest`. Then `position` is unchanged; use DecodeSlowly.
template <typename Key>
bool DecodeBlock(const uint8_t* block, int width, uint64_t largest, Position& position, Key* out) {
  if (position.past_the_end || position.next > largest) return false;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t span = 0;
  for (uint64_t i = 0; i < kBlockKeys; ++i) {
    const uint64_t bit = i * static_cast<uint64_t>(width);
    uint64_t word;
    std::memcpy(&word, block + bit / 8, sizeof(word));
    span += (word >> (bit % 8)) & mask;
    out[i] = static_cast<Key>(position.next + span + i);
  }
  span += kBlockKeys - 1;
  if (span > largest - position.next) return false;
  position.next += span + 1;
  position.past_the_end = position.next == 0;
  return true;
}

template <typename Key>
DecodedKeys Decode(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest, Key* out) {
  const auto* widths = reinterpret_cast<const uint8_t*>(bytes.data());
  const uint8_t* const end = widths + bytes.size();
  const uint8_t* block = widths + NumBlocks(num_keys);
  Position position{first_key, false};
  for (uint64_t done = 0; done < num_keys; ++widths) {
    const uint64_t count = std::min<uint64_t>(kBlockKeys, num_keys - done);
    const int width = *widths;
    const uint64_t size = BlockBytes(count, width);
    bool decoded = false;
    if (count == kBlockKeys && width <= kMaxWordWidth) {
      if (static_cast<uint64_t>(end - block) >= size + sizeof(uint64_t)) {
        decoded = DecodeBlock(block, width, largest, position, out + done);
      } else {
        uint8_t copy[BlockBytes(kBlockKeys, kMaxWordWidth) + sizeof(uint64_t)] = {};
        std::memcpy(copy, block, size);
        decoded = DecodeBlock(copy, width, largest, position, out + done);
      }
    }
    if (!decoded) {
      DecodedKeys slowly = DecodeSlowly(block, count, width, largest, position, out + done);
      if (slowly.count < count) {
        slowly.count += done;
        return slowly;
      }
    }
    block += size;
    done += count;
  }
  return {num_keys, 0, false};
}

// Calls step(begin, end, width) for each block of keys.
template <typename Key, typename Step>
void ForBlocks(absl::Span<const Key> keys, Step step) {
  for (size_t begin = 0; begin < keys.size(); begin += kBlockKeys) {
    const size_t end = std::min(keys.size(), begin + kBlockKeys);
    Key widest = 0;  // the union of the bits of all gaps is as wide as the widest gap
    for (size_t i = std::max<size_t>(begin, 1); i < end; ++i) {
      widest |= static_cast<Key>(keys[i] - keys[i - 1] - 1);
    }
    step(begin, end, static_cast<int>(std::bit_width(widest)));
  }
}

template <typename Key>
uint64_t CountBytes(absl::Span<const Key> keys) {
  uint64_t bytes = NumBlocks(keys.size());
  ForBlocks(keys, [&](size_t begin, size_t end, int width) { bytes += BlockBytes(end - begin, width); });
  return bytes;
}

template <typename Key>
std::string Encode(absl::Span<const Key> keys) {
  std::string bytes(CountBytes(keys), '\0');
  char* next_width = bytes.data();
  char* to = bytes.data() + NumBlocks(keys.size());
  ForBlocks(keys, [&](size_t begin, size_t end, int width) {
    *next_width++ = static_cast<char>(width);
    uint64_t pending = 0;  // bits that do not fill a word yet
    int num_pending = 0;
    for (size_t i = begin; i < end && width > 0; ++i) {
      const uint64_t gap = i == 0 ? 0 : keys[i] - keys[i - 1] - 1;
      pending |= gap << num_pending;
      num_pending += width;
      if (num_pending < 64) continue;
      std::memcpy(to, &pending, sizeof(pending));
      to += sizeof(pending);
      num_pending -= 64;
      pending = num_pending == 0 ? 0 : gap >> (width - num_pending);
    }
    const size_t rest = static_cast<size_t>(num_pending + 7) / 8;
    std::memcpy(to, &pending, rest);
    to += rest;
  });
  return bytes;
}

}  // namespace

absl::Status CheckDeltaKeys(absl::string_view bytes, uint64_t num_keys) {
  const uint64_t num_blocks = NumBlocks(num_keys);
  if (bytes.size() < num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes of keys are too few for the widths of ",
                                                   num_blocks, " blocks of num_keys ", num_keys));
  }
  uint64_t size = num_blocks;
  for (uint64_t b = 0; b < num_blocks; ++b) {
    const int width = static_cast<uint8_t>(bytes[b]);
    if (width > kMaxWidth) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", b, " of keys has gaps of ", width, " bits; at most ", kMaxWidth, " are allowed"));
    }
    size += BlockBytes(std::min<uint64_t>(kBlockKeys, num_keys - b * kBlockKeys), width);
  }
  if (size != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes of keys, but num_keys ", num_keys, " with these widths needs ", size));
  }
  // Only the last block can end within a byte.
  const uint64_t rest_bits =
      num_blocks == 0 ? 0 : (num_keys - (num_blocks - 1) * kBlockKeys) * static_cast<uint8_t>(bytes[num_blocks - 1]);
  if (rest_bits % 8 != 0 && (static_cast<uint8_t>(bytes.back()) >> (rest_bits % 8)) != 0) {
    return absl::InvalidArgumentError("the bits behind the last key are not zero");
  }
  return absl::OkStatus();
}

DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint32_t* out) {
  return Decode(bytes, first_key, num_keys, largest, out);
}
DecodedKeys DecodeDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys, uint64_t largest,
                            uint64_t* out) {
  return Decode(bytes, first_key, num_keys, largest, out);
}

uint64_t DeltaKeyBytes(absl::Span<const uint32_t> keys) { return CountBytes(keys); }
uint64_t DeltaKeyBytes(absl::Span<const uint64_t> keys) { return CountBytes(keys); }

std::string EncodeDeltaKeys(absl::Span<const uint32_t> keys) { return Encode(keys); }
std::string EncodeDeltaKeys(absl::Span<const uint64_t> keys) { return Encode(keys); }

}  // namespace sparseagg::wire
