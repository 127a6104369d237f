#include "service/store/chunk_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::IsEmpty;
using ::testing::Optional;

class ChunkFilesTest : public ::testing::Test {
 protected:
  ChunkFilesTest() { Reopen(); }

  void Reopen(bool syncs = true) {
    files_.reset();
    auto opened = ChunkFiles::Open(folder_ / "chunks", syncs);
    ASSERT_THAT(opened, IsOk());
    files_ = *std::move(opened);
  }
  ChunkReference Append(uint64_t round, const std::string& bytes) {
    const std::vector<absl::string_view> spans = {absl::string_view(bytes).substr(0, 1), "",
                                                  absl::string_view(bytes).substr(1)};
    const auto appended = files_->Append(round, spans);
    EXPECT_THAT(appended, IsOk());
    return appended.value_or(ChunkReference{});
  }
  std::optional<std::string> Read(uint64_t round, const ChunkReference& chunk) {
    const auto read = files_->Read(round, chunk);
    EXPECT_THAT(read, IsOk());
    return read.value_or(std::nullopt);
  }
  // The sizes that Sync has returned, by round.
  std::map<uint64_t, uint64_t> Synced() {
    const auto synced = files_->Sync();
    EXPECT_THAT(synced, IsOk());
    std::map<uint64_t, uint64_t> sizes;
    for (const ChunkFiles::Extent& extent : *synced) sizes[extent.round] = extent.bytes;
    return sizes;
  }
  // The number of this process's descriptors of the files.
  int NumOpen() {
    int number = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string path = std::filesystem::read_symlink(entry, gone);
      number += absl::StartsWith(path, folder_.path()) ? 1 : 0;
    }
    return number;
  }
  uint64_t DiskBytes(uint64_t round) {
    struct stat status {};
    stat((folder_ / "chunks/" + std::to_string(round)).c_str(), &status);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

  const TemporaryDirectory folder_;
  std::unique_ptr<ChunkFiles> files_;
};

TEST_F(ChunkFilesTest, Append_MoreSpansThanOneCallTakes_WritesAll) {
  const std::string bytes(5000, 'x');
  std::vector<absl::string_view> spans;
  for (size_t i = 0; i < bytes.size(); ++i) spans.push_back(absl::string_view(bytes).substr(i, 1));
  const auto appended = files_->Append(1, spans);
  ASSERT_THAT(appended, IsOk());
  EXPECT_THAT(Read(1, *appended), Optional(bytes));
}

TEST_F(ChunkFilesTest, Read_OtherBytesOrAShortFile_IsNothing) {
  const ChunkReference chunk = Append(1, "chunk");
  ChunkReference damaged = chunk;
  ++damaged.hash.first;
  EXPECT_EQ(Read(1, damaged), std::nullopt);
  damaged = chunk;
  damaged.size = uint64_t{1} << 60;
  EXPECT_EQ(Read(1, damaged), std::nullopt);
  damaged.offset = ~uint64_t{0};
  EXPECT_EQ(Read(1, damaged), std::nullopt);
  EXPECT_EQ(Read(9, chunk), std::nullopt);
  std::filesystem::resize_file(folder_ / "chunks/1", 4);
  EXPECT_EQ(Read(1, chunk), std::nullopt);
}

TEST_F(ChunkFilesTest, Sync_TellsOfEachFileOnce) {
  Append(1, "abc");
  Append(2, "de");
  EXPECT_EQ(Synced(), (std::map<uint64_t, uint64_t>{{1, 3}, {2, 2}}));
  EXPECT_THAT(Synced(), IsEmpty());
  Append(2, "f");
  EXPECT_EQ(Synced(), (std::map<uint64_t, uint64_t>{{2, 3}}));
  Reopen();  // an earlier server may have been killed before its sync
  EXPECT_EQ(Synced(), (std::map<uint64_t, uint64_t>{{1, 3}, {2, 3}}));
}

