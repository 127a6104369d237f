#include "cuda/device_engine.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cuda/device_accumulator.h"
#include "cuda/merge/import.h"
#include "cuda/merge/tensor_shape.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

DeviceEngine::DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options)
    : options_(options),
      cpu_engine_(CreateCpuEngine(options.cpu)),
      device_description_(device->description()),
      device_(std::move(device)) {
  const size_t budget = options.memory_budget_bytes > 0 ? options.memory_budget_bytes : device_->memory_bytes();
  session_ = std::make_unique<Session>(*device_, budget, options.tuning, options.cpu.num_threads);
}

DeviceEngine::~DeviceEngine() = default;

std::string DeviceEngine::description() const {
  return Probe().ok() ? device_description_
                      : absl::StrCat(cpu_engine_->description(), ", after a fault of ", device_description_);
}

absl::Status DeviceEngine::Probe() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

DeviceUse DeviceEngine::use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

absl::StatusOr<std::unique_ptr<Accumulator>> DeviceEngine::CreateAccumulator(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> cpu, cpu_engine_->CreateAccumulator(spec));
  const bool on_cpu = !IsForDevice(spec) || !Probe().ok();
  return std::make_unique<DeviceAccumulator>(*this, spec, std::move(cpu), on_cpu);
}

// Awaits what reads the arrays before it gives them back, since their owner may write to them at once.
class DeviceEngine::ImportedArrays {
 public:
  ImportedArrays(DeviceEngine& engine, std::shared_ptr<const void> owner) : engine_(engine), owner_(std::move(owner)) {}
  ImportedArrays(const ImportedArrays&) = delete;
  ImportedArrays& operator=(const ImportedArrays&) = delete;
  ~ImportedArrays() {
    engine_.GiveBack({&d_keys}, [](Device& device) { return device.AwaitLane(Lane::kCopy); });
  }

  DeviceBuffer d_keys;  // set within an operation, which keeps them

 private:
  DeviceEngine& engine_;
  const std::shared_ptr<const void> owner_;
};

// Columns of a result in device memory, which the caller has.
class DeviceEngine::OwnedColumns {
 public:
  explicit OwnedColumns(DeviceEngine& engine) : engine_(engine) {}
  OwnedColumns(const OwnedColumns&) = delete;
  OwnedColumns& operator=(const OwnedColumns&) = delete;
  ~OwnedColumns() {
    engine_.GiveBack({&columns.d_keys, &columns.d_values, &columns.d_counts, &columns.d_weights},
                     [](Device& device) { return device.AwaitAll(); });
  }

  ResultColumns columns;

 private:
  DeviceEngine& engine_;
};

std::shared_ptr<ResultColumns> DeviceEngine::NewColumns() {
  const auto owned = std::make_shared<OwnedColumns>(*this);
  return {owned, &owned->columns};
}

void DeviceEngine::GiveBack(absl::Span<DeviceBuffer* const> buffers, absl::Status (*wait)(Device& device)) {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(device_mutex_);
    const auto release = [&] {
      for (DeviceBuffer* buffer : buffers) {
        session_->StopKeeping(buffer->bytes());
        buffer->Release();
      }
    };
    const Operation work = [&](Session& session, int) {
      absl::Status waited = wait(session.device());
      release();
      return waited;
    };
    status = RunOnce(*session_, work, /*shrink=*/0);
    release();  // if the device could not be entered
  }
  Distrust(status);
}

std::optional<DeviceStream> DeviceEngine::device_stream() const {
  return DeviceStream{device_->ordinal(), device_->StreamHandle(Lane::kCopy)};
}

absl::Status DeviceEngine::FollowStream(uintptr_t stream) {
  // An error is the stream's. If it is the device's, the next operation meets it.
  return RunLocked([stream](Session& session, int) { return session.device().Follow(stream, Lane::kCopy); });
}

absl::StatusOr<ValidatedUpdate> DeviceEngine::Import(const TensorSpec& spec, const InputKeys& keys,
                                                     const std::byte* values, std::shared_ptr<const void> owner,
                                                     double weight) {
  RETURN_IF_ERROR(ValidateWeight(spec, weight));
  const TensorShape shape(spec);
  ImportedKeys imported;
  // Before the operation, so that its buffer is never freed without device_mutex_, whatever fails.
  auto arrays = std::make_shared<ImportedArrays>(*this, std::move(owner));
  const absl::Status status = RunOnDevice([&](Session& session, int) -> absl::Status {
    absl::StatusOr<ImportedKeys> found = ImportColumns(session, spec, shape, keys, values);
    // An update is imported as a whole, so another attempt would need the same memory.
    if (absl::IsResourceExhausted(found.status())) return NoRoom(found.status().message());
    ASSIGN_OR_RETURN(imported, std::move(found));
    arrays->d_keys = std::move(imported.d_keys);
    session.Keep(arrays->d_keys.bytes());
    return absl::OkStatus();
  });
  if (absl::IsResourceExhausted(status)) return ValidateOnHost(spec, keys, values, weight);
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat(Quoted(spec), ": its arrays are on a device that failed: ", status.message()));
  }
  if (imported.refused) {
    RETURN_IF_ERROR(ValidateOnHost(spec, keys, values, weight).status());
    const absl::Status fault = absl::InternalError(absl::StrCat(Quoted(spec), ": the device refused a good update"));
    Distrust(fault);
    return fault;
  }
  UpdateColumns columns;
  const uint64_t count = NumKeys(keys);
  if (const auto* run = std::get_if<KeyRun>(&keys)) {
    columns.keys = *run;
  } else if (shape.key_bytes == sizeof(uint32_t)) {
    columns.keys = absl::MakeConstSpan(arrays->d_keys.as<uint32_t>(), count);
  } else {
    columns.keys = absl::MakeConstSpan(arrays->d_keys.as<uint64_t>(), count);
  }
  columns.values = spec.aggregation.op == Op::kUnion ? nullptr : values;
  columns.owner = std::move(arrays);
  return ValidatedUpdate::OnDevice(std::move(columns), WeightInUse(spec, weight), imported.sorted, imported.unique);
}

