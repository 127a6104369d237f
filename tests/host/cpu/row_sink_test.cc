// The pieces of blocks that are folded side by side, on their way into one result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "host/cpu/merge/parallel_merge.h"
#include "host/cpu/rows/folded_rows.h"

namespace sparseagg::testing {
namespace {

using ::testing::ElementsAre;

using Rows = cpu::FoldedRows<uint32_t, double>;

// A result of ten rows: keys, float64 values, counts and weights.
struct FakeSink {
  bool TakesDirect() const { return true; }
  absl::Status Prepare(Rows&) { return absl::OkStatus(); }
  size_t size() const { return 0; }
  void Write(uint64_t) {}
  cpu::DirectOutput<uint32_t> DirectAt(uint64_t at) {
    cpu::DirectOutput<uint32_t> output;
    output.keys = keys.data() + at;
    output.values = reinterpret_cast<std::byte*>(values.data() + at);
    output.counts = counts.data() + at;
    output.weights = weights.data() + at;
    output.dtype = DType::kFloat64;
    return output;
  }

  std::vector<uint32_t> keys = std::vector<uint32_t>(10);
  std::vector<double> values = std::vector<double>(10);
  std::vector<uint32_t> counts = std::vector<uint32_t>(10);
  std::vector<uint64_t> weights = std::vector<uint64_t>(10);
};

class BlockRowSinkTest : public ::testing::Test {
 protected:
  using RowSink = cpu::BlockRowSink<uint32_t, Rows, FakeSink>;

  // Writes rows of the keys from `first` on, with values a half, counts one and weights two more.
  static void Write(const absl::StatusOr<cpu::DirectOutput<uint32_t>>& output, uint32_t first, size_t rows) {
    ASSERT_TRUE(output.ok()) << output.status();
    std::iota(output->keys, output->keys + rows, first);
    std::iota(output->counts, output->counts + rows, first + 1);
    std::iota(output->weights, output->weights + rows, first + 2);
    for (size_t i = 0; i < rows; ++i) {
      const double value = first + static_cast<double>(i) + 0.5;
      std::memcpy(output->values + i * sizeof(value), &value, sizeof(value));
    }
  }

  cpu::OrderedBlockQueue turns_{2};
  FakeSink sink_;
  cpu::RowBuffer<uint32_t> buffer_;
  cpu::RowBuffer<uint32_t> other_stash_;
  RowSink block0_{turns_, 0, sink_, buffer_};
  RowSink block1_{turns_, 1, sink_, other_stash_};
};

// One thread plays both, so that a range that waited would wait for ever.
TEST_F(BlockRowSinkTest, PiecesBeforeTheirTurn_DoNotWait) {
  Write(block1_.Room(2, {0, 0, /*is_last=*/false}), 50, 2);
  Write(block0_.Room(3, {0, 0, /*is_last=*/false}), 10, 3);
  Write(block1_.Room(1, {0, 0, /*is_last=*/false}), 52, 1);
  Write(block0_.Room(1, {0, 0, /*is_last=*/true}), 13, 1);
  EXPECT_TRUE(block0_.ended());
  EXPECT_FALSE(block1_.ended());
  Write(block1_.Room(2, {0, 0, /*is_last=*/true}), 53, 2);
  EXPECT_TRUE(block1_.ended());
  EXPECT_EQ(turns_.claimed(), 9u);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 11, 12, 13, 50, 51, 52, 53, 54, 0));
  EXPECT_THAT(sink_.values, ElementsAre(10.5, 11.5, 12.5, 13.5, 50.5, 51.5, 52.5, 53.5, 54.5, 0.0));
  EXPECT_THAT(sink_.counts, ElementsAre(11, 12, 13, 14, 51, 52, 53, 54, 55, 0));
  EXPECT_THAT(sink_.weights, ElementsAre(12, 13, 14, 15, 52, 53, 54, 55, 56, 0));
}

TEST_F(BlockRowSinkTest, TurnThatComesBetweenPieces_IsTakenAtOnce) {
  Write(block1_.Room(2, {0, 0, /*is_last=*/false}), 50, 2);
  Write(block0_.Room(1, {0, 0, /*is_last=*/true}), 10, 1);
  Write(block1_.Room(1, {0, 0, /*is_last=*/false}), 52, 1);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 50, 51, 52, 0, 0, 0, 0, 0, 0));
  Write(block1_.Room(1, {0, 0, /*is_last=*/true}), 53, 1);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 50, 51, 52, 53, 0, 0, 0, 0, 0));
  EXPECT_THAT(sink_.values, ElementsAre(10.5, 50.5, 51.5, 52.5, 53.5, 0.0, 0.0, 0.0, 0.0, 0.0));
}

TEST_F(BlockRowSinkTest, EarlierBlockFailed_LaterOnesAreCancelled) {
  Write(block1_.Room(2, {0, 0, /*is_last=*/false}), 50, 2);
  turns_.Fail(0, absl::OutOfRangeError("too large"));
  turns_.End(0);
  EXPECT_TRUE(absl::IsCancelled(block1_.Room(1, {0, 0, /*is_last=*/true}).status()));
}

// As when memory for the rows runs out where their room has been claimed.
TEST_F(BlockRowSinkTest, BlockThatFailsAfterItsTurn_Fails) {
  Write(block0_.Room(2, {0, 0, /*is_last=*/true}), 50, 2);
  ASSERT_TRUE(block0_.ended());
  turns_.Fail(0, absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(absl::IsCancelled(block1_.Room(1, {0, 0, /*is_last=*/true}).status()));
  turns_.Fail(1, absl::CancelledError());
  EXPECT_EQ(turns_.status().message(), "no memory");
}

TEST_F(BlockRowSinkTest, LaterBlockFailed_EarlierOnesGoOn) {
  turns_.Fail(1, absl::OutOfRangeError("too large"));
  Write(block0_.Room(2, {0, 0, /*is_last=*/true}), 50, 2);
  EXPECT_THAT(sink_.keys, ElementsAre(50, 51, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(OrderedBlockQueue, SeveralBlocksFail_TheFirstOfThemCounts) {
  cpu::OrderedBlockQueue turns(4);
  EXPECT_TRUE(turns.status().ok());
  turns.Fail(2, absl::OutOfRangeError("2"));
  turns.Fail(1, absl::OutOfRangeError("1"));
  turns.Fail(3, absl::OutOfRangeError("3"));
  EXPECT_EQ(turns.status().message(), "1");
}

}  // namespace
}  // namespace sparseagg::testing
