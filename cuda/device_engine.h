// The engine over a device, whichever it is.
#ifndef SPARSEAGG_CUDA_DEVICE_ENGINE_H_
#define SPARSEAGG_CUDA_DEVICE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "cuda/cuda_engine.h"
#include "cuda/device.h"
#include "cuda/session.h"
#include "cuda/tuning.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

struct DeviceEngineOptions {
  size_t memory_budget_bytes = 0;  // of device memory; 0: what the device says
  Tuning tuning;
  CpuEngineOptions cpu;  // of the CPU engine, which takes over when the device fails
  FallbackReport on_fallback;
};

// What became of the operations that the device was asked for. The results do not show it.
struct DeviceUse {
  uint64_t num_done = 0;       // by the device
  uint64_t num_fallbacks = 0;  // done without it in the end
};

// Thread-safe: operations on the device happen one at a time. The device would only share its bandwidth between them.
// Nothing else waits for them.
//
// Faults. Out of memory: the operation is tried again on smaller batches, unless it said that those will not do
// (NoRoom), then done without the device. Any other error of the device ends its use for good: it may have computed
// anything. Rounds are then replayed from host memory, which holds all they consist of; new ones start on the CPU
// engine.
class DeviceEngine : public Engine {
 public:
  DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options);
  ~DeviceEngine() override;

  absl::string_view name() const override { return "cuda"; }
  std::string description() const override;
  // The error of the device that ended its use, if any.
  absl::Status Probe() const override;
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override;
  DeviceUse use() const;

  // What follows is for the accumulators.

  // One piece of work on a device. It may be run several times, after failures with a larger `shrink` (merger.h), and
  // must leave nothing behind until it succeeds.
  using Operation = std::function<absl::Status(Session& session, int shrink)>;
  absl::Status RunOnDevice(const Operation& operation);
  // The same on the host, with the same bits, only slower.
  absl::Status RunOnHost(const Operation& operation) const;
  // The device contradicted the host.
  void Distrust(const absl::Status& fault);
  const Tuning& tuning() const { return options_.tuning; }

 private:
  absl::Status RunOnce(Session& session, const Operation& operation, int shrink) const;
  // Ends the use of the device, unless `fault` is OK or not the first.
  bool SetFault(const absl::Status& fault);
  void TellFallback(const absl::Status& reason) const;

  const DeviceEngineOptions options_;
  const std::unique_ptr<Engine> cpu_engine_;
  const std::string device_description_;
  mutable std::mutex mutex_;
  absl::Status fault_;  // guarded by mutex_, as is use_
  DeviceUse use_;
  std::mutex device_mutex_;               // before mutex_
  const std::unique_ptr<Device> device_;  // guarded by device_mutex_, as is session_
  std::unique_ptr<Session> session_;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_ENGINE_H_