absl::StatusOr<ValidatedUpdate> DeviceEngine::ValidateOnHost(const TensorSpec& spec, const InputKeys& keys,
                                                             const std::byte* values, double weight) {
  HostArrays host;
  const absl::Status status = RunLocked([&](Session& session, int) -> absl::Status {
    ASSIGN_OR_RETURN(host, cuda::CopyToHost(session, spec, keys, values));
    return absl::OkStatus();
  });
  if (!status.ok()) {
    if (absl::IsResourceExhausted(status)) return status;
    Distrust(status);
    return absl::UnavailableError(
        absl::StrCat(Quoted(spec), ": its arrays are on a device that failed: ", status.message()));
  }
  return ValidatedUpdate::CreateWithCopiedKeys(spec, host.keys, host.values, host.owner, weight);
}

absl::StatusOr<ValidatedUpdate> DeviceEngine::CopyToHost(const TensorSpec& spec, const ValidatedUpdate& update) {
  const InputKeys keys = std::visit([](const auto& own) { return InputKeys(own); }, update.keys());
  return ValidateOnHost(spec, keys, update.values(), update.weight());
}

absl::Status DeviceEngine::RunLocked(const Operation& operation) {
  const std::lock_guard<std::mutex> lock(device_mutex_);
  RETURN_IF_ERROR(Probe());
  return RunOnce(*session_, operation, /*shrink=*/0);
}

absl::Status DeviceEngine::RunOnDevice(const Operation& operation) {
  absl::Status status;
  bool is_news = false;
  {
    const std::lock_guard<std::mutex> lock(device_mutex_);
    status = Probe();
    if (status.ok()) {
      status = RunOnce(*session_, operation, /*shrink=*/0);
      if (absl::IsResourceExhausted(status) && session_->resident().bytes() > 0) {
        session_->resident().DropAll();  // they are sent again
        status = RunOnce(*session_, operation, /*shrink=*/0);
      }
      for (int shrink = 1; shrink <= options_.tuning.num_retries; ++shrink) {
        if (!absl::IsResourceExhausted(status) || IsNoRoom(status)) break;
        status = RunOnce(*session_, operation, shrink);
      }
      is_news = absl::IsResourceExhausted(status) || SetFault(status);
    }
    CountUse(status.ok() ? &DeviceUse::num_done : &DeviceUse::num_fallbacks);
  }
  if (is_news) TellFallback(status);
  return status;
}

absl::Status DeviceEngine::RunOnce(Session& session, const Operation& operation, int shrink) const {
  RETURN_IF_ERROR(session.device().Enter());
  const absl::Cleanup leave = [&session] { session.device().Leave(); };
  try {
    absl::Status status = operation(session, shrink);
    if (!status.ok()) session.Settle();
    return status;
  } catch (...) {  // std::bad_alloc is for the caller to answer, but first all work under way must end
    session.Settle();
    throw;
  }
}

PreloadedArrays::~PreloadedArrays() {
  if (!sent_.empty()) {
    const absl::Status status = engine_.ForgetSent(sent_);
    if (!absl::IsResourceExhausted(status)) engine_.Distrust(status);
  }
}

PreloadedArrays DeviceEngine::Preload(absl::Span<const HostPart> arrays) {
  PreloadedArrays preloaded(*this);
  if (!Probe().ok()) return preloaded;
  size_t bytes = 0;
  for (const HostPart& array : arrays) bytes += array.bytes;
  if (bytes < options_.tuning.min_resident_bytes) return preloaded;
  const absl::Status status = SendAhead(arrays, preloaded);
  // Without room the update waits in host memory.
  if (!absl::IsResourceExhausted(status)) Distrust(status);
  return preloaded;
}

absl::Status DeviceEngine::SendAhead(absl::Span<const HostPart> arrays, PreloadedArrays& preloaded) {
  const std::lock_guard<std::mutex> lock(device_mutex_);
  RETURN_IF_ERROR(Probe());
  const Operation send = [&](Session& session, int) { return session.SendAhead(arrays, preloaded.sent_); };
  RETURN_IF_ERROR(RunOnce(*session_, send, /*shrink=*/0));
  if (!preloaded.sent_.empty()) CountUse(&DeviceUse::num_sent_ahead);
  return absl::OkStatus();
}

void DeviceEngine::CountUse(uint64_t DeviceUse::*event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++(use_.*event);
  use_.staged_bytes = session_->staging().staged_bytes();
  use_.direct_bytes = session_->staging().direct_bytes();
}

absl::Status DeviceEngine::ForgetSent(const std::vector<const void*>& arrays) {
  const std::lock_guard<std::mutex> lock(device_mutex_);
  return RunOnce(
      *session_, [&](Session& session, int) { return session.Forget(arrays); }, /*shrink=*/0);
}

void DeviceEngine::Distrust(const absl::Status& fault) {
  if (SetFault(fault)) TellFallback(fault);
}

bool DeviceEngine::SetFault(const absl::Status& fault) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (fault.ok() || !fault_.ok()) return false;
  fault_ = fault;
  return true;
}

void DeviceEngine::TellFallback(const absl::Status& reason) const {
  if (options_.on_fallback) options_.on_fallback(reason);
}

}  // namespace sparseagg::cuda
