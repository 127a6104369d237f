// An update is the same in how many pieces its chunks came from the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "host/pieces.h"
#include "host/update_builder.h"
#include "tests/host/slices.h"

namespace sparseagg {
namespace {

using testing::Bitmap;
using testing::Delta;
using testing::FloatsOf;
using ::testing::HasSubstr;
using testing::Implicit;
using testing::KeysOf;
using testing::Slice;
using testing::Spec;
using testing::U32;
using testing::U64;

// Cuts `bytes` after every `size`.
std::vector<absl::string_view> Cut(absl::string_view bytes, size_t size) {
  std::vector<absl::string_view> pieces;
  for (size_t begin = 0; begin < bytes.size(); begin += size) pieces.push_back(bytes.substr(begin, size));
  return pieces;
}

TEST(UpdateBuilderPieces, Append_BytesInPieces_AreTakenAsTheWhole) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  const std::vector<Slice> slices = {U32({7, 3, 9, 9, 1}, values), U64({7, 3, 9, 9, 1}, values),
                                     Delta({1, 3, 7, 9, 500}, values), Bitmap({1, 3, 7, 9, 500}, values),
                                     Implicit(20, 5, values)};
  for (const uint64_t dimension : {uint64_t{1000}, uint64_t{1} << 40}) {
    for (const Op op : {Op::kSum, Op::kUnion}) {
      TensorSpec spec = Spec(dimension);
      spec.aggregation.op = op;
      for (size_t s = 0; s < slices.size(); ++s) {
        for (size_t size = 1; size < 12; ++size) {
          SCOPED_TRACE(::testing::Message() << "dimension " << dimension << ", slice " << s << ", pieces of " << size);
          const std::vector<absl::string_view> keys = Cut(slices[s].keys, size);
          const std::vector<absl::string_view> values_in_pieces = Cut(slices[s].values, size);
          SliceView view = slices[s].view();
          view.keys = Pieces(keys);
          view.values = Pieces(values_in_pieces);
          UpdateBuilder whole(&spec);
          UpdateBuilder pieces(&spec);
          // After something, so that they are not taken to the front.
          ASSERT_TRUE(whole.Append(0, Implicit(4, 2, {8, 9}).view()).ok());
          ASSERT_TRUE(pieces.Append(0, Implicit(4, 2, {8, 9}).view()).ok());
          ASSERT_TRUE(whole.Append(1, slices[s].view()).ok());
          ASSERT_TRUE(pieces.Append(1, view).ok());
          EXPECT_EQ(whole.ContentHash(), pieces.ContentHash());
          const auto expected = std::move(whole).Finish(1.0);
          const auto update = std::move(pieces).Finish(1.0);
          EXPECT_EQ(KeysOf(*update), KeysOf(*expected));
          if (op == Op::kSum) {
            EXPECT_EQ(FloatsOf(*update), FloatsOf(*expected));
          }
          EXPECT_EQ(update->sorted(), expected->sorted());
          EXPECT_EQ(update->unique(), expected->unique());
        }
      }
    }
  }
}

TEST(UpdateBuilderPieces, Append_RefusedPieces_LeaveWhatWasThere) {
  const TensorSpec spec = Spec(1000);
  UpdateBuilder builder(&spec);
  ASSERT_TRUE(builder.Append(0, U32({7, 9}, {1, 2}).view()).ok());
  const auto hash = builder.ContentHash();
  for (const Slice& slice : {U32({1, 1000}, {1, 2}), U64({1, 1000}, {1, 2}), U32({1, 2}, {1, std::nan("")})}) {
    const std::vector<absl::string_view> keys = Cut(slice.keys, 3);
    const std::vector<absl::string_view> values = Cut(slice.values, 3);
    SliceView view = slice.view();
    view.keys = Pieces(keys);
    view.values = Pieces(values);
    const absl::Status status = builder.Append(17, view);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 17, position 1"));
    EXPECT_EQ(builder.num_keys(), 2u);
    EXPECT_EQ(builder.ContentHash(), hash);
  }
}

}  // namespace
}  // namespace sparseagg
