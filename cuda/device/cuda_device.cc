#include "cuda/device/cuda_device.h"

#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cuda/device/device.h"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {

absl::Status ToStatus(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return absl::OkStatus();
  absl::string_view name = file;
  const size_t slash = name.rfind('/');
  if (slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  const std::string text =
      absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error), " (", call, " at ", name, ":", line, ")");
  cudaGetLastError();  // resets the error, which the next launch would report again
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

void IgnoreError(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
}

absl::StatusOr<int> CudaDevice::Count() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess) {
    RETURN_IF_ERROR(CheckDriver(driver, CUDART_VERSION, DriverRelease()));
  }
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no usable GPU: ", cudaGetErrorString(error)));
  }
  if (num_devices == 0) return absl::UnavailableError("no usable GPU: the driver sees none");
  return num_devices;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(std::chrono::nanoseconds patience, int ordinal) {
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice(patience, ordinal));
  RETURN_IF_ERROR(device->Enter());
  const absl::Status status = device->Start();
  device->Leave();
  RETURN_IF_ERROR(status);
  return device;
}

absl::Status CudaDevice::Start() {
  cudaDeviceProp properties;
  CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal_));
  int has_pools = 0;
  CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, ordinal_));
  if (has_pools == 0) return absl::UnavailableError(absl::StrCat(properties.name, " has no memory pools"));
  int driver = 0;
  CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  memory_bytes_ = free_bytes / 10 * 9;  // the rest is for kernels' own needs, and for other processes
  description_ = absl::StrCat(properties.name, ", compute capability ", properties.major, ".", properties.minor, ", ",
                              total_bytes >> 30, " GiB, driver for CUDA ", driver / 1000, ".", driver % 1000 / 10);
  for (cudaStream_t& stream : streams_) {
    CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  cudaMemPoolProps pool = {};
  pool.allocType = cudaMemAllocationTypePinned;
  pool.location.type = cudaMemLocationTypeDevice;
  pool.location.id = ordinal_;
  CUDA_RETURN_IF_ERROR(cudaMemPoolCreate(&pool_, &pool));
  uint64_t keep_all = UINT64_MAX;
  CUDA_RETURN_IF_ERROR(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_all));
  // Else one lane's allocation may make it wait for what another lane has freed but not finished with.
  int never = 0;
  return CUDA_TO_STATUS(cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &never));
}

CudaDevice::~CudaDevice() {
  if (!hung_.ok()) return;  // whatever gives memory back would wait for the device
  for (const cudaEvent_t event : events_) IgnoreError(cudaEventDestroy(event));
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) IgnoreError(cudaStreamDestroy(stream));
  }
  if (pool_ != nullptr) IgnoreError(cudaMemPoolDestroy(pool_));
}

absl::Status CudaDevice::Enter() {
  RETURN_IF_ERROR(hung_);
  CUDA_RETURN_IF_ERROR(cudaGetDevice(&previous_));
  return CUDA_TO_STATUS(cudaSetDevice(ordinal_));
}

void CudaDevice::Leave() { IgnoreError(cudaSetDevice(previous_)); }

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes, Lane lane) {
  void* d_memory = nullptr;
  const auto allocate = [&] {
    return CUDA_TO_STATUS(cudaMallocFromPoolAsync(&d_memory, bytes, pool_, StreamOf(lane)));
  };
  absl::Status status = allocate();
  if (absl::IsResourceExhausted(status)) {
    RETURN_IF_ERROR(Trim());  // what the pool keeps may be in pieces of the wrong sizes
    status = allocate();
  }
  RETURN_IF_ERROR(status);
  return d_memory;
}

// What was freed is unused once the work before it is done, on whichever lane. The wait has a deadline, so it polls;
// the pool takes notice of work that is done only when a stream is synchronised, which then returns at once.
absl::Status CudaDevice::Trim() {
  for (const Lane lane : kLanes) {
    RETURN_IF_ERROR(AwaitLane(lane));
    CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(StreamOf(lane)));
  }
  return CUDA_TO_STATUS(cudaMemPoolTrimTo(pool_, 0));
}

// Ignores errors: an error here is one of earlier work, and the call that waits for that work returns it.
void CudaDevice::Free(void* d_memory, Lane lane) {
  if (hung_.ok()) IgnoreError(cudaFreeAsync(d_memory, StreamOf(lane)));
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaDevice::AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [hangs = hangs_](std::byte* pinned) {
    if (!*hangs) IgnoreError(cudaFreeHost(pinned));
  });
}

bool CudaDevice::IsPinned(const void* memory, size_t bytes) const {
  const auto is_pinned = [](const std::byte* at) {
    cudaPointerAttributes attributes = {};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, at);
    IgnoreError(error);
    return error == cudaSuccess && attributes.type == cudaMemoryTypeHost && attributes.devicePointer == at;
  };
  const auto* begin = static_cast<const std::byte*>(memory);
  return is_pinned(begin) && is_pinned(begin + bytes - 1);
}

