#include "cuda/device_engine.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cuda/device_accumulator.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/import.h"
#include "cuda/merge/tensor_shape.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

DeviceEngine::DeviceEngine(std::unique_ptr<Device> device, const DeviceEngineOptions& options)
    : DeviceEngine({std::make_move_iterator(&device), std::make_move_iterator(&device + 1)}, options) {}

DeviceEngine::DeviceEngine(std::vector<std::unique_ptr<Device>> devices, const DeviceEngineOptions& options)
    : options_(options), cpu_engine_(CreateCpuEngine(options.cpu)), threads_(options.cpu.num_threads) {
  for (std::unique_ptr<Device>& device : devices) {
    auto seat = std::make_unique<Seat>();
    seat->description = device->description();
    seat->device = std::move(device);
    const size_t budget = options.memory_budget_bytes > 0 ? options.memory_budget_bytes : seat->device->memory_bytes();
    seat->session = std::make_unique<Session>(*seat->device, budget, options.tuning, options.cpu.num_threads);
    seats_.push_back(std::move(seat));
  }
}

DeviceEngine::~DeviceEngine() = default;

std::string DeviceEngine::description() const {
  const bool works = Probe().ok();
  std::string text;
  for (const auto& seat : seats_) {
    const bool has_failed = works && !FaultOf(*seat).ok();
    absl::StrAppend(&text, text.empty() ? "" : "; ", has_failed ? "a fault of " : "", seat->description);
  }
  return works ? text : absl::StrCat(cpu_engine_->description(), ", after a fault of ", text);
}

absl::Status DeviceEngine::Probe() const {
  return WorkingDevices().empty() ? FaultOf(*seats_.front()) : absl::OkStatus();
}

std::vector<DeviceState> DeviceEngine::devices() const {
  std::vector<DeviceState> states;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& seat : seats_) {
    const StagingRing& sent = seat->session->staging();
    states.push_back({seat->device->ordinal(), seat->description, seat->fault, seat->num_done,
                      sent.staged_bytes() + sent.direct_bytes()});
  }
  return states;
}

std::vector<size_t> DeviceEngine::WorkingDevices() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<size_t> working;
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i]->fault.ok()) working.push_back(i);
  }
  return working;
}

absl::Status DeviceEngine::FaultOf(const Seat& seat) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seat.fault;
}

size_t DeviceEngine::NextHome() { return next_home_.fetch_add(1, std::memory_order_relaxed) % seats_.size(); }

DeviceUse DeviceEngine::use() const {
  DeviceUse use;
  use.num_fallbacks = num_fallbacks_;
  use.num_sent_ahead = num_sent_ahead_;
  for (const auto& seat : seats_) {
    use.num_done += seat->num_done;
    use.staged_bytes += seat->session->staging().staged_bytes();
    use.direct_bytes += seat->session->staging().direct_bytes();
  }
  return use;
}

absl::StatusOr<std::unique_ptr<Accumulator>> DeviceEngine::CreateAccumulator(const TensorSpec& spec) {
  ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> cpu, cpu_engine_->CreateAccumulator(spec));
  const bool on_cpu = !IsForDevice(spec) || !Probe().ok();
  return std::make_unique<DeviceAccumulator>(*this, spec, std::move(cpu), on_cpu);
}

std::shared_ptr<ResultColumns> DeviceEngine::NewColumns(WaitForReaders wait) {
  return {new ResultColumns, [this, wait](ResultColumns* columns) {
            GiveBack(*columns, wait);
            delete columns;
          }};
}

void DeviceEngine::GiveBack(ResultColumns& columns, WaitForReaders wait) {
  absl::Status status;
  Seat& seat = *seats_.front();
  {
    const std::lock_guard<std::mutex> lock(seat.mutex);
    const bool is_empty = columns.d_keys.get() == nullptr && columns.d_values.get() == nullptr &&
                          columns.d_counts.get() == nullptr && columns.d_weights.get() == nullptr;
    if (is_empty && !seat.may_read) return;
    const Operation work = [&](Session& session, int) {
      absl::Status waited = wait(session.device());
      columns = {};
      return waited;
    };
    status = RunOnce(seat, work, /*shrink=*/0);
    columns = {};  // if the device could not be entered
    seat.may_read = false;
  }
  Distrust(seat, status);
}

