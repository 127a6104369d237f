// DeviceEngine: the Engine over any Device.
#ifndef SPARSEAGG_CUDA_DEVICE_ENGINE_H_
#define SPARSEAGG_CUDA_DEVICE_ENGINE_H_

#include <atomic>
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
#include "host/base/host_threads.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

struct DeviceEngineOptions {
  size_t memory_budget_bytes = 0;  // memory to use on each device; 0: Device::memory_bytes()
  Tuning tuning;
  CpuEngineOptions cpu;  // of the CPU engine that takes over when the device fails
  FallbackReport on_fallback;
};

// Counts of operations, by where they ran. Results are the same bits either way.
struct DeviceUse {
  uint64_t num_done = 0;       // on the device
  uint64_t num_fallbacks = 0;  // without the device, after it failed or had no memory
  // Bytes of keys and values sent to the device, on arrival or later.
  uint64_t staged_bytes = 0;    // by way of a staging buffer
  uint64_t direct_bytes = 0;    // from the caller's memory
  uint64_t num_sent_ahead = 0;  // updates sent to the device on arrival
};

class DeviceEngine;

// Arrays of which a device of an engine has copies, none at first; the destructor drops the copies. The caller keeps
// the arrays alive and unchanged until then. Not thread-safe.
class PreloadedArrays {
 public:
  PreloadedArrays(DeviceEngine& engine, size_t device) : engine_(engine), device_(device) {}
  PreloadedArrays(const PreloadedArrays&) = delete;
  PreloadedArrays& operator=(const PreloadedArrays&) = delete;
  ~PreloadedArrays();

  // Makes `copy` the device's copy of an array that was copied out of it, if there is room. Requires: within an
  // operation of `session`, as its last step; the same device each time.
  void Keep(Session& session, const void* array, DeviceBuffer copy);

 private:
  friend class DeviceEngine;
  DeviceEngine& engine_;
  size_t device_;
  std::vector<const void*> sent_;
};

// Where an operation may run: on the device with this number, or else, unless `only`, on any other one.
struct Place {
  size_t device = 0;
  bool only = false;
};

