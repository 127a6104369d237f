#include "service/rounds/upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "host/base/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/spec_codec.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class UploadTest : public ::testing::Test {
 protected:
  std::unique_ptr<Upload> MakeUpload(const v1::RoundSpec& spec, uint64_t memory_limit = 0) {
    budgets_.push_back(std::make_unique<MemoryBudget>(memory_limit));
    auto config = DecodeRoundSpec(spec, limits_);
    EXPECT_THAT(config, IsOk());
    return std::make_unique<Upload>(std::make_shared<const RoundConfig>(*std::move(config)), budgets_.back().get());
  }
  // Sorted rows of a KiB each, of more chunks.
  static v1::UpdateChunk RowsOf(uint64_t sequence, uint32_t num_rows) {
    std::vector<uint32_t> keys(num_rows);
    std::iota(keys.begin(), keys.end(), static_cast<uint32_t>(sequence) * num_rows);
    return ChunkOf(sequence, false, keys, std::vector<float>(size_t{num_rows} * 256, 1));
  }
  static absl::Status Append(Upload& upload, const v1::UpdateChunk& wire, bool takes_repeats = true) {
    const auto chunk = DecodeChunk(wire);
    RETURN_IF_ERROR(chunk.status());
    const ContentHash hash = HashOfChunk(*chunk);
    return upload.Append(*chunk, takes_repeats ? &hash : nullptr);
  }
  static v1::UpdateChunk ChunkOf(uint64_t sequence, bool last, const std::vector<uint32_t>& keys,
                                 const std::vector<float>& values) {
    return MakeChunk("", "c", keys, values, sequence, last);
  }
  // Implicit keys without values, of more chunks.
  static v1::UpdateChunk RunOf(uint64_t sequence, uint64_t first_key, uint64_t num_keys) {
    v1::UpdateChunk run = ChunkOf(sequence, false, {}, {});
    v1::TensorSlice& slice = *run.mutable_slices(0);
    slice.set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
    slice.set_value_encoding(v1::VALUE_ENCODING_NONE);
    slice.set_first_key(first_key);
    slice.set_num_keys(num_keys);
    return run;
  }

  // Of a spec of one tensor.
  static TuplesPerTensor Tuples(uint64_t count) { return std::make_shared<const std::vector<uint64_t>>(1, count); }

  Limits limits_;
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;  // of the uploads, which borrow them
};

