// Row sinks of blocks that are folded side by side, and the queue that orders them.
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

// Sink of a result with place for ten rows: keys, float64 values, counts and weights.
struct FakeSink {
  bool AcceptsDirectOutput() const { return true; }
  absl::Status Prepare(Rows&) { return absl::OkStatus(); }
  size_t size() const { return 0; }
  void Write(uint64_t) {}
  cpu::DirectOutput<uint32_t> DirectOutputAt(uint64_t at) {
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

  // Writes rows with keys first, first + 1, …; value = key + 0.5, count = key + 1, weight = key + 2.
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

  cpu::OrderedBlockQueue queue_{2};
  FakeSink sink_;
  cpu::RowBuffer<uint32_t> buffer_;
  cpu::RowBuffer<uint32_t> other_buffer_;
  RowSink block0_{queue_, 0, sink_, buffer_};
  RowSink block1_{queue_, 1, sink_, other_buffer_};
};

// One thread plays both, so a key range that waited would wait forever.
TEST_F(BlockRowSinkTest, KeyRangesBeforeTheirTurn_DoNotWait) {
  Write(block1_.OutputFor(2, {0, 0, /*is_last=*/false}), 50, 2);
  Write(block0_.OutputFor(3, {0, 0, /*is_last=*/false}), 10, 3);
  Write(block1_.OutputFor(1, {0, 0, /*is_last=*/false}), 52, 1);
  Write(block0_.OutputFor(1, {0, 0, /*is_last=*/true}), 13, 1);
  EXPECT_TRUE(block0_.ended());
  EXPECT_FALSE(block1_.ended());
  Write(block1_.OutputFor(2, {0, 0, /*is_last=*/true}), 53, 2);
  EXPECT_TRUE(block1_.ended());
  EXPECT_EQ(queue_.claimed(), 9u);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 11, 12, 13, 50, 51, 52, 53, 54, 0));
  EXPECT_THAT(sink_.values, ElementsAre(10.5, 11.5, 12.5, 13.5, 50.5, 51.5, 52.5, 53.5, 54.5, 0.0));
  EXPECT_THAT(sink_.counts, ElementsAre(11, 12, 13, 14, 51, 52, 53, 54, 55, 0));
  EXPECT_THAT(sink_.weights, ElementsAre(12, 13, 14, 15, 52, 53, 54, 55, 56, 0));
}

TEST_F(BlockRowSinkTest, TurnThatComesBetweenKeyRanges_IsTakenAtOnce) {
  Write(block1_.OutputFor(2, {0, 0, /*is_last=*/false}), 50, 2);
  Write(block0_.OutputFor(1, {0, 0, /*is_last=*/true}), 10, 1);
  Write(block1_.OutputFor(1, {0, 0, /*is_last=*/false}), 52, 1);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 50, 51, 52, 0, 0, 0, 0, 0, 0));
  Write(block1_.OutputFor(1, {0, 0, /*is_last=*/true}), 53, 1);
  EXPECT_THAT(sink_.keys, ElementsAre(10, 50, 51, 52, 53, 0, 0, 0, 0, 0));
  EXPECT_THAT(sink_.values, ElementsAre(10.5, 50.5, 51.5, 52.5, 53.5, 0.0, 0.0, 0.0, 0.0, 0.0));
}

TEST_F(BlockRowSinkTest, EarlierBlockFailed_LaterOnesAreCancelled) {
  Write(block1_.OutputFor(2, {0, 0, /*is_last=*/false}), 50, 2);
  queue_.Fail(0, absl::OutOfRangeError("too large"));
  queue_.EndTurn(0);
  EXPECT_TRUE(absl::IsCancelled(block1_.OutputFor(1, {0, 0, /*is_last=*/true}).status()));
}

// As when memory runs out after places were claimed.
TEST_F(BlockRowSinkTest, BlockThatFailsAfterItsTurn_Fails) {
  Write(block0_.OutputFor(2, {0, 0, /*is_last=*/true}), 50, 2);
  ASSERT_TRUE(block0_.ended());
  queue_.Fail(0, absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(absl::IsCancelled(block1_.OutputFor(1, {0, 0, /*is_last=*/true}).status()));
  queue_.Fail(1, absl::CancelledError());
  EXPECT_EQ(queue_.status().message(), "no memory");
}

TEST_F(BlockRowSinkTest, LaterBlockFailed_EarlierOnesGoOn) {
  queue_.Fail(1, absl::OutOfRangeError("too large"));
  Write(block0_.OutputFor(2, {0, 0, /*is_last=*/true}), 50, 2);
  EXPECT_THAT(sink_.keys, ElementsAre(50, 51, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(OrderedBlockQueue, SeveralBlocksFail_StatusIsThatOfTheFirst) {
  cpu::OrderedBlockQueue queue(4);
  EXPECT_TRUE(queue.status().ok());
  queue.Fail(2, absl::OutOfRangeError("2"));
  queue.Fail(1, absl::OutOfRangeError("1"));
  queue.Fail(3, absl::OutOfRangeError("3"));
  EXPECT_EQ(queue.status().message(), "1");
}

}  // namespace
}  // namespace sparseagg::testing
