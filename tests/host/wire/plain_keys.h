// Bit-by-bit decoders of packed keys, written from docs/wire-format.md alone.
#ifndef SPARSEAGG_TESTS_HOST_WIRE_PLAIN_KEYS_H_
#define SPARSEAGG_TESTS_HOST_WIRE_PLAIN_KEYS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sparseagg::wire {

// Larger than any sum of a few thousand gaps.
__extension__ using Wide = unsigned __int128;

// Keys without a bound; nullopt: the bytes have a wrong length, a wrong width, or bits where none may be.
std::optional<std::vector<Wide>> PlainDeltaKeys(absl::string_view bytes, uint64_t first_key, uint64_t num_keys);

// `count` keys, ascending from `first`, with gaps of up to `bits` bits, one of them with all bits set.
std::vector<uint64_t> AscendingKeys(std::mt19937_64& random, size_t count, uint64_t first, int bits);

// Bytes in memory of exactly their size, so that the address sanitizer sees a read beyond them.
class Exact {
 public:
  explicit Exact(absl::string_view bytes);
  absl::string_view view() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<char[]> data_;
  size_t size_;
};

}  // namespace sparseagg::wire

#endif  // SPARSEAGG_TESTS_HOST_WIRE_PLAIN_KEYS_H_
