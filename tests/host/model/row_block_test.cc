#include "host/model/row_block.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/host/model/model_oracle.h"

namespace sparseagg::testing {
namespace {

ModelSpec SpecOf(uint64_t num_rows, uint32_t row_width) {
  ModelSpec spec;
  spec.tensors.resize(2);
  spec.tensors[1].name = "t";
  spec.tensors[1].num_rows = num_rows;
  spec.tensors[1].row_width = row_width;
  return spec;
}

std::vector<std::string> Written(const ModelDelta& delta) {
  std::vector<std::string> blocks;
  EXPECT_EQ(WriteDelta(delta,
                       [&](absl::Span<const absl::string_view> spans) {
                         std::string& block = blocks.emplace_back();
                         for (const absl::string_view span : spans) absl::StrAppend(&block, span);
                         return absl::OkStatus();
                       }),
            absl::OkStatus());
  return blocks;
}

TEST(RowBlock_DeltaOfAnyLayout, ComesBack) {
  Rng rng(61);
  for (const uint64_t num_rows : {uint64_t{0}, uint64_t{50}, uint64_t{100'000}}) {
    for (const bool is_dense : {false, true}) {
      if (is_dense && num_rows == 0) continue;
      const ModelSpec spec = SpecOf(num_rows, 70);
      Rows rows;
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t key = rng.Below(num_rows);
        if (rows.size() < 40 || num_rows != 50) rows[key] = Row(70, static_cast<float>(key % 1000));
      }
      const Result result =
          is_dense ? DenseResultOf(rows, spec.tensors[1]) : ResultOf(rows, spec.tensors[1], num_rows != 0);
      std::vector<Result> back;
      const std::vector<std::string> blocks = Written({nullptr, &result});
      EXPECT_EQ(blocks.size(), rows.size() < 1000 ? 1u : 2u);
      for (const std::string& block : blocks) {
        EXPECT_LE(block.size(), RowBlock::kMaxBytes);
        ASSERT_EQ(ReadDelta(block, spec, &back), absl::OkStatus());
        std::string unaligned = "x" + block;
        EXPECT_TRUE(RowBlock::Parse(absl::string_view(unaligned).substr(1), spec).ok());
      }
      ASSERT_EQ(back.size(), 2u);
      EXPECT_EQ(back[0].num_keys, 0u);
      const Result want = ResultOf(rows, spec.tensors[1]);
      EXPECT_EQ(back[1].keys, want.keys);
      EXPECT_EQ(back[1].values, want.values);
    }
  }
}

TEST(RowBlock_OfThreeRows, HasTheBytesOfItsDefinition) {
  const ModelSpec spec = SpecOf(0, 1);
  const auto block = [&](Rows rows) {
    const Result result = ResultOf(rows, spec.tensors[1]);
    return Written({nullptr, &result})[0];
  };
  const std::string values("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\0\0", 16);  // 1, 2, 3, padding
  EXPECT_EQ(block({{7, {1}}, {8, {2}}, {9, {3}}}),  // kind, dtype, no key bytes; tensor 1; 3 rows from key 7 on
            std::string("\1\0\0\0\1\0\0\0\3\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 24) + values);
  const std::string keys("\7\0\0\0\0\0\0\0\x8\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0", 24);
  EXPECT_EQ(block({{7, {1}}, {8, {2}}, {uint64_t{1} << 32, {3}}}),
            std::string("\1\0\x8\0\1\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24) + keys + values);
}

TEST(RowBlock_BadBytes, AreDataLoss) {
  const ModelSpec spec = SpecOf(10, 1);
  const Result result = ResultOf({{2, {1}}, {9, {1}}}, spec.tensors[1]);
  const std::string block = Written({nullptr, &result})[0];
  std::vector<Result> back;
  ASSERT_EQ(ReadDelta(block, spec, &back), absl::OkStatus());
  EXPECT_EQ(ReadDelta(block, spec, &back).code(), absl::StatusCode::kDataLoss) << "the keys do not ascend";
  back.clear();
  EXPECT_EQ(ReadDelta(block, SpecOf(9, 1), &back).code(), absl::StatusCode::kDataLoss) << "key 9 is too large";
  EXPECT_FALSE(RowBlock::Parse(block + "x", spec).ok());
  for (size_t size = 0; size < block.size(); ++size) EXPECT_FALSE(RowBlock::Parse(block.substr(0, size), spec).ok());
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {  // no damage of the header is read beyond the end
    std::string damaged = block;
    for (int changes = 0; changes < 3; ++changes) damaged[rng.Below(24)] = static_cast<char>(rng.Bits());
    back.clear();
    (void)ReadDelta(damaged, spec, &back);
  }
}

}  // namespace
}  // namespace sparseagg::testing
