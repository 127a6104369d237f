// Kernel bodies under the host executor: what the contract suite does not pin down by itself.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/host_executor.h"
#include "cuda/kernels/contributors.h"
#include "cuda/kernels/fold_values.h"
#include "cuda/kernels/number.h"
#include "host/base/half.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::testing {
namespace {

using cuda::HostExecutor;
using cuda::Number;

// ---- numbers

TEST(KernelNumbers, EveryPatternOfSixteenBits_WidensAsOnTheHost) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double wide[] = {cuda::WidenFloat16(half), cuda::WidenBFloat16(half)};
    const double host[] = {WidenFloat16(half), WidenBFloat16(half)};
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(std::isnan(wide[i]) ? std::isnan(host[i])
                                      : std::bit_cast<uint64_t>(wide[i]) == std::bit_cast<uint64_t>(host[i]))
          << std::hex << bits;
    }
  }
}

// What the host's rounding gives, −0 made 0.
uint16_t WithoutMinusZero(uint16_t bits) { return bits == 0x8000 ? 0 : bits; }

void ExpectRoundsAsOnTheHost(double value) {
  ASSERT_EQ(cuda::RoundTo(Number::kFloat16, value), WithoutMinusZero(RoundToFloat16(value))) << std::hexfloat << value;
  ASSERT_EQ(cuda::RoundTo(Number::kBFloat16, value), WithoutMinusZero(RoundToBFloat16(value)))
      << std::hexfloat << value;
}

TEST(KernelNumbers, TiesAndTheirNeighbours_RoundAsOnTheHost) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits < 0xffff; ++bits) {
    for (const auto widen : {cuda::WidenFloat16, cuda::WidenBFloat16}) {
      const double low = widen(static_cast<uint16_t>(bits));
      const double high = widen(static_cast<uint16_t>(bits + 1));
      const double tie = low / 2 + high / 2;
      for (const double value : {low, tie, std::nextafter(tie, -kInfinity), std::nextafter(tie, kInfinity)}) {
        ExpectRoundsAsOnTheHost(value);
      }
    }
  }
  for (const double value : {65519.999, 65520.0, 65520.001, 3.3961e38, 3.4e38, 1e300, 5e-324, -5e-324, 0x1p-25, 0x1p-26,
                             0x1.8p-25, -0x1p-134, 0x1.8p-134, kInfinity, -kInfinity, -0.0, std::nan("")}) {
    ExpectRoundsAsOnTheHost(value);
  }
}

TEST(KernelNumbers, RandomBits_RoundAsOnTheHost) {
  Rng rng(TestSeed(3));
  for (int i = 0; i < 300'000; ++i) {
    const uint64_t bits = rng.Bits();
    ExpectRoundsAsOnTheHost(std::bit_cast<double>(bits));
    // Exponents where the 16-bit types live.
    const uint64_t exponent = 1023 - 160 + rng.Below(320);
    ExpectRoundsAsOnTheHost(std::bit_cast<double>((bits & ~(uint64_t{0x7ff} << 52)) | exponent << 52));
  }
}

TEST(KernelNumbers, Float32AndFloat64_HaveOneNanAndNoMinusZero) {
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -std::nan("1")), 0x7fc00000u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -std::nan("1")), 0x7ff8000000000000u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, -1e-60), 0u) << "rounded to −0, which results never hold";
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -0.0), 0u);
  EXPECT_EQ(cuda::RoundTo(Number::kFloat32, 0x1p-149), 1u) << "denormals are kept";
  EXPECT_EQ(cuda::RoundTo(Number::kFloat64, -5e-324), 0x8000000000000001u);
}

// ---- the executor

struct Visits {
  std::vector<int>* counts;
  std::vector<uint64_t>* order;
  uint64_t size() const { return counts->size(); }
  void operator()(uint64_t i) const {
    ++(*counts)[i];
    order->push_back(i);
  }
};

TEST(HostExecutor, AnySizeAndSeed_EveryIndexOnce) {
  for (const uint64_t size : {0, 1, 2, 3, 31, 32, 33, 256, 1000}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<int> counts(size);
      std::vector<uint64_t> order;
      HostExecutor(seed).RunElements(Visits{&counts, &order});
      EXPECT_EQ(counts, std::vector<int>(size, 1)) << size << " " << seed;
    }
  }
}

TEST(HostExecutor, Seeds_GiveDifferentOrders) {
  std::vector<std::vector<uint64_t>> orders;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    std::vector<int> counts(1000);
    std::vector<uint64_t> order;
    HostExecutor(seed).RunElements(Visits{&counts, &order});
    orders.push_back(order);
  }
  EXPECT_TRUE(std::is_sorted(orders[0].begin(), orders[0].end()));
  EXPECT_NE(orders[1], orders[0]);
  EXPECT_NE(orders[2], orders[1]);
}

// ---- long segments

// Segments around every boundary: of warps, blocks and tiles, of one entry, of all base rows.
constexpr uint32_t kLengths[] = {1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2049};