std::optional<DeviceStream> DeviceEngine::device_stream() const {
  const Device& first = *seats_.front()->device;
  return DeviceStream{first.ordinal(), first.StreamHandle(Lane::kCopy)};
}

namespace {

// The address of another GPU's memory, or of the host's, would end CUDA for the process.
absl::Status CheckReadable(const Device& device, const DeviceUpdate& update) {
  for (const auto& [what, d_array] : {std::pair<absl::string_view, const void*>("keys", KeyArray(update.keys)),
                                      std::pair<absl::string_view, const void*>("values", update.values)}) {
    const std::string elsewhere = d_array == nullptr ? "" : device.Elsewhere(d_array);
    if (elsewhere.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(Quoted(*update.spec), ": its ", what, " are in ", elsewhere,
                                                   ", but the engine reads CUDA device ", device.ordinal(),
                                                   "; copy them there, or to host memory"));
  }
  return absl::OkStatus();
}

// `followed`: the streams that the device waits for already.
absl::Status FollowStreams(Device& device, const DeviceUpdate& update, std::vector<uintptr_t>& followed) {
  for (const uintptr_t stream : update.streams) {
    if (stream == 0 || std::find(followed.begin(), followed.end(), stream) != followed.end()) continue;
    // An error is the stream's. If it is the device's, the next operation meets it.
    if (const absl::Status status = device.Follow(stream, Lane::kCopy); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(*update.spec), ": CUDA device ", device.ordinal(),
                                                     " cannot wait for the stream that an array names, as where the "
                                                     "array is on another GPU: ",
                                                     status.message()));
    }
    followed.push_back(stream);
  }
  return absl::OkStatus();
}

// Returns: the keys of an update, of which `d_keys` are in the tensor's key type.
KeyColumn ColumnOf(const DeviceUpdate& update, const void* d_keys) {
  if (const auto* run = std::get_if<KeyRun>(&update.keys)) return *run;
  const uint64_t count = NumKeys(update.keys);
  if (HasNarrowKeys(*update.spec)) return absl::MakeConstSpan(static_cast<const uint32_t*>(d_keys), count);
  return absl::MakeConstSpan(static_cast<const uint64_t*>(d_keys), count);
}

absl::Status OnFailedDevice(const TensorSpec& spec, const absl::Status& why) {
  return absl::UnavailableError(
      absl::StrCat(Quoted(spec), ": its arrays are on a device that failed: ", why.message()));
}

}  // namespace

std::pair<size_t, absl::Status> DeviceEngine::CheckBeforeImport(absl::Span<const DeviceUpdate> updates) {
  absl::Status refusal;
  size_t num_good = 0;
  for (; num_good < updates.size(); ++num_good) {
    refusal = ValidateWeight(*updates[num_good].spec, updates[num_good].weight);
    if (!refusal.ok()) break;
  }
  const Operation check = [&](Session& session, int) {
    std::vector<uintptr_t> followed;
    for (size_t i = 0; i < num_good; ++i) {
      absl::Status status = CheckReadable(session.device(), updates[i]);
      if (status.ok()) status = FollowStreams(session.device(), updates[i], followed);
      if (status.ok()) continue;
      refusal = std::move(status);
      num_good = i;
    }
    return absl::OkStatus();
  };
  RunSmall(*seats_.front(), check).IgnoreError();
  return {num_good, std::move(refusal)};
}

