#include "cuda/cuda_device.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_status.h"
#include "cuda/kernels/launch.h"

namespace sparseagg::cuda {
namespace {

cudaError_t SortKeys(SortCall& call, int& output, cudaStream_t stream) {
  return call.key_bytes == 4 ? SortKeys32(call, output, stream) : SortKeys64(call, output, stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return absl::UnavailableError("no usable GPU: this machine has no NVIDIA driver");
  }
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no usable GPU: ", cudaGetErrorString(error)));
  }
  if (num_devices == 0) return absl::UnavailableError("no usable GPU: the driver sees none");
  auto device = std::unique_ptr<CudaDevice>(new CudaDevice());
  absl::Status status = device->Enter();
  if (status.ok()) {
    status = device->Start();
    if (status.ok()) status = device->RunSomething();
    device->Leave();
  }
  if (!status.ok()) return absl::UnavailableError(absl::StrCat("no usable GPU: ", status.message()));
  return device;
}

absl::Status CudaDevice::Start() {
  cudaDeviceProp properties;
  CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, kOrdinal));
  int has_pools = 0;
  CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, kOrdinal));
  if (has_pools == 0) return absl::UnavailableError(absl::StrCat(properties.name, " has no memory pools"));
  int driver = 0;
  CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  memory_bytes_ = free_bytes / 10 * 9;  // the rest for kernels' own needs, and for neighbours
  description_ = absl::StrCat(properties.name, ", compute capability ", properties.major, ".", properties.minor, ", ",
                              total_bytes >> 30, " GiB, driver for CUDA ", driver / 1000, ".", driver % 1000 / 10);
  for (cudaStream_t& stream : streams_) {
    CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return pool_.Create(kOrdinal);
}

absl::Status CudaDevice::RunSomething() {
  ASSIGN_OR_RETURN(void* const d_memory, Allocate(sizeof(uint32_t), Lane::kCompute));
  absl::Status status = Launch(Enumerate{static_cast<uint32_t*>(d_memory), 1});
  Free(d_memory, Lane::kCompute);
  status.Update(AwaitLane(Lane::kCompute));
  return status;
}

CudaDevice::~CudaDevice() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::Status CudaDevice::Enter() {
  CUDA_RETURN_IF_ERROR(cudaGetDevice(&previous_));
  return CUDA_TO_STATUS(cudaSetDevice(kOrdinal));
}

void CudaDevice::Leave() { cudaSetDevice(previous_); }

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes, Lane lane) { return pool_.Allocate(bytes, StreamOf(lane)); }

void CudaDevice::Free(void* d_memory, Lane lane) { pool_.Free(d_memory, StreamOf(lane)); }

absl::StatusOr<void*> CudaDevice::AllocatePinned(size_t bytes) { return CudaPool::AllocatePinned(bytes); }

void CudaDevice::FreePinned(void* memory) { CudaPool::FreePinned(memory); }

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

absl::Status CudaDevice::Await(EventId event) { return CUDA_TO_STATUS(cudaEventSynchronize(events_[event])); }

absl::Status CudaDevice::AwaitLane(Lane lane) { return CUDA_TO_STATUS(cudaStreamSynchronize(StreamOf(lane))); }

absl::StatusOr<size_t> CudaDevice::SortScratchBytes(const SortCall& call) {
  SortCall query = call;
  query.d_scratch = nullptr;
  int output = 0;
  CUDA_RETURN_IF_ERROR(SortKeys(query, output, StreamOf(Lane::kCompute)));
  return query.scratch_bytes;
}

absl::StatusOr<int> CudaDevice::Sort(const SortCall& call) {
  SortCall copy = call;
  int output = 0;
  CUDA_RETURN_IF_ERROR(SortKeys(copy, output, StreamOf(Lane::kCompute)));
  return output;
}

absl::StatusOr<size_t> CudaDevice::SelectScratchBytes(const SelectCall& call) {
  SelectCall query = call;
  query.d_scratch = nullptr;
  CUDA_RETURN_IF_ERROR(SelectFlagged(query, StreamOf(Lane::kCompute)));
  return query.scratch_bytes;
}

absl::Status CudaDevice::Select(const SelectCall& call) {
  SelectCall copy = call;
  return CUDA_TO_STATUS(SelectFlagged(copy, StreamOf(Lane::kCompute)));
}

absl::Status CudaDevice::Launch(const KernelCall& call) {
  return std::visit(
      [stream = StreamOf(Lane::kCompute)](const auto& kernel) { return CUDA_TO_STATUS(cuda::Launch(kernel, stream)); },
      call);
}

}  // namespace sparseagg::cuda