std::string CudaDevice::Elsewhere(const void* d_memory) const {
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, d_memory);
  IgnoreError(error);
  if (error != cudaSuccess) return "";  // of work before; the next operation meets it
  if (attributes.type == cudaMemoryTypeUnregistered) return "memory that CUDA does not know";
  if (attributes.type == cudaMemoryTypeHost) return "host memory that CUDA has pinned";
  if (attributes.type != cudaMemoryTypeDevice || attributes.device == ordinal_) return "";
  return absl::StrCat("the memory of CUDA device ", attributes.device);
}

absl::Status CudaDevice::CopyIn(void* d_to, const void* from_pinned, size_t bytes, Lane lane) {
  return CUDA_TO_STATUS(cudaMemcpyAsync(d_to, from_pinned, bytes, cudaMemcpyHostToDevice, StreamOf(lane)));
}

absl::Status CudaDevice::CopyOut(void* to_pinned, const void* d_from, size_t bytes, Lane lane) {
  return CUDA_TO_STATUS(cudaMemcpyAsync(to_pinned, d_from, bytes, cudaMemcpyDeviceToHost, StreamOf(lane)));
}

absl::Status CudaDevice::CopyWithin(void* d_to, const void* d_from, size_t bytes, Lane lane) {
  return CUDA_TO_STATUS(cudaMemcpyAsync(d_to, d_from, bytes, cudaMemcpyDeviceToDevice, StreamOf(lane)));
}

absl::Status CudaDevice::Fill(void* d_memory, uint8_t byte, size_t bytes, Lane lane) {
  return CUDA_TO_STATUS(cudaMemsetAsync(d_memory, byte, bytes, StreamOf(lane)));
}

absl::StatusOr<EventId> CudaDevice::CreateEvent() {
  cudaEvent_t event = nullptr;
  CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  events_.push_back(event);
  return static_cast<EventId>(events_.size() - 1);
}

absl::Status CudaDevice::Record(EventId event, Lane lane) {
  return CUDA_TO_STATUS(cudaEventRecord(events_[event], StreamOf(lane)));
}

absl::Status CudaDevice::Wait(Lane lane, EventId event) {
  return CUDA_TO_STATUS(cudaStreamWaitEvent(StreamOf(lane), events_[event], 0));
}

absl::Status CudaDevice::Follow(uintptr_t stream, Lane lane) {
  if (!followed_.has_value()) {
    ASSIGN_OR_RETURN(followed_, CreateEvent());
  }
  CUDA_RETURN_IF_ERROR(cudaEventRecord(events_[*followed_], reinterpret_cast<cudaStream_t>(stream)));
  return Wait(lane, *followed_);
}

absl::Status CudaDevice::Await(EventId event) {
  const auto query = [](void* handle) { return cudaEventQuery(static_cast<cudaEvent_t>(handle)); };
  return Await(query, events_[event], "cudaEventQuery");
}

absl::Status CudaDevice::AwaitLane(Lane lane) {
  const auto query = [](void* handle) { return cudaStreamQuery(static_cast<cudaStream_t>(handle)); };
  return Await(query, StreamOf(lane), "cudaStreamQuery");
}

// Without a deadline, since it also waits for others' work, which may take any time.
absl::Status CudaDevice::AwaitAll() {
  RETURN_IF_ERROR(hung_);
  return CUDA_TO_STATUS(cudaDeviceSynchronize());
}

// Most waits take microseconds, so that polls come close upon each other at first.
absl::Status CudaDevice::Await(cudaError_t (*query)(void*), void* handle, const char* what) {
  RETURN_IF_ERROR(hung_);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int polls = 0;; ++polls) {
    const cudaError_t error = query(handle);
    if (error != cudaErrorNotReady) return ToStatus(error, what, __FILE__, __LINE__);
    const auto waited = Clock::now() - start;
    IgnoreError(error);
    if (waited > patience_) {
      hung_ = absl::UnavailableError(
          absl::StrCat("the device hangs: no answer within ",
                       std::chrono::duration_cast<std::chrono::milliseconds>(patience_).count(), " ms (", what, ")"));
      *hangs_ = true;
      return hung_;
    }
    if (waited > std::chrono::milliseconds(1)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

absl::StatusOr<int> CudaDevice::Sort(SortCall& call) {
  int output = 0;
  const auto sort = call.key_bytes == sizeof(uint32_t) ? SortKeys32 : SortKeys64;
  CUDA_RETURN_IF_ERROR(sort(call, output, StreamOf(Lane::kCompute)));
  return output;
}

absl::Status CudaDevice::Select(SelectCall& call) {
  return CUDA_TO_STATUS(SelectIndices(call, StreamOf(Lane::kCompute)));
}

absl::Status CudaDevice::LaunchOn(const KernelCall& call, Lane lane) {
  return CUDA_TO_STATUS(cuda::Launch(call, StreamOf(lane)));
}

}  // namespace sparseagg::cuda
