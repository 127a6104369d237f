// Bytes a tuple on the wire, of the workloads' updates in the encodings that the clients choose; as a table in
// Markdown. Keys and values alone: what a message has besides is less than a tenth of a byte a tuple.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bench/common/workloads.h"
#include "host/wire/bitmap_keys.h"
#include "host/wire/delta_keys.h"
#include "host/wire/packed_values.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

struct KeyBytes {
  uint64_t plain = 0;
  uint64_t packed = 0;
};

// As a client cuts and chooses: slices of `slice_keys`, each in the smallest encoding. Plain, if not ascending.
template <typename Key>
void Count(const std::vector<Key>& keys, size_t slice_keys, KeyBytes& bytes) {
  for (size_t begin = 0; begin < keys.size(); begin += slice_keys) {
    const auto slice = absl::MakeConstSpan(keys).subspan(begin, slice_keys);
    const uint64_t plain = slice.size() * sizeof(Key);
    uint64_t smallest = plain;
    if (std::adjacent_find(slice.begin(), slice.end(), std::greater_equal<>()) == slice.end()) {
      smallest = std::min({smallest, wire::DeltaKeyBytes(slice), wire::BitmapKeyBytes(slice)});
    }
    bytes.plain += plain;
    bytes.packed += smallest;
  }
}

void PrintRow(const std::string& name) {
  constexpr size_t kChunkBytes = 768 * 1024;
  const Workload workload = MakeWorkload(name, kSeed);
  const uint64_t row_bytes = workload.spec.row_width * sizeof(float);
  KeyBytes keys;
  uint64_t int8_bytes = 0;
  for (const ClientArrays& client : workload.clients) {
    Count(client.narrow_keys, kChunkBytes / (sizeof(uint32_t) + row_bytes), keys);
    Count(client.wide_keys, kChunkBytes / (sizeof(uint64_t) + row_bytes), keys);
    const uint64_t num_values = client.values.size();
    int8_bytes += num_values + (num_values + wire::kScaleBlock - 1) / wire::kScaleBlock * sizeof(float);
  }
  const auto tuples = static_cast<double>(workload.num_tuples);
  const auto row_width = static_cast<double>(workload.spec.row_width);
  const double plain = static_cast<double>(keys.plain) / tuples + 4 * row_width;
  const double packed_keys = static_cast<double>(keys.packed) / tuples;
  const double half = packed_keys + 2 * row_width;
  const double int8 = packed_keys + static_cast<double>(int8_bytes) / tuples;
  std::printf("| %s, %s | %.2f | %.2f | %.2f | %.2f (%.1f×) | %.2f (%.1f×) |\n", workload.name.c_str(),
              workload.description.c_str(), plain, packed_keys, packed_keys + 4 * row_width, half, plain / half, int8,
              plain / int8);
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"A", "B", "C", "D", "E", "F", "G"};
  std::puts("| workload | plain | packed keys alone | packed, float32 | packed, float16 | packed, int8 |");
  std::puts("|---|---|---|---|---|---|");
  for (const std::string& name : names) sparseagg::bench::PrintRow(name);
  return 0;
}
