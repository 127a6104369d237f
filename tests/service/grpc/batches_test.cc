// SubmitBatch: submissions of many clients in one message.
#include <string>
#include <vector>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class BatchesTest : public ServerFixture {
 protected:
  // Three clients with the tuples (1, 1), (2, 2) | none | (1, 4).
  static v1::SubmitBatchRequest Batch(const std::string& round) {
    v1::SubmitBatchRequest batch;
    batch.set_round(round);
    batch.set_submission_id("s");
    batch.set_client_ids("a\nb\nc");
    *batch.add_slices() = Slice({1, 2, 1}, {1, 2, 4});
    batch.set_num_keys(Packed<uint32_t>({2, 0, 1}));
    return batch;
  }
  absl::StatusOr<v1::SubmitBatchResponse> Submit(const v1::SubmitBatchRequest& batch) {
    grpc::ClientContext context;
    v1::SubmitBatchResponse answer;
    const grpc::Status status = client().stub().SubmitBatch(&context, batch, &answer);
    if (!status.ok()) return FromGrpc(status);
    return answer;
  }
};

TEST_F(BatchesTest, BadSubmissions_AreRefusedByThemselves) {
  const std::string name = Create(SumSpec());
  ASSERT_THAT(client().SubmitStream({MakeChunk(name, "c", {9}, {9})}), IsOk());
  v1::SubmitBatchRequest batch = Batch(name);
  batch.mutable_slices(0)->set_keys(Packed<uint32_t>({1, 200, 1}));
  const auto answer = Submit(batch);
  ASSERT_THAT(answer, IsOk());
  ASSERT_EQ(answer->codes().size(), 3);
  EXPECT_EQ(answer->codes()[0], static_cast<char>(Code::kInvalidArgument));
  EXPECT_EQ(answer->codes()[1], 0);
  EXPECT_EQ(answer->codes()[2], static_cast<char>(Code::kAlreadyExists));
  ASSERT_EQ(answer->refusals_size(), 2);
  EXPECT_EQ(answer->refusals(0).client_id(), "a");
  EXPECT_THAT(answer->refusals(0).reason(), HasSubstr("position 1: key 200 is not below num_rows 100"));
  EXPECT_EQ(answer->refusals(1).index(), 2);
  EXPECT_EQ(client().Get(name)->num_submissions(), 2);
  EXPECT_EQ(client().Get(name)->num_uploads(), 0);
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(9, 9)));
}

TEST_F(BatchesTest, ManyRefusals_HaveTheReasonsOfTheFirstTwenty) {
  v1::SubmitBatchRequest batch;
  batch.set_round(Create(SumSpec()));
  batch.set_submission_id("s");
  std::vector<uint32_t> keys;
  for (int i = 0; i < 500; ++i) {
    batch.mutable_client_ids()->append((i > 0 ? "\nc" : "c") + std::to_string(i));
    keys.push_back(100);
  }
  *batch.add_slices() = Slice(keys, std::vector<float>(keys.size()));
  batch.set_num_keys(Packed(std::vector<uint32_t>(keys.size(), 1)));
  const auto answer = Submit(batch);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->codes(), std::string(500, static_cast<char>(Code::kInvalidArgument)));
  EXPECT_EQ(answer->refusals_size(), 20);
}

TEST_F(BatchesTest, ColumnsThatDoNotAgree_AreRefusedAsAWhole) {
  const std::string name = Create(SumSpec());
  const auto expect = [&](const char* text, auto change) {
    v1::SubmitBatchRequest batch = Batch(name);
    change(batch);
    EXPECT_THAT(Submit(batch), Fails(Code::kInvalidArgument, HasSubstr(text)));
  };
  expect("num_keys has 8 bytes, where 3 client ids and 1 slices need 12", [](auto& batch) {
    batch.set_num_keys(Packed<uint32_t>({2, 1}));
  });
  expect("12 bytes of keys for 4 keys", [](auto& batch) { batch.set_num_keys(Packed<uint32_t>({2, 1, 1})); });
  expect("10 bytes of values for 3 keys", [](auto& batch) { batch.mutable_slices(0)->set_values(std::string(10, 0)); });
  expect("12 bytes of values for 0 keys", [](auto& batch) {
    batch.set_num_keys(Packed<uint32_t>({0, 0, 0}));
    batch.mutable_slices(0)->clear_keys();
  });
  expect("weights has 8 bytes for 3 client ids", [](auto& batch) { batch.set_weights(std::string(8, 0)); });
  expect("keys must be U32, U64 or IMPLICIT",
         [](auto& batch) { batch.mutable_slices(0)->set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED); });
  expect("values must not be INT8_SCALED",
         [](auto& batch) { batch.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_INT8_SCALED); });
  expect("there are two slices", [](auto& batch) {
    *batch.add_slices() = batch.slices(0);
    batch.set_num_keys(batch.num_keys() + batch.num_keys());
  });
  expect("client_id", [](auto& batch) { batch.set_client_ids("a\n\nc"); });
  expect("client_id", [](auto& batch) { batch.set_client_ids("a\nb\tb\nc"); });
  expect("submission_id", [](auto& batch) { batch.clear_submission_id(); });
  expect("keys without bytes", [](auto& batch) {
    batch.set_num_keys(Packed<uint32_t>({UINT32_MAX, UINT32_MAX, UINT32_MAX}));
    batch.mutable_slices(0)->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
    batch.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_NONE);
    batch.mutable_slices(0)->clear_keys();
    batch.mutable_slices(0)->clear_values();
  });
  EXPECT_EQ(client().Get(name)->num_submissions(), 0);
  EXPECT_THAT(Submit(Batch("rounds/none")), HasCode(Code::kNotFound));
}

TEST_F(BatchesTest, TooManySubmissions_AreRefused) {
  v1::SubmitBatchRequest batch;
  batch.set_round(Create(SumSpec()));
  batch.set_submission_id("s");
  batch.set_client_ids("c" + std::string(16384, '\n'));
  EXPECT_THAT(Submit(batch), Fails(Code::kInvalidArgument, HasSubstr("a batch of 16385 submissions")));
}

TEST_F(BatchesTest, ClosedRound_RefusesAndAcknowledgesWhatItHas) {
  const std::string name = Create(SumSpec());
  ASSERT_THAT(Submit(Batch(name)), IsOk());
  ASSERT_THAT(client().Finish(name), IsOk());
  v1::SubmitBatchRequest batch = Batch(name);
  batch.set_client_ids("a\nnew\nc");
  const auto answer = Submit(batch);
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->num_duplicates(), 2);
  EXPECT_EQ(answer->codes()[1], static_cast<char>(Code::kFailedPrecondition));
}

}  // namespace
}  // namespace sparseagg::service
