// Kernel bodies that fold segments, each class of segments by itself, under the host executor.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/kernels/fold_values.h"
#include "cuda/kernels/number.h"
#include "tests/support/generators.h"
#include "tests/support/host_executor.h"
#include "tests/support/random.h"
#include "tests/support/run_kernel.h"

namespace sparseagg::testing {
namespace {

using cuda::HostExecutor;

// Segments around every boundary: of warps, blocks and the tiles of both, of one entry, of all base rows.
constexpr uint32_t kLengths[] = {1, 2, 3, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 2049};

// A batch in which segments have those lengths. Sources give a key several times unless `unique`.
struct Batch {
  Batch(uint64_t seed, uint32_t columns, bool unique, bool uniform, DType type = DType::kFloat32) {
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
      sources.push_back({1.0, uniform ? 1.0 : rng.Unit(), uniform ? 1 : rng.Between(0, 9), rng.Unit()});
    }
    begin_tuples.push_back(tuple);
    for (const std::vector<uint32_t>& segment : entries) {
      begin.push_back(static_cast<uint32_t>(positions.size()));
      positions.insert(positions.end(), segment.begin(), segment.end());
    }
    values.resize((uint64_t{tuple} * columns * SizeOf(type) + 7) / 8);
    // Floats of any size below 2 in absolute value, and integers of which a few can be added.
    const bool is_wide = type == DType::kInt64;
    for (uint64_t& value : values) {
      const uint64_t bits = rng.Bits();
      value = is_wide ? static_cast<uint64_t>(static_cast<int64_t>(bits) >> 10) : bits & 0xbfffbfffbfffbfff;
    }
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
  std::vector<uint64_t> values;  // bits of any type
  std::vector<uint64_t> base;
};

template <typename Fold>
std::vector<DType> TypesOf() {
  if (cuda::IsOfSources(Fold::kKind)) return {DType::kFloat32};
  if (std::is_same_v<typename Fold::Value, double>) {
    return {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64};
  }
  if (std::is_same_v<typename Fold::Value, int64_t>) return {DType::kInt32, DType::kInt64};
  return {DType::kUInt32, DType::kUInt64};
}

// One class for all segments.
enum class Class { kShort, kMedium, kLong };
constexpr Class kClasses[] = {Class::kShort, Class::kMedium, Class::kLong};

// All segments, of which a kernel of every class may take what it finds in its list.
class AllInOneClass {
 public:
  AllInOneClass(const Batch& batch, Class one) : all_(batch.begin.size()), count_(static_cast<uint32_t>(all_.size())) {
    std::iota(all_.begin(), all_.end(), 0u);
    if (one != Class::kShort) classes.max_short = 0;
    if (one == Class::kLong) classes.max_medium = 0;
    if (one == Class::kMedium) classes.medium = {count_, &count_, all_.data()};
    if (one == Class::kLong) classes.longs = {count_, &count_, all_.data()};
  }
  AllInOneClass(const AllInOneClass&) = delete;
  AllInOneClass& operator=(const AllInOneClass&) = delete;

  cuda::SegmentClasses classes;

 private:
  std::vector<uint32_t> all_;
  uint32_t count_;
};

struct FoldCase {
  const Batch& batch;
  uint32_t columns;
  bool unique;
  bool uniform;
  DType type;
};

// Accumulators in memory.
template <typename Fold>
class StoredAccs {
 public:
  explicit StoredAccs(uint64_t count) : accs_(count * kWords), tops_(count) {
    std::memset(accs_.data(), 0x5a, accs_.size() * 8);
  }
  // Of the batch's base rows.
  StoredAccs(const Batch& batch, uint32_t columns) : StoredAccs(uint64_t{batch.num_base} * columns) {
    if (!cuda::IsBinned(Fold::kKind)) std::copy_n(batch.base.begin(), accs_.size(), accs_.begin());
    if constexpr (cuda::IsBinned(Fold::kKind)) {
      for (uint64_t i = 0; i < tops_.size(); ++i) {
        typename Fold::Acc sum;  // of terms that are far apart, so that bases have different bins
        sum.Add(std::bit_cast<double>(batch.base[i]));
        if (i % 3 == 0) sum.Add(std::bit_cast<double>(batch.base[i + 1]) * 1e40);
        view().template Store<Fold, 1>(i, {sum});
      }
    }
  }

