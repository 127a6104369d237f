// UpdateBuilder::Append: chunks in wire form are appended, or refused with chunk, position and value.
#include "host/updates/update_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/host/updates/slices.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- what good chunks become

TEST(UpdateBuilder, Append_UnalignedBytes_AreRead) {
  const TensorSpec spec = Spec(0);
  Slice slice = U64({5, ~uint64_t{0}}, {1, 2});
  const std::string keys = "x" + slice.keys;
  const std::string values = "xyz" + slice.values;
  SliceView view = slice.view();
  view.keys = absl::string_view(keys).substr(1);
  view.values = absl::string_view(values).substr(3);
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(Append(builder, spec, 0, view).ok());
  const auto update = std::move(builder).Finish(1.0);
  ASSERT_TRUE(update.ok());
  EXPECT_THAT(KeysOf(*update), ElementsAre(5, ~uint64_t{0}));
  EXPECT_THAT(FloatsOf(*update), ElementsAre(1, 2));
}

TEST(UpdateBuilder, Append_Runs_StayARunAsLongAsTheyGoOn) {
  const TensorSpec spec = Spec();
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(Append(builder, spec, 0, Implicit(10, 2, {1, 2}).view()).ok());
  ASSERT_TRUE(Append(builder, spec, 1, Implicit(12, 1, {3}).view()).ok());
  const auto run = std::move(builder).Finish(1.0);
  ASSERT_TRUE(run.ok());
  EXPECT_TRUE(std::holds_alternative<KeyRun>(run->keys()));
  EXPECT_THAT(KeysOf(*run), ElementsAre(10, 11, 12));
  EXPECT_TRUE(run->sorted() && run->unique());

  UpdateBuilder broken(&spec);
  ASSERT_TRUE(Append(broken, spec, 0, Implicit(10, 2, {1, 2}).view()).ok());
  ASSERT_TRUE(Append(broken, spec, 1, Implicit(11, 2, {3, 4}).view()).ok());
  const auto keys = std::move(broken).Finish(1.0);
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(KeysOf(*keys), ElementsAre(10, 11, 11, 12));
  EXPECT_TRUE(keys->sorted());
  EXPECT_FALSE(keys->unique());
}

TEST(UpdateBuilder, Append_RunAtTheEndOfTheKeySpace_DoesNotGoOnAtZero) {
  const TensorSpec spec = Spec(0);
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(Append(builder, spec, 0, Implicit(~uint64_t{0} - 1, 2, {1, 2}).view()).ok());
  ASSERT_TRUE(Append(builder, spec, 1, Implicit(0, 2, {3, 4}).view()).ok());
  const auto update = std::move(builder).Finish(1.0);
  ASSERT_TRUE(update.ok());
  EXPECT_FALSE(std::holds_alternative<KeyRun>(update->keys()));
  EXPECT_THAT(KeysOf(*update), ElementsAre(~uint64_t{0} - 1, ~uint64_t{0}, 0, 1));
  EXPECT_FALSE(update->sorted());
}

