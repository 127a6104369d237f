// Column, and the freed columns that are kept for later ones.
#include "host/base/column.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/support/failing_allocation.h"
#include "tests/support/sanitized.h"

namespace sparseagg {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Resets what is kept, before and after.
class ColumnTest : public ::testing::Test {
 protected:
  ColumnTest() { Reset(); }
  ~ColumnTest() override { Reset(); }

  static void Reset() {
    KeepFreedColumns(0);
    KeepFreedColumns(internal::kDefaultKeptColumnBytes);
  }
};

uint64_t ResidentBytes() {
  uint64_t pages_of_all = 0;
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages_of_all >> pages;
  return pages * 4096;
}

// Whether a column of `bytes` gets the memory of the one before it, which was written to.
bool IsReused(size_t bytes) {
  const uint8_t* before = nullptr;
  {
    Column<uint8_t> column(bytes);
    std::fill(column.begin(), column.end(), uint8_t{7});
    before = column.data();
  }
  const Column<uint8_t> column(bytes);
  // Fresh pages hold zeros: the address alone might be a coincidence.
  return column.data() == before && column[0] == 7 && column[bytes - 1] == 7;
}

// The columns of a merge are freed together: a result, of which few rows were used, should not become the next keys.
TEST_F(ColumnTest, TrimmedBlock_IsNotTakenInThePlaceOfAWholeOne) {
  const uint8_t* whole_memory = nullptr;
  {
    Column<uint8_t> whole(32 * kMiB);
    std::fill(whole.begin(), whole.end(), uint8_t{7});
    whole_memory = whole.data();
    Column<uint8_t> trimmed(30 * kMiB);
    trimmed.resize(kMiB);
    trimmed.Trim();
  }
  const Column<uint8_t> column(30 * kMiB);
  EXPECT_EQ(column.data(), whole_memory);
}

TEST_F(ColumnTest, Reserve_MakesRoomOnce) {
  Column<uint32_t> column(1);
  column[0] = 9;
  column.reserve(10);
  EXPECT_EQ(column.capacity(), 10);
  EXPECT_EQ(column.size(), 1);
  EXPECT_EQ(column[0], 9);
  const uint32_t* const before = column.data();
  EXPECT_EQ(column.ReserveBytes(10, Growth::kAhead), 0);
  column.resize(10);
  column.reserve(2);
  EXPECT_EQ(column.data(), before);
}

TEST_F(ColumnTest, Freed_IsKeptForTheNext) {
  for (const size_t bytes : {kMiB / 8, kMiB, 4 * kMiB, 5 * kMiB + 1, 33 * kMiB}) EXPECT_TRUE(IsReused(bytes)) << bytes;
}

TEST_F(ColumnTest, Freed_LargerThanWhatMayBeKept_GoesBack) {
  KeepFreedColumns(8 * kMiB);
  EXPECT_TRUE(IsReused(8 * kMiB));
  EXPECT_FALSE(IsReused(10 * kMiB));
  KeepFreedColumns(0);
  EXPECT_FALSE(IsReused(8 * kMiB));
}

TEST_F(ColumnTest, Trimmed_CountsByWhatItHasLeft) {
  KeepFreedColumns(8 * kMiB);
  {
    Column<uint8_t> column(64 * kMiB);
    std::fill(column.begin(), column.end(), uint8_t{7});
    column.resize(6 * kMiB);
    column.Trim();
    EXPECT_EQ(column[0], 7);
    EXPECT_EQ(column[6 * kMiB - 1], 7);
  }
  const Column<uint8_t> column(60 * kMiB);
  EXPECT_EQ(column[0], 7) << "6 MiB may be kept";
  EXPECT_EQ(column[60 * kMiB - 1], 0) << "the others were given back";
}

// What the process has resident beside `before`, kept blocks aside.
uint64_t ResidentBeside(uint64_t before) {
  KeepFreedColumns(0);
  const uint64_t now = ResidentBytes();
  return now - std::min(now, before);
}

// Of `count` columns of `bytes`, written to; `kept_bytes`: of as many that were freed before them.
uint64_t ResidentOf(size_t count, size_t bytes, size_t kept_bytes) {
  const uint64_t before = ResidentBytes();
  const auto make = [&](size_t size) {
    std::vector<Column<uint8_t>> columns(count);
    for (Column<uint8_t>& column : columns) {
      column.resize(size);
      std::fill(column.begin(), column.end(), uint8_t{7});
    }
    return columns;
  };
  make(kept_bytes);
  const auto columns = make(bytes);
  return ResidentBeside(before);
}

TEST_F(ColumnTest, SmallerThanWhatIsKept_TakesLittleMoreThanItsSize) {
  if (sparseagg::testing::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  for (const size_t bytes : {5 * kMiB, 7 * kMiB}) {
    EXPECT_LE(ResidentOf(8, bytes, 16 * kMiB), 8 * bytes / 8 * 9 + 8 * kMiB) << bytes;
    Reset();
  }
}

TEST_F(ColumnTest, JustBeyondAHugePage_TakesLittleMoreThanItsSize) {
  if (sparseagg::testing::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  const size_t bytes = 4 * kMiB + 40'000;
  EXPECT_LE(ResidentOf(16, bytes, 0), 16 * bytes / 8 * 9 + 8 * kMiB);
}

TEST_F(ColumnTest, Trimmed_TakesLittleMoreThanItsSize) {
  if (sparseagg::testing::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  for (const size_t bytes : {100 * kMiB / 1024, 3 * kMiB, 64 * kMiB}) {
    for (const size_t used : {size_t{0}, size_t{1}, bytes / 100, bytes / 3}) {
      const size_t count = 96 * kMiB / bytes;
      const uint64_t before = ResidentBytes();
      std::vector<Column<uint8_t>> columns(count);
      for (Column<uint8_t>& column : columns) {
        column.resize(bytes);
        std::fill(column.begin(), column.end(), uint8_t{7});
        column.resize(used);
        column.Trim();
        ASSERT_EQ(column.size(), used);
        ASSERT_TRUE(std::all_of(column.begin(), column.end(), [](uint8_t value) { return value == 7; }));
      }
      EXPECT_LE(ResidentBeside(before), count * (used / 8 * 9 + 4096) + 8 * kMiB) << bytes << " to " << used;
      columns.clear();
      Reset();
    }
  }
}

uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string name;
  uint64_t kib = 0;
  while (status >> name) {
    if (name == "VmHWM:" && status >> kib) return kib << 10;
  }
  return 0;
}

TEST_F(ColumnTest, Reserve_NeverHoldsOldAndNewAtOnce) {
  Column<uint8_t> column(64 * kMiB);
  std::fill(column.begin(), column.end(), uint8_t{7});
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) GTEST_SKIP() << "the peak cannot be reset";
  const uint64_t before = PeakBytes();
  EXPECT_EQ(column.ReserveBytes(65 * kMiB, Growth::kAhead), 64 * kMiB);
  for (const size_t more : {1, 2, 3, 5, 30}) {
    const size_t size = column.size();
    EXPECT_EQ(column.ReserveBytes(size + more * kMiB, Growth::kExact), more * kMiB);
    column.reserve(size + more * kMiB, Growth::kExact);
    EXPECT_EQ(column.capacity(), size + more * kMiB);
    EXPECT_EQ(column.size(), size);
    column.resize(column.capacity());
    std::fill(column.begin() + size, column.end(), uint8_t{7});
  }
  column.push_back(7);
  EXPECT_EQ(column.capacity(), 210 * kMiB);
  EXPECT_EQ(std::count(column.begin(), column.end(), 7), 105 * kMiB + 1);
  if (sparseagg::testing::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  EXPECT_LE(PeakBytes(), before + 41 * kMiB + 8 * kMiB);
}

TEST_F(ColumnTest, Reserve_ExactlyForASmallOne_CopiesToJustThat) {
  Column<uint32_t> column({1, 2, 3});
  EXPECT_EQ(column.ReserveBytes(5, Growth::kExact), 5 * sizeof(uint32_t));
  EXPECT_EQ(column.ReserveBytes(5, Growth::kAhead), 6 * sizeof(uint32_t));
  column.reserve(5, Growth::kExact);
  EXPECT_EQ(column.capacity(), 5);
  EXPECT_EQ(column, (Column<uint32_t>{1, 2, 3}));
  EXPECT_EQ(column.ReserveBytes(UINT64_MAX, Growth::kExact), UINT64_MAX);
}

TEST_F(ColumnTest, Freed_TakesNoMemory) {
  for (const size_t bytes : {100 * kMiB / 1024, kMiB, 8 * kMiB}) {
    auto column = std::make_unique<Column<uint8_t>>(bytes);
    {
      const sparseagg::testing::FailingAllocation failing(0);
      *column = Column<uint8_t>();
      EXPECT_FALSE(failing.failed());
    }
  }
}

TEST_F(ColumnTest, NoMemoryToNoteIt_IsNotLost) {
  constexpr size_t kBytes = 64 * kMiB;
  const auto mapped_bytes = [] {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * 4096;
  };
  const auto fail = [] {
    const sparseagg::testing::FailingAllocation failing(0);
    EXPECT_THROW(Column<uint8_t> column(kBytes), std::bad_alloc);
  };
  Column<uint8_t> first(kBytes);
  first[0] = 7;
  first = {};
  fail();
  EXPECT_TRUE(Column<uint8_t>(kBytes)[0] == 7) << "a kept one";
  Reset();
  const uint64_t before = mapped_bytes();
  fail();
  if (sparseagg::testing::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  EXPECT_LT(mapped_bytes(), before + kBytes);
}

TEST_F(ColumnTest, SizesThatWrapAround_AreRefused) {
  Column<uint32_t> column(3);
  EXPECT_THROW(column.resize(uint64_t{1} << 62), std::bad_alloc);
  EXPECT_THROW(column.resize((uint64_t{1} << 62) + 1), std::bad_alloc);
  EXPECT_THROW(column.reserve(std::numeric_limits<size_t>::max()), std::bad_alloc);
  EXPECT_EQ(column.size(), 3u);
  Column<uint32_t> mapped(2 * kMiB);
  EXPECT_THROW(mapped.reserve(uint64_t{1} << 62), std::bad_alloc);
  EXPECT_THROW(mapped.reserve(uint64_t{1} << 59), std::bad_alloc);  // that much cannot be mapped
  EXPECT_EQ(mapped.capacity(), 2 * kMiB);
}

TEST_F(ColumnTest, LentMemory_IsUsedUntilTheColumnGrowsOrGoes) {
  const auto memory = std::make_shared<std::vector<uint32_t>>(8 * kMiB);
  Column<uint32_t> column(memory->data(), memory->size(), memory);
  EXPECT_TRUE(column.is_lent());
  EXPECT_TRUE(column.empty());
  column.resize(memory->size());
  std::fill(column.begin(), column.end(), 7u);
  column.resize(10);
  column.Trim();  // others have the rest
  EXPECT_EQ(column.data(), memory->data());
  EXPECT_EQ((*memory)[memory->size() - 1], 7u);

  Column<uint32_t> copy = column;
  EXPECT_FALSE(copy.is_lent());
  EXPECT_EQ(copy, column);
  Column<uint32_t> moved = std::move(column);
  EXPECT_TRUE(moved.is_lent());
  EXPECT_EQ(memory.use_count(), 2);

  EXPECT_EQ(moved.ReserveBytes(memory->size() + 1, Growth::kExact), (memory->size() + 1) * sizeof(uint32_t));
  moved.reserve(memory->size() + 1);
  EXPECT_FALSE(moved.is_lent());
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_EQ(moved, copy);

  moved = Column<uint32_t>(memory->data(), 3, memory);
  EXPECT_EQ(memory.use_count(), 2);
  moved = {};
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(ColumnTest, ManySizes_NeverOverlap) {
  std::vector<Column<uint64_t>> columns;
  for (uint64_t i = 0; i < 400; ++i) {
    const size_t place = i * 7 % 40;
    if (place < columns.size()) {
      for (const uint64_t value : columns[place]) ASSERT_EQ(value, columns[place][0]);
      columns.erase(columns.begin() + static_cast<std::ptrdiff_t>(place));
    }
    columns.emplace_back(20000 + i * i % 977 * 1000);
    std::fill(columns.back().begin(), columns.back().end(), i);
  }
  for (const Column<uint64_t>& column : columns) {
    for (const uint64_t value : column) ASSERT_EQ(value, column[0]);
  }
}

}  // namespace
}  // namespace sparseagg
