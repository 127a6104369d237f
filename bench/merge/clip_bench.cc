// What bounds on submissions cost the CPU engine, from validated updates to the finished result, on one thread. Runs
// without bounds, within an L2 bound and beyond it take turns, so that they meet the same machine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/common/machine.h"
#include "bench/common/must.h"
#include "bench/common/workloads.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kModes = 3;
constexpr const char* kNames[kModes] = {"no bounds", "within l2", "beyond l2"};
constexpr double kBounds[kModes] = {TensorClip::kNone, 0x1p400, 0x1p-20};

double Seconds(Engine& engine, const TensorSpec& spec, const std::vector<ValidatedUpdate>& updates) {
  const double start = Now();
  auto aggregation = Must(Aggregation::Create(engine, {spec}));
  for (size_t i = 0; i < updates.size(); ++i) {
    Check(aggregation->Add(absl::StrFormat("%020d", i), Must(aggregation->Prepare({updates[i]}))));
  }
  Must(std::move(*aggregation).Finish());
  return Now() - start;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(const std::string& names, int repetitions, int scale, Variant variant) {
  std::printf("%s, SIMD %s; one thread; seed %lu\n\n", CpuName().c_str(), cpu::CurrentSimdTarget().c_str(), kSeed);
  std::printf("%-12s %-10s %12s %8s\n", "", "", "M tuples/s", "x time");
  const auto engine = CreateCpuEngine({1});
  for (const char name : names) {
    const Workload workload = MakeWorkload(std::string(1, name), kSeed, scale, variant);
    std::array<TensorSpec, kModes> specs;
    std::vector<ValidatedUpdate> updates;
    for (const ClientArrays& client : workload.clients) {
      updates.push_back(Must(ValidatedUpdate::Create(workload.spec, BorrowColumns(workload.spec, client), 1.0)));
    }
    std::array<std::vector<double>, kModes> seconds;
    std::array<std::vector<double>, kModes> ratios;
    for (size_t mode = 0; mode < kModes; ++mode) {
      specs[mode] = workload.spec;
      specs[mode].clip.l2 = kBounds[mode];
      specs[mode].clip.shares_l2 = kBounds[mode] != TensorClip::kNone;
    }
    for (int i = -1; i < repetitions; ++i) {
      for (size_t mode = 0; mode < kModes; ++mode) {
        const double time = Seconds(*engine, specs[mode], updates);
        if (i < 0) continue;  // the first turn touches the memory
        seconds[mode].push_back(time);
        ratios[mode].push_back(time / seconds[0].back());
      }
    }
    for (size_t mode = 0; mode < kModes; ++mode) {
      std::printf("%-12s %-10s %12.1f %8.3f\n", mode == 0 ? workload.name.c_str() : "", kNames[mode],
                  workload.num_tuples / Median(seconds[mode]) / 1e6, Median(ratios[mode]));
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  CLI::App app("Times bounds on submissions against merges without.");
  std::string names = "ABCDEFGH";
  int repetitions = 9;
  int scale = 1;
  bool shuffled = false;
  app.add_option("--workloads", names, "letters of the workloads")->capture_default_str();
  app.add_option("--repetitions", repetitions, "timed turns; medians are quoted")->capture_default_str();
  app.add_option("--divide-clients", scale, "take fewer clients, for a quick look")->capture_default_str();
  app.add_flag("--shuffled", shuffled, "each client's tuples in random order");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto variant = shuffled ? sparseagg::bench::Variant::kShuffled : sparseagg::bench::Variant::kPlain;
    sparseagg::bench::Run(names, repetitions, scale, variant);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "clip_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
