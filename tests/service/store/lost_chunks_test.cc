// A server after the end of its machine: the database has what its log had, and files of chunks lack what no sync had
// written. Tests cut or change such a file between two servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tests/service/support/stored_server.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint64_t kNumRows = 40'000;

class LostChunksTest : public StoredServer {
 protected:
  explicit LostChunksTest(Durability durability = Durability::kAsync) : StoredServer(durability) {}

  std::string Create() {
    const auto round = client().Create(SumSpec(kNumRows), "r");
    EXPECT_THAT(round, IsOk());
    return round.ok() ? round->name() : "";
  }
  // A chunk that goes to a file: 80 KB of values and as much of keys.
  static v1::UpdateChunk Large(const std::string& name, const std::string& who, float value, uint64_t sequence = 0,
                               bool last = true) {
    std::vector<uint32_t> keys(kNumRows / 2);
    std::iota(keys.begin(), keys.end(), static_cast<uint32_t>(sequence * keys.size()));
    return MakeChunk(name, who, keys, std::vector<float>(keys.size(), value), sequence, last);
  }
  std::string ChunkFile() const {
    for (const auto& entry : std::filesystem::directory_iterator(options_.data_dir + "/chunks")) return entry.path();
    return "";
  }
  // Cuts the last byte of the latest chunk.
  void Cut() const { std::filesystem::resize_file(ChunkFile(), std::filesystem::file_size(ChunkFile()) - 1); }
};

class SyncedChunksTest : public LostChunksTest {
 protected:
  SyncedChunksTest() : LostChunksTest(Durability::kSync) {}
};

TEST_F(LostChunksTest, HalfDoneUpload_ContinuesFromWhatIsThere) {
  const std::string name = Create();
  ASSERT_THAT(client().Put(Large(name, "a", 1, 0, false)), IsOk());
  ASSERT_THAT(client().Put(Large(name, "a", 1, 1)), IsOk());
  Kill();
  Cut();
  ASSERT_THAT(Start(), IsOk());
  const auto progress = client().Progress(Large(name, "a", 1));
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->next_sequence(), 1);
  EXPECT_FALSE(progress->complete());
  ASSERT_THAT(client().Put(Large(name, "a", 1, 1)), IsOk());
  ASSERT_THAT(client().Commit(Large(name, "a", 1)), IsOk());
  Stop();
  ASSERT_THAT(Start(), IsOk());
  EXPECT_THAT(client().Finish(name), IsOk());
  v1::GetResultRequest request;
  request.set_round(name);
  EXPECT_EQ(ToMap(*client().Pages(request)).size(), kNumRows);
}

TEST_F(LostChunksTest, UploadWithoutItsFirstChunk_IsGone) {
  const std::string name = Create();
  ASSERT_THAT(client().Put(Large(name, "a", 1, 0, false)), IsOk());
  Kill();
  Cut();
  for (int start = 0; start < 2; ++start) {
    ASSERT_THAT(Start(), IsOk());
    EXPECT_THAT(client().Progress(Large(name, "a", 1)), HasCode(Code::kNotFound));
    EXPECT_EQ(client().Get(name)->num_uploads(), 0);
    if (start == 0) Stop();
  }
  ASSERT_THAT(client().SubmitUnary({Large(name, "a", 1, 0, false), Large(name, "a", 1, 1)}), IsOk());
}

TEST_F(LostChunksTest, SubmissionOfAnOpenRound_IsGoneAsAWholeAndMayComeAgain) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  ASSERT_THAT(client().SubmitStream({Large(name, "b", 2, 0, false), Large(name, "b", 2, 1)}), IsOk());
  Kill();
  Cut();
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(client().Get(name)->num_submissions(), 1);
  const auto again = client().SubmitStream({Large(name, "b", 4)});
  ASSERT_THAT(again, IsOk());
  EXPECT_FALSE(again->duplicate());
  Stop();
  ASSERT_THAT(Start(), IsOk());
  EXPECT_THAT(client().Finish(name), IsOk());
  v1::GetResultRequest request;
  request.set_round(name);
  EXPECT_EQ(ToMap(*client().Pages(request))[0], 5);
}

