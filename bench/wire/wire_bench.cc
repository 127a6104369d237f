// How fast packed keys and narrow values are decoded and encoded: one core, data that stays in the cache.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "host/wire/bitmap_keys.h"
#include "host/wire/delta_keys.h"
#include "host/wire/packed_values.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 20261126;
constexpr size_t kNumKeys = 2048;  // with all that is read and written, half of a small first-level cache

// Strictly ascending, with gaps of up to `bits` bits.
template <typename Key>
std::vector<Key> MakeKeys(int64_t bits) {
  std::mt19937_64 random(kSeed);
  std::vector<Key> keys;
  Key next = 0;
  for (size_t i = 0; i < kNumKeys; ++i) {
    next += static_cast<Key>(random() & ((uint64_t{1} << bits) - 1));
    keys.push_back(next++);
  }
  return keys;
}

void CountKeys(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kNumKeys));
}

template <typename Key>
void DecodeDelta(benchmark::State& state) {
  const std::vector<Key> keys = MakeKeys<Key>(state.range(0));
  const std::string bytes = wire::EncodeDeltaKeys(keys);
  std::vector<Key> out(keys.size());
  const auto decode = [&] {
    return wire::CheckDeltaKeys(bytes, keys.size()).ok() &&
           wire::DecodeDeltaKeys(bytes, keys[0], keys.size(), Key{0} - Key{1}, out.data()).count == keys.size();
  };
  if (!decode() || out != keys) state.SkipWithError("other keys came back");
  for (auto _ : state) {
    benchmark::DoNotOptimize(decode());
    benchmark::ClobberMemory();
  }
  CountKeys(state);
  state.counters["bytes/key"] = static_cast<double>(bytes.size()) / static_cast<double>(keys.size());
}

template <typename Key>
void EncodeDelta(benchmark::State& state) {
  const std::vector<Key> keys = MakeKeys<Key>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(wire::EncodeDeltaKeys(keys));
  CountKeys(state);
}

void DecodeBitmap(benchmark::State& state) {
  const std::vector<uint32_t> keys = MakeKeys<uint32_t>(state.range(0));
  const std::string bytes = wire::EncodeBitmapKeys(keys);
  std::vector<uint32_t> out(keys.size());
  const auto decode = [&] {
    const uint64_t count = wire::CountBitmapKeys(bytes).value_or(0);
    return wire::DecodeBitmapKeys(bytes, keys[0], count, ~uint32_t{0}, out.data()).count == keys.size();
  };
  if (!decode() || out != keys) state.SkipWithError("other keys came back");
  for (auto _ : state) {
    benchmark::DoNotOptimize(decode());
    benchmark::ClobberMemory();
  }
  CountKeys(state);
  state.counters["bytes/key"] = static_cast<double>(bytes.size()) / static_cast<double>(keys.size());
}

void DecodeValues(benchmark::State& state) {
  const auto packing = static_cast<wire::ValuePacking>(state.range(0));
  std::mt19937_64 random(kSeed);
  std::vector<float> values(kNumKeys);
  for (float& value : values) value = static_cast<float>(static_cast<int64_t>(random())) * 0x1p-60f;
  const auto bytes =
      wire::PackValues(packing, DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), values.size());
  const auto decode = [&] {
    return wire::UnpackValues(packing, DType::kFloat32, *bytes, values.size(),
                              reinterpret_cast<std::byte*>(values.data()));
  };
  if (!bytes.has_value() || !decode().ok()) state.SkipWithError("not decoded");
  for (auto _ : state) {
    benchmark::DoNotOptimize(decode());
    benchmark::ClobberMemory();
  }
  CountKeys(state);
  state.SetLabel(packing == wire::ValuePacking::kFloat16    ? "float16"
                 : packing == wire::ValuePacking::kBFloat16 ? "bfloat16"
                                                            : "int8_scaled");
}

BENCHMARK(DecodeDelta<uint32_t>)->ArgName("bits")->Arg(0)->Arg(1)->Arg(4)->Arg(8)->Arg(10)->Arg(13)->Arg(16)->Arg(20);
BENCHMARK(DecodeDelta<uint64_t>)->ArgName("bits")->Arg(0)->Arg(8)->Arg(16)->Arg(25)->Arg(27)->Arg(40);
BENCHMARK(DecodeBitmap)->ArgName("bits")->Arg(0)->Arg(1)->Arg(2)->Arg(3)->Arg(4);
BENCHMARK(DecodeValues)
    ->ArgName("packing")
    ->Arg(static_cast<int64_t>(wire::ValuePacking::kFloat16))
    ->Arg(static_cast<int64_t>(wire::ValuePacking::kBFloat16))
    ->Arg(static_cast<int64_t>(wire::ValuePacking::kInt8Scaled));
BENCHMARK(EncodeDelta<uint32_t>)->ArgName("bits")->Arg(4)->Arg(10)->Arg(16);

}  // namespace
}  // namespace sparseagg::bench

BENCHMARK_MAIN();
