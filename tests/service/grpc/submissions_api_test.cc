// The calls about committed submissions: ListSubmissions, WithdrawSubmission, and CloseRound with a list.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class SubmissionsApiTest : public ServerFixture {
 protected:
  // A round with a submission {7: value} of each client "0", "1", …
  std::string CreateWith(const std::vector<float>& values) {
    const std::string round = Create(SumSpec());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_THAT(client().SubmitUnary({MakeChunk(round, absl::StrCat(i), {7}, {values[i]})}), IsOk());
    }
    return round;
  }
  static v1::ListSubmissionsRequest List(const std::string& round, int page_size = 0) {
    v1::ListSubmissionsRequest request;
    request.set_parent(round);
    request.set_page_size(page_size);
    return request;
  }
};

TEST_F(SubmissionsApiTest, List_LongIds_ComeInPagesThatAClientTakes) {
  const std::string round = Create(SumSpec());
  constexpr int kClients = 1100;
  for (int i = 0; i < kClients; ++i) {
    v1::UpdateChunk chunk = MakeChunk(round, absl::StrCat(1000 + i, std::string(252, 'x')), {}, {});
    chunk.set_submission_id(std::string(256, 'y'));
    ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  }
  v1::ListSubmissionsRequest request = List(round, 1'000'000);
  int seen = 0;
  int pages = 0;
  do {
    const auto page = client().Submissions(request);
    ASSERT_THAT(page, IsOk());
    EXPECT_LE(page->ByteSizeLong(), 1 << 20);
    for (const v1::Submission& submission : page->submissions()) {
      EXPECT_EQ(submission.client_id().substr(0, 4), absl::StrCat(1000 + seen++));
    }
    request.set_page_token(page->next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, kClients);
  EXPECT_EQ(pages, 2);
}

TEST_F(SubmissionsApiTest, List_BadRequests_AreRefused) {
  const std::string round = CreateWith({1});
  EXPECT_THAT(client().Submissions(List(round, -1)), Fails(Code::kInvalidArgument, HasSubstr("page_size -1")));
  EXPECT_THAT(client().Submissions(List("rounds/none")), HasCode(Code::kNotFound));
  v1::ListSubmissionsRequest request = List(round);
  request.set_page_token("17.a");
  EXPECT_THAT(client().Submissions(request), Fails(Code::kInvalidArgument, HasSubstr("page_token '17.a'")));
}

TEST_F(SubmissionsApiTest, Withdraw_OpenRound_TakesTheSubmissionOut) {
  const std::string round = CreateWith({1, 2, 4});
  const auto withdraw = [&](const std::string& id, const std::string& submission) {
    const auto withdrawn = client().Withdraw(round, id, submission);
    EXPECT_THAT(withdrawn, IsOk());
    return withdrawn.ok() && *withdrawn;
  };
  EXPECT_FALSE(withdraw("1", "another"));
  EXPECT_TRUE(withdraw("1", "1-1"));
  EXPECT_FALSE(withdraw("1", ""));
  EXPECT_TRUE(withdraw("2", ""));
  EXPECT_THAT(client().SubmitUnary({MakeChunk(round, "2", {7}, {8})}), IsOk());
  EXPECT_EQ(client().Get(round)->num_submissions(), 2);
  EXPECT_THAT(ResultOf(round), ElementsAre(Pair(7, 9)));
  EXPECT_THAT(client().Withdraw(round, "2"), Fails(Code::kFailedPrecondition, HasSubstr("DONE")));
  EXPECT_THAT(client().Withdraw(round, ""), Fails(Code::kInvalidArgument, HasSubstr("client_id")));
  EXPECT_THAT(client().Withdraw("rounds/none", "1"), HasCode(Code::kNotFound));
}

TEST_F(SubmissionsApiTest, SealAndInspect_ThenClientWeights) {
  const std::string name = CreateWith({1, 2, 4});
  v1::InspectRoundRequest request;
  request.set_name(name);
  EXPECT_THAT(client().Inspect(request), Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  EXPECT_THAT(client().CloseWithWeights(name, {{"0", 1}, {"1", 1}, {"2", 1}}), HasCode(Code::kFailedPrecondition));
  const auto sealed = client().Seal(name);
  ASSERT_THAT(sealed, IsOk());
  EXPECT_EQ(sealed->state(), v1::ROUND_STATE_SEALED);
  EXPECT_EQ(sealed->num_submissions(), 3);
  EXPECT_FALSE(sealed->has_close_time());
  EXPECT_EQ(client().Wait(name, absl::Milliseconds(10))->state(), v1::ROUND_STATE_SEALED);
  EXPECT_THAT(client().Withdraw(name, "1"), Fails(Code::kFailedPrecondition, "the round is SEALED"));
  const auto page = client().Inspect(request);
  ASSERT_THAT(page, IsOk());
  EXPECT_EQ(page->num_clients(), 3);
  EXPECT_THAT(page->client_ids(), ElementsAre("0", "1", "2"));
  EXPECT_THAT(Unpacked<double>(page->gram()), ElementsAre(1, 2, 4, 4, 8, 16));
  EXPECT_THAT(Unpacked<double>(page->squared_distances()), ElementsAre(0, 1, 0, 9, 4, 0));
  EXPECT_THAT(Unpacked<uint64_t>(page->overlap()), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_EQ(page->next_page_token(), "");
  request.add_tensors("x");
  EXPECT_THAT(client().Inspect(request), Fails(Code::kInvalidArgument, HasSubstr("'x'")));
  request.set_tensors(0, "v");
  request.set_max_page_bytes(1);
  int rows = 0;
  do {
    const auto next = client().Inspect(request);
    ASSERT_THAT(next, IsOk());
    EXPECT_EQ(next->first_row(), rows);
    rows += next->client_ids_size();
    request.set_page_token(next->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(rows, 3);
  EXPECT_THAT(client().CloseWithWeights(name, {{"0", 1}, {"1", 1}, {"", 1}}),
              Fails(Code::kInvalidArgument, HasSubstr("client_weights")));
  EXPECT_THAT(client().CloseWithWeights(name, {{"0", 1}, {"1", 1}, {"2", 1}, {"3", 1}}),
              Fails(Code::kInvalidArgument, HasSubstr("client '3'")));
  v1::CloseRoundRequest both;
  both.set_name(name);
  both.add_only_client_ids("0");
  both.add_client_weights()->set_client_id("0");
  grpc::ClientContext context;
  v1::Round round;
  EXPECT_THAT(FromGrpc(client().stub().CloseRound(&context, both, &round)),
              Fails(Code::kInvalidArgument, HasSubstr("exclude each other")));
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_SEALED);
  ASSERT_THAT(client().CloseWithWeights(name, {{"0", 3}, {"1", 0}, {"2", 0.5}}), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(7, 5)));
  EXPECT_THAT(client().Seal(name), Fails(Code::kFailedPrecondition, "the round is DONE"));
}

TEST_F(SubmissionsApiTest, ExportSubmissions_StreamsPages) {
  const std::string name = CreateWith({1, 2, 4});
  v1::ExportSubmissionsRequest request;
  request.set_name(name);
  request.set_max_page_bytes(30);  // one submission: a head of 14 bytes, a row of 8
  const auto stream = [&](std::vector<v1::ExportedSubmissions>* pages) {
    grpc::ClientContext context;
    const auto reader = client().stub().ExportSubmissions(&context, request);
    v1::ExportedSubmissions page;
    while (reader->Read(&page)) pages->push_back(page);
    return FromGrpc(reader->Finish());
  };
  std::vector<v1::ExportedSubmissions> pages;
  EXPECT_THAT(stream(&pages), Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  ASSERT_THAT(client().Seal(name), IsOk());
  ASSERT_THAT(stream(&pages), IsOk());
  ASSERT_EQ(pages.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pages[i].client_ids(), absl::StrCat(i));
    EXPECT_THAT(Unpacked<double>(pages[i].weights()), ElementsAre(1));
    EXPECT_THAT(Unpacked<uint32_t>(pages[i].num_keys()), ElementsAre(1));
    EXPECT_EQ(pages[i].slice().tensor(), "v");
    EXPECT_THAT(Unpacked<uint32_t>(pages[i].slice().keys()), ElementsAre(7));
    EXPECT_THAT(Unpacked<float>(pages[i].slice().values()), ElementsAre(1 << i));
  }
  // It goes on at a token, as after a break of the stream.
  request.set_page_token(pages[0].next_page_token());
  std::vector<v1::ExportedSubmissions> rest;
  ASSERT_THAT(stream(&rest), IsOk());
  ASSERT_EQ(rest.size(), 2);
  EXPECT_EQ(rest[0].SerializeAsString(), pages[1].SerializeAsString());
  request.set_by_place(true);
  request.set_max_page_bytes(26);  // two submissions by place: a byte of bits, and 12 of each
  request.clear_page_token();
  std::vector<v1::ExportedSubmissions> by_place;
  ASSERT_THAT(stream(&by_place), IsOk());
  ASSERT_EQ(by_place.size(), 2);
  EXPECT_EQ(by_place[0].client_ids() + by_place[0].weights(), "");
  EXPECT_EQ(by_place[0].has_rows(), "\x03");
  EXPECT_EQ(by_place[1].first_place(), 2);
  EXPECT_EQ(by_place[1].end_place(), 3);
  EXPECT_EQ(by_place[1].num_submissions(), 3);
  EXPECT_THAT(Unpacked<uint32_t>(by_place[1].num_keys()), ElementsAre(1));
  request.set_tensor("x");
  EXPECT_THAT(stream(&rest), Fails(Code::kInvalidArgument, HasSubstr("'x'")));
  request.set_name("rounds/none");
  EXPECT_THAT(stream(&rest), HasCode(Code::kNotFound));
}

// More than the 4 KiB of other requests.
TEST_F(SubmissionsApiTest, CloseRound_LongList_IsTaken) {
  const std::string name = Create(SumSpec());
  std::vector<std::string> only;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = absl::StrCat("client-", i);
    ASSERT_THAT(client().SubmitUnary({MakeChunk(name, id, {7}, {1})}), IsOk());
    if (i % 2 == 0) only.push_back(id);
  }
  ASSERT_THAT(client().Close(name, only), IsOk());
  EXPECT_THAT(ResultOf(name), ElementsAre(Pair(7, 500)));
}

// Such as a newer client's way to say who counts.
TEST_F(SubmissionsApiTest, CloseRound_UnknownField_ClosesNothing) {
  const std::string name = CreateWith({1, 2});
  for (const size_t size : {size_t{1}, size_t{10'000}}) {  // larger than a message without a list
    v1::CloseRoundRequest request;
    request.set_name(name);
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, std::string(size, 'x'));
    grpc::ClientContext context;
    v1::Round round;
    EXPECT_THAT(
        FromGrpc(client().stub().CloseRound(&context, request, &round)),
        Fails(Code::kInvalidArgument, "unknown field 99 in CloseRoundRequest: this server is older than the client"));
    EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_OPEN);
  }
}

TEST_F(SubmissionsApiTest, CloseRound_ListBeyondTheLimits_IsRefusedBeforeItIsParsed) {
  options_.limits.max_message_bytes = 1 << 20;
  options_.limits.memory_limit_bytes = uint64_t{256} << 20;
  const std::string name = CreateWith({1});
  // Empty ids take two bytes on the wire, and sixty in memory.
  EXPECT_THAT(client().Close(name, std::vector<std::string>(500'000)),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("500001 ids"), HasSubstr("memory limit"))));
  EXPECT_THAT(client().Close(name, std::vector<std::string>(5'000, std::string(250, 'x'))),
              Fails(Code::kResourceExhausted, HasSubstr("max_message_bytes 1048576")));
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_OPEN);
}

}  // namespace
}  // namespace sparseagg::service