absl::Status DeviceEngine::Import(absl::Span<DeviceUpdate> updates, std::vector<ValidatedUpdate>& imported) {
  const auto [num_good, refusal] = CheckBeforeImport(updates);
  updates = updates.first(num_good);
  if (updates.empty()) return refusal;
  ImportedUpdates found;
  const WaitForReaders await_reads = [](Device& device) { return device.AwaitLane(Lane::kCopy); };
  // Before the operation, so that its buffer is never freed without the device's mutex, whatever fails.
  const std::shared_ptr<ResultColumns> keys = NewColumns(await_reads);
  const absl::Status status = RunOnDevice(
      [&](Session& session, int) -> absl::Status {
        absl::StatusOr<ImportedUpdates> tried = ImportColumns(session, updates);
        // Updates are imported as a whole, so another attempt would need the same memory.
        if (absl::IsResourceExhausted(tried.status())) return NoRoom(tried.status().message());
        ASSIGN_OR_RETURN(found, std::move(tried));
        keys->d_keys = std::move(found.d_keys);
        return absl::OkStatus();
      },
      {0, /*only=*/true});
  if (!status.ok() && !absl::IsResourceExhausted(status)) return OnFailedDevice(*updates[0].spec, status);
  imported.reserve(imported.size() + updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    DeviceUpdate& update = updates[i];
    const TensorSpec& spec = *update.spec;
    if (!status.ok() || found.updates[i].refused()) {
      ASSIGN_OR_RETURN(ValidatedUpdate on_host, CopyToHost(spec, update.keys, update.values, update.weight));
      if (status.ok()) {
        const absl::Status fault =
            absl::InternalError(absl::StrCat(Quoted(spec), ": the device refused a good update"));
        Distrust(*seats_.front(), fault);
        return fault;
      }
      imported.push_back(std::move(on_host));
      continue;
    }
    UpdateColumns columns;
    columns.keys = ColumnOf(update, found.updates[i].d_keys);
    columns.values = spec.aggregation.op == Op::kUnion ? nullptr : update.values;
    // Awaits what reads the values before it lets go of them, since their owner may write to them at once.
    columns.owner = {keys.get(), [this, keys, await_reads, owner = std::move(update.owner)](const void*) {
                       ResultColumns none;
                       GiveBack(none, await_reads);
                     }};
    imported.push_back(ValidatedUpdate::OnDevice(std::move(columns), WeightInUse(spec, update.weight),
                                                 found.updates[i].sorted(), found.updates[i].unique()));
  }
  return refusal;
}

absl::StatusOr<ValidatedUpdate> DeviceEngine::CopyToHost(const TensorSpec& spec, const InputKeys& keys,
                                                         const std::byte* values, double weight) {
  HostArrays host;
  const Operation copy = [&](Session& session, int) -> absl::Status {
    ASSIGN_OR_RETURN(host, cuda::CopyToHost(session, spec, keys, values));
    return absl::OkStatus();
  };
  const absl::Status status = RunSmall(*seats_.front(), copy);
  if (absl::IsResourceExhausted(status)) return status;
  if (!status.ok()) return OnFailedDevice(spec, status);
  return ValidatedUpdate::CreateWithCopiedKeys(spec, host.keys, host.values, host.owner, weight);
}

void DeviceEngine::ReleaseDeviceMemory() {
  for (const auto& seat : seats_) {
    const Operation release = [](Session& session, int) -> absl::Status {
      RETURN_IF_ERROR(session.device().Trim());
      session.pinned().Trim();
      return absl::OkStatus();
    };
    RunSmall(*seat, release).IgnoreError();
  }
}

absl::Status DeviceEngine::RunSmall(Seat& seat, const Operation& operation, bool after_fault) {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(seat.mutex);
    if (!after_fault) RETURN_IF_ERROR(FaultOf(seat));
    status = RunOnce(seat, operation, /*shrink=*/0);
  }
  Distrust(seat, status);
  return status;
}

