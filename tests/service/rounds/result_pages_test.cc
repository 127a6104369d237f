#include "service/rounds/result_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Time kCreated = absl::FromUnixSeconds(1);

Result SparseResult() {
  Result result;
  result.keys = std::variant_alternative_t<1, KeyVector>{0, 5, 6, 100, ~uint64_t{0}};
  result.num_keys = 5;
  result.values.resize(20);
  result.counts = {1, 1, 1, 1, 1};
  return result;
}

Result DenseResult() {
  Result result;
  result.layout = Layout::kDense;
  result.num_rows = result.num_keys = 10;
  result.values.resize(40);
  return result;
}

std::tuple<uint64_t, uint64_t> RowsOf(const Result& result, KeyInterval keys) {
  const auto rows = FindRows(result, keys);
  EXPECT_THAT(rows, IsOk());
  return {rows->begin, rows->end};
}

TEST(ResultPagesTest, FindRows_Sparse_FindsKeysInTheRange) {
  const Result result = SparseResult();
  EXPECT_EQ(RowsOf(result, {0, 0}), std::tuple(0, 5));
  EXPECT_EQ(RowsOf(result, {5, 6}), std::tuple(1, 2));
  EXPECT_EQ(RowsOf(result, {5, 7}), std::tuple(1, 3));
  EXPECT_EQ(RowsOf(result, {7, 100}), std::tuple(3, 3));
  EXPECT_EQ(RowsOf(result, {101, 0}), std::tuple(4, 5));
  EXPECT_EQ(RowsOf(result, {101, ~uint64_t{0}}), std::tuple(4, 4));
  EXPECT_EQ(RowsOf(result, {6, 6}), std::tuple(2, 2));
}

TEST(ResultPagesTest, FindRows_Dense_IsTheKeysThemselves) {
  const Result result = DenseResult();
  EXPECT_EQ(RowsOf(result, {0, 0}), std::tuple(0, 10));
  EXPECT_EQ(RowsOf(result, {3, 7}), std::tuple(3, 7));
  EXPECT_EQ(RowsOf(result, {8, 100}), std::tuple(8, 10));
  EXPECT_EQ(RowsOf(result, {50, 100}), std::tuple(10, 10));
}

TEST(ResultPagesTest, FindRows_EndBeforeBegin_IsRefused) {
  EXPECT_THAT(FindRows(SparseResult(), {7, 5}), Fails(Code::kInvalidArgument, HasSubstr("5")));
}

TEST(ResultPagesTest, FirstPage_ByBytes_IsAsManyRowsAsFit) {
  const Result result = SparseResult();
  ASSERT_EQ(RowBytes(result), 8 + 4 + 4);
  EXPECT_EQ(FirstPage(result, {0, 5}, 16).end, 1);
  EXPECT_EQ(FirstPage(result, {0, 5}, 31).end, 1);
  EXPECT_EQ(FirstPage(result, {1, 5}, 32).end, 3);
  EXPECT_EQ(FirstPage(result, {0, 5}, 1000).end, 5);
}

TEST(ResultPagesTest, FirstPage_RowLargerThanThePage_IsOneRow) {
  EXPECT_EQ(FirstPage(SparseResult(), {2, 5}, 1).end, 3);
  EXPECT_EQ(FirstPage(SparseResult(), {5, 5}, 1).end, 5);
}

TEST(ResultPagesTest, ResumeAt_OwnToken_GoesOnThere) {
  const auto rows = ResumeAt(MakePageToken(kCreated, 3, 17), kCreated, 3, {10, 20});
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->begin, 17);
  EXPECT_EQ(rows->end, 20);
}

TEST(ResultPagesTest, ResumeAt_ForeignToken_IsRefused) {
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated, 2, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 9), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 21), kCreated, 3, {10, 20}), HasCode(Code::kInvalidArgument));
  EXPECT_THAT(ResumeAt(MakePageToken(kCreated, 3, 17), kCreated + absl::Nanoseconds(1), 3, {10, 20}),
              HasCode(Code::kInvalidArgument));
  for (const char* token : {"", "3", "3.17", "1000000000.3", "1000000000.3.", "1000000000..17", ".3.17",
                            "1000000000.3.17.1", "1000000000.-3.17", "x", "1000000000.3.99999999999999999999"}) {
    EXPECT_THAT(ResumeAt(token, kCreated, 3, {10, 20}), Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << token;
  }
}

}  // namespace
}  // namespace sparseagg::service
