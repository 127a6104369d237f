#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "service/store/database_check.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::service {
namespace {

using ::testing::Optional;

// Logs as RocksDB writes them.
class LogScanTest : public ::testing::Test {
 protected:
  // Writes records of these sizes, and some bytes more, after one another.
  void WriteLog(const std::vector<size_t>& sizes) {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, folder_ / "db", &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    std::string path;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "db")) {
      if (absl::EndsWith(entry.path().string(), ".log")) path = entry.path();
    }
    for (const size_t size : sizes) {
      begins_.push_back(std::filesystem::file_size(path));
      ASSERT_TRUE(db->Put({}, "key", std::string(size, 'x')).ok());
    }
    std::ifstream file(path, std::ios::binary);
    log_ = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  LogScan Scan(const std::string& bytes) const {
    const std::string path = folder_ / "log";
    std::ofstream(path, std::ios::binary) << bytes;
    const auto scan = ScanLog(path);
    EXPECT_THAT(scan, IsOk());
    EXPECT_EQ(scan->num_bytes, bytes.size());
    return *scan;
  }

  const TemporaryDirectory folder_;
  std::string log_;
  std::vector<uint64_t> begins_;  // of records
};

TEST_F(LogScanTest, WholeLog_IsValid) {
  // A record in one block, in several, and so that a block has no room for a header.
  std::vector<size_t> sizes = {0, 100, 40'000, 7, 100'000};
  for (size_t size = 32'700; size < 32'760; ++size) sizes.push_back(size);
  WriteLog(sizes);
  const LogScan scan = Scan(log_);
  EXPECT_EQ(scan.num_valid_bytes, log_.size());
  EXPECT_EQ(scan.valid_again_at, std::nullopt);
}

TEST_F(LogScanTest, TornEnd_IsNoDamageInTheMiddle) {
  const uint64_t seed = testing::TestSeed(20261127);
  std::cout << "seed " << seed << "\n";
  testing::Rng rng(seed);
  WriteLog({100, 40'000, 7, 100'000, 300, 20'000});
  for (int i = 0; i < 300; ++i) {
    const size_t size = rng.Below(log_.size() + 1);
    const auto behind = std::upper_bound(begins_.begin(), begins_.end(), size);
    const bool is_whole = size == log_.size() || std::count(begins_.begin(), begins_.end(), size) > 0;
    const uint64_t valid = is_whole ? size : *std::prev(behind);
    std::string torn = log_.substr(0, size);
    for (const bool is_zeroed : {false, true}) {
      if (is_zeroed) torn.resize(log_.size());
      const LogScan scan = Scan(torn);
      EXPECT_EQ(scan.valid_again_at, std::nullopt) << "seed " << seed << ", " << size << " bytes";
      // A block's last bytes may be padding, which is zeros.
      EXPECT_LE(scan.num_valid_bytes, valid);
      EXPECT_LE(valid - scan.num_valid_bytes, 7);
    }
  }
}

TEST_F(LogScanTest, FlippedBit_IsFoundUnlessItIsInTheLastRecord) {
  const uint64_t seed = testing::TestSeed(20261128);
  std::cout << "seed " << seed << "\n";
  testing::Rng rng(seed);
  WriteLog({100, 40'000, 7, 100'000, 300, 20'000, 30});
  for (int i = 0; i < 1000; ++i) {
    // Every other one in the small records.
    const size_t at = rng.Coin() ? rng.Below(log_.size()) : begins_[rng.Pick({0, 2, 4, 6})] + rng.Below(40);
    if (at >= log_.size()) continue;
    std::string flipped = log_;
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << rng.Below(8));
    const LogScan scan = Scan(flipped);
    if (scan.num_valid_bytes == log_.size()) {
      EXPECT_EQ(log_[at], '\0');  // padding
    } else if (at >= begins_.back()) {
      EXPECT_EQ(scan.valid_again_at, std::nullopt) << "seed " << seed << ", byte " << at;
      EXPECT_EQ(scan.num_valid_bytes, begins_.back());
    } else {
      const auto next = std::upper_bound(begins_.begin(), begins_.end(), at);
      EXPECT_THAT(scan.valid_again_at, Optional(*next)) << "seed " << seed << ", byte " << at;
      EXPECT_EQ(scan.num_valid_bytes, *std::prev(next));
    }
  }
}

TEST_F(LogScanTest, ZerosInTheMiddle_AreFound) {
  WriteLog({100, 40'000, 100, 100'000, 300});
  std::string zeroed = log_;
  std::fill_n(zeroed.begin() + static_cast<ptrdiff_t>(begins_[2]), 50, '\0');
  EXPECT_THAT(Scan(zeroed).valid_again_at, Optional(begins_[3]));
  zeroed = log_;
  std::fill(zeroed.begin() + 32'768, zeroed.begin() + 65'536, '\0');  // a block
  EXPECT_THAT(Scan(zeroed).valid_again_at, Optional(begins_[4]));
}

TEST_F(LogScanTest, MissingFile_IsNamed) {
  EXPECT_THAT(ScanLog(folder_ / "none"), Fails(absl::StatusCode::kUnavailable, ::testing::HasSubstr(folder_ / "none")));
}

}  // namespace
}  // namespace sparseagg::service
