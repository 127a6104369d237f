// What the control groups of a process leave it.
#include "service/admission/process_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sparseagg::service {
namespace {

class ProcessMemoryTest : public ::testing::Test {
 protected:
  ProcessMemoryTest() { std::filesystem::remove_all(root_); }
  ~ProcessMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_ =
      ::testing::TempDir() + "process_memory_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ProcessMemoryTest, NoGroups_IsTheMachines) { EXPECT_GT(ProcessMemory(root_), 100'000'000); }

TEST_F(ProcessMemoryTest, OwnGroup_Counts) {
  Write("/proc/self/cgroup", "0::/system.slice/sparseagg.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("/sys/fs/cgroup/system.slice/sparseagg.service/memory.max", "5000000\n");
  EXPECT_EQ(ProcessMemory(root_), 5'000'000);
}

TEST_F(ProcessMemoryTest, GroupsAbove_CountIfTheyHaveLess) {
  Write("/proc/self/cgroup", "1:cpu:/x\n0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "5000000\n");
  Write("/sys/fs/cgroup/a/memory.max", "4000000\n");
  Write("/sys/fs/cgroup/x/memory.max", "1000000\n");  // of no group of ours
  EXPECT_EQ(ProcessMemory(root_), 4'000'000);
}

// Its own group is at the top of what it sees, while its path may be that on the host.
TEST_F(ProcessMemoryTest, InAContainer_TheTopCounts) {
  Write("/sys/fs/cgroup/memory.max", "3000000\n");
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(ProcessMemory(root_), 3'000'000);
  Write("/proc/self/cgroup", "0::/kubepods/pod1/c1\n");
  EXPECT_EQ(ProcessMemory(root_), 3'000'000);
}

TEST_F(ProcessMemoryTest, VersionOne_HasItsOwnFiles) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/c\n4:memory:/docker/c1\n");
  Write("/sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "2000000\n");
  EXPECT_EQ(ProcessMemory(root_), 2'000'000);
}

}  // namespace
}  // namespace sparseagg::service