// An engine that merges on one device or several. Lives as long as the server or process; creates accumulators, which
// must not outlive it.
//
// Devices: each has its own memory, streams and buffers. Each new accumulator gets a home device, round robin. A round
// whose keys ascend is finished in ranges of keys, one for each device (device_accumulator.cc). Arrays that callers
// lend in device memory (Import), and results there, are the first device's.
//
// Faults: after running out of device memory, the engine retries with smaller batches, unless they cannot help
// (NoRoom). If all fail, the operation runs without the device. After any other error the device is never used again,
// because it may have computed anything: the operation runs on the next one. When none is left, open rounds are
// replayed from host memory, and new rounds start on the CPU engine.
//
// Thread-safe. Operations on one device run one at a time, because they would only share its bandwidth.
class DeviceEngine : public Engine {
 public:
  DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options);
  // Requires: at least one device.
  DeviceEngine(std::vector<std::unique_ptr<Device>> devices, const DeviceEngineOptions& options);
  ~DeviceEngine() override;

  absl::string_view name() const override { return "cuda"; }
  std::string description() const override;
  // Returns: OK while there is a device to use; else the error after which the first one is not used any more.
  absl::Status Probe() const override;
  std::vector<DeviceState> devices() const override;
  uint64_t min_pending_bytes() const override { return options_.tuning.min_pending_bytes; }
  void ReleaseDeviceMemory() override;
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override;
  std::optional<DeviceStream> device_stream() const override;
  absl::Status Import(absl::Span<DeviceUpdate> updates, std::vector<ValidatedUpdate>& imported) override;
  DeviceUse use() const;

  // ---- for the accumulators ----

  // One piece of work on a device. After RESOURCE_EXHAUSTED it may run again: first with the same `shrink` (merger.h)
  // if preloaded arrays were dropped, then with larger ones. Until it succeeds it must change nothing outside the
  // session.
  using Operation = std::function<absl::Status(Session& session, int shrink)>;
  absl::Status RunOnDevice(const Operation& operation, Place place = {0, /*only=*/false});
  // Returns: an empty accumulator of the CPU engine.
  std::unique_ptr<Accumulator> CreateOnCpu(const TensorSpec& spec) { return *cpu_engine_->CreateAccumulator(spec); }
  // Returns: the device of a new accumulator.
  size_t NextHome();
  // Returns: the devices that work, by number.
  std::vector<size_t> WorkingDevices() const;
  size_t num_devices() const { return seats_.size(); }
  HostThreads& threads() { return threads_; }  // for work on host memory
  // Returns: the update, with the flags of arrays that are in pinned memory, whoever pinned it. Asks once for the whole
  // array, since an answer takes as long as copying some KB.
  ValidatedUpdate FindPinned(const TensorShape& shape, ValidatedUpdate update) const;
  // Sends copies of the arrays of an update to the device of `preloaded` as soon as it arrives, as far as there is room
  // (Tuning). If an operation is using the device, it sends nothing: the update stays in host memory, and nothing waits
  // for a merge. Thread-safe. Blocks: while other updates are sent; not until the copies are there. The destructor of
  // `preloaded` waits for them, and for an operation that uses the device.
  void Preload(absl::Span<const HostPart> arrays, PreloadedArrays& preloaded);
  // Returns: the update whose arrays an update of Import borrows, validated in host memory. Errors: INVALID_ARGUMENT;
  // UNAVAILABLE: they cannot be read, since the device has failed; RESOURCE_EXHAUSTED: no memory. Blocks: until they
  // are copied.
  absl::StatusOr<ValidatedUpdate> CopyToHost(const TensorSpec& spec, const InputKeys& keys, const std::byte* values,
                                             double weight);
  // Returns: no columns yet; an operation on the first device sets them. The last owner frees them, on any thread, once
  // `wait` says that nobody reads them; after an error all the same.
  using WaitForReaders = absl::Status (*)(Device& device);
  std::shared_ptr<ResultColumns> NewColumns(WaitForReaders wait);
  const Tuning& tuning() const { return options_.tuning; }

 private:
  friend class PreloadedArrays;
  // One device, and what is its own.
  struct Seat {
    // Guarded by `mutex`, but ordinal(), StreamHandle() and IsPinned(); so is `session`.
    std::unique_ptr<Device> device;
    std::string description;  // immutable
    std::mutex sending;       // held while Preload sends an update; before `mutex`
    std::mutex mutex;         // before DeviceEngine::mutex_
    std::unique_ptr<Session> session;
    bool may_read = false;  // work under way may read callers' arrays: an operation ran since GiveBack waited
    absl::Status fault;     // guarded by DeviceEngine::mutex_
    std::atomic<uint64_t> num_done = 0;
  };

  // Frees columns as NewColumns says. Without any only waits, unless nothing has run since the last wait.
  void GiveBack(ResultColumns& columns, WaitForReaders wait);
  // Checks what the first device can know of updates before it reads their arrays, and makes it wait for their streams,
  // once for each. Returns: the number of updates before the first one that is refused, and its error. (A device that
  // has failed checks no arrays; the next operation meets it.)
  std::pair<size_t, absl::Status> CheckBeforeImport(absl::Span<const DeviceUpdate> updates);
  absl::Status RunOn(Seat& seat, const Operation& operation);
  // Runs something that needs no new device memory; with `after_fault` also on a device that has failed.
  absl::Status RunSmall(Seat& seat, const Operation& operation, bool after_fault = false);
  // Requires: the mutex of the seat; the other functions, that no mutex is held.
  static absl::Status RunOnce(Seat& seat, const Operation& operation, int shrink);
  absl::Status FaultOf(const Seat& seat) const;
  // Ends the use of a device, unless `fault` is OK, a lack of memory, or not its first.
  void Distrust(Seat& seat, const absl::Status& fault);
  void TellFallback(const absl::Status& reason) const;

  const DeviceEngineOptions options_;
  const std::unique_ptr<Engine> cpu_engine_;
  HostThreads threads_;
  std::atomic<size_t> next_home_ = 0;
  std::atomic<uint64_t> num_fallbacks_ = 0;
  std::atomic<uint64_t> num_sent_ahead_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Seat>> seats_;  // the vector is immutable
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_ENGINE_H_