absl::Status DeviceEngine::RunOnDevice(const Operation& operation, Place place) {
  absl::Status status;
  for (size_t i = 0; i < (place.only ? 1 : seats_.size()); ++i) {
    Seat& seat = *seats_[(place.device + i) % seats_.size()];
    status = RunOn(seat, operation);
    if (status.ok() || absl::IsResourceExhausted(status)) break;
  }
  if (!status.ok()) ++num_fallbacks_;
  if (absl::IsResourceExhausted(status)) TellFallback(status);
  return status;
}

absl::Status DeviceEngine::RunOn(Seat& seat, const Operation& operation) {
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(seat.mutex);
    RETURN_IF_ERROR(FaultOf(seat));
    Session& session = *seat.session;
    status = RunOnce(seat, operation, /*shrink=*/0);
    if (absl::IsResourceExhausted(status) && session.resident().bytes() > 0) {
      session.resident().DropAll();  // they are sent again
      status = RunOnce(seat, operation, /*shrink=*/0);
    }
    for (int shrink = 1; shrink <= options_.tuning.num_retries; ++shrink) {
      if (!absl::IsResourceExhausted(status) || IsNoRoom(status)) break;
      status = RunOnce(seat, operation, shrink);
    }
  }
  if (status.ok()) ++seat.num_done;
  Distrust(seat, status);
  return status;
}

absl::Status DeviceEngine::RunOnce(Seat& seat, const Operation& operation, int shrink) {
  Session& session = *seat.session;
  seat.may_read = true;
  session.Begin();
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
  if (sent_.empty()) return;
  const auto forget = [this](Session& session, int) { return session.Forget(sent_); };
  engine_.RunSmall(*engine_.seats_[device_], forget, /*after_fault=*/true).IgnoreError();
}

ValidatedUpdate DeviceEngine::FindPinned(const TensorShape& shape, ValidatedUpdate update) const {
  const Seat& first = *seats_.front();
  if (update.on_device() || update.num_keys() == 0 || !FaultOf(first).ok()) return update;
  const auto is_pinned = [&](const void* array, size_t row_bytes) {
    return array != nullptr && row_bytes > 0 && first.device->IsPinned(array, update.num_keys() * row_bytes);
  };
  return update.WithPinned(is_pinned(KeyArray(update.keys()), shape.key_bytes),
                           is_pinned(update.values(), shape.row_bytes));
}

void PreloadedArrays::Keep(Session& session, const void* array, DeviceBuffer copy) {
  if (copy.bytes() == 0 || !session.resident().HasRoomFor(copy.bytes())) return;
  for (device_ = 0; engine_.seats_[device_]->session.get() != &session;) ++device_;
  sent_.push_back(array);
  copy.HandTo(Lane::kCopy);  // whoever copied it out has awaited the compute lane
  session.resident().Add(array, std::move(copy));
}

void DeviceEngine::Preload(absl::Span<const HostPart> arrays, PreloadedArrays& preloaded) {
  size_t bytes = 0;
  for (const HostPart& array : arrays) bytes += array.bytes;
  if (bytes < options_.tuning.min_resident_bytes) return;
  Seat& seat = *seats_[preloaded.device_];
  absl::Status status;
  {
    const std::lock_guard<std::mutex> turn(seat.sending);
    const std::unique_lock<std::mutex> lock(seat.mutex, std::try_to_lock);
    if (!lock.owns_lock() || !FaultOf(seat).ok()) return;
    const Operation send = [&](Session& session, int) { return session.SendAhead(arrays, preloaded.sent_); };
    status = RunOnce(seat, send, /*shrink=*/0);
  }
  if (status.ok() && !preloaded.sent_.empty()) ++num_sent_ahead_;
  Distrust(seat, status);  // without room the update waits in host memory
}

void DeviceEngine::Distrust(Seat& seat, const absl::Status& fault) {
  if (fault.ok() || absl::IsResourceExhausted(fault)) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!seat.fault.ok()) return;
    seat.fault = fault;
  }
  TellFallback(fault);
}

void DeviceEngine::TellFallback(const absl::Status& reason) const {
  if (options_.on_fallback) options_.on_fallback(reason);
}

}  // namespace sparseagg::cuda
