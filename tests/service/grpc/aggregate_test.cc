// Whole aggregations and batches in one call, and the pages of results.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class AggregateTest : public ServerFixture {
 protected:
  ~AggregateTest() override {
    // No test may leave a private round behind.
    while (server().context().open_rounds.taken() != 0) std::this_thread::yield();
  }
};

TEST_F(AggregateTest, Aggregate_SameClientTwice_IsADuplicateOrARefusal) {
  const v1::UpdateChunk chunk = MakeChunk("", "a", {1}, {1});
  const auto pages = client().Aggregate(SumSpec(), {chunk, chunk});
  ASSERT_THAT(pages, IsOk());
  EXPECT_THAT(ToMap(*pages), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(client().Aggregate(SumSpec(), {chunk, MakeChunk("", "a", {1}, {2})}),
              Fails(Code::kAlreadyExists, HasSubstr("client 'a'")));
}

TEST_F(AggregateTest, Aggregate_ChunkMissing_IsRefused) {
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1}, 0, false)}),
              Fails(Code::kFailedPrecondition, HasSubstr("client 'a'")));
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1}, 1, true)}),
              Fails(Code::kFailedPrecondition, HasSubstr("chunk 0 is expected next")));
}

TEST_F(AggregateTest, Aggregate_SpecNotFirstOrTwice_IsRefused) {
  for (const bool spec_first : {false, true}) {
    grpc::ClientContext context;
    const auto stream = client().stub().Aggregate(&context);
    v1::AggregateRequest spec;
    *spec.mutable_spec() = SumSpec();
    v1::AggregateRequest chunk;
    *chunk.mutable_chunk() = MakeChunk("", "a", {1}, {1});
    stream->Write(spec_first ? spec : chunk);
    stream->Write(spec);
    stream->WritesDone();
    v1::ResultPage page;
    EXPECT_FALSE(stream->Read(&page));
    EXPECT_THAT(FromGrpc(stream->Finish()), Fails(Code::kInvalidArgument, HasSubstr("first message")));
  }
}

TEST_F(AggregateTest, Aggregate_EmptyStream_IsRefused) {
  grpc::ClientContext context;
  const auto stream = client().stub().Aggregate(&context);
  stream->WritesDone();
  v1::ResultPage page;
  EXPECT_FALSE(stream->Read(&page));
  EXPECT_THAT(FromGrpc(stream->Finish()), Fails(Code::kInvalidArgument, HasSubstr("no spec")));
}

TEST_F(AggregateTest, Aggregate_CancelledWhileMerging_LeavesNothingBehind) {
  // Shared with the hook, which may still run when the test ends.
  const auto finishing = std::make_shared<Event>();
  const auto go = std::make_shared<Event>();
  hooks_.finish = [finishing, go] {
    finishing->Notify();
    go->Wait();
    return absl::OkStatus();
  };
  grpc::ClientContext context;
  const auto stream = client().stub().Aggregate(&context);
  v1::AggregateRequest request;
  *request.mutable_spec() = SumSpec();
  ASSERT_TRUE(stream->Write(request));
  *request.mutable_chunk() = MakeChunk("", "a", {1}, {1});
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  finishing->Wait();
  context.TryCancel();
  EXPECT_THAT(FromGrpc(stream->Finish()), HasCode(Code::kCancelled));
  // The round has ended, although the merge has not.
  while (server().context().open_rounds.taken() != 0) std::this_thread::yield();
  go->Notify();
}

TEST_F(AggregateTest, Aggregate_SpecAsLargeAsMaxTensorsAllows_IsTaken) {
  options_.limits.max_tensors = 5000;
  v1::RoundSpec spec;
  for (int i = 0; i < 4500; ++i) {
    *spec.add_tensors() = SumSpec().tensors(0);
    spec.mutable_tensors(i)->set_name(std::to_string(i) + std::string(240, 'x'));
  }
  ASSERT_GT(spec.ByteSizeLong(), size_t{1} << 20);
  EXPECT_THAT(client().Aggregate(spec, {}), IsOk());
}

TEST_F(AggregateTest, Aggregate_SpecFarBeyondMaxTensors_IsRefusedByTheLimitsName) {
  options_.limits.max_tensors = 3;
  v1::RoundSpec spec = SumSpec();
  spec.mutable_tensors(0)->set_name(std::string(100'000, 'x'));
  EXPECT_THAT(client().Aggregate(spec, {}),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("65536 bytes"), HasSubstr("max_tensors 3"))));
}

TEST_F(AggregateTest, Aggregate_CancelledMidStream_GivesItsMemoryBack) {
  {
    grpc::ClientContext context;
    const auto stream = client().stub().Aggregate(&context);
    v1::AggregateRequest request;
    *request.mutable_spec() = SumSpec();
    ASSERT_TRUE(stream->Write(request));
    *request.mutable_chunk() = MakeChunk("", "a", {1}, {1}, 0, false);
    ASSERT_TRUE(stream->Write(request));
    while (server().context().uploads.taken() == 0) std::this_thread::yield();
    context.TryCancel();
    stream->Finish();
  }
  while (server().context().budget.reserved() != 0) std::this_thread::yield();
  EXPECT_EQ(server().context().uploads.taken(), 0);
}

// ---- SubmitBatch: submissions of many clients in one message.

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

// ---- GetResult and StreamResult: pages, key ranges, tensors.

