// Random runs of the store, with large chunks, against a model in memory. The test is the scheduler of all that the
// store does in the background: it runs a job when it likes, or never, also between two steps of a restart. Between two
// runs of the store the process is killed, or the machine, which tears off what no sync had written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/store/store.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::service {
namespace {

using testing::Rng;
namespace fs = std::filesystem;

constexpr size_t kLargeBytes = 64 * 1024;  // and more: the chunk goes to the file of its round
constexpr int kRuns = 6;                   // of the store, on one directory
constexpr int kSteps = 40;                 // in a run

struct ModelChunk {
  std::string bytes;
  bool is_lost = false;  // the machine ended before it was on the disk
  uint64_t begin = 0;    // in the file, if it is large
};

struct ModelUpload {
  std::vector<ModelChunk> chunks;
  std::string client;  // empty: not committed
};

using ModelRound = std::map<uint64_t, ModelUpload>;  // by number of the upload

class StoreModelTest : public ::testing::TestWithParam<Durability> {
 protected:
  void Run(uint64_t seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    rng_ = Rng(seed);
    rounds_.clear();
    synced_.clear();
    directory_ = folder_ / absl::StrCat(seed, "-0");
    Open();
    Restore();
    for (int run = 1; run <= kRuns && !HasFatalFailure() && !HasNonfatalFailure(); ++run) {
      for (int step = 0; step < kSteps; ++step) Step();
      Restart(folder_ / absl::StrCat(seed, "-", run));
    }
    store_.reset();
    jobs_.clear();
    fs::remove_all(directory_);
  }

 private:
  template <typename Map>
  typename Map::iterator Any(Map& map) {
    return std::next(map.begin(), static_cast<ptrdiff_t>(rng_.Below(map.size())));
  }

  void Open() {
    auto opened = Store::Open({directory_, GetParam(), uint64_t{64} << 20,
                               [this](std::function<void()> job) { jobs_.push_back(std::move(job)); }});
    ASSERT_THAT(opened, IsOk());
    store_ = *std::move(opened);
  }

  std::string FileOf(uint64_t round) const { return absl::StrCat(directory_, "/chunks/", round); }
  uint64_t SizeOf(uint64_t round) const {
    std::error_code none;
    const uint64_t size = fs::file_size(FileOf(round), none);
    return none ? 0 : size;
  }

  // ---- the scheduler ----

  void RunJob() {
    if (jobs_.empty()) return;
    const auto chosen = std::next(jobs_.begin(), static_cast<ptrdiff_t>(rng_.Below(jobs_.size())));
    const std::function<void()> job = std::move(*chosen);
    jobs_.erase(chosen);
    job();
  }
  // Asks for a sync, which a job will make.
  void AskForSync() {
    if (GetParam() != Durability::kSync) return;
    store_->WhenDurable(ticket_, [this](const absl::Status& status) {
      EXPECT_THAT(status, IsOk());
      SetSynced();
    });
  }
  void SetSynced() {
    for (const auto& [number, round] : rounds_) synced_[number] = SizeOf(number);
  }

  // ---- what the server does ----

  void Done(const absl::StatusOr<Store::Ticket>& written) {
    ASSERT_THAT(written, IsOk());
    ticket_ = *written;
  }

  void Step() {
    if (rounds_.empty() || rng_.OneIn(15)) return CreateRound();
    const auto [number, round] = *Any(rounds_);
    switch (rng_.Below(12)) {
      case 0:
        return DeleteUpload();
      case 1:
        return DeleteRound();
      case 2:
        return AskForSync();
      case 3:
      case 4:
        return RunJob();
      case 5:
      case 6:
        return Commit();
      default:
        return PutChunk();
    }
  }

  void CreateRound() {
    const uint64_t number = next_round_++;
    Done(store_->PutRound(number, {"tenant", absl::StrCat("round-", number), "spec", absl::UnixEpoch()}));
    rounds_[number];
  }

  void DeleteRound() {
    const uint64_t number = Any(rounds_)->first;
    rounds_.erase(number);
    synced_.erase(number);
    Done(store_->DeleteRound(number));
    // A call that was about to write a chunk.
    if (rng_.Coin()) WriteChunk(number, 1000, 0, NewBytes(), nullptr);
  }

