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

class SubmissionsApiTest : public ServerFixture {};

TEST_F(SubmissionsApiTest, List_LongIds_ComeInPagesThatAClientTakes) {
  const std::string round = Create(SumSpec());
  constexpr int kClients = 1100;
  for (int i = 0; i < kClients; ++i) {
    v1::UpdateChunk chunk = MakeChunk(round, absl::StrCat(1000 + i, std::string(252, 'x')), {}, {});
    chunk.set_submission_id(std::string(256, 'y'));
    ASSERT_THAT(client().SubmitUnary({chunk}), IsOk());
  }
  v1::ListSubmissionsRequest request;
  request.set_parent(round);
  request.set_page_size(1'000'000);
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

TEST_F(SubmissionsApiTest, CloseRound_ListBeyondTheLimits_IsRefusedBeforeItIsParsed) {
  options_.limits.max_message_bytes = 1 << 20;
  options_.limits.memory_limit_bytes = uint64_t{256} << 20;
  const std::string name = Create(SumSpec());
  // Empty ids take two bytes on the wire, and sixty in memory.
  EXPECT_THAT(client().Close(name, std::vector<std::string>(500'000)),
              Fails(Code::kResourceExhausted, AllOf(HasSubstr("500001 ids"), HasSubstr("memory limit"))));
  EXPECT_THAT(client().Close(name, std::vector<std::string>(5'000, std::string(250, 'x'))),
              Fails(Code::kResourceExhausted, HasSubstr("max_message_bytes 1048576")));
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_OPEN);
}

}  // namespace
}  // namespace sparseagg::service
