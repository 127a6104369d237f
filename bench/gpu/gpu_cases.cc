#include "bench/gpu/gpu_cases.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/common/machine.h"
#include "cuda/device_engine.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/finisher.h"
#include "cuda/merge/merger.h"
#include "host/aggregation.h"

namespace sparseagg::bench {
namespace {

void Verify(const Workload& workload, const ReferenceSums& expected, const std::string& what, const Result& result) {
  const std::string difference = expected.FindDifference(result);
  if (!difference.empty()) {
    throw std::runtime_error(absl::StrCat(workload.name, " ", Name(workload.variant), ", ", what, ": ", difference));
  }
}

std::unique_ptr<Aggregation> Collect(Engine& engine, const TensorSpec& spec,
                                     const std::vector<ValidatedUpdate>& updates) {
  auto aggregation = Must(Aggregation::Create(engine, {spec}));
  for (size_t k = 0; k < updates.size(); ++k) {
    Check(aggregation->Add(absl::StrFormat("%020d", k), Must(aggregation->Prepare({updates[k]}))));
  }
  return aggregation;
}

// Merges one batch that is on the device, over and over.
class Resident {
 public:
  Resident(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected, const HostInput& input)
      : bench_(bench), workload_(workload), expected_(expected), shape_(workload.spec), raw_(bench.create()) {
    for (const ValidatedUpdate& update : input.updates()) ranges_.push_back({&update, 0, update.num_keys()});
    clock_ = bench.make_clock(*raw_);
    device_ = std::make_unique<WatchedDevice>(std::move(raw_), &watch_);
    Check(device_->Enter());
    session_ = std::make_unique<cuda::Session>(*device_, device_->memory_bytes(), bench.tuning);
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;
  ~Resident() {
    session_->Settle();
    if (d_flush_ != nullptr) device_->Free(d_flush_, cuda::Lane::kCompute);
    session_.reset();
    device_->Leave();
  }

  // `around` gets a function that merges and waits, and must call it once.
  void Run(Timing& timing, int repetitions, const std::function<void(const std::function<void()>&)>& around) {
    watch_.poison = true;
    Once([](const auto& merge) { merge(); }, &timing);
    watch_.poison = false;
    d_flush_ = Must(device_->Allocate(std::max<size_t>(1, bench_.flush_bytes), cuda::Lane::kCompute));
    watch_.peak_bytes = watch_.used_bytes;  // of the flush alone
    const auto count = [&](const auto& merge) {
      watch_.calls = &timing.calls;
      merge();
      watch_.calls = nullptr;
    };
    Once(count, nullptr);  // the memory pool has all it needs from here on
    for (int i = 0; i < repetitions; ++i) Once(around, nullptr);
    timing.device_peak_bytes = watch_.peak_bytes - bench_.flush_bytes;
  }

  Watch& watch() { return watch_; }
  SpanClock& clock() { return *clock_; }

 private:
  void Once(const std::function<void(const std::function<void()>&)>& around, Timing* verify) {
    cuda::Batch batch = Must(SendBatch(*session_, shape_, ranges_));
    Check(device_->AwaitLane(cuda::Lane::kCopy));
    if (d_flush_ != nullptr) Check(device_->Fill(d_flush_, 1, bench_.flush_bytes, cuda::Lane::kCompute));
    Check(device_->AwaitLane(cuda::Lane::kCompute));
    cuda::DeviceRows rows;
    around([&] {
      rows = Must(
          cuda::Merger(*session_, shape_, 0).MergeBatch(cuda::DeviceRows(), batch, [] { return absl::OkStatus(); }));
      Check(device_->AwaitLane(cuda::Lane::kCompute));
    });
    if (verify == nullptr) return;
    verify->num_rows = rows.num_rows;
    verify->bytes_out = rows.num_rows * shape_.RowBytes();
    const cuda::Finished finished =
        Must(FinishRows(*session_, workload_.spec, shape_, static_cast<double>(ranges_.size()), std::move(rows)));
    Check(finished.failure);
    Verify(workload_, expected_, verify->what, finished.result);
  }

  const BenchDevice& bench_;
  const Workload& workload_;
  const ReferenceSums& expected_;
  const cuda::TensorShape shape_;
  std::unique_ptr<cuda::Device> raw_;
  Watch watch_;
  std::unique_ptr<WatchedDevice> device_;
  std::unique_ptr<SpanClock> clock_;  // goes before the device
  std::unique_ptr<cuda::Session> session_;
  std::vector<cuda::UpdateRange> ranges_;
  void* d_flush_ = nullptr;
};

}  // namespace

void ForcePath(const std::string& path, cuda::Tuning& tuning) {
  if (path == "sort") tuning.min_tile_tuples = 1e300;
  if (path == "tiles") tuning.min_tile_tuples = tuning.min_tile_run = 0;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

HostInput::HostInput(const Workload& workload) {
  for (const ClientArrays& client : workload.clients) {
    updates_.push_back(Must(ValidatedUpdate::Create(workload.spec, BorrowColumns(workload.spec, client), 1.0)));
  }
}

HostInput::HostInput(const Workload& workload, cuda::Device& device) {
  constexpr size_t kAlignment = 64;
  const auto align = [](size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  size_t bytes = 0;
  for (const ClientArrays& client : workload.clients) {
    bytes += align(client.narrow_keys.size() * 4 + client.wide_keys.size() * 8) + align(client.values.size() * 4);
  }
  pinned_ = Must(device.AllocatePinned(bytes));
  std::byte* next = pinned_.get();
  const auto copy = [&](const auto& from) {
    using T = typename std::decay_t<decltype(from)>::value_type;
    auto* to = reinterpret_cast<T*>(next);
    std::copy(from.begin(), from.end(), to);
    next += align(from.size() * sizeof(T));
    return absl::MakeConstSpan(to, from.size());
  };
  for (const ClientArrays& client : workload.clients) {
    UpdateColumns columns = BorrowColumns(workload.spec, client);
    if (std::holds_alternative<absl::Span<const uint32_t>>(columns.keys)) columns.keys = copy(client.narrow_keys);
    if (std::holds_alternative<absl::Span<const uint64_t>>(columns.keys)) columns.keys = copy(client.wide_keys);
    columns.values = reinterpret_cast<const std::byte*>(copy(client.values).data());
    updates_.push_back(Must(ValidatedUpdate::Create(workload.spec, std::move(columns), 1.0)));
  }
}

namespace {

// `on_arrival`: updates are sent when they arrive, and only the rest of the round is timed.
Timing TimeRounds(const std::string& what, bool on_arrival, const BenchDevice& bench, const Workload& workload,
                  const ReferenceSums& expected, const HostInput& input, int repetitions) {
  Timing timing;
  timing.what = what;
  Watch watch;
  cuda::DeviceEngineOptions options;
  options.tuning = bench.tuning;
  if (!on_arrival) options.tuning.max_resident_share = 0;
  cuda::DeviceEngine engine(std::make_unique<WatchedDevice>(bench.create(), &watch), options);
  const auto run = [&](bool is_timed) -> Result {
    double start = Now();
    std::unique_ptr<Aggregation> aggregation = Collect(engine, workload.spec, input.updates());
    if (on_arrival) {
      if (watch.calls != nullptr) watch.calls->clear();
      start = Now();
    }
    Result result = std::move(Must(std::move(*aggregation).Finish())[0]);
    if (is_timed) timing.seconds.push_back(Now() - start);
    return result;
  };
  watch.poison = true;
  {
    const Result result = run(/*is_timed=*/false);
    Verify(workload, expected, timing.what, result);
    timing.num_rows = result.num_keys;
    timing.bytes_out = result.memory_bytes();
  }
  watch.poison = false;
  watch.calls = &timing.calls;
  run(/*is_timed=*/false);  // warms what poisoning may have cooled
  watch.calls = nullptr;
  for (int i = 0; i < repetitions; ++i) run(/*is_timed=*/true);
  Check(engine.Probe());  // else it was the CPU engine that was timed
  const bool may_be_small = bench.tuning.min_merge_values > 0;
  if (engine.use().num_fallbacks > 0 || (engine.use().num_done == 0 && !may_be_small)) {
    throw std::runtime_error(absl::StrCat("the host did the work: ", engine.use().num_done,
                                          " operations by the device, ", engine.use().num_fallbacks, " without it"));
  }
  timing.device_peak_bytes = watch.peak_bytes;
  return timing;
}

}  // namespace

Timing TimeEndToEnd(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                    const HostInput& input, int repetitions) {
  return TimeRounds("end_to_end", /*on_arrival=*/false, bench, workload, expected, input, repetitions);
}

Timing TimeFinish(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                  const HostInput& input, int repetitions) {
  return TimeRounds("finish", /*on_arrival=*/true, bench, workload, expected, input, repetitions);
}

Timing TimeResident(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                    const HostInput& input, int repetitions) {
  Timing timing;
  timing.what = "resident";
  Resident resident(bench, workload, expected, input);
  resident.Run(timing, repetitions, [&](const auto& merge) {
    const double start = Now();
    merge();
    timing.seconds.push_back(Now() - start);
  });
  return timing;
}

Timing TimeKernels(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                   const HostInput& input, int repetitions) {
  Timing timing;
  timing.what = "kernels";
  Resident resident(bench, workload, expected, input);
  std::vector<std::map<std::string, double>> runs;
  resident.Run(timing, repetitions, [&](const auto& merge) {
    resident.watch().clock = &resident.clock();
    merge();
    resident.watch().clock = nullptr;
    runs.push_back(resident.clock().Collect());
    timing.seconds.push_back(std::accumulate(runs.back().begin(), runs.back().end(), 0.0,
                                             [](double sum, const auto& each) { return sum + each.second; }));
  });
  const double median = Median(timing.seconds);
  const auto at = std::find(timing.seconds.begin(), timing.seconds.end(), median);
  timing.kernels = runs[at - timing.seconds.begin()];
  return timing;
}

std::vector<Timing> TimeNativePeers(const Workload& workload, int repetitions) {
  std::vector<uint32_t> narrow_keys;
  std::vector<uint64_t> wide_keys;
  std::vector<float> values;
  for (const ClientArrays& client : workload.clients) {
    narrow_keys.insert(narrow_keys.end(), client.narrow_keys.begin(), client.narrow_keys.end());
    wide_keys.insert(wide_keys.end(), client.wide_keys.begin(), client.wide_keys.end());
    values.insert(values.end(), client.values.begin(), client.values.end());
  }
  const int key_bits = std::bit_width(workload.spec.num_rows - 1);
  const ReferenceSums expected(workload);
  const auto check = [&](const auto& keys, const auto& sums) { return expected.FindDifference(keys, sums); };
  const std::vector<PeerRun> runs = HasNarrowKeys(workload.spec)
                                        ? RunNativePeers(narrow_keys, values, key_bits, repetitions, check)
                                        : RunNativePeers(wide_keys, values, key_bits, repetitions, check);
  std::vector<Timing> timings;
  for (const PeerRun& run : runs) {
    Timing timing;
    timing.what = run.name;
    timing.failure = run.failure;
    timing.seconds = run.seconds;
    timing.num_rows = run.num_rows;
    timing.bytes_out = run.num_rows * ((HasNarrowKeys(workload.spec) ? 4 : 8) + sizeof(float));
    timings.push_back(std::move(timing));
  }
  return timings;
}

}  // namespace sparseagg::bench