  cuda::Accs view() { return {accs_.data(), tops_.data()}; }
  typename Fold::Acc operator[](uint64_t i) { return view().template Load<Fold, 1>(i).values[0]; }
  std::vector<typename Fold::Acc> all() {
    std::vector<typename Fold::Acc> accs;
    for (uint64_t i = 0; i < tops_.size(); ++i) accs.push_back((*this)[i]);
    return accs;
  }

 private:
  static constexpr uint32_t kWords =
      Fold::kKind == cuda::FoldKind::kSumBinnedWeights ? 4 : cuda::AccBytes(Fold::kKind) / 8;
  std::vector<uint64_t> accs_;
  std::vector<uint8_t> tops_;
};

// `rows`: how to store accumulators; where they go is set here, unless it is set already.
template <typename Fold>
std::vector<typename Fold::Acc> RunFold(const FoldCase& c, Class one, uint64_t seed,
                                        const cuda::FoldedRows& rows = {}) {
  const AllInOneClass all(c.batch, one);
  StoredAccs<Fold> base(c.batch, c.columns);
  StoredAccs<Fold> accs(c.batch.begin.size() * c.columns);
  cuda::FoldValues args;
  args.kind = Fold::kKind;
  args.segments = c.batch.segments();
  args.columns = c.columns;
  args.num_base = c.batch.num_base;
  args.base = base.view();
  if (!cuda::IsOfSources(Fold::kKind)) args.d_values = c.batch.values.data();
  args.type = c.type;
  args.sources = c.batch.source_table();
  args.unique = c.unique;
  args.uniform = c.uniform;
  args.classes = all.classes;
  args.rows = rows;
  if (rows.accs.d_accs == nullptr) args.rows.accs = accs.view();
  HostExecutor executor(seed);
  cuda::RunFold<Fold>(args, executor);
  return accs.all();
}

// What every kernel must give: one accumulator after another, from left to right.
template <typename Fold>
std::vector<typename Fold::Acc> ExpectedFold(const FoldCase& c) {
  const cuda::Segments segments = c.batch.segments();
  const cuda::Sources sources = c.batch.source_table();
  StoredAccs<Fold> base(c.batch, c.columns);
  std::vector<typename Fold::Acc> accs;
  for (uint32_t segment = 0; segment < segments.count; ++segment) {
    for (uint32_t column = 0; column < c.columns; ++column) {
      typename Fold::Acc acc = Fold::Start();
      uint32_t entry = segments.Begin(segment);
      while (entry < segments.End(segment)) {
        const uint32_t position = segments.Position(entry);
        if (position < c.batch.num_base) {
          acc = Fold::Combine(acc, base[uint64_t{position} * c.columns + column]);
          ++entry;
          continue;
        }
        const uint32_t source = sources.Find(position);
        auto value = Fold::Zero();
        for (; entry < segments.End(segment) && segments.Position(entry) < sources.End(source); ++entry) {
          const uint64_t row = segments.Position(entry) - c.batch.num_base;
          value = Fold::Plus(value,
                             Fold::Of(c.type, cuda::LoadBits(c.batch.values.data(), c.type, row * c.columns + column)));
        }
        acc = Fold::Combine(acc, Fold::Term(value, sources.d_sources[source]));
      }
      accs.push_back(acc);
    }
  }
  return accs;
}

template <typename Acc>
bool SameBits(const std::vector<Acc>& a, const std::vector<Acc>& b) {
  if constexpr (std::is_class_v<Acc>) {
    return a == b;
  } else {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Acc)) == 0;
  }
}