class ResultsApiTest : public ServerFixture {
 protected:
  // Makes a round with keys 0, 10, 20, … of which each is its own value; tensor "dense" has a dense result.
  std::string Finished() {
    v1::RoundSpec spec = SumSpec(10'000);
    spec.mutable_aggregation()->set_return_counts(true);
    spec.mutable_aggregation()->set_return_weights(true);
    *spec.add_tensors() = spec.tensors(0);
    spec.mutable_tensors(1)->set_name("dense");
    spec.mutable_tensors(1)->mutable_aggregation()->set_result_layout(v1::RESULT_LAYOUT_DENSE);
    const std::string name = Create(spec);
    std::vector<uint32_t> keys;
    std::vector<float> values;
    for (uint32_t key = 0; key < 10'000; key += 10) {
      keys.push_back(key);
      values.push_back(static_cast<float>(key));
    }
    v1::UpdateChunk chunk = MakeChunk(name, "a", keys, values);
    *chunk.add_slices() = chunk.slices(0);
    chunk.mutable_slices(1)->set_tensor("dense");
    EXPECT_THAT(client().SubmitUnary({chunk}), IsOk());
    EXPECT_THAT(client().Finish(name), IsOk());
    return name;
  }
  static v1::GetResultRequest Request(const std::string& name, const std::string& tensor, uint64_t begin = 0,
                                      uint64_t end = 0, uint64_t max_page_bytes = 0) {
    v1::GetResultRequest request;
    request.set_round(name);
    request.set_tensor(tensor);
    if (begin != 0 || end != 0) {
      request.mutable_range()->set_begin(begin);
      request.mutable_range()->set_end(end);
    }
    request.set_max_page_bytes(max_page_bytes);
    return request;
  }
};

TEST_F(ResultsApiTest, GetResult_BadRequest_IsRefused) {
  const std::string name = Finished();
  EXPECT_THAT(client().Page(Request(name, "")), Fails(Code::kInvalidArgument, HasSubstr("2 tensors")));
  EXPECT_THAT(client().Page(Request(name, "w")), Fails(Code::kInvalidArgument, HasSubstr("'dense'")));
  EXPECT_THAT(client().Page(Request(name, "v", 5, 4)), Fails(Code::kInvalidArgument, HasSubstr("range")));
  v1::GetResultRequest request = Request(name, "v", 0, 0, 100);
  request.set_page_token(client().Page(request)->next_page_token());
  EXPECT_THAT(client().Page(request), IsOk());
  request.set_tensor("dense");  // not what the token was given for
  EXPECT_THAT(client().Page(request), Fails(Code::kInvalidArgument, HasSubstr("page_token")));
  request = Request(name, "v");
  request.set_page_token("nonsense");
  EXPECT_THAT(client().Page(request), Fails(Code::kInvalidArgument, HasSubstr("nonsense")));
}

TEST_F(ResultsApiTest, GetResult_TokenOfARoundThatIsGone_IsNotOfTheNextOfItsName) {
  v1::GetResultRequest request = Request(Finished(), "v", 0, 0, 1000);
  const auto page = client().Page(request);
  ASSERT_THAT(page, IsOk());
  request.set_page_token(page->next_page_token());
  EXPECT_THAT(client().Page(request), IsOk());
  ASSERT_THAT(client().Delete(request.round()), IsOk());
  ASSERT_EQ(Finished(), request.round());
  EXPECT_THAT(client().Page(request), Fails(Code::kInvalidArgument, HasSubstr("page_token")));
}

TEST_F(ResultsApiTest, StreamResult_MoreNamesThanAnyRoundHas_IsRefusedUnparsed) {
  options_.limits.max_tensors = 3;
  v1::StreamResultRequest request;
  for (int i = 0; i < 5000; ++i) request.add_tensors("");
  EXPECT_THAT(client().Stream(request),
              Fails(Code::kResourceExhausted, HasSubstr("5000 tensors are beyond the server's max_tensors 3")));
}

TEST_F(ResultsApiTest, GetResult_PageSize_IsCutToTheServersLimit) {
  options_.limits.max_page_bytes = 400;
  const std::string name = Finished();
  EXPECT_EQ(client().Page(Request(name, "v"))->slice().num_keys(), 20);  // of 4 + 4 + 4 + 8 bytes
  EXPECT_EQ(client().Page(Request(name, "v", 0, 0, 1 << 30))->slice().num_keys(), 20);
}

TEST_F(ResultsApiTest, StreamResult_ClientStopsReading_LeavesTheServerWell) {
  const std::string name = Finished();
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    v1::StreamResultRequest request;
    request.set_round(name);
    request.set_max_page_bytes(20);
    const auto reader = client().stub().StreamResult(&context, request);
    v1::ResultPage page;
    EXPECT_TRUE(reader->Read(&page));
    context.TryCancel();
    EXPECT_THAT(FromGrpc(reader->Finish()), HasCode(Code::kCancelled));
  }
  EXPECT_THAT(client().Page(Request(name, "v")), IsOk());
}

TEST_F(ResultsApiTest, GetResult_RoundDeletedWhileAStreamReads_StreamGoesOn) {
  const std::string name = Finished();
  grpc::ClientContext context;
  v1::StreamResultRequest request;
  request.set_round(name);
  request.set_max_page_bytes(500);
  const auto reader = client().stub().StreamResult(&context, request);
  std::vector<v1::ResultPage> pages(1);
  ASSERT_TRUE(reader->Read(&pages[0]));
  ASSERT_THAT(client().Delete(name), IsOk());
  for (v1::ResultPage page; reader->Read(&page); page.Clear()) pages.push_back(page);
  EXPECT_THAT(FromGrpc(reader->Finish()), IsOk());
  EXPECT_EQ(ToMap(pages).size(), 10'000);  // the dense tensor has every key
}

}  // namespace
}  // namespace sparseagg::service
