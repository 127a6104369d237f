// The files of a data directory beside the database.
#include "service/store/data_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/store/chunk_files.h"
#include "service/store/synced_file.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using Code = absl::StatusCode;

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string Text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(DataDirectoryTest, Open_MissingDirectory_IsMadeWithItsFormat) {
  const TemporaryDirectory folder;
  const std::string path = folder / "a/b";
  const auto directory = DataDirectory::Open(path);
  ASSERT_THAT(directory, IsOk());
  EXPECT_EQ((*directory)->db_path(), path + "/db");
  EXPECT_EQ(Text(path + "/FORMAT"), "sparseagg data, format 1\n");
}

TEST(DataDirectoryTest, Open_AfterAnEndBetweenItsSteps_GoesOn) {
  const TemporaryDirectory folder;
  WriteFile(folder / "FORMAT.new", "spar");
  WriteFile(folder / "LOCK", "");
  std::filesystem::create_directory(folder / "lost+found");
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
  EXPECT_EQ(Text(folder / "FORMAT"), "sparseagg data, format 1\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
}

TEST(DataDirectoryTest, Open_AnotherFormat_IsRefused) {
  const TemporaryDirectory folder;
  for (const char* format : {"0", "2"}) {
    const std::string text = absl::StrCat("sparseagg data, format ", format, "\n");
    WriteFile(folder / "FORMAT", text);
    const absl::Status status = DataDirectory::Open(folder.path()).status();
    EXPECT_THAT(status, Fails(Code::kFailedPrecondition,
                              AllOf(HasSubstr(folder / "FORMAT"), HasSubstr(absl::StrCat("format ", format, "'")),
                                    HasSubstr("expected format 1"))));
    EXPECT_EQ(absl::StrContains(status.message(), "a newer server has written it"), format[0] == '2') << status;
    EXPECT_EQ(Text(folder / "FORMAT"), text);
  }
}

TEST(DataDirectoryTest, Open_OtherTextInFormat_IsRefused) {
  const TemporaryDirectory folder;
  WriteFile(folder / "FORMAT", "MyISAM 3\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr("says 'MyISAM 3'"), HasSubstr("no data directory"))));
}

TEST(DataDirectoryTest, Open_FolderWithForeignFiles_IsRefusedAndLeftAsItIs) {
  const TemporaryDirectory folder;
  WriteFile(folder / "thesis.tex", "x");
  EXPECT_THAT(DataDirectory::Open(folder.path()),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr(folder.path()), HasSubstr("'thesis.tex'"),
                                                     HasSubstr("expected an empty directory"))));
  EXPECT_FALSE(std::filesystem::exists(folder / "LOCK"));
}

TEST(DataDirectoryTest, Open_DataWithoutFormat_IsRefused) {
  for (const char* name : {"db", "chunks"}) {
    const TemporaryDirectory folder;
    std::filesystem::create_directory(folder / name);
    EXPECT_THAT(DataDirectory::Open(folder.path()), Fails(Code::kFailedPrecondition, HasSubstr("no 'FORMAT'")));
  }
}

TEST(DataDirectoryTest, Open_DirectoryInUse_IsRefusedUntilItIsFree) {
  const TemporaryDirectory folder;
  {
    const auto first = DataDirectory::Open(folder.path());
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(DataDirectory::Open(folder.path()),
                Fails(Code::kUnavailable, AllOf(HasSubstr(folder.path()), HasSubstr("another server"))));
  }
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
}

TEST(DataDirectoryTest, Open_PathThatIsAFile_NamesIt) {
  const TemporaryDirectory folder;
  WriteFile(folder / "file", "x");
  const auto opened = DataDirectory::Open(folder / "file");
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr(folder / "file"));
}

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

class SyncedFileTest : public ::testing::Test {
 protected:
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::optional<LogPosition> Read() const {
    const auto read = SyncedFile::Read(path_);
    EXPECT_THAT(read, IsOk());
    return read.value_or(std::nullopt);
  }

  const TemporaryDirectory folder_;
  const std::string path_ = folder_ / "SYNCED";
};

TEST_F(SyncedFileTest, Read_WhatWasWritten) {
  EXPECT_EQ(Read(), std::nullopt);
  for (const uint64_t sequence : {uint64_t{1}, uint64_t{20}, ~uint64_t{0}}) {
    const auto file = SyncedFile::Open(path_);
    ASSERT_THAT(file, IsOk());
    (*file)->Write({sequence, 7});
    EXPECT_THAT(Read(), Optional(LogPosition{sequence, 7}));
  }
}

TEST_F(SyncedFileTest, Write_OfAnEarlierPosition_ChangesNothing) {
  const auto file = SyncedFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  (*file)->Write({20, 3});
  (*file)->Write({19, 4});
  EXPECT_THAT(Read(), Optional(LogPosition{20, 3}));
  (*file)->Write({20, 0});  // tables have all
  EXPECT_THAT(Read(), Optional(LogPosition{20, 0}));
}

TEST_F(SyncedFileTest, Read_AnyOtherText_IsRefused) {
  (*SyncedFile::Open(path_))->Write({1234567, 89});
  const std::string text = Text();
  for (size_t i = 0; i < 8 * text.size(); ++i) {
    std::string flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ 1 << i % 8);
    std::ofstream(path_) << flipped;
    EXPECT_THAT(SyncedFile::Read(path_), HasCode(absl::StatusCode::kDataLoss)) << "bit " << i;
  }
  for (size_t size = 1; size < text.size(); ++size) {
    std::ofstream(path_) << text.substr(0, size);
    EXPECT_THAT(SyncedFile::Read(path_), HasCode(absl::StatusCode::kDataLoss)) << size << " bytes";
  }
  std::ofstream(path_) << text << "\n";
  EXPECT_THAT(SyncedFile::Read(path_), HasCode(absl::StatusCode::kDataLoss));
  std::ofstream(path_) << "";  // an operator accepts what is there
  EXPECT_THAT(Read(), Optional(LogPosition{}));
}

}  // namespace
}  // namespace sparseagg::service