// Runs the fold of rows that are rounded at once, to every type and with every divisor, and checks them by the rounding
// of the accumulators.
template <typename Fold>
void ExpectRounded(const FoldCase& c, Class one, const std::vector<typename Fold::Acc>& accs) {
  std::vector<double> weights(c.batch.begin.size());
  for (size_t row = 0; row < weights.size(); ++row) weights[row] = 0.5 + static_cast<double>(row);
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const cuda::Divisor divisor : {cuda::Divisor::kNone, cuda::Divisor::kTotal, cuda::Divisor::kKeyWeight}) {
      std::vector<uint64_t> rounded((accs.size() * SizeOf(type) + 7) / 8, 0x5a5a5a5a5a5a5a5a);
      cuda::FoldedRows rows;
      rows.rounded = true;
      rows.columns = c.columns;
      rows.type = type;
      rows.divisor = divisor;
      rows.weights = cuda::WeightKind::kFloat;
      rows.total_weight = 7.0;
      rows.accs.d_accs = rounded.data();
      rows.d_weights = weights.data();
      RunFold<Fold>(c, one, 2, rows);
      for (size_t i = 0; i < accs.size(); ++i) {
        const double by = divisor == cuda::Divisor::kTotal ? 7.0 : weights[i / c.columns];
        const double sum = cuda::ValueOf(accs[i]);
        const uint64_t expected = cuda::RoundTo(type, divisor == cuda::Divisor::kNone ? sum : sum / by);
        ASSERT_EQ(cuda::LoadBits(rounded.data(), type, i), expected) << "value " << i;
      }
    }
  }
}

template <typename Fold>
class SegmentFolds : public ::testing::Test {};
using Folds = ::testing::Types<cuda::SumFloat, cuda::SumInteger, cuda::SumModular, cuda::MinFloat, cuda::MaxFloat,
                               cuda::MinInteger, cuda::MaxInteger, cuda::SumNarrowBinned, cuda::SumWideBinned,
                               cuda::CountSources, cuda::SumWeights, cuda::SumBinnedWeights>;

class FoldNames {
 public:
  template <typename Fold>
  static std::string GetName(int) {
    constexpr const char* kNames[] = {"SumFloat",      "SumInteger",   "SumModular", "MinFloat",
                                      "MaxFloat",      "MinInteger",   "MaxInteger", "SumNarrowBinned",
                                      "SumWideBinned", "CountSources", "SumWeights", "SumBinnedWeights"};
    return kNames[static_cast<int>(Fold::kKind)];
  }
};
TYPED_TEST_SUITE(SegmentFolds, Folds, FoldNames);

TYPED_TEST(SegmentFolds, AnyLengthWidthTypeClassAndThreadOrder_BitsOfAFoldFromLeftToRight) {
  const uint64_t seed = TestSeed(12);
  SCOPED_TRACE("SPARSEAGG_TEST_SEED=" + std::to_string(seed));
  for (const uint32_t columns : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 31u, 32u, 33u, 64u, 65u}) {
    for (const DType type : TypesOf<TypeParam>()) {
      for (int flags = 0; flags < 4; ++flags) {
        const bool unique = (flags & 1) != 0;
        const bool uniform = (flags & 2) != 0;
        if (cuda::IsOfSources(TypeParam::kKind) && (columns > 1 || uniform)) continue;
        if (columns > 9 && uniform != unique) continue;
        SCOPED_TRACE(::testing::Message() << columns << " columns of type " << static_cast<int>(type) << ", unique "
                                          << unique << ", uniform " << uniform);
        const Batch batch(seed + columns, columns, unique, uniform, type);
        const FoldCase c = {batch, columns, unique, uniform, type};
        const auto expected = ExpectedFold<TypeParam>(c);
        for (const Class one : kClasses) {
          for (uint64_t order = columns == 1 ? 0 : 2; order < 3; ++order) {
            EXPECT_TRUE(SameBits(expected, RunFold<TypeParam>(c, one, order))) << "class " << static_cast<int>(one);
          }
          if constexpr (cuda::IsOfFloats(TypeParam::kKind)) {
            if (columns < 9 && unique) ExpectRounded<TypeParam>(c, one, expected);
          }
        }
      }
    }
  }
}

