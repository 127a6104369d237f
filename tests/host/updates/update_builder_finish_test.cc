// UpdateBuilder::Finish: weight, declarations, dense tensors, content hash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "host/updates/update_builder.h"
#include "tests/host/updates/slices.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- declarations

struct Declaration {
  std::vector<std::vector<uint64_t>> chunks;
  bool sorted_holds;
  bool unique_holds;
};

TEST(UpdateBuilder, Finish_FalseDeclarations_AreRefused) {
  const std::vector<Declaration> table = {{{{1, 2, 3}}, true, true},
                                          {{{1, 2, 2}}, true, false},
                                          {{{3, 2, 1}}, false, true},
                                          {{{1, 5}, {3, 7}}, false, true},
                                          {{{1, 5}, {5, 7}}, true, false},
                                          {{{9, 5}, {5, 7}}, false, false},
                                          {{{}}, true, true},
                                          {{{9, 3, 4, 9}}, false, false}};
  for (const uint64_t num_rows : {uint64_t{1000}, uint64_t{0}}) {
    for (const Declaration& row : table) {
      for (const bool declare_sorted : {false, true}) {
        for (const bool declare_unique : {false, true}) {
          const TensorSpec spec = Spec(num_rows);
          UpdateBuilder builder(&spec);
          if (declare_sorted) builder.DeclareSorted();
          uint64_t chunk = 0;
          for (const std::vector<uint64_t>& keys : row.chunks) {
            ASSERT_TRUE(Append(builder, spec, chunk++, U32(keys, std::vector<double>(keys.size(), 1.0)).view()).ok());
          }
          if (declare_unique) builder.DeclareUnique();
          const bool holds = (row.sorted_holds || !declare_sorted) && (row.unique_holds || !declare_unique);
          const auto update = std::move(builder).Finish(1.0);
          EXPECT_EQ(update.status().code(), holds ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
              << ::testing::PrintToString(row.chunks) << declare_sorted << declare_unique;
          if (!holds) {
            EXPECT_THAT(std::string(update.status().message()), HasSubstr("embedding"));
          }
        }
      }
    }
  }
}

TEST(UpdateBuilder, Finish_FalseUniqueDeclaration_NamesTheKey) {
  const TensorSpec spec = Spec();
  UpdateBuilder builder(&spec);
  builder.DeclareUnique();
  ASSERT_TRUE(Append(builder, spec, 0, U32({900, 77}, {1, 1}).view()).ok());
  ASSERT_TRUE(Append(builder, spec, 1, U32({77}, {1}).view()).ok());
  EXPECT_THAT(std::string(std::move(builder).Finish(1.0).status().message()), HasSubstr("77"));
}

TEST(UpdateBuilder, Finish_Declarations_OfRuns) {
  const TensorSpec spec = Spec();
  UpdateBuilder builder(&spec);
  builder.DeclareSorted();
  builder.DeclareUnique();
  ASSERT_TRUE(Append(builder, spec, 0, Implicit(5, 3, {1, 2, 3}).view()).ok());
  ASSERT_TRUE(Append(builder, spec, 1, Implicit(8, 1, {4}).view()).ok());
  EXPECT_TRUE(std::move(builder).Finish(1.0).ok());

  UpdateBuilder overlapping(&spec);
  overlapping.DeclareUnique();
  ASSERT_TRUE(Append(overlapping, spec, 0, Implicit(5, 3, {1, 2, 3}).view()).ok());
  ASSERT_TRUE(Append(overlapping, spec, 1, Implicit(7, 1, {4}).view()).ok());
  EXPECT_EQ(std::move(overlapping).Finish(1.0).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- dense tensors

TEST(UpdateBuilder, Dense_GapsRepeatsAndMissingRows_AreRefused) {
  TensorSpec spec = Spec(6);
  spec.layout = Layout::kDense;
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(Append(builder, spec, 0, Implicit(0, 2, {1, 2}).view()).ok());
  EXPECT_EQ(Append(builder, spec, 1, Implicit(3, 3, {4, 5, 6}).view()).code(), absl::StatusCode::kInvalidArgument)
      << "a gap";
  EXPECT_EQ(Append(builder, spec, 1, Implicit(1, 2, {2, 3}).view()).code(), absl::StatusCode::kInvalidArgument)
      << "a repeat";
  EXPECT_EQ(Append(builder, spec, 1, Implicit(2, 5, {1, 2, 3, 4, 5}).view()).code(), absl::StatusCode::kInvalidArgument)
      << "too many";
  ASSERT_TRUE(Append(builder, spec, 1, Implicit(2, 3, {3, 4, 5}).view()).ok());
  const auto update = std::move(builder).Finish(1.0);
  EXPECT_EQ(update.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(update.status().message()), AllOf(HasSubstr("embedding"), HasSubstr("6"), HasSubstr("5")));
}

// ---- content hash

ContentHash HashOfContent(const TensorSpec& spec, const std::vector<Slice>& slices) {
  UpdateBuilder builder(&spec);
  uint64_t chunk = 0;
  for (const Slice& slice : slices) EXPECT_TRUE(Append(builder, spec, chunk++, slice.view()).ok());
  return builder.HashContent();
}

TEST(UpdateBuilder, HashContent_DoesNotDependOnChunksOrKeyEncoding) {
  for (const uint64_t num_rows : {uint64_t{1000}, uint64_t{1} << 40, uint64_t{0}}) {
    const TensorSpec spec = Spec(num_rows);
    const auto hash = HashOfContent(spec, {U32({5, 6, 7, 8}, {1, 2, 3, 4})});
    EXPECT_EQ(HashOfContent(spec, {U64({5, 6, 7, 8}, {1, 2, 3, 4})}), hash);
    EXPECT_EQ(HashOfContent(spec, {Implicit(5, 4, {1, 2, 3, 4})}), hash);
    EXPECT_EQ(HashOfContent(spec, {Delta({5, 6, 7, 8}, {1, 2, 3, 4})}), hash);
    EXPECT_EQ(HashOfContent(spec, {Implicit(5, 1, {1}), Delta({6, 7}, {2, 3}), Delta({8}, {4})}), hash);
    EXPECT_EQ(HashOfContent(spec, {U32({5}, {1}), Implicit(6, 2, {2, 3}), U64({8}, {4})}), hash);
    EXPECT_EQ(HashOfContent(spec, {Implicit(5, 1, {1}), U32({}, {}), Implicit(6, 3, {2, 3, 4})}), hash);
  }
}

TEST(UpdateBuilder, HashContent_OfLongUpdates_DoesNotDependOnChunks) {
  const TensorSpec spec = Spec();
  std::vector<uint64_t> keys;
  std::vector<double> values;
  for (uint64_t i = 0; i < 1000; ++i) {
    keys.push_back(i);
    values.push_back(static_cast<double>(i));
  }
  std::vector<Slice> slices;
  for (size_t begin = 0; begin < keys.size(); begin += 77) {
    const size_t count = std::min<size_t>(77, keys.size() - begin);
    const auto first = static_cast<std::ptrdiff_t>(begin);
    const auto last = static_cast<std::ptrdiff_t>(begin + count);
    slices.push_back(U64({keys.begin() + first, keys.begin() + last}, {values.begin() + first, values.begin() + last}));
  }
  const auto hash = HashOfContent(spec, slices);
  EXPECT_EQ(HashOfContent(spec, {Implicit(0, 1000, values)}), hash);
  EXPECT_EQ(HashOfContent(spec, {U32(keys, values)}), hash);
}

TEST(UpdateBuilder, HashContent_OfLongRuns_IsThatOfTheirKeys) {
  for (const uint64_t num_rows : {uint64_t{20'000}, uint64_t{0}}) {
    const TensorSpec spec = Spec(num_rows);
    // Some of them again, since hashes of runs are kept.
    for (const auto& [first, count] : {std::pair{0, 9000}, {0, 9000}, {1, 9000}, {0, 9001}, {0, 9000}, {1, 9000}}) {
      std::vector<uint64_t> keys(count);
      std::iota(keys.begin(), keys.end(), first);
      const std::vector<double> values(count, 1.0);
      EXPECT_EQ(HashOfContent(spec, {Implicit(first, count, values)}), HashOfContent(spec, {U32(keys, values)}))
          << first << " " << count << " " << num_rows;
    }
  }
}

TEST(UpdateBuilder, HashContent_DependsOnKeysValuesAndOrder) {
  const TensorSpec spec = Spec();
  const auto hash = HashOfContent(spec, {U32({5, 6}, {1, 2})});
  EXPECT_NE(HashOfContent(spec, {U32({6, 5}, {1, 2})}), hash);
  EXPECT_NE(HashOfContent(spec, {U32({6, 5}, {2, 1})}), hash) << "order of occurrence decides how duplicates fold";
  EXPECT_NE(HashOfContent(spec, {U32({5, 7}, {1, 2})}), hash);
  EXPECT_NE(HashOfContent(spec, {U32({5, 6}, {1, 3})}), hash);
  EXPECT_NE(HashOfContent(spec, {U32({5}, {1})}), hash);
  EXPECT_NE(HashOfContent(spec, {U32({}, {})}), hash);
  EXPECT_NE(HashOfContent(spec, {U32({5, 6}, {1, 0.0})}), HashOfContent(spec, {U32({5, 6}, {1, -0.0})}))
      << "bytes are compared";
}

}  // namespace
}  // namespace sparseagg::testing
