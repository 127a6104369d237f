// Benchmark of the CPU engine in process: from validated updates to the finished result.
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/common/machine.h"
#include "bench/common/must.h"
#include "bench/common/reference_sum.h"
#include "bench/common/workloads.h"
#include "host/aggregation.h"
#include "host/base/column.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

struct Mode {
  Numerics numerics = Numerics::kCanonical;
  bool counts = false;
  Op op = Op::kSum;
  Weighting weighting = Weighting::kUniform;
  ResultLayout result = ResultLayout::kSparse;
  int threads = 1;

  const char* NumericsName() const { return numerics == Numerics::kFixedPoint ? "fixed_point" : "canonical"; }
  const char* WeightingName() const { return weighting == Weighting::kByWeight ? "by_weight" : "uniform"; }
  const char* ResultName() const { return result == ResultLayout::kDense ? " to dense" : ""; }
  std::string Name() const {
    const std::string division = op == Op::kSum ? "" : absl::StrCat(" ", sparseagg::Name(op), " ", WeightingName());
    return absl::StrCat(NumericsName(), counts ? "+counts" : "", division, ResultName(), " ", threads, "T");
  }
};

// All modes, with one thread.
const Mode kModes[] = {
    {Numerics::kCanonical},
    {Numerics::kCanonical, true},
    {Numerics::kFixedPoint},
    {Numerics::kFixedPoint, true},
    {Numerics::kCanonical, false, Op::kMean, Weighting::kByWeight},
    {Numerics::kCanonical, false, Op::kCoordinateMean, Weighting::kUniform},
    {Numerics::kCanonical, false, Op::kCoordinateMean, Weighting::kByWeight},
    {Numerics::kCanonical, false, Op::kSum, Weighting::kUniform, ResultLayout::kDense},
};

// No dense results larger than this.
constexpr uint64_t kMaxDenseBytes = uint64_t{1} << 30;

struct Figures {
  Mode mode;
  std::vector<double> seconds;
  double median_seconds = 0;
  uint64_t num_rows = 0;
  uint64_t result_bytes = 0;
  uint64_t extra_bytes = 0;  // peak memory in addition to inputs and result
  std::string plan;
};

TensorSpec SpecOf(const Workload& workload, const Mode& mode) {
  TensorSpec spec = workload.spec;
  spec.aggregation.return_counts = mode.counts;
  spec.aggregation.op = mode.op;
  spec.aggregation.weighting = mode.weighting;
  spec.aggregation.numerics = mode.numerics;
  spec.aggregation.result_layout = mode.result;
  if (mode.numerics == Numerics::kFixedPoint) {
    spec.aggregation.value_bound = 1.0;
    spec.aggregation.max_submissions = workload.clients.size();
  }
  return spec;
}

std::vector<ValidatedUpdate> Validate(const Workload& workload, const TensorSpec& spec) {
  std::vector<ValidatedUpdate> updates;
  for (const ClientArrays& client : workload.clients) {
    updates.push_back(Must(ValidatedUpdate::Create(spec, BorrowColumns(spec, client), client.weight)));
  }
  return updates;
}

// Updates prepared side by side, before they are added.
constexpr size_t kBatch = 64;

// Prepares the updates on the threads of `arena`, merges them and finishes.
Result Merge(Engine& engine, tbb::task_arena& arena, const TensorSpec& spec,
             const std::vector<ValidatedUpdate>& updates) {
  auto aggregation = Must(Aggregation::Create(engine, {spec}));
  aggregation->DeferMerges();  // as sa.aggregate does where it is given all updates
  std::vector<PreparedSubmission> prepared(std::min(kBatch, updates.size()));
  for (size_t begin = 0; begin < updates.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, updates.size() - begin);
    const auto prepare = [&](size_t i) { prepared[i] = Must(aggregation->Prepare({updates[begin + i]})); };
    arena.execute([&] { tbb::parallel_for(size_t{0}, count, prepare); });
    for (size_t i = 0; i < count; ++i) {
      Check(aggregation->Add(absl::StrFormat("%020d", begin + i), std::move(prepared[i])));
    }
  }
  return std::move(Must(std::move(*aggregation).Finish())[0]);
}