TEST_F(UploadTest, Expect_LikeTheLastSubmission_MakesRoomOnce) {
  const auto upload = MakeUpload(SumSpec());
  upload->ExpectTuples(Tuples(5));
  ASSERT_THAT(Append(*upload, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  const uint64_t bytes = upload->reservation().bytes();
  ASSERT_THAT(Append(*upload, ChunkOf(1, true, {3, 4, 5}, {3, 4, 5})), IsOk());
  EXPECT_EQ(upload->reservation().bytes(), bytes + 4 * sizeof(ContentHash));
  EXPECT_EQ(upload->num_bytes(), 40);
}

TEST_F(UploadTest, Expect_FarTooMuch_IsBelievedOnlyAFewTimesTheFirstChunk) {
  const auto plain = MakeUpload(SumSpec());
  ASSERT_THAT(Append(*plain, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  const auto upload = MakeUpload(SumSpec());
  upload->ExpectTuples(Tuples(uint64_t{1} << 60));
  ASSERT_THAT(Append(*upload, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  EXPECT_GT(upload->reservation().bytes(), plain->reservation().bytes());
  EXPECT_LE(upload->reservation().bytes(), plain->reservation().bytes() + 7 * 2 * 8);
}

TEST_F(UploadTest, Expect_MoreThanThereIsMemoryFor_GoesWithout) {
  const auto plain = MakeUpload(SumSpec());
  ASSERT_THAT(Append(*plain, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  const auto upload = MakeUpload(SumSpec(), plain->reservation().bytes());
  upload->ExpectTuples(Tuples(100));
  EXPECT_THAT(Append(*upload, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
}

TEST_F(UploadTest, Append_RepeatThatDiffersAnywhere_IsRefusedAndTheUploadGoesOn) {
  const auto upload = MakeUpload(SumSpec());
  const v1::UpdateChunk first = ChunkOf(0, false, {1, 2}, {3, 4});
  ASSERT_THAT(Append(*upload, first), IsOk());
  const std::vector<std::function<void(v1::UpdateChunk&)>> changes = {
      [](v1::UpdateChunk& chunk) { chunk.set_last(true); },
      [](v1::UpdateChunk& chunk) { chunk.set_weight(1); },
      [](v1::UpdateChunk& chunk) { chunk.clear_slices(); },
      [](v1::UpdateChunk& chunk) { *chunk.add_slices() = chunk.slices(0); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_tensor("other"); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_keys_sorted(true); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_keys_unique(true); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_num_keys(2); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_key_encoding(v1::KEY_ENCODING_U64); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_INT32); },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->mutable_keys()->back() ^= 1; },
      [](v1::UpdateChunk& chunk) { chunk.mutable_slices(0)->mutable_values()->back() ^= 1; },
  };
  for (const auto& change : changes) {
    v1::UpdateChunk other = first;
    change(other);
    EXPECT_THAT(Append(*upload, other), Fails(Code::kAlreadyExists, HasSubstr("chunk 0 has other content")));
  }
  EXPECT_THAT(Append(*upload, first), IsOk());
  EXPECT_THAT(Append(*upload, ChunkOf(1, true, {5}, {6})), IsOk());
  EXPECT_EQ(upload->num_tuples(), 3);
}

TEST_F(UploadTest, Append_TupleLimit_IsExact) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_tuples_per_submission(3);
  const auto upload = MakeUpload(spec);
  EXPECT_THAT(Append(*upload, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  EXPECT_THAT(Append(*upload, ChunkOf(1, false, {3}, {1})), IsOk());
  EXPECT_THAT(Append(*upload, ChunkOf(2, false, {4}, {1})),
              Fails(Code::kResourceExhausted,
                    AllOf(HasSubstr("'v'"), HasSubstr("chunk 2"), HasSubstr("max_tuples_per_submission 3"))));
}

TEST_F(UploadTest, Append_ByteLimit_IsExact) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_bytes_per_submission(16);
  const auto upload = MakeUpload(spec);
  EXPECT_THAT(Append(*upload, ChunkOf(0, false, {1, 2}, {1, 2})), IsOk());
  EXPECT_THAT(Append(*upload, ChunkOf(1, false, {3}, {1})),
              Fails(Code::kResourceExhausted, HasSubstr("max_bytes_per_submission 16")));
}

// What else a slice may have wrong is in tests/data/golden_cases/refusals.py.
TEST_F(UploadTest, Append_SliceThatMayNotBe_IsRefusedWithItsPlace) {
  v1::RoundSpec spec = SumSpec();
  spec.set_max_tuples_per_submission(20);
  spec.set_max_bytes_per_submission(100);
  v1::TensorSpec* const dense = spec.add_tensors();
  *dense = spec.tensors(0);
  dense->set_name("d");
  dense->set_layout(v1::TENSOR_LAYOUT_DENSE);
  const auto packed = [](v1::TensorSlice& slice, uint32_t num_keys) {
    slice.set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
    slice.set_num_keys(num_keys);
    slice.set_keys(std::string(1, '\0'));
    slice.set_values(Packed(std::vector<float>(num_keys, 1)));
  };
  struct Case {
    std::function<void(v1::TensorSlice&)> spoil;
    Code code;
    const char* message;
  };
  const Case cases[] = {
      {[](v1::TensorSlice& slice) { slice.set_tensor("d"); }, Code::kInvalidArgument, "implicit"},
      {[](v1::TensorSlice& slice) { slice.set_first_key(1); }, Code::kInvalidArgument, "first_key 1"},
      {[&](v1::TensorSlice& slice) { packed(slice, 3), slice.clear_num_keys(); }, Code::kInvalidArgument, "num_keys 0"},
      {[&](v1::TensorSlice& slice) { packed(slice, 21); }, Code::kResourceExhausted, "max_tuples_per_submission 20"},
      {[&](v1::TensorSlice& slice) { packed(slice, 13); }, Code::kResourceExhausted,
       "104, more than max_bytes_per_submission 100"},
      {[](v1::TensorSlice& slice) {
         slice.set_keys(Packed(std::vector<uint32_t>(13, 1)));
         slice.set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
         slice.set_values(std::string(26, '\0'));
       },
       Code::kResourceExhausted, "104, more than max_bytes_per_submission 100"},
      {[](v1::TensorSlice& slice) { slice.set_value_encoding(v1::VALUE_ENCODING_FLOAT64); }, Code::kInvalidArgument,
       "float64"},
  };
  for (const Case& bad : cases) {
    v1::UpdateChunk chunk = ChunkOf(0, true, {1, 2}, {1, 2});
    bad.spoil(*chunk.mutable_slices(0));
    const std::string& tensor = chunk.slices(0).tensor();
    EXPECT_THAT(Append(*MakeUpload(spec), chunk),
                Fails(bad.code, AllOf(HasSubstr("'" + tensor + "'"), HasSubstr("chunk 0"), HasSubstr(bad.message))));
  }
}

TEST_F(UploadTest, Append_MemoryLimit_IsRefusedBeforeAnythingIsHeld) {
  const auto upload = MakeUpload(SumSpec(1'000'000), /*memory_limit=*/4096);
  const std::vector<uint32_t> keys(1000, 1);
  EXPECT_THAT(Append(*upload, ChunkOf(0, true, keys, std::vector<float>(1000, 1))),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("8000"), HasSubstr("4096"), HasSubstr("BINNED"))));
  EXPECT_LE(budgets_.back()->reserved(), 4096);
}

TEST_F(UploadTest, Append_Growing_IsRefusedBeforeMoreIsHeldThanMayBe) {
  for (const uint64_t limit : {80'000, 100'000, 130'000, 200'000}) {
    const auto upload = MakeUpload(SumSpec(1'000'000), limit);
    MemoryBudget& budget = *budgets_.back();
    absl::Status status;
    for (uint64_t i = 0; status.ok() && i < 100; ++i) {
      status = Append(*upload, ChunkOf(i, false, std::vector<uint32_t>(1000, 1), std::vector<float>(1000, 1)));
      ASSERT_LE(budget.reserved(), limit) << "chunk " << i;
    }
    EXPECT_THAT(status, Fails(Code::kResourceExhausted, HasSubstr("an upload to tensor 'v'")));
    // What it copies is held twice while it does that.
    EXPECT_GE(upload->num_bytes(), limit / 2 - 2 * 8000);
  }
}

TEST_F(UploadTest, Append_GrowingWhereMemoryIsShort_TakesNearlyAllThatThereIsAndNoMore) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_tensors(0)->set_row_width(256);
  constexpr uint64_t kLimit = 20 << 20;
  const auto upload = MakeUpload(spec, kLimit);
  MemoryBudget& budget = *budgets_.back();
  constexpr uint32_t kRows = 512;
  uint64_t sequence = 0;
  for (; sequence < 38; ++sequence) {
    ASSERT_THAT(Append(*upload, RowsOf(sequence, kRows)), IsOk()) << sequence;
    ASSERT_LE(budget.reserved(), kLimit);
  }
  EXPECT_THAT(Append(*upload, RowsOf(38, 3 * kRows)), HasCode(Code::kResourceExhausted));
  // It has left to others what it does not hold itself.
  Reservation other(&budget);
  EXPECT_THAT(other.Grow(512 << 10, "another"), IsOk());
}

TEST_F(UploadTest, Append_ImplicitRunThatHasToBeWrittenOut_IsReservedInFull) {
  v1::RoundSpec spec = SumSpec(0);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const auto upload = MakeUpload(spec, /*memory_limit=*/1 << 20);
  ASSERT_THAT(Append(*upload, RunOf(0, 0, 200'000)), IsOk());  // a run takes no memory
  EXPECT_THAT(Append(*upload, RunOf(1, 300'000, 1)), Fails(Code::kResourceExhausted, HasSubstr("1600008")));
}

TEST_F(UploadTest, Append_ImplicitRunThatWouldGoOnBeyondTheLastKey_IsReservedInFull) {
  v1::RoundSpec spec = SumSpec(0);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const auto upload = MakeUpload(spec, /*memory_limit=*/1 << 20);
  ASSERT_THAT(Append(*upload, RunOf(0, UINT64_MAX, 1)), IsOk());
  // Key 0 does not follow, though UINT64_MAX + 1 is 0.
  EXPECT_THAT(Append(*upload, RunOf(1, 0, 200'000)), Fails(Code::kResourceExhausted, HasSubstr("1600008")));
}

TEST_F(UploadTest, Append_UnionWithValues_HoldsTheKeysOnly) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const auto upload = MakeUpload(spec);
  ASSERT_THAT(Append(*upload, ChunkOf(0, true, std::vector<uint32_t>(10'000, 1), std::vector<float>(10'000, 1))),
              IsOk());
  EXPECT_GE(budgets_.back()->reserved(), 40'000);
  EXPECT_LT(budgets_.back()->reserved(), 60'000);
}

TEST_F(UploadTest, Append_AnotherWeightInALaterChunk_IsRefused) {
  const auto upload = MakeUpload(SumSpec());
  v1::UpdateChunk chunk = ChunkOf(0, false, {1}, {1});
  chunk.set_weight(2.0);
  ASSERT_THAT(Append(*upload, chunk), IsOk());
  chunk.set_sequence(1);
  ASSERT_THAT(Append(*upload, chunk), IsOk());
  chunk.set_sequence(2);
  chunk.set_weight(3.0);
  EXPECT_THAT(Append(*upload, chunk), Fails(Code::kInvalidArgument, HasSubstr("chunk 2: weight 3")));
}

TEST_F(UploadTest, Append_RunOfMoreKeysThanThereIsMemoryFor_IsRefusedBeforeAPassOverThem) {
  limits_.max_tuples_per_submission = 0;
  v1::RoundSpec spec = SumSpec(0);
  spec.mutable_aggregation()->set_op(v1::OP_UNION);
  const auto upload = MakeUpload(spec, 1'000'000);
  EXPECT_THAT(Append(*upload, RunOf(0, 0, 250'000)), IsOk());
  EXPECT_THAT(Append(*upload, RunOf(1, 250'000, uint64_t{1} << 62)),
              Fails(Code::kResourceExhausted, HasSubstr("memory for, 250000")));
}

TEST_F(UploadTest, TakeUpdates_KeysPromisedUniqueThatDoNotAscend_ReservesTheCopyThatTells) {
  std::vector<uint32_t> keys(10'000);
  std::iota(keys.rbegin(), keys.rend(), 0);
  v1::UpdateChunk chunk = ChunkOf(0, true, keys, std::vector<float>(keys.size(), 1));
  chunk.mutable_slices(0)->set_keys_unique(true);
  const auto plain = MakeUpload(SumSpec(10'000));
  ASSERT_THAT(Append(*plain, chunk), IsOk());
  const uint64_t held = plain->reservation().bytes();
  const auto refused = MakeUpload(SumSpec(10'000), held + 39'999);
  ASSERT_THAT(Append(*refused, chunk), IsOk());
  EXPECT_THAT(refused->TakeUpdates(), Fails(Code::kResourceExhausted, HasSubstr("repeated keys")));
  const auto taken = MakeUpload(SumSpec(10'000), held + 40'000);
  ASSERT_THAT(Append(*taken, chunk), IsOk());
  EXPECT_THAT(taken->TakeUpdates(), IsOk());
  EXPECT_EQ(taken->reservation().bytes(), held);
}

}  // namespace
}  // namespace sparseagg::service
