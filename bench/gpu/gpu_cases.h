// What gpu_bench times, one kind of measurement a function. None of it checks for a GPU: on a device in host memory the
// same code runs and measures nothing.
#ifndef SPARSEAGG_BENCH_GPU_GPU_CASES_H_
#define SPARSEAGG_BENCH_GPU_GPU_CASES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/common/reference_sum.h"
#include "bench/common/workloads.h"
#include "bench/gpu/native_peers.h"
#include "bench/gpu/watched_device.h"
#include "cuda/device/device.h"
#include "cuda/tuning.h"
#include "host/updates/update.h"

namespace sparseagg::bench {

struct BenchDevice {
  std::function<std::unique_ptr<cuda::Device>()> create;  // std::runtime_error where there is none
  std::function<std::unique_ptr<SpanClock>(cuda::Device&)> make_clock;
  cuda::Tuning tuning;
  size_t flush_bytes = 0;  // written before every run on data that is on the device, so that none is in its L2
};

// Sets the tuning so that every batch takes the path, "sort" or, where it is possible at all, "tiles"; "auto" sets
// nothing.
void ForcePath(const std::string& path, cuda::Tuning& tuning);

struct Timing {
  std::string what;
  std::vector<double> seconds;
  std::map<std::string, double> kernels;  // of the median run, by kind of work
  CallCounts calls;                       // of one run, without a fault and with all memory that stays in place
  uint64_t num_rows = 0;
  uint64_t bytes_out = 0;
  uint64_t device_peak_bytes = 0;
  std::string failure;  // why there is nothing here but `what`; empty if there is
};

double Median(std::vector<double> values);

// The keys and values of a workload, in pageable or in pinned host memory, and the updates that lie there.
class HostInput {
 public:
  // Pageable: the workload's own arrays, which must outlive this.
  explicit HostInput(const Workload& workload);
  // Copies in pinned memory of `device`.
  HostInput(const Workload& workload, cuda::Device& device);

  const std::vector<ValidatedUpdate>& updates() const { return updates_; }

 private:
  std::shared_ptr<std::byte> pinned_;
  std::vector<ValidatedUpdate> updates_;
};

// Updates in host memory to the finished result there. None is sent before the merge. The first result is verified
// against `expected`, of the same workload: its allocations on the device were poisoned. std::runtime_error on a wrong
// result, and when some of the work was done without the device.
Timing TimeEndToEnd(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                    const HostInput& input, int repetitions);

// The same for updates that were sent to the device when they arrived: what a round takes after its last update.
Timing TimeFinish(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                  const HostInput& input, int repetitions);

// Updates on the device to folded rows on the device, by the host's clock: the kernels and the waits between them.
// Verified and poisoned likewise.
Timing TimeResident(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                    const HostInput& input, int repetitions);

// The same by the device's clock, without the gaps between pieces of work: their sum, and each kind by itself.
Timing TimeKernels(const BenchDevice& bench, const Workload& workload, const ReferenceSums& expected,
                   const HostInput& input, int repetitions);

// The native peers, on a workload of single values. One whose sums are not those of float32 is not timed, and says why.
std::vector<Timing> TimeNativePeers(const Workload& workload, int repetitions);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_GPU_GPU_CASES_H_