template <typename Fold, uint32_t kColumns>
uint32_t ColumnsOf(const cuda::FoldShortSegments<Fold, kColumns>&) {
  return kColumns;
}

TYPED_TEST(SegmentFolds, RowsOfWholePacks_AThreadLoadsSixteenBytes) {
  for (const DType type : TypesOf<TypeParam>()) {
    for (uint32_t columns = 1; columns <= 64; ++columns) {
      cuda::FoldValues args;
      args.type = type;
      args.columns = columns;
      const uint32_t columns_of_a_thread =
          cuda::RunShortSegments<TypeParam>(args, [](const auto& kernel) { return ColumnsOf(kernel); });
      const uint32_t row_bytes = columns * SizeOf(type);
      const bool has_packs = row_bytes % 16 == 0 && !cuda::IsOfSources(TypeParam::kKind);
      EXPECT_EQ(columns_of_a_thread, has_packs ? 16 / SizeOf(type) : 1)
          << columns << " of type " << static_cast<int>(type);
    }
  }
}

// 5000 segments of two entries and 5000 of three among short ones of one: more than there are blocks, so blocks take
// several.
TEST(ManyListedSegments, AreListedByClass_AndEachIsFoldedOnce) {
  constexpr uint32_t kOfAClass = 5000;
  std::vector<uint32_t> keys;  // 0 1 1 2 2 2 3 4 4 …
  std::vector<uint32_t> begin;
  std::vector<float> values;
  for (uint32_t key = 0; key < 3 * kOfAClass; ++key) {
    begin.push_back(static_cast<uint32_t>(keys.size()));
    for (uint32_t i = 0; i < 1 + key % 3; ++i) {
      keys.push_back(key);
      values.push_back(static_cast<float>(keys.size()));
    }
  }
  cuda::FoldValues args;
  args.segments = {nullptr, begin.data(), 3 * kOfAClass, static_cast<uint32_t>(keys.size())};
  args.d_values = values.data();
  args.unique = args.uniform = true;
  std::vector<double> accs(3 * kOfAClass, -1.0);
  args.rows.accs = {accs.data(), nullptr};
  uint32_t counts[2] = {};
  std::vector<uint32_t> medium(kOfAClass);
  std::vector<uint32_t> longs(kOfAClass);
  args.classes = {1, 2, {kOfAClass, &counts[0], medium.data()}, {kOfAClass, &counts[1], longs.data()}};
  std::vector<uint32_t> gathered(3 * kOfAClass);
  HostExecutor executor(TestSeed(14));
  // The first two entries, of different segments, are base rows of 5 and 7 contributors.
  std::vector<uint32_t> contributors(3 * kOfAClass);
  const uint32_t base_counts[] = {5, 7};
  executor.RunElements(cuda::GatherSegments{keys.data(), 4, args.segments, gathered.data(), args.classes,
                                            contributors.data(), 2, base_counts});
  cuda::RunFold<cuda::SumFloat>(args, executor);
  EXPECT_EQ(counts[0], kOfAClass);
  EXPECT_EQ(counts[1], kOfAClass);
  std::sort(medium.begin(), medium.end());
  std::sort(longs.begin(), longs.end());
  for (uint32_t key = 0; key < 3 * kOfAClass; ++key) {
    EXPECT_EQ(gathered[key], key);
    EXPECT_EQ(contributors[key], 1 + key % 3 + (key == 0 ? 4 : key == 1 ? 6 : 0));
    if (key % 3 > 0) {
      EXPECT_EQ((key % 3 == 1 ? medium : longs)[key / 3], key);
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < 1 + key % 3; ++i) sum += values[begin[key] + i];
    EXPECT_EQ(accs[key], sum) << key;
  }
}

}  // namespace
}  // namespace sparseagg::testing
