// The engine and its kernels under the strict executor, in which barriers are real. Under the thread sanitizer a race
// is a failure of the program, too.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"
#include "tests/support/strict_device.h"
#include "tests/support/strict_executor.h"

namespace sparseagg::testing {
namespace {

// ---- the executor itself

template <typename Body>
struct BodyKernel {
  struct Shared {};
  struct Private {};
  static constexpr uint32_t kThreads = cuda::kBlockThreads;
  Body body;
  uint64_t num_blocks() const { return 2; }
  template <typename Block>
  void operator()(Block& block, Shared&) const {
    body(block);
  }
};

template <typename Body>
std::string ErrorOf(Body body) {
  try {
    StrictExecutor(TestSeed(1)).RunBlocks(BodyKernel<Body>{body});
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

// A phase seen from one thread: the executor runs the whole body once a thread.
template <typename Block>
uint32_t ThreadOf(Block& block) {
  uint32_t self = 0;
  block.Phase([&self](uint32_t thread) { self = thread; });
  return self;
}

TEST(StrictExecutor, ThreadsAtDifferentBarriers_ErrorNamesBoth) {
  const int line = __LINE__ + 4;
  const std::string error = ErrorOf([](auto& block) {
    const uint32_t thread = ThreadOf(block);
    if (thread == 7) {
      block.Phase([](uint32_t) {});
    } else {
      block.Phase([](uint32_t) {});
    }
  });
  EXPECT_NE(error.find(absl::StrCat("strict_test.cc:", line)), std::string::npos) << error;
  EXPECT_NE(error.find(absl::StrCat("strict_test.cc:", line + 2)), std::string::npos) << error;
}

TEST(StrictExecutor, AThreadThatLeavesEarly_ErrorNamesTheBarrierOfTheOthers) {
  const int line = __LINE__ + 2;
  const std::string error = ErrorOf([](auto& block) {
    if (ThreadOf(block) != 7) block.Phase([](uint32_t) {});
  });
  EXPECT_NE(error.find(absl::StrCat("strict_test.cc:", line)), std::string::npos) << error;
  EXPECT_NE(error.find("thread 7 has returned"), std::string::npos) << error;
}

// ---- the engine on it

#ifdef SPARSEAGG_TINY_BLOCKS
// The sanitizers' builds take ten times as long.
constexpr uint64_t kCases = 3;
constexpr uint64_t kStep = 37;  // of the combinations of op, type and so on
#else
constexpr uint64_t kCases = 40;
constexpr uint64_t kStep = 1;
#endif
// Each in another order of the threads; in some, threads that do not wait still choose a plan that holds.
constexpr uint64_t kTries = 4;

// `dense`: tiles are folded as matrices wherever they may be; else they are sorted wherever they fit.
cuda::DeviceEngineOptions Options(bool tiles, bool dense = true) {
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  if (!tiles) options.tuning.min_tile_tuples = 1e300;
  if (!dense) options.tuning.min_matrix_tuples = UINT32_MAX;
  options.cpu.num_threads = 1;
  return options;
}

TEST(StrictEngine, RandomCases_EqualTheReferenceOnBothPaths) {
  for (uint64_t seed = TestSeed(50'000), end = seed + TestCases(kCases); seed < end; ++seed) {
    const Case c = RandomCase(seed);
    cuda::DeviceEngine engine(MakeStrictDevice(seed), Options(/*tiles=*/seed % 2 == 0));
    ASSERT_EQ(Disagreement(c.specs, Drive(engine, c.specs, c.submissions, {.shuffle_seed = seed}),
                           Judge(c.specs, c.submissions)),
              "")
        << "SPARSEAGG_TEST_SEED=" << seed << "\n"
        << Describe(c);
    ASSERT_TRUE(engine.Probe().ok()) << engine.Probe();
  }
}

TEST(StrictEngine, RandomTileCases_EqualTheReference) {
  for (uint64_t seed = TestSeed(70'000), end = seed + TestCases(kCases / 2); seed < end; ++seed) {
    const Case c = RandomTileCase(seed, /*num_tuples=*/2'000);
    cuda::DeviceEngineOptions options = Options(/*tiles=*/true, /*dense=*/seed % 2 == 0);
    options.tuning.max_batch_entries = seed % 5 == 0 ? 3'000 : 1'000'000;  // later batches have base rows
    cuda::DeviceEngine engine(MakeStrictDevice(seed), options);
    DriveOptions drive;
    if (!OrderMatters(c.specs[0]) && seed % 2 == 0) drive.fold_seed = seed;
    ASSERT_EQ(Disagreement(c.specs, Drive(engine, c.specs, c.submissions, drive), Judge(c.specs, c.submissions)), "")
        << "SPARSEAGG_TEST_SEED=" << seed << "\n"
        << Describe(c);
  }
}

// By sort with rows, repeated keys and random order; by tiles with what tiles take.
std::vector<RawSubmission> SmallSubmissions(const TensorSpec& spec, bool tiles, uint64_t seed) {
  std::vector<RawSubmission> submissions;
  Rng rng(seed);
  for (int i = 0; i < 5; ++i) {
    RawTensor raw;
    raw.keys =
        RandomKeys(rng, spec.num_rows, 20, KeyStyle::kUniform, tiles ? KeyOrder::kSortedUnique : KeyOrder::kShuffled);
    if (!tiles) raw.keys.insert(raw.keys.end(), raw.keys.begin(), raw.keys.begin() + 3);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * spec.row_width, ValueStyle::kUnit);
    submissions.push_back({absl::StrCat("client ", i), 1.0 + i % 3, {std::move(raw)}});
  }
  return submissions;
}

TEST(StrictEngine, EveryOpTypeWeightingNumericsLayoutAndPath_EqualsTheReference) {
  cuda::DeviceEngine sort_engine(MakeStrictDevice(TestSeed(1)), Options(/*tiles=*/false));
  cuda::DeviceEngine tile_engine(MakeStrictDevice(TestSeed(1)), Options(/*tiles=*/true, /*dense=*/false));
  std::vector<std::unique_ptr<cuda::Device>> two;
  for (const uint64_t seed : {2, 3}) two.push_back(MakeStrictDevice(TestSeed(seed)));
  cuda::DeviceEngine engine_of_two(std::move(two), Options(/*tiles=*/true));
  uint64_t num_cases = 0;
  for (TensorSpec& spec : EveryCombination()) {
    for (const bool tiles : {false, true}) {
      if (++num_cases % kStep != 0) continue;
      spec.num_rows = 60;
      spec.row_width = tiles ? 1 : 3;
      const auto submissions = SmallSubmissions(spec, tiles, TestSeed(num_cases));
      // Cases that ascend go to one device and to two in turn.
      cuda::DeviceEngine& tiled = num_cases / 2 % 2 == 0 ? tile_engine : engine_of_two;
      cuda::DeviceEngine& engine = tiles ? tiled : sort_engine;
      const uint64_t num_done = engine.use().num_done;
      ASSERT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "")
          << Describe(spec) << (tiles ? ", tiles" : ", sort");
      ASSERT_EQ(engine.use().num_fallbacks, 0u);
      ASSERT_GT(engine.use().num_done, num_done);
    }
  }
  EXPECT_GE(num_cases, 400u);
  EXPECT_GT(engine_of_two.use().num_done, 0u);
}

// ---- kernels without one of their barriers

// An aggregation that reaches the inner barriers of one kernel.
struct Job {
  std::string name;
  bool tiles = false;
  bool dense = true;    // of tiles: as of Options
  bool base = false;    // in several merges, each after the rows of the one before
  bool medium = false;  // all long segments are medium ones, which blocks of one warp fold
  TensorSpec spec;
  std::vector<RawSubmission> submissions;
};

Job MakeJob(const std::string& name, bool tiles, DType dtype, uint32_t row_width, uint64_t num_rows, int num_clients,
            size_t num_tuples) {
  Job job;
  job.name = name;
  job.tiles = tiles;
  job.spec.name = "t";
  job.spec.dtype = dtype;
  job.spec.num_rows = num_rows;
  job.spec.row_width = row_width;
  AggregationSpec& a = job.spec.aggregation;
  a.op = tiles || !IsFloat(dtype) ? Op::kSum : Op::kCoordinateMean;
  a.weighting = Weighting::kByWeight;
  a.return_counts = true;
  Rng rng(TestSeed(3));
  for (int i = 0; i < num_clients; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, num_rows, num_tuples, KeyStyle::kUniform,
                          tiles ? KeyOrder::kSortedUnique : KeyOrder::kShuffled);
    raw.values = RandomValues(rng, job.spec.dtype, raw.keys.size() * row_width,
                              IsFloat(dtype) ? ValueStyle::kUnit : ValueStyle::kSmallIntegers);
    job.submissions.push_back({absl::StrCat("client ", i), 1.0 + i % 3, {std::move(raw)}});
  }
  return job;
}

std::vector<Job> Jobs() {
  std::vector<Job> jobs = {
      MakeJob("long segments in order", false, DType::kFloat32, 9, 2, 40, 30),
      MakeJob("long segments in any order", false, DType::kInt64, 1, 2, 40, 60),
      MakeJob("tiles as matrices", true, DType::kFloat32, 1, 30'000, 70, 400),
      MakeJob("sorted tiles", true, DType::kFloat32, 1, 60'000, 140, 30),
      MakeJob("sorted tiles after rows", true, DType::kInt64, 1, 1'000'000, 20, 100),
  };
  jobs[3].dense = jobs[4].dense = false;
  jobs[4].base = true;
  return jobs;
}

// The same bodies with blocks of one warp.
std::vector<Job> JobsOfOneWarp() {
  std::vector<Job> jobs = {
      MakeJob("medium segments in order", false, DType::kFloat32, 9, 2, 20, 12),
      MakeJob("medium segments in any order", false, DType::kInt64, 1, 2, 20, 30),
  };
  for (Job& job : jobs) job.medium = true;
  return jobs;
}

// Returns: whether the job gives the right bits without the barrier at `removed`. Sets `sites` to the inner barriers.
bool IsRight(const Job& job, const Verdict& verdict, uint64_t seed, BarrierSite removed,
             std::vector<BarrierSite>* sites) {
  Fibers* fibers = nullptr;
  std::unique_ptr<cuda::Device> device = MakeStrictDevice(seed, &fibers);
  fibers->RemoveBarrier(removed);
  cuda::DeviceEngineOptions options = Options(job.tiles, job.dense);
  // One merge, with all submissions, in a few blocks.
  options.tuning.min_pending_bytes = job.base ? 1 : size_t{1} << 30;
  options.tuning.slab_bytes = 0;
  if (job.medium) options.tuning.long_segment = 1'000'000;
  cuda::DeviceEngine engine(std::move(device), options);
  DriveOptions drive;
  if (job.base) drive.fold_seed = 1;
  const Driven driven = Drive(engine, {job.spec}, job.submissions, drive);
  if (sites != nullptr) *sites = fibers->InnerSites();
  return engine.use().num_fallbacks == 0 && Disagreement({job.spec}, driven, verdict).empty();
}

// Runs something without one barrier in a process of its own, since wrong indices may end it. `is_right`: whether the
// result of a seed is right. Returns: whether the missing barrier showed: by a wrong result, an error of the executor,
// a crash or a report of a race.
bool Shows(const std::function<bool(uint64_t seed)>& is_right) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    try {
      for (uint64_t seed = 1; seed <= kTries; ++seed) {
        if (!is_right(seed)) _exit(1);
      }
    } catch (const std::exception&) {
      _exit(1);
    }
    std::exit(0);  // not _exit: the thread sanitizer changes the status if it has reported a race
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) throw std::runtime_error("no child process");
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Checks that each barrier which the jobs reach is needed by one of them, and that they reach so many.
void ExpectMissingBarriersShow(const std::vector<Job>& jobs, size_t min_barriers) {
  std::map<std::string, bool> shows;  // by site: in any of the jobs that reach it
  for (const Job& job : jobs) {
    SCOPED_TRACE(job.name);
    const Verdict verdict = Judge({job.spec}, job.submissions);
    std::vector<BarrierSite> sites;
    ASSERT_TRUE(IsRight(job, verdict, 1, BarrierSite(), &sites));
    const auto shows_without = [&](BarrierSite removed) {
      return Shows([&](uint64_t seed) { return IsRight(job, verdict, seed, removed, nullptr); });
    };
    ASSERT_FALSE(shows_without(BarrierSite())) << "a process without a mistake fails";
    for (const BarrierSite& site : sites) {
      bool& shown = shows[Name(site)];
      shown = shown || shows_without(site);
    }
  }
  EXPECT_GE(shows.size(), min_barriers) << "the jobs reach too little";
  for (const auto& [site, shown] : shows) EXPECT_TRUE(shown) << site;
}

TEST(StrictEngine, WithoutAnyOneBarrier_TheMistakeShows) { ExpectMissingBarriersShow(Jobs(), 19); }

TEST(StrictEngine, BlocksOfOneWarpWithoutAnyOneBarrier_TheMistakeShows) {
  ExpectMissingBarriersShow(JobsOfOneWarp(), 4);
}

// Whether imports, of keys in order of which one thread finds one repeated, find so much.
bool ImportsAreRight(StrictExecutor& executor) {
  std::vector<uint32_t> keys(300);
  std::vector<uint32_t> copy(keys.size());
  std::iota(keys.begin(), keys.end(), 0u);
  keys[200] = keys[199];
  const cuda::ImportTask task = {keys.data(), DType::kUInt32, keys.size(), 0, 0, 4, 1000, copy.data()};
  bool are_right = true;
  for (int i = 0; i < 10; ++i) {
    uint32_t found = 0;
    executor.RunBlocks(cuda::ImportUpdates{&task, 1, task.num_parts(), &found});
    are_right = are_right && found == cuda::kRepeats && copy == keys;
  }
  return are_right;
}

TEST(StrictKernels, AnImportWithoutAnyOneBarrier_TheMistakeShows) {
  StrictExecutor executor(TestSeed(1));
  EXPECT_TRUE(ImportsAreRight(executor));
  const std::vector<BarrierSite> sites = executor.fibers().InnerSites();
  EXPECT_EQ(sites.size(), 2u);
  for (const BarrierSite& site : sites) {
    EXPECT_TRUE(Shows([&](uint64_t seed) {
      StrictExecutor without(seed);
      without.fibers().RemoveBarrier(site);
      return ImportsAreRight(without);
    })) << Name(site);
  }
}

}  // namespace
}  // namespace sparseagg::testing
