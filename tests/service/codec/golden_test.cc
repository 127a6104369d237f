// Golden vectors: bytes in, bits out. The same file is replayed by the Python tests.
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "golden.pb.h"
#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

golden::GoldenSuite Suite() {
  std::ostringstream text;
  text << std::ifstream(SPARSEAGG_GOLDEN_JSON).rdbuf();
  golden::GoldenSuite suite;
  const auto status = google::protobuf::util::JsonStringToMessage(text.str(), &suite);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return suite;
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  const golden::GoldenSuite suite = Suite();
  for (const golden::GoldenCase& c : suite.cases()) names.push_back(c.name());
  return names;
}

class GoldenTest : public ServerFixture, public ::testing::WithParamInterface<std::string> {
 protected:
  static const golden::GoldenCase& Case() {
    static const golden::GoldenSuite suite = Suite();
    for (const golden::GoldenCase& c : suite.cases()) {
      if (c.name() == GetParam()) return c;
    }
    static const golden::GoldenCase none;
    ADD_FAILURE();
    return none;
  }

  static std::vector<v1::UpdateChunk> Chunks(const std::string& round) {
    std::vector<v1::UpdateChunk> chunks;
    for (const std::string& bytes : Case().chunks()) {
      EXPECT_TRUE(chunks.emplace_back().ParseFromString(bytes));
      chunks.back().set_round(round);
    }
    return chunks;
  }

  // The first refusal, after which the rest of that client's chunks is left out.
  absl::Status Replay(const std::vector<v1::UpdateChunk>& chunks) {
    absl::Status refusal;
    std::string refused_client;
    for (const v1::UpdateChunk& chunk : chunks) {
      if (!refused_client.empty() && chunk.client_id() == refused_client) continue;
      absl::Status status = client().Put(chunk).status();
      if (status.ok() && chunk.last()) status = client().Commit(chunk).status();
      if (status.ok()) continue;
      EXPECT_THAT(refusal, IsOk()) << "a second refusal: " << status;
      refusal = status;
      refused_client = chunk.client_id();
    }
    return refusal;
  }

  void ExpectPage(const v1::ResultPage& page, const v1::ResultPage& expected) {
    EXPECT_EQ(page.next_page_token(), "");
    const v1::TensorSlice& slice = page.slice();
    EXPECT_EQ(slice.tensor(), expected.slice().tensor());
    EXPECT_EQ(slice.key_encoding(), expected.slice().key_encoding());
    EXPECT_EQ(slice.value_encoding(), expected.slice().value_encoding());
    EXPECT_EQ(slice.first_key(), expected.slice().first_key());
    EXPECT_EQ(slice.num_keys(), expected.slice().num_keys());
    EXPECT_EQ(slice.keys(), expected.slice().keys());
    EXPECT_EQ(slice.values(), expected.slice().values());
    EXPECT_EQ(page.counts(), expected.counts());
    EXPECT_EQ(page.weights(), expected.weights());
    EXPECT_EQ(page.summary().SerializeAsString(), expected.summary().SerializeAsString())
        << page.summary().DebugString() << "instead of\n"
        << expected.summary().DebugString();
  }

  void ExpectRefusal(const absl::Status& status) {
    EXPECT_EQ(static_cast<int>(status.code()), Case().expected_code()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Case().expected_message_contains()));
  }
};

TEST_P(GoldenTest, Replay_OverUnaryCalls_GivesTheExpectedBits) {
  const auto round = client().Create(Case().spec(), "golden");
  if (!round.ok()) return ExpectRefusal(round.status());
  const absl::Status refusal = Replay(Chunks(round->name()));
  const auto finished = client().Finish(round->name());
  ASSERT_THAT(finished, IsOk());
  if (finished->state() == v1::ROUND_STATE_FAILED) {
    EXPECT_THAT(refusal, IsOk());
    EXPECT_THAT(finished->state_reason(), HasSubstr(Case().expected_message_contains()));
    EXPECT_NE(Case().expected_code(), 0);
    return;
  }
  ExpectRefusal(refusal);
  if (Case().expected().empty()) return;
  v1::StreamResultRequest request;
  request.set_name(round->name());
  request.set_max_page_bytes(1 << 30);
  *request.mutable_format() = Case().format();
  const auto pages = client().Stream(request);
  ASSERT_THAT(pages, IsOk());
  ASSERT_EQ(pages->size(), Case().expected_size());
  for (size_t t = 0; t < pages->size(); ++t) ExpectPage((*pages)[t], Case().expected(static_cast<int>(t)));
}

TEST_P(GoldenTest, Replay_AsOneCall_GivesTheSameBits) {
  const auto pages = client().Aggregate(Case().spec(), Chunks(""), Case().format());
  if (Case().expected_code() != 0) return ExpectRefusal(pages.status());
  ASSERT_THAT(pages, IsOk());
  ASSERT_EQ(pages->size(), Case().expected_size());
  for (size_t t = 0; t < pages->size(); ++t) ExpectPage((*pages)[t], Case().expected(static_cast<int>(t)));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, ::testing::ValuesIn(CaseNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace sparseagg::service
