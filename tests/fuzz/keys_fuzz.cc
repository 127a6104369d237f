// Packed keys of any bytes: what is decoded ascends, stays below the limit, and does not depend on the width of the
// output. Keys that are packed here come back as they were.
#include <fuzzer/FuzzedDataProvider.h>

#include <string>
#include <vector>

#include "host/wire/delta_keys.h"
#include "tests/fuzz/fuzz.h"

namespace {

using sparseagg::service::Require;
using sparseagg::wire::DecodedKeys;

constexpr uint64_t kMaxKeys = 100'000;

template <typename Key>
void CheckAscends(const std::vector<Key>& keys, const DecodedKeys& decoded, uint64_t largest) {
  Require(decoded.count <= keys.size(), "no more keys than there are");
  if (decoded.count < keys.size()) {
    return Require(decoded.wraps || decoded.bad_key > largest, "the first bad key is bad");
  }
  for (uint64_t i = 0; i < keys.size(); ++i) {
    Require(keys[i] <= largest, "no key is larger than allowed");
    Require(i == 0 || keys[i - 1] < keys[i], "keys ascend");
  }
}

// `decode`: one of the decoders, with the arguments (largest, out).
template <typename Decode>
void CheckDecoder(uint64_t num_keys, uint64_t largest, const Decode& decode) {
  std::vector<uint64_t> wide(num_keys);
  const DecodedKeys from_wide = decode(largest, wide.data());
  CheckAscends(wide, from_wide, largest);
  if (largest > UINT32_MAX) return;
  std::vector<uint32_t> narrow(num_keys);
  const DecodedKeys from_narrow = decode(largest, narrow.data());
  CheckAscends(narrow, from_narrow, largest);
  Require(from_narrow.count == from_wide.count && from_narrow.bad_key == from_wide.bad_key &&
              from_narrow.wraps == from_wide.wraps,
          "both widths find the same");
  if (from_narrow.count < num_keys) return;  // nothing is promised of `out`
  Require(std::equal(narrow.begin(), narrow.end(), wide.begin()), "both widths are the same");
}

template <typename Key>
void CheckRoundTrip(FuzzedDataProvider& input) {
  std::vector<Key> keys;
  uint64_t key = input.ConsumeIntegral<Key>() >> input.ConsumeIntegralInRange(0, 31);
  while (input.remaining_bytes() > 0 && keys.size() < 5000) {
    // Runs of one gap, as dense parts of a table have them.
    const uint64_t gap =
        1 + (uint64_t{input.ConsumeIntegral<Key>() / 2} >> input.ConsumeIntegralInRange<int>(0, 8 * sizeof(Key) - 1));
    for (int run = input.ConsumeIntegralInRange(1, 200); run > 0; --run) {
      keys.push_back(static_cast<Key>(key));
      if (key + gap < key || key + gap > static_cast<Key>(-1)) return;
      key += gap;
    }
  }
  if (keys.empty()) return;
  std::vector<Key> back(keys.size());
  const std::string deltas = sparseagg::wire::EncodeDeltaKeys(absl::MakeConstSpan(keys));
  Require(deltas.size() == sparseagg::wire::DeltaKeyBytes(absl::MakeConstSpan(keys)), "the size is as computed");
  Require(sparseagg::wire::CheckDeltaKeys(deltas, keys.size()).ok(), "what we pack is well formed");
  sparseagg::wire::DecodeDeltaKeys(deltas, keys.front(), keys.size(), static_cast<Key>(-1), back.data());
  Require(back == keys, "deltas come back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const int kind = input.ConsumeIntegralInRange(0, 2);
  if (kind == 1) CheckRoundTrip<uint32_t>(input);
  if (kind == 2) CheckRoundTrip<uint64_t>(input);
  if (kind >= 1) return 0;
  const auto first = input.ConsumeIntegral<uint64_t>() >> input.ConsumeIntegralInRange(0, 63);
  const auto largest = input.ConsumeIntegral<uint64_t>() >> input.ConsumeIntegralInRange(0, 63);
  const auto declared = input.ConsumeIntegralInRange<uint64_t>(0, kMaxKeys);
  const std::string bytes = input.ConsumeRemainingBytesAsString();
  if (!sparseagg::wire::CheckDeltaKeys(bytes, declared).ok()) return 0;
  CheckDecoder(declared, largest, [&](uint64_t most, auto* out) {
    return sparseagg::wire::DecodeDeltaKeys(bytes, first, declared, most, out);
  });
  return 0;
}
