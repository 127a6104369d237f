#include "service/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StoreTest : public ::testing::Test {
 protected:
  Store& store() {
    if (store_ == nullptr) {
      auto opened = Store::Open({folder_.path(), Durability::kSync, uint64_t{256} << 20, post_});
      EXPECT_THAT(opened, IsOk());
      store_ = *std::move(opened);
    }
    return *store_;
  }
  void Reopen() {
    store_.reset();
    store();
  }

  void PutRound(uint64_t number, const std::string& id = "r") {
    ASSERT_THAT(store().PutRound(number, {"default", id, "spec", absl::FromUnixSeconds(7)}), IsOk());
  }
  void PutChunk(uint64_t round, uint64_t upload, uint64_t sequence, const std::string& bytes,
                const UploadRecord* opened = nullptr) {
    const std::vector<absl::string_view> spans = {absl::string_view(bytes).substr(0, 1),
                                                  absl::string_view(bytes).substr(1)};
    ASSERT_THAT(store().PutChunk(round, upload, sequence, spans, opened), IsOk());
  }
  std::vector<std::string> Chunks(uint64_t round, uint64_t upload) {
    std::vector<std::string> chunks;
    EXPECT_THAT(store().ForEachChunk(round, upload,
                                     [&](absl::string_view bytes) {
                                       chunks.emplace_back(bytes);
                                       return absl::OkStatus();
                                     }),
                IsOk());
    return chunks;
  }
  std::vector<std::string> Clients(uint64_t round) {
    std::vector<std::string> clients;
    EXPECT_THAT(store().ForEachSubmission(round,
                                          [&](const std::string& client, const SubmissionRecord&) {
                                            clients.push_back(client);
                                            return absl::OkStatus();
                                          }),
                IsOk());
    return clients;
  }
  std::vector<uint64_t> Rounds() {
    std::vector<uint64_t> numbers;
    const auto rounds = store().ReadRounds();
    EXPECT_THAT(rounds, IsOk());
    for (const auto& round : *rounds) numbers.push_back(round.number);
    return numbers;
  }

  const TemporaryDirectory folder_;
  std::function<void(std::function<void()>)> post_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, PutState_WithWithdrawnClients_RemovesThemInOneStep) {
  for (uint64_t upload = 1; upload <= 3; ++upload) {
    PutChunk(1, upload, 0, "chunk");
    ASSERT_THAT(store().PutSubmission(1, "c" + std::to_string(upload), {"s", "", upload, 1, 1, 1, {}}), IsOk());
  }
  ASSERT_THAT(store().PutState(1, {StateRecord::Name::kClosed, "", {}, {}},
                               {WithdrawnSubmission{"c1", 1, "leaf 1"}, WithdrawnSubmission{"c3", 3, ""}}),
              IsOk());
  Reopen();
  EXPECT_THAT(Clients(1), ElementsAre("c2"));
  EXPECT_THAT(Chunks(1, 1), IsEmpty());
  EXPECT_THAT(Chunks(1, 2), ElementsAre("chunk"));
  EXPECT_THAT(Chunks(1, 3), IsEmpty());
  EXPECT_THAT(*store().ReadWithdrawn(1), ElementsAre("leaf 1"));
  ASSERT_THAT(store().WithdrawSubmission(1, {"c2", 2, "leaf 2"}), IsOk());
  Reopen();
  EXPECT_THAT(Clients(1), IsEmpty());
  EXPECT_THAT(Chunks(1, 2), IsEmpty());
  EXPECT_THAT(*store().ReadWithdrawn(1), ElementsAre("leaf 1", "leaf 2"));
  EXPECT_THAT(*store().ReadWithdrawn(2), IsEmpty());
  ASSERT_THAT(store().DeleteRound(1), IsOk());
  EXPECT_THAT(*store().ReadWithdrawn(1), IsEmpty());
}

