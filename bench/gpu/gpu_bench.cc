// Times the CUDA engine on the workloads, in the ways that must not be mixed up:
//
//   end_to_end   validated updates in host memory, pageable or pinned, to the finished result there
//   finish       the same for updates that were sent to the device when they arrived
//   resident     updates on the device to folded rows on the device: the kernels, and the waits between them
//   kernels      the same, but only what the device is busy with, by its own clock
//   thrust, cub  what people have, on the same tuples, on the device, in float32
//
// Every result is verified before it is timed. With --device host it runs anywhere, which tests the program and
// measures nothing; with --calls it counts the calls to the device, which are the same on the host, and times nothing.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "bench/common/machine.h"
#include "bench/gpu/gpu_cases.h"
#include "cuda/cuda_engine.h"
#include "cuda/device/device.h"
#include "host/base/status_macros.h"
#include "tests/support/host_device.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2
constexpr size_t kLimitBytes = size_t{256} << 20;
constexpr size_t kHostLimitBytes = size_t{16} << 20;  // of the host device, where nothing is measured

struct Settings {
  std::string workloads = "ABCDEFG";
  std::vector<std::string> variants = {"plain", "shuffled", "skewed"};
  std::string device = "cuda";
  std::string path = "auto";
  int repetitions = 7;
  int divide_clients = 1;
  bool calls = false;
  std::string commit;
  std::string out;
  cuda::Tuning tuning;
  bool on_gpu() const { return device == "cuda"; }
};

// `pinned`: whether the input is, which a host device knows of its own memory alone.
BenchDevice MakeBenchDevice(const Settings& settings, bool pinned = false) {
  BenchDevice bench;
  if (settings.on_gpu()) {
    bench.create = [] { return Must(cuda::CreateCudaDevice()); };
    bench.make_clock = MakeEventClock;
    bench.flush_bytes = kFlushBytes;
  } else {
    cuda::HostDeviceOptions options;
    options.all_pinned = pinned;
    bench.create = [options] { return std::make_unique<cuda::HostDevice>(options); };
    bench.make_clock = [](cuda::Device&) { return MakeHostClock(); };
  }
  bench.tuning = settings.tuning;
  ForcePath(settings.path, bench.tuning);
  return bench;
}

// What a device's memory and its link to the host can do at best, measured in the run that quotes it.
struct DeviceLimits {
  double copy_bytes_per_s = 0;  // within the device: bytes read plus bytes written
  double pinned_in_bytes_per_s = 0;
  double pageable_in_bytes_per_s = 0;
  double pinned_out_bytes_per_s = 0;
};

constexpr int kRows = 5;
constexpr int kCopiesPerRow = 8;

// Of the fastest row.
template <typename Copy>
absl::StatusOr<double> CopiesPerSecond(cuda::Device& device, Copy copy) {
  double best = 0;
  for (int row = -1; row < kRows; ++row) {  // the first one touches what was not touched before
    const double start = Now();
    for (int i = 0; i < kCopiesPerRow; ++i) RETURN_IF_ERROR(copy());
    RETURN_IF_ERROR(device.AwaitLane(cuda::Lane::kCopy));
    if (row >= 0) best = std::max(best, kCopiesPerRow / (Now() - start));
  }
  return best;
}

// Copies `bytes` several times in a row and takes the best of a few rows, each of which ends with a wait. The device
// must be entered.
absl::StatusOr<DeviceLimits> MeasureLimits(cuda::Device& device, size_t bytes) {
  constexpr auto kLane = cuda::Lane::kCopy;
  ASSIGN_OR_RETURN(void* const d_from, device.Allocate(bytes, kLane));
  const absl::Cleanup free_from = [&] { device.Free(d_from, kLane); };
  ASSIGN_OR_RETURN(void* const d_to, device.Allocate(bytes, kLane));
  const absl::Cleanup free_to = [&] { device.Free(d_to, kLane); };
  ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> pinned, device.AllocatePinned(bytes));
  std::memset(pinned.get(), 1, bytes);
  std::vector<char> pageable(bytes, 1);
  RETURN_IF_ERROR(device.Fill(d_from, 1, bytes, kLane));

  DeviceLimits limits;
  const auto size = static_cast<double>(bytes);
  ASSIGN_OR_RETURN(limits.copy_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyWithin(d_to, d_from, bytes, kLane); }));
  limits.copy_bytes_per_s *= 2 * size;
  ASSIGN_OR_RETURN(limits.pinned_in_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyIn(d_to, pinned.get(), bytes, kLane); }));
  limits.pinned_in_bytes_per_s *= size;
  ASSIGN_OR_RETURN(limits.pageable_in_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyIn(d_to, pageable.data(), bytes, kLane); }));
  limits.pageable_in_bytes_per_s *= size;
  ASSIGN_OR_RETURN(limits.pinned_out_bytes_per_s,
                   CopiesPerSecond(device, [&] { return device.CopyOut(pinned.get(), d_from, bytes, kLane); }));
  limits.pinned_out_bytes_per_s *= size;
  return limits;
}