TEST(UpdateBuilder, Append_PackedValues_AreWidened) {
  TensorSpec spec = Spec(1000, 2);
  UpdateBuilder builder(&spec);
  Slice half = U32({3}, {});
  half.values = PackFloats(DType::kFloat16, {1.5, -2});
  SliceView view = half.view();
  view.value_packing = wire::ValuePacking::kFloat16;
  ASSERT_TRUE(Append(builder, spec, 0, view).ok());
  ASSERT_TRUE(Append(builder, spec, 1, Delta({4, 5}, {1, 2, 3, 4}).view()).ok());
  Slice scaled = Delta({6}, {});
  scaled.values = Floats({0.25}) + "\x04\xff";
  view = scaled.view();
  view.value_packing = wire::ValuePacking::kInt8Scaled;
  ASSERT_TRUE(Append(builder, spec, 2, view).ok());
  const auto hash = builder.HashContent();
  const auto update = std::move(builder).Finish(1.0);
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_THAT(KeysOf(*update), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(FloatsOf(*update, 2), ElementsAre(1.5, -2, 1, 2, 3, 4, 1, -0.25));
  UpdateBuilder plain(&spec);
  ASSERT_TRUE(Append(plain, spec, 0, U32({3, 4, 5, 6}, {1.5, -2, 1, 2, 3, 4, 1, -0.25}).view()).ok());
  EXPECT_EQ(plain.HashContent(), hash);

  spec.aggregation.op = Op::kUnion;
  UpdateBuilder keys_only(&spec);
  ASSERT_TRUE(Append(keys_only, spec, 0, view).ok());
  EXPECT_EQ(std::move(keys_only).Finish(1.0)->values(), nullptr);
}

// ---- errors of bad chunks

struct BadSlice {
  std::string name;
  Slice slice;
  std::vector<std::string> words;  // of the message
};

TEST(UpdateBuilder, Append_BadChunks_AreRefused) {
  const TensorSpec spec = Spec(1000, 2);
  const double inf = std::numeric_limits<double>::infinity();
  Slice key_bytes = U32({1, 2}, {1, 2, 3, 4});
  key_bytes.keys.pop_back();
  Slice wide_key_bytes = U64({1, 2}, {1, 2, 3, 4});
  wide_key_bytes.keys.pop_back();
  Slice value_bytes = U32({1, 2}, {1, 2, 3, 4});
  value_bytes.values.push_back('\0');
  Slice no_values = U32({1, 2}, {});
  no_values.has_values = false;
  Slice run_with_bytes = Implicit(5, 1, {1, 2});
  run_with_bytes.keys = "1234";
  Slice delta_count = Delta({1, 2}, {1, 2, 3, 4, 5, 6});
  delta_count.num_keys = 3;
  delta_count.keys.push_back('\0');
  Slice delta_huge = Delta({1, 2}, {1, 2, 3, 4});
  delta_huge.num_keys = ~uint64_t{0};
  Slice delta_wraps = Delta({~uint64_t{0} - 1, ~uint64_t{0}}, {1, 2, 3, 4});
  delta_wraps.first_key = ~uint64_t{0};
  const std::vector<BadSlice> table = {
      {"key = num_rows", U32({1, 1000}, {1, 2, 3, 4}), {"position 1", "key 1000"}},
      {"key far beyond", U64({~uint64_t{0}}, {1, 2}), {"position 0", "18446744073709551615"}},
      {"key that wraps 32 bits", U64({(uint64_t{1} << 32) + 1}, {1, 2}), {"position 0", "4294967297"}},
      {"run beyond the end", Implicit(999, 2, {1, 2, 3, 4}), {"1000"}},
      {"run that wraps", Implicit(~uint64_t{0}, 2, {1, 2, 3, 4}), {"18446744073709551615"}},
      {"too few values", U32({1, 2}, {1, 2}), {"2 keys", "2 values"}},
      {"too many values", U32({1}, {1, 2, 3, 4}), {"1 keys", "4 values"}},
      {"half a row", U32({1, 2}, {1, 2, 3}), {"3 values"}},
      {"values without keys", U32({}, {1, 2}), {"2 values"}},
      {"key bytes", key_bytes, {"7", "4"}},
      {"wide key bytes", wide_key_bytes, {"15", "8"}},
      {"value bytes", value_bytes, {"17", "4"}},
      {"no values", no_values, {"values"}},
      {"key bytes of a run", run_with_bytes, {"implicit"}},
      {"count of a run", Implicit(5, uint64_t{1} << 63, {1, 2}), {}},
      {"packed key = num_rows", Delta({998, 999, 1000}, {1, 2, 3, 4, 5, 6}), {"position 2", "key 1000"}},
      {"packed keys far beyond", Delta({5, uint64_t{1} << 63}, {1, 2, 3, 4}), {"position 1", "9223372036854775808"}},
      {"packed keys that wrap", delta_wraps, {"position 0", "18446744073709551615"}},
      {"packed keys and their bytes", delta_count, {"2 bytes of keys", "num_keys 3"}},
      {"packed keys beyond count", delta_huge, {"bytes of keys"}},
      {"packed keys and too few values", Delta({1, 2}, {1, 2}), {"2 keys", "2 values"}},
      {"packed keys and nan", Delta({1, 22}, {1, 2, std::nan(""), 4}), {"key 22, position 1", "nan"}},
      {"nan", U32({1, 2}, {1, 2, std::nan(""), 4}), {"chunk 17, key 2, position 1", "nan"}},
      {"nan of a run", Implicit(44, 2, {1, 2, std::nan(""), 4}), {"chunk 17, key 45, position 1", "nan"}},
      {"inf", U64({51, 2}, {1, -inf, 3, 4}), {"key 51, position 0, column 1", "-inf"}},
  };
  for (const BadSlice& row : table) {
    SCOPED_TRACE(row.name);
    UpdateBuilder builder(&spec);
    ASSERT_TRUE(Append(builder, spec, 0, U32({7, 9}, {1, 2, 3, 4}).view()).ok());
    const absl::Status status = Append(builder, spec, 17, row.slice.view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor 'embedding'"), HasSubstr("chunk 17")));
    for (const std::string& word : row.words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

TEST(UpdateBuilder, Append_BadPackedValues_AreRefused) {
  TensorSpec spec = Spec(1000, 2);
  struct Row {
    wire::ValuePacking packing;
    std::string values;
    std::vector<std::string> words;
  };
  const std::vector<Row> table = {
      {wire::ValuePacking::kFloat16, "1234567", {"7 bytes", "2, the size of a float16"}},
      {wire::ValuePacking::kFloat16, "123456", {"2 keys", "3 values"}},
      {wire::ValuePacking::kFloat16,
       std::string("1234\x00\x7c"
                   "56",
                   8),
       {"key 2, position 1", "inf"}},
      {wire::ValuePacking::kBFloat16,
       std::string("12\x80\xff"
                   "3456",
                   8),
       {"key 1, position 0, column 1", "-inf"}},
      {wire::ValuePacking::kInt8Scaled, "1234", {"4 bytes of values end with a scale"}},
      {wire::ValuePacking::kInt8Scaled, Floats({1}) + "12345", {"2 keys", "5 values"}},
      {wire::ValuePacking::kInt8Scaled,
       Floats({-1}) + "1234",
       {"key 1, position 0, column 0: scale -1 of values 0 and following", "2^120"}},
      {wire::ValuePacking::kInt8Scaled, Floats({std::nan("")}) + "1234", {"scale nan"}},
      {wire::ValuePacking::kInt8Scaled, Floats({0x1p121}) + "1234", {"scale 2.65846e+36"}},
      {wire::ValuePacking::kFloat32, Floats({1, 2, 3, 4}), {"float32 values do not widen to float32"}},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(row.words[0]);
    for (const auto& [packed, op] :
         {std::pair(false, Op::kSum), std::pair(true, Op::kSum), std::pair(false, Op::kUnion)}) {
      spec.aggregation.op = op;
      UpdateBuilder builder(&spec);
      ASSERT_TRUE(Append(builder, spec, 0, U32({7, 9}, {1, 2, 3, 4}).view()).ok());
      Slice slice = packed ? Delta({1, 2}, {}) : U32({1, 2}, {});
      slice.values = row.values;
      SliceView view = slice.view();
      view.value_packing = row.packing;
      const absl::Status status = Append(builder, spec, 17, view);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tensor 'embedding'"), HasSubstr("chunk 17")));
      for (const std::string& word : row.words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    }
  }
}

TEST(UpdateBuilder, Append_PackedKeysWithoutABound_StopAtTheLargest) {
  const TensorSpec spec = Spec(0);
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(Append(builder, spec, 0, Delta({5, ~uint64_t{0}}, {1, 2}).view()).ok());
  Slice wraps = Delta({5, 6, 7}, {1, 2, 3});
  wraps.first_key = ~uint64_t{0} - 1;
  const absl::Status status = Append(builder, spec, 1, wraps.view());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("chunk 1, position 2: the keys pass 2^64-1 after key 18446744073709551615"));
}

TEST(UpdateBuilder, Append_WidthTimesCount_DoesNotOverflow) {
  // 2^33 keys of row_width 2^31 times 4 bytes is 2^66.
  TensorSpec spec = Spec(0, uint32_t{1} << 31);
  UpdateBuilder builder(&spec);
  EXPECT_EQ(Append(builder, spec, 0, Implicit(0, uint64_t{1} << 33, {}).view()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(UpdateBuilder, Append_NumberOfKeys_DoesNotWrap) {
  TensorSpec spec = Spec(0);
  spec.aggregation.op = Op::kUnion;
  UpdateBuilder builder(&spec);
  Slice run = Implicit(0, ~uint64_t{0}, {});
  run.has_values = false;
  ASSERT_TRUE(Append(builder, spec, 0, run.view()).ok());
  run.first_key = ~uint64_t{0};
  run.num_keys = 1;
  const absl::Status status = Append(builder, spec, 1, run.view());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 1"));
  EXPECT_EQ(builder.num_keys(), ~uint64_t{0});
}

// ---- UpdateBuilder::Finish: weight, declarations, dense tensors, content hash.

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