// A batch in which segments have those lengths. Sources give a key several times unless `unique`.
struct Batch {
  Batch(uint64_t seed, uint32_t columns, bool unique, bool uniform) {
    Rng rng(seed);
    constexpr uint32_t kSources = 2049;
    // The tuples of every segment, by source.
    std::vector<std::vector<uint32_t>> segments_of_source(kSources);
    std::vector<std::vector<uint32_t>> entries(std::size(kLengths));
    for (uint32_t s = 0; s < std::size(kLengths); ++s) {
      uint32_t length = kLengths[s];
      if (rng.Coin()) {  // begins with a base row, the segment's only one or not
        entries[s].push_back(num_base++);
        --length;
      }
      std::vector<uint32_t> some(kSources);
      std::iota(some.begin(), some.end(), 0u);
      rng.Shuffle(some);
      for (uint32_t i = 0; i < length; ++i) {
        segments_of_source[unique ? some[i] : some[rng.Below(length)] / 3].push_back(s);
      }
    }
    uint32_t tuple = 0;
    for (uint32_t source = 0; source < kSources; ++source) {
      begin_tuples.push_back(tuple);
      for (const uint32_t s : segments_of_source[source]) entries[s].push_back(num_base + tuple++);
      sources.push_back({uniform ? 1.0 : rng.Unit(), uniform ? 1 : rng.Between(0, 9), rng.Unit(), rng.Between(0, 99)});
    }
    begin_tuples.push_back(tuple);
    for (const std::vector<uint32_t>& segment : entries) {
      begin.push_back(static_cast<uint32_t>(positions.size()));
      positions.insert(positions.end(), segment.begin(), segment.end());
    }
    values.resize(uint64_t{tuple} * columns);
    for (float& value : values)
      value = static_cast<float>(std::ldexp(rng.Unit() - 0.5, static_cast<int>(rng.Below(60))));
    base.resize(uint64_t{num_base} * columns * 2);  // room for 128-bit accumulators
    for (uint64_t& acc : base) acc = std::bit_cast<uint64_t>(rng.Unit());
  }

  cuda::Segments segments() const {
    return {positions.data(), begin.data(), static_cast<uint32_t>(begin.size()),
            static_cast<uint32_t>(positions.size())};
  }
  cuda::Sources source_table() const {
    return {begin_tuples.data(), sources.data(), static_cast<uint32_t>(sources.size()), num_base};
  }

  uint32_t num_base = 0;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> begin;
  std::vector<uint32_t> begin_tuples;
  std::vector<cuda::Source> sources;
  std::vector<float> values;  // integer folds read the same bits
  std::vector<uint64_t> base;
};

template <typename Fold>
constexpr Number NumberOf() {
  if (std::is_same_v<typename Fold::Value, double>) return Number::kFloat32;
  return std::is_same_v<typename Fold::Value, int64_t> ? Number::kInt32 : Number::kUInt32;
}

// Folds with every segment treated as short, or as long.
template <typename Fold>
std::vector<std::byte> RunFold(const Batch& batch, uint32_t columns, bool unique, bool uniform, bool as_long,
                               uint64_t seed) {
  std::vector<uint32_t> all(batch.begin.size());
  std::iota(all.begin(), all.end(), 0u);
  std::vector<std::byte> accs(all.size() * columns * sizeof(typename Fold::Acc), std::byte{0x5a});
  cuda::FoldValues args;
  args.kind = Fold::kKind;
  args.segments = batch.segments();
  args.columns = columns;
  args.num_base = batch.num_base;
  args.d_base_accs = batch.base.data();
  args.d_values = batch.values.data();
  args.type = NumberOf<Fold>();
  args.sources = batch.source_table();
  args.unique = unique;
  args.uniform = uniform;
  args.scale = {0x1p40, 0x1p10};
  auto num_long = static_cast<uint32_t>(all.size());
  if (as_long) {
    args.longs = {0, num_long, &num_long, all.data()};
  } else {
    args.longs.length = ~0u;
  }
  args.d_accs = accs.data();
  HostExecutor executor(seed);
  executor.RunElements(cuda::FoldShortSegments<Fold>{args});
  executor.RunBlocks(cuda::LongBody<Fold>{{args}});
  return accs;
}

template <typename Fold>
class LongSegments : public ::testing::Test {};
using Folds = ::testing::Types<cuda::SumFloat, cuda::SumFixed, cuda::SumInteger, cuda::SumModular, cuda::MinFloat,
                               cuda::MaxFloat, cuda::MinInteger, cuda::MaxInteger>;

class FoldNames {
 public:
  template <typename Fold>
  static std::string GetName(int) {
    constexpr const char* kNames[] = {"SumFloat", "SumFixed", "SumInteger", "SumModular",
                                      "MinFloat", "MaxFloat", "MinInteger", "MaxInteger"};
    return kNames[static_cast<int>(Fold::kKind)];
  }
};
TYPED_TEST_SUITE(LongSegments, Folds, FoldNames);

