// Times the CUDA engine on the workloads, in the ways that must not be mixed up:
//
//   end to end   validated updates in host memory to the finished result there
//   resident     updates on the device to folded rows on the device: the kernels, and the waits between them
//   thrust       its sort_by_key and reduce_by_key on the same tuples, on the device, in float32: what people have
//
// Every end-to-end result is verified before it is timed. With --device host it runs anywhere, which tests the program
// and measures nothing.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/machine.h"
#include "bench/reference_sum.h"
#include "bench/thrust_peer.h"
#include "bench/workloads.h"
#include "cuda/batch.h"
#include "cuda/cuda_engine.h"
#include "cuda/device_engine.h"
#include "cuda/host_device.h"
#include "cuda/merger.h"
#include "host/aggregation.h"

namespace sparseagg::bench {
namespace {

constexpr uint64_t kSeed = 1;

void Check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

struct Settings {
  std::string workloads = "ABCDEFG";
  std::string device = "cuda";
  std::string path = "auto";
  int repetitions = 7;
  int divide_clients = 1;
  std::string out;
};

std::unique_ptr<cuda::Device> MakeDevice(const Settings& settings) {
  if (settings.device == "host") return std::make_unique<cuda::HostDevice>();
  return Must(cuda::CreateCudaDevice());
}

cuda::Tuning TuningOf(const Settings& settings) {
  cuda::Tuning tuning;
  if (settings.path == "sort") tuning.min_tile_values = 1e300;
  if (settings.path == "tiles") tuning.min_tile_values = 0;
  return tuning;
}

struct Timing {
  std::string what;
  std::vector<double> seconds;
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

std::vector<ValidatedUpdate> Validate(const Workload& workload) {
  std::vector<ValidatedUpdate> updates;
  for (const ClientArrays& client : workload.clients) {
    UpdateColumns columns;
    if (HasNarrowKeys(workload.spec)) {
      columns.keys = absl::MakeConstSpan(client.narrow_keys);
    } else {
      columns.keys = absl::MakeConstSpan(client.wide_keys);
    }
    columns.values = reinterpret_cast<const std::byte*>(client.values.data());
    updates.push_back(Must(ValidatedUpdate::Create(workload.spec, std::move(columns), 1.0)));
  }
  return updates;
}

Result Merge(Engine& engine, const TensorSpec& spec, const std::vector<ValidatedUpdate>& updates) {
  auto aggregation = Must(Aggregation::Create(engine, {spec}));
  for (size_t k = 0; k < updates.size(); ++k) {
    Check(aggregation->Add(absl::StrFormat("%020d", k), Must(aggregation->Prepare({updates[k]}))));
  }
  return std::move(Must(std::move(*aggregation).Finish())[0]);
}

Timing TimeEndToEnd(const Settings& settings, const Workload& workload, const std::vector<ValidatedUpdate>& updates) {
  cuda::DeviceEngineOptions options;
  options.tuning = TuningOf(settings);
  cuda::DeviceEngine engine(MakeDevice(settings), options);
  const std::string difference = FindDifference(workload, Merge(engine, workload.spec, updates));
  if (!difference.empty()) throw std::runtime_error(absl::StrCat(workload.name, ": ", difference));
  Timing timing{"end to end", {}};
  for (int i = 0; i < settings.repetitions; ++i) {
    const double start = Now();
    const Result result = Merge(engine, workload.spec, updates);
    timing.seconds.push_back(Now() - start);
  }
  Check(engine.Probe());  // else it was the CPU engine that was timed
  return timing;
}

Timing TimeResident(const Settings& settings, const Workload& workload, const std::vector<ValidatedUpdate>& updates) {
  const auto device = MakeDevice(settings);
  Check(device->Enter());
  Timing timing{"resident", {}};
  {
    cuda::Session session(*device, device->memory_bytes(), TuningOf(settings));
    const cuda::TensorShape shape(workload.spec);
    std::vector<cuda::Slice> slices;
    for (const ValidatedUpdate& update : updates) slices.push_back({&update, 0, update.num_keys()});
    for (int i = -1; i < settings.repetitions; ++i) {  // the first one warms the memory pool
      cuda::Batch batch = Must(SendBatch(session, shape, slices));
      Check(device->AwaitLane(cuda::Lane::kCopy));
      const double start = Now();
      const cuda::DeviceRows rows =
          Must(cuda::Merger(session, shape, 0).MergeBatch(cuda::DeviceRows(), batch, [] { return absl::OkStatus(); }));
      Check(device->AwaitLane(cuda::Lane::kCompute));
      if (i >= 0) timing.seconds.push_back(Now() - start);
    }
    session.Settle();
  }
  device->Leave();
  return timing;
}

std::optional<Timing> TimeThrust(const Settings& settings, const Workload& workload) {
  if (settings.device != "cuda" || workload.spec.width != 1) return std::nullopt;
  std::vector<uint32_t> narrow_keys;
  std::vector<uint64_t> wide_keys;
  std::vector<float> values;
  for (const ClientArrays& client : workload.clients) {
    narrow_keys.insert(narrow_keys.end(), client.narrow_keys.begin(), client.narrow_keys.end());
    wide_keys.insert(wide_keys.end(), client.wide_keys.begin(), client.wide_keys.end());
    values.insert(values.end(), client.values.begin(), client.values.end());
  }
  return Timing{"thrust", HasNarrowKeys(workload.spec)
                              ? ThrustSortReduceSeconds(narrow_keys, values, settings.repetitions)
                              : ThrustSortReduceSeconds(wide_keys, values, settings.repetitions)};
}

void Run(const Settings& settings) {
  const std::string description = MakeDevice(settings)->description();
  std::printf("%s; path %s; seed %lu\n\n%-3s %-12s %10s %12s\n", description.c_str(), settings.path.c_str(), kSeed, "",
              "", "M tuples", "M tuples/s");
  std::vector<std::string> records;
  for (const char name : settings.workloads) {
    const Workload workload = MakeWorkload(std::string(1, name), kSeed, settings.divide_clients);
    const std::vector<ValidatedUpdate> updates = Validate(workload);
    std::vector<Timing> timings = {TimeEndToEnd(settings, workload, updates),
                                   TimeResident(settings, workload, updates)};
    if (auto thrust = TimeThrust(settings, workload)) timings.push_back(*std::move(thrust));
    for (const Timing& timing : timings) {
      std::printf("%-3s %-12s %10.2f %12.1f\n", workload.name.c_str(), timing.what.c_str(), workload.num_tuples / 1e6,
                  workload.num_tuples / timing.Median() / 1e6);
      std::fflush(stdout);
      records.push_back(absl::StrFormat(
          R"({"workload": "%s", "what": "%s", "path": "%s", "tuples": %d, "width": %d, "median_seconds": %.9f, )"
          R"("seconds": [%s]})",
          workload.name, timing.what, settings.path, workload.num_tuples, workload.spec.width, timing.Median(),
          absl::StrJoin(timing.seconds, ", ",
                        [](std::string* out, double s) { absl::StrAppendFormat(out, "%.9f", s); })));
    }
  }
  if (settings.out.empty()) return;
  std::ofstream out(settings.out);
  out << absl::StrFormat("{\n\"device\": \"%s\", \"seed\": %d, \"clients_divided_by\": %d,\n\"results\": [\n%s\n]\n}\n",
                         description, kSeed, settings.divide_clients, absl::StrJoin(records, ",\n"));
  if (!out.good()) throw std::runtime_error("cannot write " + settings.out);
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  sparseagg::bench::Settings settings;
  CLI::App app("Times the CUDA engine on workloads A to G. Every result is verified before it is timed.");
  app.add_option("--workloads", settings.workloads, "letters of the workloads")->capture_default_str();
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
  app.add_option("--out", settings.out, "JSON file to write");
  CLI11_PARSE(app, argc, argv);
  try {
    sparseagg::bench::Run(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