DeviceLimits Limits(const Settings& settings, cuda::Device& device) {
  Check(device.Enter());
  const DeviceLimits limits = Must(MeasureLimits(device, settings.on_gpu() ? kLimitBytes : kHostLimitBytes));
  device.Leave();
  return limits;
}

// One line of the table and one record of the JSON.
class Report {
 public:
  Report(const Settings& settings, const DeviceLimits& limits) : settings_(settings), limits_(limits) {}

  void Add(const Workload& workload, const std::string& memory, const Timing& timing) {
    if (settings_.calls) return AddCalls(workload, memory, timing);
    const double seconds = Median(timing.seconds);
    const auto bytes_in = static_cast<double>(InputBytes(workload));
    const double bytes = bytes_in + static_cast<double>(timing.bytes_out);
    const double rate = workload.num_tuples / seconds;
    std::printf("%-2s %-9s %-11s %-9s %9.2f %12.1f %9.1f\n", workload.name.c_str(), Name(workload.variant),
                timing.what.c_str(), memory.c_str(), workload.num_tuples / 1e6, rate / 1e6, bytes / seconds / 1e9);
    std::fflush(stdout);
    // Data that crosses the link is held to pinned copies, data that stays on the device to its copies.
    std::string limit = "copy_bytes_per_s";
    double share = bytes / seconds / limits_.copy_bytes_per_s;
    if (timing.what == "end_to_end") {
      limit = "pinned_in_bytes_per_s";
      share = bytes_in / seconds / limits_.pinned_in_bytes_per_s;
    } else if (timing.what == "finish") {
      limit = "pinned_out_bytes_per_s";
      share = static_cast<double>(timing.bytes_out) / seconds / limits_.pinned_out_bytes_per_s;
    }
    records_.push_back(absl::StrFormat(
        R"({"workload": "%s", "variant": "%s", "what": "%s", "memory": "%s", "path": "%s", "tuples": %d, )"
        R"("row_width": %d, "rows_out": %d, "bytes_in": %d, "bytes_out": %d, "verified": true, )"
        R"("median_seconds": %.9f, "tuples_per_s": %.0f, "bytes_per_s": %.0f, "share_of_limit": %.4f, "limit": "%s", )"
        R"("device_peak_bytes": %d, "kernels": {%s}, "seconds": [%s]})",
        workload.name, Name(workload.variant), timing.what, memory, settings_.path, workload.num_tuples,
        workload.spec.row_width, timing.num_rows, InputBytes(workload), timing.bytes_out, seconds, rate,
        bytes / seconds, share, limit, timing.device_peak_bytes,
        absl::StrJoin(timing.kernels, ", ",
                      [](std::string* out, const auto& each) {
                        absl::StrAppendFormat(out, R"("%s": %.9f)", each.first, each.second);
                      }),
        absl::StrJoin(timing.seconds, ", ",
                      [](std::string* out, double s) { absl::StrAppendFormat(out, "%.9f", s); })));
  }

  void AddCalls(const Workload& workload, const std::string& memory, const Timing& timing) {
    std::printf("%-2s %-9s %-11s %-9s %9.2f", workload.name.c_str(), Name(workload.variant), timing.what.c_str(),
                memory.c_str(), workload.num_tuples / 1e6);
    std::vector<std::string> counts;
    for (const auto& [name, count] : timing.calls) {
      std::printf("  %s %lu (%.4g)", name.c_str(), count.calls, static_cast<double>(count.size));
      counts.push_back(absl::StrFormat(R"("%s": [%d, %d])", name, count.calls, count.size));
    }
    std::printf("\n");
    std::fflush(stdout);
    records_.push_back(absl::StrFormat(
        R"({"workload": "%s", "variant": "%s", "what": "%s", "memory": "%s", "path": "%s", "tuples": %d, )"
        R"("row_width": %d, "rows_out": %d, "verified": true, "calls": {%s}})",
        workload.name, Name(workload.variant), timing.what, memory, settings_.path, workload.num_tuples,
        workload.spec.row_width, timing.num_rows, absl::StrJoin(counts, ", ")));
  }

