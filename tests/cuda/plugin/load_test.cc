// A program loads the CUDA engine, or says why it does not.
#include "cuda/plugin/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "cuda/plugin/plugin.h"
#include "host/cpu/cpu_engine.h"
#include "host/unfinished_rows.h"
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

using Throw = std::function<void()>;

class ThrowingAccumulator : public Accumulator {
 public:
  explicit ThrowingAccumulator(Throw fail) : fail_(std::move(fail)) {}
  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate) const override { return Fail(); }
  uint64_t PrepareBytes(const ValidatedUpdate&) const override { return 1; }
  absl::Status Add(std::unique_ptr<PreparedUpdate>) override { return Fail(); }
  absl::Status MergeFrom(Accumulator&&) override { return Fail(); }
  bool KeepsAll() const override { return true; }
  void Remove(absl::Span<const uint32_t>) override {}
  void MultiplyWeights(absl::Span<const double>) override {}
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder) override { return Fail(); }
  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t, uint64_t, uint64_t) override { return Fail(); }
  PartialTotals Totals() const override { return {7, 8, true}; }
  uint64_t ReadBytes(const PreparedUpdate*) const override { return 6; }
  absl::Status FoldPending(SubmissionOrder) override { return Fail(); }
  absl::StatusOr<Result> Finish(SubmissionOrder) && override { return Fail(); }
  absl::StatusOr<DeviceResult> FinishOnDevice(SubmissionOrder) && override { return Fail(); }
  uint64_t num_submissions() const override { return 2; }
  size_t memory_bytes() const override { return 3; }
  uint64_t FoldBytes(const PreparedUpdate*) const override { return 4; }
  uint64_t FinishBytes(const PreparedUpdate*) const override { return 5; }

 private:
  absl::Status Fail() const {
    fail_();
    return absl::OkStatus();
  }
  const Throw fail_;
};

class ThrowingEngine : public Engine {
 public:
  explicit ThrowingEngine(Throw fail) : fail_(std::move(fail)) {}
  absl::string_view name() const override { return "throwing"; }
  std::string description() const override { throw std::bad_alloc(); }
  absl::Status Probe() const override { return Fail(); }
  std::vector<DeviceState> devices() const override {
    fail_();
    return {{5, "a device", absl::OkStatus()}};
  }
  uint64_t min_pending_bytes() const override { return 0; }
  void ReleaseDeviceMemory() override {
    num_releases += 1;
    fail_();
  }
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override {
    if (spec.name.empty()) return Fail();
    return std::make_unique<ThrowingAccumulator>(fail_);
  }
  std::optional<DeviceStream> device_stream() const override { return DeviceStream{6, 7}; }
  absl::Status Import(absl::Span<DeviceUpdate>, std::vector<ValidatedUpdate>&) override { return Fail(); }

  int num_releases = 0;

 private:
  absl::Status Fail() const {
    fail_();
    return absl::OkStatus();
  }
  const Throw fail_;
};

// Calls everything that may throw. Returns: the statuses.
std::vector<absl::Status> StatusesOf(Engine& engine) {
  TensorSpec spec;
  spec.num_rows = 9;
  std::vector<absl::Status> statuses = {engine.Probe(), engine.CreateAccumulator(spec).status()};
  std::vector<ValidatedUpdate> imported;
  statuses.push_back(engine.Import({}, imported));
  spec.name = "v";
  const std::unique_ptr<Accumulator> accumulator = *engine.CreateAccumulator(spec);
  const std::unique_ptr<Accumulator> other = *engine.CreateAccumulator(spec);
  const std::vector<float> values = {1};
  auto update = ValidatedUpdate::CreateWithCopiedKeys(spec, KeyRun{0, 1},
                                                      reinterpret_cast<const std::byte*>(&values[0]), nullptr, 1);
  statuses.push_back(accumulator->Prepare(*update).status());
  statuses.push_back(accumulator->Add(nullptr));
  statuses.push_back(accumulator->MergeFrom(std::move(*other)));
  statuses.push_back(accumulator->ReadPending(RowOrder::kAscending).status());
  statuses.push_back(accumulator->FoldPending({}));
  statuses.push_back(accumulator->ExportRows(0, 1, 1).status());
  statuses.push_back(std::move(*accumulator).Finish({}).status());
  statuses.push_back(std::move(*accumulator).FinishOnDevice({}).status());
  return statuses;
}

TEST(GuardedEngineTest, Exceptions_BecomeStatuses) {
  const auto no_memory = cuda::GuardEngine(std::make_unique<ThrowingEngine>([] { throw std::bad_alloc(); }));
  EXPECT_EQ(StatusesOf(*no_memory), std::vector(11, absl::ResourceExhaustedError("out of memory")));
  EXPECT_EQ(no_memory->description(), "");
  EXPECT_TRUE(no_memory->devices().empty());
  no_memory->ReleaseDeviceMemory();
  const auto wrong = cuda::GuardEngine(std::make_unique<ThrowingEngine>([] { throw std::logic_error("bad"); }));
  EXPECT_EQ(StatusesOf(*wrong), std::vector(11, absl::InternalError("unexpected exception: bad")));
}

TEST(GuardedEngineTest, WhatThrowsNothing_IsForwarded) {
  auto throwing = std::make_unique<ThrowingEngine>([] {});
  const ThrowingEngine& inner = *throwing;
  const auto engine = cuda::GuardEngine(std::move(throwing));
  EXPECT_EQ(engine->name(), "throwing");
  ASSERT_EQ(engine->devices().size(), 1u);
  EXPECT_EQ(engine->devices()[0].device, 5);
  engine->ReleaseDeviceMemory();
  EXPECT_EQ(inner.num_releases, 1);
  ASSERT_TRUE(engine->device_stream().has_value());
  EXPECT_EQ(engine->device_stream()->stream, 7u);
  TensorSpec spec;
  spec.name = "v";
  const std::unique_ptr<Accumulator> accumulator = *engine->CreateAccumulator(spec);
  EXPECT_TRUE(accumulator->KeepsAll());
  EXPECT_EQ(accumulator->num_submissions(), 2u);
  EXPECT_EQ(accumulator->memory_bytes(), 3u);
  EXPECT_EQ(accumulator->FoldBytes(nullptr), 4u);
  EXPECT_EQ(accumulator->FinishBytes(nullptr), 5u);
  EXPECT_EQ(accumulator->ReadBytes(nullptr), 6u);
}

}  // namespace
}  // namespace sparseagg::testing
