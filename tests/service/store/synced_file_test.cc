#include "service/store/synced_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::Optional;

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
