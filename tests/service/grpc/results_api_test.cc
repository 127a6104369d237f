// GetResult and StreamResult: pages, key ranges, tensors.
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

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
    spec.mutable_tensors(1)->mutable_aggregation()->set_fill(-1.0);
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
    request.set_name(name);
    request.set_tensor(tensor);
    if (begin != 0 || end != 0) {
      request.mutable_range()->set_begin(begin);
      request.mutable_range()->set_end(end);
    }
    request.set_max_page_bytes(max_page_bytes);
    return request;
  }
};

TEST_F(ResultsApiTest, GetResult_SmallPages_AddUpToTheSame) {
  const std::string name = Finished();
  for (const std::string tensor : {"v", "dense"}) {
    const auto whole = client().Pages(Request(name, tensor));
    ASSERT_THAT(whole, IsOk());
    for (const uint64_t max_page_bytes : {1, 20, 1000, 7777}) {
      // 10,000 and 2000 calls: a connection may make 4096 in a moment.
      if (max_page_bytes < 1000 && tensor == "dense") continue;
      const auto pages = client().Pages(Request(name, tensor, 0, 0, max_page_bytes));
      ASSERT_THAT(pages, IsOk());
      EXPECT_GT(pages->size(), 1);
      EXPECT_EQ(ToMap(*pages), ToMap(*whole));
      std::string counts;
      std::string weights;
      for (const v1::ResultPage& page : *pages) {
        EXPECT_TRUE(page.slice().num_keys() == 1 || page.ByteSizeLong() < max_page_bytes + 200);
        counts += page.counts();
        weights += page.weights();
      }
      EXPECT_EQ(counts, whole->front().counts());
      EXPECT_EQ(weights, whole->front().weights());
    }
  }
}

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
  ASSERT_THAT(client().Delete(request.name()), IsOk());
  ASSERT_EQ(Finished(), request.name());
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

TEST_F(ResultsApiTest, GetResult_NotDone_SaysWhy) {
  v1::RoundSpec spec = SumSpec();
  spec.set_min_submissions(1);
  const std::string name = Create(spec);
  EXPECT_THAT(client().Page(Request(name, "v")), Fails(Code::kFailedPrecondition, HasSubstr("OPEN")));
  EXPECT_THAT(client().Finish(name), IsOk());
  EXPECT_THAT(client().Page(Request(name, "v")), Fails(Code::kFailedPrecondition, HasSubstr("min_submissions 1")));
}

