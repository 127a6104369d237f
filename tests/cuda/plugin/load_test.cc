// A program loads the CUDA engine, or says why it does not.
#include "cuda/plugin/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cuda/plugin/plugin.h"
#include "host/cpu/cpu_engine.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/results.h"

namespace sparseagg::testing {
namespace {

using cuda::LoadCudaEngine;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Plugin(const std::string& name) { return std::string(PLUGINS) + "/libsparseagg_" + name + ".so"; }

// Requires: the plug-in is refused.
std::string Refusal(const std::string& path) {
  const absl::Status status = LoadCudaEngine(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << path << ": " << status;
  return std::string(status.message());
}

TEST(LoadTest, Absent_NamesThePathsLookedAt) {
  EXPECT_EQ(Refusal("/nowhere/plugin.so"), "there is no CUDA plug-in: no file /nowhere/plugin.so");
  ASSERT_EQ(cuda::CudaPluginPaths().size(), 3u);
  for (const std::string& path : cuda::CudaPluginPaths()) {
    EXPECT_THAT(path, ::testing::EndsWith("/libsparseagg_cuda.so"));
    EXPECT_THAT(Refusal(""), HasSubstr(path));
  }
}

TEST(LoadTest, NoLibrary_SaysWhatTheLoaderSays) {
  const std::string path = ::testing::TempDir() + "/load_test." + std::to_string(getpid());
  std::ofstream(path) << "no library\n";
  EXPECT_THAT(Refusal(path), AllOf(HasSubstr("cannot be loaded: " + path), HasSubstr("file too short")));
  unlink(path.c_str());
}

TEST(LoadTest, OtherLibrary_SaysThatItHasNoEntry) {
  EXPECT_THAT(
      Refusal(Plugin("no_entry_plugin")),
      HasSubstr("libsparseagg_no_entry_plugin.so is no CUDA plug-in: it has no function sparseagg_cuda_plugin"));
}

TEST(LoadTest, OtherBuild_NamesBoth) {
  EXPECT_THAT(Refusal(Plugin("other_build_plugin")),
              AllOf(HasSubstr("belongs to sparseagg 0.0.9, interface 000000000000, GNU 9, z80, "),
                    HasSubstr(cuda::kPluginIdentity), HasSubstr("install both from the same release")));
}

TEST(LoadTest, NoDriverOrAnOldOne_SaysWhatTheEngineSays) {
  EXPECT_EQ(Refusal(Plugin("no_driver_plugin")), "no usable GPU: this machine has no NVIDIA driver");
  EXPECT_THAT(Refusal(Plugin("old_driver_plugin")), AllOf(HasSubstr("550.54.15"), HasSubstr("R580 or later")));
}

TEST(LoadTest, RandomRounds_HaveTheBitsOfTheCpuEngine) {
  const auto loaded = LoadCudaEngine(Plugin("test_plugin"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->name(), "cuda");
  EXPECT_EQ((*loaded)->Probe(), absl::OkStatus());
  const std::unique_ptr<Engine> cpu = CreateCpuEngine();
  const uint64_t first = TestSeed(2611);
  for (uint64_t seed = first; seed < first + TestCases(60); ++seed) {
    const Case c = RandomCase(seed);
    const Driven expected = Drive(*cpu, c.specs, c.submissions);
    const Driven driven = Drive(**loaded, c.specs, c.submissions);
    ASSERT_EQ(driven.submissions, expected.submissions) << Describe(c);
    ASSERT_EQ(driven.results.status(), expected.results.status()) << Describe(c);
    if (!expected.results.ok()) continue;
    ASSERT_EQ(Diff(*driven.results, *expected.results), "") << Describe(c);
  }
}

// Mapped columns can be freed and extended only by the store that has made them (host/base/column.h).
TEST(LoadTest, ColumnsOfMegabytes_PassBothWays) {
  const auto loaded = LoadCudaEngine(Plugin("test_plugin"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  TensorSpec spec;
  spec.name = "v";
  spec.num_rows = uint64_t{1} << 22;
  constexpr size_t kKeys = size_t{3} << 20;
  std::vector<uint32_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<Result> results;
  for (int round = 0; round < 2; ++round) {  // the second one in memory that the first one has freed
    const auto values = std::make_shared<std::vector<float>>(kKeys, 1.0F);
    auto update = ValidatedUpdate::CreateWithCopiedKeys(
        spec, absl::Span<const uint32_t>(keys), reinterpret_cast<const std::byte*>(values->data()), values, 1.0);
    ASSERT_TRUE(update.ok()) << update.status();
    auto accumulator = (*loaded)->CreateAccumulator(spec);
    ASSERT_TRUE(accumulator.ok()) << accumulator.status();
    auto prepared = (*accumulator)->Prepare(*std::move(update));
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_EQ((*accumulator)->Add(*std::move(prepared)), absl::OkStatus());
    auto result = std::move(**accumulator).Finish(std::vector<uint32_t>{0});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(KeysOf(*result).size(), kKeys);
    results.push_back(*std::move(result));
  }
  EXPECT_EQ(Diff(results[0], results[1]), "");
}

}  // namespace
}  // namespace sparseagg::testing