  void PutChunk() {
    auto& [number, round] = *Any(rounds_);
    uint64_t upload = rng_.Coin() || round.empty() ? next_upload_++ : Any(round)->first;
    if (!round[upload].client.empty()) round[upload = next_upload_++];
    std::vector<ModelChunk>& chunks = round[upload].chunks;
    const UploadRecord opened{absl::StrCat("client-", upload), "submission", "tag"};
    ModelChunk chunk{NewBytes()};
    WriteChunk(number, upload, chunks.size(), chunk.bytes, chunks.empty() ? &opened : nullptr);
    if (chunk.bytes.size() >= kLargeBytes) chunk.begin = SizeOf(number) - chunk.bytes.size();
    chunks.push_back(std::move(chunk));
  }
  void WriteChunk(uint64_t round, uint64_t upload, uint64_t sequence, const std::string& bytes,
                  const UploadRecord* opened) {
    const std::vector<absl::string_view> spans = {bytes};
    const absl::StatusOr<Store::Ticket> written = store_->PutChunk(round, upload, sequence, spans, opened);
    if (rounds_.contains(round)) Done(written);
  }
  // No byte is 0, as those of a torn file are, and no two chunks are alike.
  std::string NewBytes() {
    std::string bytes(rng_.OneIn(4) ? 1000 : kLargeBytes + rng_.Below(4096), '\0');
    for (char& byte : bytes) byte = static_cast<char>(1 + rng_.Below(255));
    return bytes;
  }

  void Commit() {
    auto& [number, round] = *Any(rounds_);
    if (round.empty()) return;
    auto& [upload, model] = *Any(round);
    if (!model.client.empty()) return;
    model.client = absl::StrCat("client-", upload);
    Done(store_->PutSubmission(number, model.client, {"submission", "tag", upload, model.chunks.size(), 1, 1, {}}));
  }

  void DeleteUpload() {
    auto& [number, round] = *Any(rounds_);
    if (round.empty()) return;
    const auto chosen = Any(round);
    if (const std::string& client = chosen->second.client; client.empty()) {
      Done(store_->DeleteUpload(number, chosen->first));
    } else if (rng_.Coin()) {
      Done(store_->DeleteSubmission(number, client, chosen->first));
    } else {
      // As a close of the round that leaves this client out; the round goes on here.
      Done(store_->PutState(number, {StateRecord::Name::kClosed, "", {}, {}},
                            {WithdrawnSubmission{client, chosen->first}}));
    }
    round.erase(chosen);
  }

  // ---- the end and the next begin ----

  void Restart(const std::string& next) {
    const bool is_in_order = rng_.OneIn(3);
    const std::string last = directory_;
    directory_ = next;
    // The state of the file system at a kill is a copy. What the store does when it is destroyed is not in it.
    if (!is_in_order) fs::copy(last, next, fs::copy_options::recursive);
    store_.reset();
    jobs_.clear();
    if (is_in_order) {
      fs::rename(last, next);
    } else {
      fs::remove_all(last);
      if (rng_.Coin()) TearFiles();
    }
    Open();
    Restore();
    if (is_in_order || GetParam() == Durability::kSync) SetSynced();
  }

  // Takes away what the disk did not have yet.
  void TearFiles() {
    for (auto& [number, round] : rounds_) {
      const uint64_t size = SizeOf(number);
      const uint64_t synced = synced_[number];
      if (size <= synced || rng_.OneIn(3)) continue;
      const uint64_t kept = synced + rng_.Below(size - synced);
      fs::resize_file(FileOf(number), kept);
      if (rng_.Coin()) fs::resize_file(FileOf(number), size);  // the kernel had written the size, but no bytes
      for (auto& [upload, model] : round) {
        for (ModelChunk& chunk : model.chunks) {
          const bool is_large = chunk.bytes.size() >= kLargeBytes;
          if (is_large && chunk.begin + chunk.bytes.size() > kept) chunk.is_lost = true;
        }
      }
    }
  }

  // As service/restore.cc does, in a round's steps; background jobs may run between them.
  void Restore() {
    const auto stored = store_->ReadRounds();
    ASSERT_THAT(stored, IsOk());
    std::vector<uint64_t> numbers;
    for (const Store::StoredRound& round : *stored) numbers.push_back(round.number);
    std::vector<uint64_t> expected;
    for (const auto& [number, round] : rounds_) expected.push_back(number);
    ASSERT_EQ(numbers, expected);
    next_round_ = numbers.empty() ? 1 : numbers.back() + 1;
    for (auto& [number, round] : rounds_) {
      RestoreRound(number, round);
      if (rng_.OneIn(3)) RunJob();
    }
    ASSERT_THAT(store_->FinishRestore(), IsOk());
  }