TEST_F(StoreTest, ReadChunk_FindsSmallAndLargeOnes) {
  const std::string large(100'000, 'x');
  PutChunk(1, 1, 0, "small");
  PutChunk(1, 1, 1, large);
  Reopen();
  EXPECT_EQ(*store().ReadChunk(1, 1, 0), "small");
  EXPECT_EQ(*store().ReadChunk(1, 1, 1), large);
  EXPECT_THAT(store().ReadChunk(1, 1, 2).status(),
              Fails(absl::StatusCode::kNotFound, ::testing::HasSubstr("no chunk 2")));
  EXPECT_THAT(store().ReadChunk(2, 1, 0).status(),
              Fails(absl::StatusCode::kNotFound, ::testing::HasSubstr("no chunk 0")));
}

TEST_F(StoreTest, PutState_Cancelled_RemovesTheContent) {
  PutRound(1);
  PutChunk(1, 1, 0, "chunk");
  ASSERT_THAT(store().PutSubmission(1, "c", {"s", "", 1, 1, 1, 1, {}}), IsOk());
  ASSERT_THAT(store().WithdrawSubmission(1, {"other", 2, "leaf"}), IsOk());
  ASSERT_THAT(store().PutState(1, {StateRecord::Name::kCancelled, "why", {}, {}}), IsOk());
  EXPECT_THAT(*store().ReadWithdrawn(1), IsEmpty());
  EXPECT_THAT(Clients(1), IsEmpty());
  EXPECT_THAT(Chunks(1, 1), IsEmpty());
  EXPECT_EQ(store().ReadRounds()->at(0).state.reason, "why");
}

TEST_F(StoreTest, ReadRounds_NumberOfARoundThatIsGone_MayBeUsedAgain) {
  const std::string large(100'000, 'x');
  std::vector<std::function<void()>> jobs;
  post_ = [&](std::function<void()> job) { jobs.push_back(std::move(job)); };
  PutRound(1);
  PutChunk(2, 1, 0, large);  // its round was deleted meanwhile
  Reopen();
  EXPECT_THAT(Rounds(), ElementsAre(1));
  PutRound(2);
  PutChunk(2, 1, 0, large);
  for (const auto& job : jobs) job();
  EXPECT_THAT(Chunks(2, 1), ElementsAre(large));
}

TEST_F(StoreTest, ReadRounds_TwoOfOneName_KeepsTheLatest) {
  const std::string large(100'000, 'x');
  PutRound(1, "other");
  PutRound(2, "name");
  PutChunk(2, 1, 0, large);
  PutRound(3, "name");  // the disk was full when round 2 was to be removed
  PutChunk(3, 1, 0, large);
  ASSERT_THAT(store().PutRound(4, {"another tenant", "name", "spec", absl::FromUnixSeconds(7)}), IsOk());
  for (int start = 0; start < 2; ++start) {
    Reopen();
    EXPECT_THAT(Rounds(), ElementsAre(1, 3, 4));
    EXPECT_THAT(Chunks(2, 1), IsEmpty());
    EXPECT_THAT(Chunks(3, 1), ElementsAre(large));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "chunks/2"));
  }
}

TEST_F(StoreTest, Backup_OfWhatIsRemovedMeanwhile_IsWhole) {
  const TemporaryDirectory backups;
  const std::string large(300'000, 'x');
  for (const uint64_t round : {1, 2}) PutRound(round, std::to_string(round));
  PutChunk(1, 1, 0, "small");
  for (const uint64_t round : {1, 2}) PutChunk(round, 1, 1, large + std::to_string(round));
  int num_asked = 0;
  const auto copied = store().Backup(backups.path(), "b", [&] {
    if (num_asked++ > 0) return false;
    EXPECT_THAT(store().DeleteRound(1), IsOk());
    EXPECT_THAT(store().DeleteUpload(2, 1), IsOk());
    return false;
  });
  ASSERT_THAT(copied, IsOk());
  EXPECT_GT(*copied, 2 * large.size());
  store_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "chunks/1"));  // its space was freed at the end
  for (int start = 0; start < 2; ++start) {
    auto opened = Store::Open({backups / "b", Durability::kSync, uint64_t{256} << 20});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
    EXPECT_THAT(Rounds(), ElementsAre(1, 2));
    EXPECT_EQ(*store().ReadChunk(1, 1, 0), "small");
    EXPECT_EQ(*store().ReadChunk(1, 1, 1), large + "1");
    EXPECT_EQ(*store().ReadChunk(2, 1, 1), large + "2");
    store_.reset();
  }
}

TEST_F(StoreTest, Backup_EndedAnywhere_IsTakenForNoData) {
  const TemporaryDirectory backups;
  const std::string large(300'000, 'x');
  PutRound(1);
  for (uint64_t i = 0; i < 5; ++i) PutChunk(1, 1, i, i % 2 == 0 ? large : "small");
  const int num_keys = 6;
  int num_refused = 0;
  for (int last = 0; last < num_keys; ++last) {
    int num_asked = 0;
    const auto copied = store().Backup(backups.path(), "b", [&] {
      if (num_asked++ < last) return false;
      const std::string killed = backups / "killed";  // as a process leaves it that ends now
      std::filesystem::copy(backups / ".unfinished", killed, std::filesystem::copy_options::recursive);
      num_refused += Store::Open({killed}).status().code() == absl::StatusCode::kFailedPrecondition ? 1 : 0;
      std::filesystem::remove_all(killed);
      return true;
    });
    EXPECT_EQ(copied.status().code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(std::filesystem::is_empty(backups.path()));
  }
  EXPECT_EQ(num_refused, num_keys);
  std::filesystem::create_directories(backups / ".unfinished/of a server that was killed");
  EXPECT_THAT(store().Backup(backups.path(), "b", [] { return false; }), IsOk());
  EXPECT_FALSE(std::filesystem::exists(backups / ".unfinished"));
  EXPECT_EQ(store().Backup(backups.path(), "b", [] { return false; }).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(StoreTest, Backup_OfADamagedChunk_IsRefused) {
  const TemporaryDirectory backups;
  PutRound(1);
  PutChunk(1, 1, 0, std::string(300'000, 'x'));
  std::fstream(folder_ / "chunks/1", std::ios::in | std::ios::out | std::ios::binary).seekp(1000).put('y');
  const absl::Status status = store().Backup(backups.path(), "b", [] { return false; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("chunks/1 is damaged"));
  EXPECT_TRUE(std::filesystem::is_empty(backups.path()));
}

TEST_F(StoreTest, WhenDurable_ManyThreads_AnswersEachOnce) {
  store();
  std::atomic<int> answers = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20; ++i) {
        const auto ticket = store().PutRound(t * 100 + i + 1, {"t", "r", "", absl::Now()});
        ASSERT_THAT(ticket, IsOk());
        if (i % 2 == 0) {
          EXPECT_THAT(store().AwaitDurable(*ticket), IsOk());
          ++answers;
        } else {
          store().WhenDurable(*ticket, [&](const absl::Status& status) {
            EXPECT_THAT(status, IsOk());
            ++answers;
          });
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_.reset();
  EXPECT_EQ(answers, 160);
}

}  // namespace
}  // namespace sparseagg::service