Figures Measure(const Workload& workload, const CanonicalSums& expected, const Mode& mode, int repetitions) {
  const auto engine = CreateCpuEngine({mode.threads});
  tbb::task_arena arena(mode.threads);
  const TensorSpec spec = SpecOf(workload, mode);
  const std::vector<ValidatedUpdate> updates = Validate(workload, spec);
  Figures figures;
  figures.mode = mode;
  {
    ReleaseFreedColumns();  // memory kept from earlier merges would hide the need of this one
    const bool reset = ResetPeakMemory();
    const uint64_t before = PeakMemoryBytes();
    const Result result = Merge(*engine, arena, spec, updates);
    figures.num_rows = result.num_keys;
    figures.result_bytes = result.memory_bytes();
    figures.plan = result.plan;
    const uint64_t grown = std::max(PeakMemoryBytes(), before) - before;
    if (reset && grown > figures.result_bytes) figures.extra_bytes = grown - figures.result_bytes;
    const std::string difference = expected.FindDifference(spec.aggregation, result);
    if (!difference.empty()) {
      throw std::runtime_error(absl::StrCat(workload.name, " ", mode.Name(), ": ", difference));
    }
  }
  for (int i = 0; i < repetitions; ++i) {
    const double start = Now();
    const Result result = Merge(*engine, arena, spec, updates);
    figures.seconds.push_back(Now() - start);
  }
  std::vector<double> sorted = figures.seconds;
  std::sort(sorted.begin(), sorted.end());
  figures.median_seconds = sorted[sorted.size() / 2];
  return figures;
}

std::string ToJson(const Workload& workload, const Figures& f) {
  return absl::StrFormat(
      R"({"workload": "%s", "numerics": "%s", "counts": %s, "op": "%s", "weighting": "%s", "result": "%s", )"
      R"("threads": %d, )"
      R"("tuples": %d, "row_width": %d, "rows_out": %d, )"
      R"("bytes_in": %d, "bytes_out": %d, "extra_peak_bytes": %d, "verified": true, "median_seconds": %.6f, )"
      R"("tuples_per_s": %.0f, "seconds": [%s]})",
      workload.name, f.mode.NumericsName(), f.mode.counts ? "true" : "false", Name(f.mode.op), f.mode.WeightingName(),
      f.mode.result == ResultLayout::kDense ? "dense" : "sparse", f.mode.threads, workload.num_tuples,
      workload.spec.row_width, f.num_rows, InputBytes(workload), f.result_bytes, f.extra_bytes, f.median_seconds,
      workload.num_tuples / f.median_seconds,
      absl::StrJoin(f.seconds, ", ", [](std::string* out, double s) { absl::StrAppendFormat(out, "%.6f", s); }));
}

// Prints the time per tuple of each set of adversarial keys, as a multiple of that of uniform keys.
void RunAdversaries(const std::string& modes, int repetitions, int scale, int max_threads, bool explain) {
  std::printf("%-48s %-16s %12s %8s\n", "", "", "M tuples/s", "x slower");
  std::map<std::string, double> yardsticks;
  for (const std::string& name : AdversaryNames()) {
    const Workload workload = MakeAdversary(name, kSeed, scale);
    const CanonicalSums expected(workload);
    for (int threads = 1; threads <= max_threads; threads *= 2) {
      Mode mode = kModes[0];
      mode.threads = threads;
      if (mode.Name().find(modes) == std::string::npos) continue;
      const Figures f = Measure(workload, expected, mode, repetitions);
      const double seconds = f.median_seconds / static_cast<double>(workload.num_tuples);
      const double yardstick = yardsticks.try_emplace(mode.Name(), seconds).first->second;
      std::printf("%-48s %-16s %12.1f %8.2f\n", name.c_str(), mode.Name().c_str(), 1e-6 / seconds, seconds / yardstick);
      if (explain) std::printf("    %s\n", f.plan.c_str());
      std::fflush(stdout);
    }
  }
}

