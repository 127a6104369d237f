#include "service/rounds/submission_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SubmissionTableTest : public ::testing::Test {
 protected:
  void Insert(const std::string& client, const std::string& id, uint64_t num_tuples) {
    SubmissionTable::Map records;
    CommittedSubmission& record = records[client];
    record.receipt = {client, id, /*duplicate=*/false, num_tuples, 10 * num_tuples};
    record.num_chunks = 2;
    record.chunk_hashes = {{1, 1}, {2, 2}};
    record.tag = "tag of " + id;
    table_.Insert(records.extract(client));
  }
  std::vector<std::string> List(const char* after, size_t max_size) const {
    const absl::string_view client = after == nullptr ? "" : after;
    std::vector<std::string> clients;
    for (const Receipt& receipt : table_.List(after == nullptr ? nullptr : &client, max_size)) {
      clients.push_back(receipt.client_id);
    }
    return clients;
  }

  SubmissionTable table_;
};

TEST_F(SubmissionTableTest, Find_ByFirstIdAndLatestRetry) {
  Insert("client", "first", 3);
  table_.SetRetry("client", "second", "tag 2", {});
  table_.SetRetry("client", "third", "tag 3", {{1, 2}});
  EXPECT_EQ(table_.Find("client")->progress().received_tuples, 3);
  EXPECT_NE(table_.Find("client", "first"), nullptr);
  EXPECT_EQ(table_.Find("client", "second"), nullptr);
  EXPECT_NE(table_.Find("client", "third"), nullptr);
  EXPECT_EQ(table_.Find("other"), nullptr);
  EXPECT_TRUE(table_.HasUpload({"client", "first"}, "tag of first"));
  EXPECT_TRUE(table_.HasUpload({"client", "third"}, "tag 3"));
  EXPECT_FALSE(table_.HasUpload({"client", "third"}, "tag of first"));
  EXPECT_EQ(table_.Find("client")->ChunkHashesOf("first", "tag of first").size(), 2);
  EXPECT_EQ(table_.Find("client")->ChunkHashesOf("third", "tag 3").size(), 1);
  table_.SetRetry("client", "fourth", "tag 4", {{1, 2}, {3, 4}, {5, 6}});  // more than there is memory for
  EXPECT_THAT(table_.Find("client")->ChunkHashesOf("fourth", "tag 4"), IsEmpty());
  EXPECT_FALSE(table_.HasUpload({"other", "first"}, "tag of first"));
}

TEST_F(SubmissionTableTest, List_PagesInOrderOfClients) {
  for (const char* client : {"c", "a", "b"}) Insert(client, "s", 1);
  EXPECT_THAT(List(nullptr, 2), ElementsAre("a", "b"));
  EXPECT_THAT(List("a", 2), ElementsAre("b", "c"));
  EXPECT_THAT(List("bb", 2), ElementsAre("c"));
  EXPECT_THAT(List("c", 2), IsEmpty());
}

TEST_F(SubmissionTableTest, Figures_FollowWithdrawals_NotDrops) {
  Insert("a", "s", 1);
  Insert("b", "s", 2);
  SubmissionTable::Map withdrawn;
  table_.Withdraw("a", withdrawn);
  EXPECT_EQ(withdrawn.size(), 1);
  table_.DropAll();
  EXPECT_EQ(table_.size(), 0);
  EXPECT_EQ(table_.num_submissions(), 1);
  EXPECT_EQ(table_.num_tuples(), 2);
  EXPECT_EQ(table_.num_bytes(), 20);
  EXPECT_EQ(table_.num_withdrawn(), 1);
  EXPECT_EQ(table_.TakeDropped().size(), 1);
  EXPECT_THAT(table_.TakeDropped(), IsEmpty());
}

}  // namespace
}  // namespace sparseagg::service