TEST_F(ResultsApiTest, StreamResult_AllTensors_ComeInTheOrderOfTheSpec) {
  const std::string name = Finished();
  v1::StreamResultRequest request;
  request.set_name(name);
  request.set_max_page_bytes(5'000);
  const auto pages = client().Stream(request);
  ASSERT_THAT(pages, IsOk());
  std::vector<v1::ResultPage> first;
  std::vector<v1::ResultPage> second;
  for (const v1::ResultPage& page : *pages) {
    EXPECT_TRUE(page.slice().tensor() == "dense" || second.empty());
    (page.slice().tensor() == "v" ? first : second).push_back(page);
  }
  EXPECT_EQ(ToMap(first), ToMap(*client().Pages(Request(name, "v"))));
  EXPECT_EQ(ToMap(second), ToMap(*client().Pages(Request(name, "dense"))));
  EXPECT_TRUE(first.front().has_summary());
  EXPECT_TRUE(second.front().has_summary());
  EXPECT_FALSE(second.back().has_summary());
  EXPECT_EQ(second.back().next_page_token(), "");
}

TEST_F(ResultsApiTest, StreamResult_ChosenTensorsAndRange_GivesThose) {
  const std::string name = Finished();
  v1::StreamResultRequest request;
  request.set_name(name);
  request.add_tensors("dense");
  request.mutable_range()->set_begin(30);
  request.mutable_range()->set_end(32);
  const auto pages = client().Stream(request);
  ASSERT_THAT(pages, IsOk());
  EXPECT_THAT(ToMap(*pages), ElementsAre(Pair(30, 30), Pair(31, -1)));
  request.add_tensors("nope");
  EXPECT_THAT(client().Stream(request), Fails(Code::kInvalidArgument, HasSubstr("'nope'")));
  request.add_tensors("dense");
  EXPECT_THAT(client().Stream(request), Fails(Code::kInvalidArgument, HasSubstr("3 tensors")));
  request.clear_tensors();
  request.mutable_range()->set_end(1);
  EXPECT_THAT(client().Stream(request), Fails(Code::kInvalidArgument, HasSubstr("range")));
}

TEST_F(ResultsApiTest, StreamResult_ClientStopsReading_LeavesTheServerWell) {
  const std::string name = Finished();
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    v1::StreamResultRequest request;
    request.set_name(name);
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
  request.set_name(name);
  request.set_max_page_bytes(500);
  const auto reader = client().stub().StreamResult(&context, request);
  std::vector<v1::ResultPage> pages(1);
  ASSERT_TRUE(reader->Read(&pages[0]));
  ASSERT_THAT(client().Delete(name), IsOk());
  for (v1::ResultPage page; reader->Read(&page); page.Clear()) pages.push_back(page);
  EXPECT_THAT(FromGrpc(reader->Finish()), IsOk());
  EXPECT_EQ(ToMap(pages).size(), 10'000);  // the dense tensor has every key
}

TEST_F(ResultsApiTest, Format_OfAnUnknownValueEncoding_IsRefusedByAllCalls) {
  const std::string name = Finished();
  v1::ResultFormat format;
  format.set_value_encoding(static_cast<v1::ValueEncoding>(42));
  const auto refused = Fails(Code::kInvalidArgument, HasSubstr("format.value_encoding 42"));
  v1::GetResultRequest page = Request(name, "v");
  *page.mutable_format() = format;
  EXPECT_THAT(client().Page(page), refused);
  v1::StreamResultRequest stream;
  stream.set_name(name);
  *stream.mutable_format() = format;
  EXPECT_THAT(client().Stream(stream), refused);
  EXPECT_THAT(client().Aggregate(SumSpec(), {MakeChunk("", "a", {1}, {1})}, format), refused);
}

TEST_F(ResultsApiTest, Format_Packed_IsTheSameInPagesAndStreams) {
  const std::string name = Finished();
  v1::GetResultRequest request = Request(name, "v", 100, 9'000, /*max_page_bytes=*/2'000);
  request.mutable_format()->add_key_encodings(v1::KEY_ENCODING_DELTA_BITPACKED);
  request.mutable_format()->set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
  const auto pages = client().Pages(request);
  ASSERT_THAT(pages, IsOk());
  v1::StreamResultRequest stream;
  stream.set_name(name);
  stream.add_tensors("v");
  *stream.mutable_range() = request.range();
  stream.set_max_page_bytes(request.max_page_bytes());
  *stream.mutable_format() = request.format();
  const auto streamed = client().Stream(stream);
  ASSERT_THAT(streamed, IsOk());
  ASSERT_EQ(pages->size(), streamed->size());
  ASSERT_GT(pages->size(), 5);
  for (size_t i = 0; i < pages->size(); ++i) {
    const v1::TensorSlice& slice = (*pages)[i].slice();
    EXPECT_EQ(slice.SerializeAsString(), (*streamed)[i].slice().SerializeAsString());
    EXPECT_EQ(slice.key_encoding(), v1::KEY_ENCODING_DELTA_BITPACKED);
    EXPECT_EQ(slice.value_encoding(), v1::VALUE_ENCODING_FLOAT16);
    EXPECT_LT(slice.keys().size(), slice.num_keys()) << "gaps of 4 bits";
    EXPECT_EQ(slice.values().size(), 2 * slice.num_keys());
  }
}

}  // namespace
}  // namespace sparseagg::service
