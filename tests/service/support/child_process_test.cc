#include "tests/service/support/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <system_error>

namespace sparseagg::service {
namespace {

ChildProcess Sleeper() { return {{"sleep", "1000"}, {}, STDOUT_FILENO, STDERR_FILENO}; }

ChildProcess Shell(const std::string& script) { return {{"sh", "-c", script}, {}, STDOUT_FILENO, STDERR_FILENO}; }

TEST(ChildProcessTest, MissingProgram_IsAnErrorThatNamesIt_AndNothingIsKilled) {
  try {
    const ChildProcess child({"/nowhere/program"}, {}, STDOUT_FILENO, STDERR_FILENO);
    FAIL() << "it has started";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("/nowhere/program"));
  }
}

TEST(ChildProcessTest, Status_IsTheExitCodeOrTheSignal) {
  EXPECT_EQ(Shell("exit 7").Wait(), 7);
  ChildProcess sleeper = Sleeper();
  EXPECT_FALSE(sleeper.HasExited());
  sleeper.Signal(SIGTERM);
  EXPECT_EQ(sleeper.Wait(), 1000 + SIGTERM);
  EXPECT_TRUE(sleeper.HasExited());
}

TEST(ChildProcessTest, ChildThatHasBeenWaitedFor_TakesNoSignal) {
  ChildProcess child = Shell("exit 0");
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_THROW(child.Signal(SIGTERM), std::system_error);
  EXPECT_THROW(child.Pause(), std::system_error);
  EXPECT_THROW(child.Wait(), std::system_error);
}

TEST(ChildProcessTest, Destructor_KillsTheChild) {
  pid_t pid = 0;
  {
    const ChildProcess sleeper = Sleeper();
    pid = sleeper.pid();
    sleeper.Pause();
    EXPECT_EQ(access(("/proc/" + std::to_string(pid)).c_str(), F_OK), 0);
  }
  EXPECT_NE(access(("/proc/" + std::to_string(pid)).c_str(), F_OK), 0);
}

// As under `nohup make test &` in a script.
TEST(ChildProcessTest, SignalsThatThisProcessIgnoresOrBlocks_HaveTheirEffectInTheChild) {
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    const auto before = std::signal(number, SIG_IGN);
    sigset_t blocked;
    sigset_t mask_before;
    sigemptyset(&blocked);
    sigaddset(&blocked, number);
    pthread_sigmask(SIG_BLOCK, &blocked, &mask_before);
    ChildProcess sleeper = Sleeper();
    pthread_sigmask(SIG_SETMASK, &mask_before, nullptr);
    std::signal(number, before);
    sleeper.Signal(number);
    EXPECT_EQ(sleeper.Wait(), 1000 + number);
  }
}

}  // namespace
}  // namespace sparseagg::service