void Run(const std::string& names, const std::string& modes, int repetitions, int scale, int max_threads, bool explain,
         const std::string& out_path) {
  const MemorySpeed memory = MeasureMemory();
  std::printf("%s, SIMD %s; one thread reads %.1f GB/s and copies %.1f GB/s; seed %lu\n\n", CpuName().c_str(),
              cpu::CurrentSimdTarget().c_str(), memory.read_bytes_per_s / 1e9, memory.memcpy_bytes_per_s / 1e9, kSeed);
  std::printf("%-4s %-39s %9s %9s %7s %12s %10s\n", "", "", "M tuples", "M rows", "GB/s", "M tuples/s", "extra MiB");
  std::vector<std::string> records;
  for (const std::string& name : SplitNames(names)) {
    const Workload workload = MakeWorkload(name, kSeed, scale);
    const CanonicalSums expected(workload);
    const uint64_t num_rows = workload.spec.num_rows;
    const bool may_be_dense = num_rows != 0 && num_rows <= kMaxDenseBytes / workload.spec.row_width / sizeof(float);
    for (Mode mode : kModes) {
      if (mode.result == ResultLayout::kDense && !may_be_dense) continue;
      for (mode.threads = 1; mode.threads <= max_threads; mode.threads *= 2) {
        if (mode.Name().find(modes) == std::string::npos) continue;
        const Figures f = Measure(workload, expected, mode, repetitions);
        const double bytes = static_cast<double>(InputBytes(workload) + f.result_bytes);
        std::printf("%-4s %-39s %9.2f %9.2f %7.2f %12.1f %10.1f\n", workload.name.c_str(), f.mode.Name().c_str(),
                    workload.num_tuples / 1e6, f.num_rows / 1e6, bytes / f.median_seconds / 1e9,
                    workload.num_tuples / f.median_seconds / 1e6, f.extra_bytes / 0x1p20);
        if (explain) std::printf("    %s\n", f.plan.c_str());
        std::fflush(stdout);
        records.push_back(ToJson(workload, f));
      }
    }
  }
  if (out_path.empty()) return;
  std::ofstream out(out_path);
  out << absl::StrFormat(
      "{\n\"date\": \"%s\", \"cpu\": \"%s\", \"simd\": \"%s\", \"seed\": %d, \"clients_divided_by\": %d,\n"
      "\"read_bytes_per_s\": %.0f, \"memcpy_bytes_per_s\": %.0f,\n\"results\": [\n%s\n]\n}\n",
      Today(), CpuName(), cpu::CurrentSimdTarget(), kSeed, scale, memory.read_bytes_per_s, memory.memcpy_bytes_per_s,
      absl::StrJoin(records, ",\n"));
  if (!out.good()) throw std::runtime_error("cannot write " + out_path);
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  CLI::App app("Times the CPU engine on workloads A to M, D48 and D64. Every result is verified before it is timed.");
  std::string names = "ABCDEFGH";
  std::string modes;
  std::string simd;
  std::string out;
  int repetitions = 7;
  int scale = 1;
  int threads = 2;
  bool explain = false;
  bool adversaries = false;
  app.add_option("--workloads", names, "letters of the workloads")->capture_default_str();
  app.add_option("--modes", modes, "only modes whose name contains this, such as 'canonical 1T'");
  app.add_option("--simd", simd, "SIMD target; empty: the best one")->envname("SPARSEAGG_SIMD");
  app.add_option("--repetitions", repetitions, "timed runs; the median is quoted")->capture_default_str();
  app.add_option("--divide-clients", scale, "take fewer clients, for a quick look")->capture_default_str();
  app.add_option("--max-threads", threads, "1, 2, 4, … up to this")->capture_default_str();
  app.add_flag("--explain", explain, "print how each was merged, and why");
  app.add_flag("--adversaries", adversaries, "time adversarial keys against uniform ones instead");
  app.add_option("--out", out, "JSON file to write");
  std::string folder;
  app.add_option("--export", folder, "measure nothing, but write the workloads into this folder");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::string& name : sparseagg::bench::SplitNames(folder.empty() ? "" : names)) {
      ExportWorkload(sparseagg::bench::MakeWorkload(name, sparseagg::bench::kSeed, scale), folder);
    }
    if (!folder.empty()) return 0;
    const absl::Status forced = sparseagg::cpu::ForceSimdTarget(simd);
    if (!forced.ok()) throw std::runtime_error(forced.ToString());
    if (adversaries) {
      sparseagg::bench::RunAdversaries(modes, repetitions, scale, threads, explain);
      return 0;
    }
    sparseagg::bench::Run(names, modes, repetitions, scale, threads, explain, out);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "merge_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
