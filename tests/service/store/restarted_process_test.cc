// The program with a data directory, killed and started again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/service/support/server_process.h"
#include "tests/service/support/temporary_directory.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A server in this process could only be stopped in order.
class RestartedProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> more = {}, std::vector<std::string> environment = {}) {
    more.insert(more.end(), {"--data-dir", folder_ / "data"});
    return std::make_unique<ServerProcess>(more, environment);
  }

  const TemporaryDirectory folder_;
};

TEST_F(RestartedProcessTest, Killed_KeepsWhatItHasAcknowledged) {
  for (const std::string durability : {"sync", "async"}) {
    const std::string id = "r-" + durability;
    auto server = Start({"--durability", durability});
    Client client(server->address());
    const auto round = client.Create(SumSpec(), id);
    ASSERT_THAT(round, IsOk());
    ASSERT_THAT(client.SubmitStream({MakeChunk(round->name(), "a", {1}, {1})}), IsOk());
    ASSERT_THAT(client.Put(MakeChunk(round->name(), "b", {1}, {2}, 0, false)), IsOk());
    const auto sealed = client.Create(SumSpec(), "sealed-" + durability);
    ASSERT_THAT(sealed, IsOk());
    ASSERT_THAT(client.SubmitStream({MakeChunk(sealed->name(), "a", {1}, {1})}), IsOk());
    ASSERT_THAT(client.Seal(sealed->name()), IsOk());
    server->Signal(SIGKILL);
    server->Wait();
    server = Start({"--durability", durability});
    Client again(server->address());
    EXPECT_EQ(again.Get(round->name())->num_submissions(), 1) << server->Log();
    ASSERT_THAT(again.Put(MakeChunk(round->name(), "b", {2}, {2}, 1)), IsOk());
    ASSERT_THAT(again.Commit(MakeChunk(round->name(), "b", {}, {})), IsOk());
    ASSERT_THAT(again.Finish(round->name()), IsOk());
    EXPECT_EQ(again.Get(sealed->name())->state(), v1::ROUND_STATE_SEALED) << server->Log();
    EXPECT_EQ(again.Get(sealed->name())->num_submissions(), 1);
    EXPECT_EQ(again.Finish(sealed->name())->state(), v1::ROUND_STATE_DONE);
    server->Signal(SIGTERM);
    EXPECT_EQ(server->Wait(), 0) << server->Log();
  }
}

TEST_F(RestartedProcessTest, DirectoryInUse_EndsWithAnErrorThatNamesIt) {
  const auto first = Start();
  const auto second = Start();
  EXPECT_EQ(second->address(), "");
  EXPECT_EQ(second->Wait(), 1);
  EXPECT_THAT(second->Log(), AllOf(HasSubstr(folder_ / "data"), HasSubstr("another server")));
}

TEST_F(RestartedProcessTest, MemoryDurability_WritesNothing) {
  auto server = Start({"--durability", "memory"});
  ASSERT_NE(server->address(), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "data"));
}

}  // namespace
}  // namespace sparseagg::service