TYPED_TEST(LongSegments, AnyLengthWidthAndThreadOrder_SameBitsAsOneThreadFromLeftToRight) {
  const uint64_t seed = TestSeed(12);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  for (const uint32_t columns : {1u, 3u, 31u, 32u, 33u, 65u}) {
    for (const bool unique : {true, false}) {
      for (const bool uniform : {true, false}) {
        SCOPED_TRACE(::testing::Message() << columns << " columns, unique " << unique << ", uniform " << uniform);
        const Batch batch(seed + columns, columns, unique, uniform);
        const auto expected = RunFold<TypeParam>(batch, columns, unique, uniform, false, 0);
        for (uint64_t order = 0; order < 3; ++order) {
          EXPECT_TRUE(expected == RunFold<TypeParam>(batch, columns, unique, uniform, true, order));
        }
      }
    }
  }
}

// 5000 long segments of two entries among short ones of one: more than there are blocks, so blocks take several.
TEST(ManyLongSegments, AreListed_AndEachIsFoldedOnce) {
  constexpr uint32_t kLong = 5000;
  std::vector<uint32_t> keys;  // 0 0 1 2 2 3 4 4 …
  std::vector<uint32_t> begin;
  std::vector<float> values;
  for (uint32_t key = 0; key < 2 * kLong; ++key) {
    begin.push_back(static_cast<uint32_t>(keys.size()));
    for (uint32_t i = 0; i < 2 - key % 2; ++i) {
      keys.push_back(key);
      values.push_back(static_cast<float>(keys.size()));
    }
  }
  cuda::FoldValues args;
  args.segments = {nullptr, begin.data(), 2 * kLong, static_cast<uint32_t>(keys.size())};
  args.d_values = values.data();
  args.unique = args.uniform = true;
  std::vector<double> accs(2 * kLong, -1.0);
  args.d_accs = accs.data();
  uint32_t count = 0;
  std::vector<uint32_t> listed(kLong);
  args.longs = {1, kLong, &count, listed.data()};
  std::vector<uint32_t> gathered(2 * kLong);
  HostExecutor executor(TestSeed(14));
  executor.RunElements(cuda::GatherSegments{keys.data(), 4, args.segments, gathered.data(), args.longs});
  executor.RunElements(cuda::FoldShortSegments<cuda::SumFloat>{args});
  executor.RunBlocks(cuda::LongBody<cuda::SumFloat>{{args}});
  EXPECT_EQ(count, kLong);
  std::sort(listed.begin(), listed.end());
  for (uint32_t key = 0; key < 2 * kLong; ++key) {
    EXPECT_EQ(gathered[key], key);
    if (key % 2 == 0) {
      EXPECT_EQ(listed[key / 2], key);
    }
    const double first = values[begin[key]];
    EXPECT_EQ(accs[key], key % 2 == 0 ? first + first + 1 : first) << key;
  }
}

struct SegmentCounts {
  std::vector<uint32_t> counts;
  std::vector<uint64_t> float_weights;  // bits
  std::vector<int64_t> fixed_weights;
  bool operator==(const SegmentCounts&) const = default;
};

SegmentCounts Count(const Batch& batch, bool unique, bool weights, bool as_long, uint64_t seed) {
  std::vector<uint32_t> all(batch.begin.size());
  std::iota(all.begin(), all.end(), 0u);
  SegmentCounts counted;
  counted.counts.resize(all.size());
  counted.float_weights.resize(weights ? all.size() : 0);
  counted.fixed_weights.resize(weights ? all.size() : 0);
  const std::vector<uint32_t> base_counts(batch.num_base, 7);
  cuda::Contributors args;
  args.segments = batch.segments();
  args.num_base = batch.num_base;
  args.d_base_counts = base_counts.data();
  args.sources = batch.source_table();
  args.unique = unique;
  auto num_long = static_cast<uint32_t>(all.size());
  if (as_long) {
    args.longs = {0, num_long, &num_long, all.data()};
  } else {
    args.longs.length = ~0u;
  }
  args.d_counts = counted.counts.data();
  if (weights) {
    args.d_base_float_weights = reinterpret_cast<const double*>(batch.base.data());
    args.d_base_fixed_weights = reinterpret_cast<const int64_t*>(batch.base.data());
    args.d_float_weights = reinterpret_cast<double*>(counted.float_weights.data());
    args.d_fixed_weights = counted.fixed_weights.data();
  }
  HostExecutor executor(seed);
  executor.RunElements(cuda::CountShortSegments{args});
  executor.RunBlocks(cuda::CountLongSegments{args});
  return counted;
}

TEST(LongSegmentCounts, AnyLengthAndThreadOrder_SameBitsAsOneThreadFromLeftToRight) {
  const uint64_t seed = TestSeed(13);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  for (const bool unique : {true, false}) {
    for (const bool weights : {true, false}) {
      const Batch batch(seed, 1, unique, false);
      const SegmentCounts expected = Count(batch, unique, weights, false, 0);
      for (uint64_t order = 0; order < 5; ++order) {
        EXPECT_TRUE(expected == Count(batch, unique, weights, true, order)) << unique << weights << order;
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::testing