  void RestoreRound(uint64_t number, ModelRound& round) {
    std::vector<uint64_t> kept;
    std::vector<std::pair<std::string, uint64_t>> lost;
    const auto take = [&](const std::string& client, const SubmissionRecord& record) {
      const auto found = round.find(record.upload);
      if (found == round.end()) return absl::InternalError(absl::StrCat(client, " is back"));
      EXPECT_EQ(found->second.client, client);
      if (CheckChunks(number, record.upload, found->second)) {
        kept.push_back(record.upload);
      } else {
        lost.emplace_back(client, record.upload);
      }
      return absl::OkStatus();
    };
    ASSERT_THAT(store_->ForEachSubmission(number, take), IsOk());
    ASSERT_EQ(kept.size() + lost.size(), std::count_if(round.begin(), round.end(), [](const auto& upload) {
                return !upload.second.client.empty();
              }));
    for (const auto& [client, upload] : lost) {
      ASSERT_THAT(store_->DeleteSubmission(number, client, upload), IsOk());
      round.erase(upload);
    }
    const auto uploads = store_->ReadUploads(number);
    ASSERT_THAT(uploads, IsOk());
    ASSERT_EQ(kept.size() + uploads->size(), round.size());
    for (const auto& [upload, record] : *uploads) {
      ASSERT_TRUE(round.contains(upload));
      ModelUpload& model = round[upload];
      if (!CheckChunks(number, upload, model)) {
        const auto first =
            std::find_if(model.chunks.begin(), model.chunks.end(), [](const auto& c) { return c.is_lost; });
        model.chunks.erase(first, model.chunks.end());
        ASSERT_THAT(store_->DeleteChunksFrom(number, upload, model.chunks.size()), IsOk());
      }
      kept.push_back(upload);
    }
    std::sort(kept.begin(), kept.end());
    ASSERT_THAT(store_->DeleteOtherUploads(number, kept), IsOk());
  }

  // Returns: whether the upload is whole.
  bool CheckChunks(uint64_t number, uint64_t upload, const ModelUpload& model) {
    size_t num_read = 0;
    const absl::Status read = store_->ForEachChunk(number, upload, [&](absl::string_view bytes) {
      EXPECT_LT(num_read, model.chunks.size());
      EXPECT_TRUE(bytes == model.chunks[num_read].bytes) << "chunk " << num_read << " of upload " << upload;
      ++num_read;
      return absl::OkStatus();
    });
    const auto is_lost = [](const ModelChunk& chunk) { return chunk.is_lost; };
    const auto first = std::find_if(model.chunks.begin(), model.chunks.end(), is_lost);
    EXPECT_EQ(num_read, static_cast<size_t>(first - model.chunks.begin()))
        << "upload " << upload << " of round " << number << (model.client.empty() ? "" : ", committed") << ": " << read;
    if (first == model.chunks.end()) {
      EXPECT_THAT(read, IsOk());
      return true;
    }
    EXPECT_EQ(read.code(), absl::StatusCode::kAborted) << read;
    return false;
  }

  const TemporaryDirectory folder_;
  Rng rng_{0};
  std::string directory_;
  std::deque<std::function<void()>> jobs_;
  std::unique_ptr<Store> store_;
  std::map<uint64_t, ModelRound> rounds_;
  std::map<uint64_t, uint64_t> synced_;  // bytes of the round's file that are on the disk
  Store::Ticket ticket_ = 0;             // of the latest write
  uint64_t next_round_ = 1;
  uint64_t next_upload_ = 1;
};

TEST_P(StoreModelTest, AnyOrderOfBackgroundJobs_LosesNoChunk) {
  const uint64_t seed = testing::TestSeed(20261126);
  std::cout << "seed " << seed << "\n";
  for (uint64_t i = 0; i < 3 && !HasFailure(); ++i) Run(seed + i);
}

INSTANTIATE_TEST_SUITE_P(Levels, StoreModelTest, ::testing::Values(Durability::kAsync, Durability::kSync));

}  // namespace
}  // namespace sparseagg::service
