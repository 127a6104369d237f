// DeviceEngine: the Engine over any Device.
#ifndef SPARSEAGG_CUDA_DEVICE_ENGINE_H_
#define SPARSEAGG_CUDA_DEVICE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cuda/cuda_engine.h"
#include "cuda/device/device.h"
#include "cuda/merge/finisher.h"
#include "cuda/transfer/session.h"
#include "cuda/tuning.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

struct DeviceEngineOptions {
  size_t memory_budget_bytes = 0;  // device memory to use; 0: Device::memory_bytes()
  Tuning tuning;
  CpuEngineOptions cpu;  // of the CPU engine that takes over when the device fails
  FallbackReport on_fallback;
};

// Counts of operations, by where they ran. Results are the same bits either way.
struct DeviceUse {
  uint64_t num_done = 0;       // on the device
  uint64_t num_fallbacks = 0;  // without the device, after it failed or had no memory
  // Bytes of keys and values sent to the device, on arrival or later: copied into a buffer before, or directly from
  // where they lie.
  uint64_t staged_bytes = 0;
  uint64_t direct_bytes = 0;
  uint64_t num_sent_ahead = 0;  // updates, when they arrived
};

class DeviceEngine;

// Arrays that an engine has sent to its device; the destructor drops the copies. They must neither change nor go
// before that. Not thread-safe.
class PreloadedArrays {
 public:
  explicit PreloadedArrays(DeviceEngine& engine) : engine_(engine) {}
  PreloadedArrays(PreloadedArrays&& other) noexcept : engine_(other.engine_), sent_(std::exchange(other.sent_, {})) {}
  PreloadedArrays& operator=(PreloadedArrays&&) = delete;
  ~PreloadedArrays();

 private:
  friend class DeviceEngine;
  DeviceEngine& engine_;
  std::vector<const void*> sent_;
};

// An engine that merges on a device. Lives as long as the server or process; creates accumulators, which must not
// outlive it.
//
// Faults: an operation that runs out of device memory is retried on smaller batches, unless smaller batches cannot help
// (NoRoom), and then runs without the device. After any other error the device is never used again, because it may have
// computed anything. Open rounds are then replayed from host memory; new rounds start on the CPU engine.
//
// Thread-safe. Operations on the device run one at a time, because they would only share its bandwidth.
class DeviceEngine : public Engine {
 public:
  DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options);
  ~DeviceEngine() override;

  absl::string_view name() const override { return "cuda"; }
  std::string description() const override;
  // Returns: the error after which the device is not used any more, or OK.
  absl::Status Probe() const override;
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override;
  std::optional<DeviceStream> device_stream() const override;
  absl::Status FollowStream(uintptr_t stream) override;
  absl::StatusOr<ValidatedUpdate> Import(const TensorSpec& spec, const InputKeys& keys, const std::byte* values,
                                         std::shared_ptr<const void> owner, double weight) override;
  DeviceUse use() const;

  // ---- for the accumulators ----

  // One piece of work on a device. It may run several times, after a failure with a larger `shrink` (merger.h). Until
  // it succeeds it must change nothing outside the session.
  using Operation = std::function<absl::Status(Session& session, int shrink)>;
  absl::Status RunOnDevice(const Operation& operation);
  // Returns: an empty accumulator of the CPU engine.
  std::unique_ptr<Accumulator> CreateOnCpu(const TensorSpec& spec) { return *cpu_engine_->CreateAccumulator(spec); }
  // Sends copies of the arrays of an update to the device as soon as it arrives, as far as there is room (Tuning).
  // Thread-safe. Blocks: while another
  // operation uses the device; not until the copies are there. So does the destructor of what it returns, which waits
  // for them.
  PreloadedArrays Preload(absl::Span<const HostPart> arrays);
  // Returns: an update of Import with its arrays in host memory. Errors: UNAVAILABLE: they cannot be read, since the
  // device has failed. RESOURCE_EXHAUSTED: no memory. Blocks: until they are copied.
  absl::StatusOr<ValidatedUpdate> CopyToHost(const TensorSpec& spec, const ValidatedUpdate& update);
  // Returns: no columns yet. An operation sets them, and calls Session::Keep for their bytes. Their release is that of
  // DeviceResult::owner.
  std::shared_ptr<ResultColumns> NewColumns();
  // Ends the use of the device, because its answer contradicted the host's.
  void Distrust(const absl::Status& fault);
  const Tuning& tuning() const { return options_.tuning; }

 private:
  friend class PreloadedArrays;
  class ImportedArrays;
  class OwnedColumns;
  // Gives back what was kept, once `wait` says that nobody reads it; after an error all the same.
  void GiveBack(absl::Span<DeviceBuffer* const> buffers, absl::Status (*wait)(Device& device));
  absl::StatusOr<ValidatedUpdate> ValidateOnHost(const TensorSpec& spec, const InputKeys& keys, const std::byte* values,
                                                 double weight);
  // Runs something that needs no new device memory. Requires: not device_mutex_.
  absl::Status RunLocked(const Operation& operation);
  absl::Status SendAhead(absl::Span<const HostPart> arrays, PreloadedArrays& preloaded);
  absl::Status ForgetSent(const std::vector<const void*>& arrays);
  // Adds 1 to `event`, and notes the bytes. Requires: device_mutex_.
  void CountUse(uint64_t DeviceUse::*event);
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
