// Counts the bytes that the CUDA engine's kernels move for each workload and path: updates on the device to folded rows
// on the device. Runs on any machine; measures no time.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/gpu/gpu_cases.h"
#include "bench/gpu/traffic/access_counter.h"
#include "bench/gpu/traffic/counting_device.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

// A clock that tells bytes instead of seconds.
class ByteClock : public SpanClock {
 public:
  void Begin() override { StartCounting(); }
  void End(const std::string& name) override {
    const Traffic traffic = TakeTraffic();
    bytes_[name] += static_cast<double>(traffic.read_bytes + traffic.written_bytes);
  }
  std::map<std::string, double> Collect() override { return std::exchange(bytes_, {}); }

 private:
  std::map<std::string, double> bytes_;
};

struct Counted {
  std::string path;  // taken
  std::string record;
};

Counted Count(const Workload& workload, const CanonicalSums& expected, const std::string& path) {
  BenchDevice bench;
  bench.create = MakeCountingDevice;
  bench.make_clock = [](cuda::Device&) { return std::make_unique<ByteClock>(); };
  ForcePath(path, bench.tuning);
  const HostInput input(workload);
  const Timing timing = TimeKernels(bench, workload, expected, input, 1);
  const auto tuples = static_cast<double>(workload.num_tuples);
  const double floor = static_cast<double>(InputBytes(workload) + timing.bytes_out) / tuples;
  Counted counted;
  counted.path = timing.kernels.count("fold_tiles") > 0 ? "tiles" : "sort";
  std::printf("%-2s %-5s %10.1f %10.1f\n", workload.name.c_str(), counted.path.c_str(), timing.seconds[0] / tuples,
              floor);
  std::fflush(stdout);
  counted.record = absl::StrFormat(
      R"({"workload": "%s", "path": "%s", "planned": %s, "tuples": %d, "rows_out": %d, "bytes_per_tuple": %.2f, )"
      R"("floor_bytes_per_tuple": %.2f, "kernels": {%s}})",
      workload.name, counted.path, path == "auto" ? "true" : "false", workload.num_tuples, timing.num_rows,
      timing.seconds[0] / tuples, floor, absl::StrJoin(timing.kernels, ", ", [&](std::string* out, const auto& each) {
        absl::StrAppendFormat(out, R"("%s": %.2f)", each.first, each.second / tuples);
      }));
  return counted;
}

// The path that the planner takes, and the other one where it is possible.
std::vector<std::string> CountPaths(const Workload& workload) {
  const CanonicalSums expected(workload);
  const Counted planned = Count(workload, expected, "auto");
  std::vector<std::string> records = {planned.record};
  const std::string other_path = planned.path == "sort" ? "tiles" : "sort";
  const Counted other = Count(workload, expected, other_path);
  if (other.path == other_path) records.push_back(other.record);
  return records;
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) try {
  std::string workloads = "ABCDEFG";
  int divide_clients = 1;
  std::string out;
  CLI::App app("Counts the bytes that the CUDA engine's kernels move for each tuple of workloads A to G.");
  app.add_option("--workloads", workloads, "letters of the workloads")->capture_default_str();
  app.add_option("--divide-clients", divide_clients, "take fewer clients, for a quick look")
      ->check(CLI::PositiveNumber);
  app.add_option("--out", out, "JSON file to write");
  CLI11_PARSE(app, argc, argv);
  std::printf("%-2s %-5s %10s %10s\n", "", "path", "B/tuple", "floor");
  std::vector<std::string> records;
  for (const char name : workloads) {
    const sparseagg::bench::Workload workload =
        sparseagg::bench::MakeWorkload(std::string(1, name), sparseagg::bench::kSeed, divide_clients);
    for (std::string& record : sparseagg::bench::CountPaths(workload)) records.push_back(record);
  }
  if (!out.empty()) {
    std::ofstream file(out);
    file << "{\n\"clients_divided_by\": " << divide_clients << ",\n\"results\": [\n"
         << absl::StrJoin(records, ",\n") << "\n]\n}\n";
    file.close();
    if (!file.good()) throw std::runtime_error("cannot write " + out);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_traffic: %s\n", error.what());
  return 1;
}