  void LeaveOut(const Workload& workload, const std::string& what, const std::string& reason) {
    std::printf("%-2s %-9s %-11s %s\n", workload.name.c_str(), Name(workload.variant), what.c_str(), reason.c_str());
    std::fflush(stdout);
    left_out_.push_back(absl::StrFormat(R"({"workload": "%s", "variant": "%s", "contestant": "%s", "reason": "%s"})",
                                        workload.name, Name(workload.variant), what,
                                        absl::StrReplaceAll(reason, {{"\"", "'"}, {"\\", "/"}, {"\n", " "}})));
  }

  // Whole or not at all, so that whoever ends the program in the middle has what was written before.
  void Write(const std::string& device) const {
    if (settings_.out.empty()) return;
    const std::string unfinished = settings_.out + ".part";
    std::ofstream out(unfinished);
    out << absl::StrFormat(
        "{\n\"date\": \"%s\", \"commit\": \"%s\", \"device\": \"%s\", \"is_gpu\": %s, \"cpu\": \"%s\", \"seed\": %d, "
        "\"clients_divided_by\": %d,\n",
        Today(), settings_.commit, device, settings_.on_gpu() ? "true" : "false", CpuName(), kSeed,
        settings_.divide_clients);
    if (!settings_.calls) {
      out << absl::StrFormat(
          "\"limits\": {\"copy_bytes_per_s\": %.0f, \"pinned_in_bytes_per_s\": %.0f, "
          "\"pageable_in_bytes_per_s\": %.0f, \"pinned_out_bytes_per_s\": %.0f},\n",
          limits_.copy_bytes_per_s, limits_.pinned_in_bytes_per_s, limits_.pageable_in_bytes_per_s,
          limits_.pinned_out_bytes_per_s);
    }
    out << absl::StrFormat("\"left_out\": [%s],\n\"results\": [\n%s\n]\n}\n", absl::StrJoin(left_out_, ",\n"),
                           absl::StrJoin(records_, ",\n"));
    out.close();
    if (!out.good() || std::rename(unfinished.c_str(), settings_.out.c_str()) != 0) {
      throw std::runtime_error("cannot write " + settings_.out);
    }
  }

 private:
  const Settings& settings_;
  const DeviceLimits limits_;
  std::vector<std::string> records_;
  std::vector<std::string> left_out_;
};

// Whether a variant says anything: a workload that is not sorted as it is has no shuffled one.
bool Applies(const Workload& workload, Variant variant) {
  return variant != Variant::kShuffled || workload.name != "D";
}

void RunWorkload(const Settings& settings, cuda::Device& device, const Workload& workload, Report& report) {
  {
    const BenchDevice bench = MakeBenchDevice(settings, /*pinned=*/true);
    const int repetitions = settings.calls ? 0 : settings.repetitions;
    const ReferenceSums expected(workload);
    {
      const HostInput pageable(workload);
      report.Add(workload, "pageable",
                 TimeEndToEnd(MakeBenchDevice(settings), workload, expected, pageable, repetitions));
    }
    const HostInput pinned(workload, device);
    report.Add(workload, "pinned", TimeEndToEnd(bench, workload, expected, pinned, repetitions));
    report.Add(workload, "pinned", TimeFinish(bench, workload, expected, pinned, repetitions));
    report.Add(workload, "device", TimeResident(bench, workload, expected, pinned, repetitions));
    if (settings.calls) return;
    report.Add(workload, "device", TimeKernels(bench, workload, expected, pinned, repetitions));
  }
  if (!settings.on_gpu() || workload.spec.row_width != 1) return;
  for (const Timing& timing : TimeNativePeers(workload, settings.repetitions)) {
    if (timing.failure.empty()) {
      report.Add(workload, "device", timing);
    } else {
      report.LeaveOut(workload, timing.what, timing.failure);
    }
  }
}