TEST_F(LostChunksTest, AfterAStopInOrder_IsDamage) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  Stop();
  Cut();
  EXPECT_THAT(Start(), Fails(Code::kDataLoss, AllOf(HasSubstr(ChunkFile()), HasSubstr("is damaged"))));
}

TEST_F(LostChunksTest, SubmissionInAResult_FailsTheRoundForGood) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  ASSERT_THAT(client().Finish(name), IsOk());
  Kill();
  Cut();
  for (int start = 0; start < 2; ++start) {
    ASSERT_THAT(Start(), IsOk());
    const auto round = client().Get(name);
    ASSERT_THAT(round, IsOk());
    EXPECT_EQ(round->state(), v1::ROUND_STATE_FAILED);
    EXPECT_THAT(round->state_reason(), HasSubstr("lost submissions that are in the result, of 'a'"));
    Stop();
  }
}

TEST_F(LostChunksTest, SubmissionOfAClosedRound_FailsItToo) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  ASSERT_THAT(client().SubmitStream({Large(name, "b", 2)}), IsOk());
  ASSERT_THAT(client().Finish(name), IsOk());  // a result that was perhaps read
  Kill();
  Cut();
  // The end of the log, which says that the round is done.
  for (const auto& entry : std::filesystem::directory_iterator(options_.data_dir + "/db")) {
    if (entry.path().extension() == ".log") std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
  }
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_FAILED);
  EXPECT_THAT(client().Get(name)->state_reason(), HasSubstr("lost submissions that are in the result, of 'b'"));
}

// Somebody may have chosen weights for what the round had.
TEST_F(LostChunksTest, SubmissionOfASealedRound_FailsItToo) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  ASSERT_THAT(client().SubmitStream({Large(name, "b", 2)}), IsOk());
  ASSERT_THAT(client().Seal(name), IsOk());
  Kill();
  Cut();
  for (int start = 0; start < 2; ++start) {
    ASSERT_THAT(Start(), IsOk());
    EXPECT_EQ(client().Get(name)->state(), v1::ROUND_STATE_FAILED);
    EXPECT_THAT(client().Get(name)->state_reason(), HasSubstr("lost submissions that the sealed round had, of 'b'"));
    Stop();
  }
}

TEST_F(SyncedChunksTest, AcknowledgedSubmission_StopsTheStart) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  Stop();
  {
    std::fstream file(ChunkFile(), std::ios::in | std::ios::out);
    file.seekp(1000);
    file.put('x');
  }
  EXPECT_THAT(Start(), Fails(Code::kDataLoss, AllOf(HasSubstr("client 'a'"), HasSubstr("chunk 0"),
                                                    HasSubstr(ChunkFile()), HasSubstr("is damaged"))));
}

TEST_F(SyncedChunksTest, UploadFromBeforeARestart_IsSyncedWithIt) {
  const std::string name = Create();
  ASSERT_THAT(client().Put(Large(name, "a", 1)), IsOk());
  Kill();
  ASSERT_THAT(Start(), IsOk());
  Kill();
  Cut();
  // The second server has synced what the first had written, and says so.
  EXPECT_THAT(Start(), IsOk());
  EXPECT_THAT(client().Progress(Large(name, "a", 1)), HasCode(Code::kNotFound));
}

TEST_F(SyncedChunksTest, FileOfARoundThatIsGone_IsRemoved) {
  const std::string name = Create();
  ASSERT_THAT(client().SubmitStream({Large(name, "a", 1)}), IsOk());
  const std::string file = ChunkFile();
  const std::string stray = options_.data_dir + "/chunks/777";
  Stop();
  std::filesystem::copy(file, stray);
  ASSERT_THAT(Start(), IsOk());
  EXPECT_FALSE(std::filesystem::exists(stray));
  EXPECT_TRUE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace sparseagg::service
