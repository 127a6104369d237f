// GetResult and StreamResult: pages, key ranges, tensors.
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
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

}  // namespace
}  // namespace sparseagg::service