void Run(const Settings& settings) {
  const std::unique_ptr<cuda::Device> device = MakeBenchDevice(settings).create();
  const DeviceLimits limits = settings.calls ? DeviceLimits() : Limits(settings, *device);
  std::printf("%s; path %s; seed %lu\n", device->description().c_str(), settings.path.c_str(), kSeed);
  if (!settings.calls) {
    std::printf(
        "copies: %.1f GB/s read and written on the device; from the host %.1f GB/s pinned, %.1f pageable; to it "
        "%.1f\n\n"
        "%-2s %-9s %-11s %-9s %9s %12s %9s\n",
        limits.copy_bytes_per_s / 1e9, limits.pinned_in_bytes_per_s / 1e9, limits.pageable_in_bytes_per_s / 1e9,
        limits.pinned_out_bytes_per_s / 1e9, "", "", "", "memory", "M tuples", "M tuples/s", "GB/s");
  }
  Report report(settings, limits);
  int num_failed = 0;
  report.Write(device->description());
  for (const char name : settings.workloads) {
    for (const Variant variant : {Variant::kPlain, Variant::kShuffled, Variant::kSkewed}) {
      if (std::count(settings.variants.begin(), settings.variants.end(), Name(variant)) == 0) continue;
      const Workload workload = MakeWorkload(std::string(1, name), kSeed, settings.divide_clients, variant);
      if (!Applies(workload, variant)) continue;
      try {
        RunWorkload(settings, *device, workload, report);
      } catch (const std::exception& error) {  // the others may be well
        report.LeaveOut(workload, "sparseagg", error.what());
        ++num_failed;
      }
      report.Write(device->description());
    }
  }
  if (num_failed > 0) throw std::runtime_error(absl::StrFormat("%d workloads failed", num_failed));
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) try {
  sparseagg::bench::Settings settings;
  CLI::App app("Times the CUDA engine on workloads A to G. Every result is verified before it is timed.");
  app.add_option("--workloads", settings.workloads, "letters of the workloads")->capture_default_str();
  app.add_option("--variants", settings.variants, "plain, shuffled: keys in random order, skewed: half of them shared")
      ->delimiter(',')
      ->check(CLI::IsMember({"plain", "shuffled", "skewed"}));
  app.add_option("--device", settings.device, "host measures nothing")
      ->check(CLI::IsMember({"cuda", "host"}))
      ->capture_default_str();
  app.add_option("--path", settings.path, "how keys come together")
      ->check(CLI::IsMember({"auto", "sort", "tiles"}))
      ->capture_default_str();
  app.add_option("--repetitions", settings.repetitions, "timed runs; the median is quoted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--divide-clients", settings.divide_clients, "take fewer clients, for a quick look")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--calls", settings.calls, "count calls to the device, and time nothing");
  app.add_option("--commit", settings.commit, "what was built, for the JSON");
  app.add_option("--out", settings.out, "JSON file to write");
  sparseagg::cuda::Tuning& tuning = settings.tuning;
  app.add_option("--min-tile-tuples", tuning.min_tile_tuples,
                 "tuning, as all below up to --min-resident-bytes: cuda/tuning.h")
      ->capture_default_str();
  app.add_option("--min-tile-run", tuning.min_tile_run)->capture_default_str();
  app.add_option("--min-matrix-tuples", tuning.min_matrix_tuples)->capture_default_str();
  app.add_option("--max-tile-tuples", tuning.max_tile_tuples)->capture_default_str();
  app.add_option("--medium-segment", tuning.medium_segment)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--long-segment", tuning.long_segment)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--min-merge-values", tuning.min_merge_values,
                 "rounds with fewer values are merged, and timed, on the CPU end to end")
      ->capture_default_str();
  app.add_option("--slab-bytes", tuning.slab_bytes)->capture_default_str();
  app.add_option("--min-slab-run", tuning.min_slab_run)->capture_default_str();
  app.add_option("--min-copy-bytes", tuning.min_copy_bytes)->capture_default_str();
  app.add_option("--min-resident-bytes", tuning.min_resident_bytes)->capture_default_str();
  bool probe = false;
  app.add_flag("--probe", probe, "print what device there is and leave; status 1 and the reason where there is none");
  CLI11_PARSE(app, argc, argv);
  if (probe) {
    std::printf("%s\n", sparseagg::bench::MakeBenchDevice(settings).create()->description().c_str());
    return 0;
  }
  sparseagg::bench::Run(settings);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_bench: %s\n", error.what());
  return 1;
}