TEST_F(ChunkFilesTest, Append_ToMoreFilesThanStayOpen_GoesOn) {
  for (const bool syncs : {true, false}) {
    Reopen(syncs);
    std::vector<ChunkReference> chunks;
    for (uint64_t round = 1; round <= 100; ++round) chunks.push_back(Append(round, std::to_string(round)));
    EXPECT_LE(NumOpen(), 33);
    for (uint64_t round = 1; round <= 100; ++round) {
      EXPECT_THAT(Read(round, chunks[round - 1]), Optional(std::to_string(round)));
    }
    EXPECT_EQ(Synced().size(), 100);
    Reopen(syncs);
    EXPECT_EQ(Synced().size(), 100);
    EXPECT_LE(NumOpen(), 33);
    for (uint64_t round = 1; round <= 100; ++round) files_->Delete(round);
  }
}

TEST_F(ChunkFilesTest, Append_ManyThreads_KeepsEachChunkWhole) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string bytes(static_cast<size_t>(1000 + 37 * i), static_cast<char>('a' + t));
        const ChunkReference chunk = Append(static_cast<uint64_t>(i % 3), bytes);
        if (i % 5 == 0) {
          EXPECT_THAT(files_->Sync(), IsOk());
        }
        EXPECT_THAT(Read(static_cast<uint64_t>(i % 3), chunk), Optional(bytes));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ChunkFilesTest, Free_GivesTheSpaceBackAndKeepsTheNeighbours) {
  const ChunkReference before = Append(1, "before");
  const ChunkReference large = Append(1, std::string(4 << 20, 'x'));
  const ChunkReference after = Append(1, "after");
  ASSERT_THAT(files_->Sync(), IsOk());
  const uint64_t used = DiskBytes(1);
  files_->Free(1, large);
  EXPECT_LT(DiskBytes(1), used / 2);
  EXPECT_THAT(Read(1, before), Optional(std::string("before")));
  EXPECT_THAT(Read(1, after), Optional(std::string("after")));
}

TEST_F(ChunkFilesTest, Free_OfAChunkWhoseEndTheFileLost_KeepsTheNextOne) {
  const ChunkReference kept = Append(1, "kept");
  const ChunkReference torn = Append(1, std::string(100'000, 'x'));
  std::filesystem::resize_file(folder_ / "chunks/1", torn.offset + torn.size - 1);
  Reopen();
  files_->Reserve(1, torn);
  EXPECT_EQ(Read(1, torn), std::nullopt);
  const ChunkReference next = Append(1, "next");
  EXPECT_GE(next.offset, torn.offset + torn.size);
  files_->Free(1, torn);
  EXPECT_THAT(Read(1, kept), Optional(std::string("kept")));
  EXPECT_THAT(Read(1, next), Optional(std::string("next")));
}

TEST_F(ChunkFilesTest, Sync_OfAFileWithAReservedRange_TellsWhatWasWritten) {
  const ChunkReference chunk = Append(1, "chunk");
  ChunkReference lost = chunk;
  lost.offset += 100;
  Reopen();
  files_->Reserve(1, lost);
  EXPECT_EQ(Synced(), (std::map<uint64_t, uint64_t>{{1, 5}}));
  EXPECT_EQ(Append(1, "next").offset, lost.offset + lost.size);
  EXPECT_EQ(Synced(), (std::map<uint64_t, uint64_t>{{1, 109}}));
}

TEST_F(ChunkFilesTest, Delete_DuringASync_LeavesNoFile) {
  for (uint64_t round = 1; round <= 100; ++round) Append(round, "chunk");
  Reopen();  // the sync opens each file
  std::thread syncs([&] { EXPECT_THAT(files_->Sync(), IsOk()); });
  for (uint64_t round = 100; round >= 1; --round) files_->Delete(round);
  syncs.join();
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "chunks"));
  EXPECT_THAT(Synced(), IsEmpty());
}

}  // namespace
}  // namespace sparseagg::service
