#include "tests/cuda/device/fake_runtime/fake_runtime.h"

#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/kernels/launch.h"
#include "tests/support/host_device.h"

namespace sparseagg::testing {

FakeRuntime& Runtime() {
  static FakeRuntime runtime;
  return runtime;
}

namespace {

cudaError_t Count() {
  FakeRuntime& runtime = Runtime();
  const uint64_t call = ++runtime.num_calls;
  if (call != runtime.fail_at_call && call != runtime.fail_at_call_too) return cudaSuccess;
  return runtime.last_error = runtime.error;
}

cudaError_t Query() {
  const cudaError_t error = Count();
  return error == cudaSuccess && Runtime().num_calls >= Runtime().hangs_at_call ? cudaErrorNotReady : error;
}

// What has not been given back; never destroyed, so that what an engine abandons counts as used.
std::unordered_set<void*>& Live() {
  static auto* const live = new std::unordered_set<void*>;
  return *live;
}

// Runs `work` unless this call is the one to fail.
template <typename Work>
cudaError_t Do(Work work) {
  const cudaError_t error = Count();
  if (error == cudaSuccess) work();
  return error;
}

template <typename T>
cudaError_t Make(T** made) {
  return Do([made] {
    *made = new T();
    Live().insert(*made);
    ++Runtime().num_live;
  });
}

// Gives back even where it then reports an error, which is that of earlier work.
template <typename T>
cudaError_t Destroy(T* made) {
  Live().erase(made);
  delete made;
  --Runtime().num_live;
  return Count();
}

cudaError_t Allocate(void** memory, size_t bytes) {
  return Do([=] {
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    Live().insert(*memory);
    ++Runtime().num_live;
  });
}

cudaError_t GiveBack(void* memory) {
  Live().erase(memory);
  std::free(memory);
  --Runtime().num_live;
  return Count();
}

// Runs kernels and algorithms.
cuda::HostDevice& Host() {
  static cuda::HostDevice device;
  return device;
}

cudaError_t Sort(cuda::SortCall& call, int& output) {
  return Do([&] {
    output = *Host().Sort(call);
    if (call.d_scratch == nullptr) return;
    ++(call.key_bytes == 4 ? Runtime().num_sorts_of_32_bits : Runtime().num_sorts_of_64_bits);
  });
}

}  // namespace
}  // namespace sparseagg::testing

namespace fake = sparseagg::testing;

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "made to fail";
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = fake::Runtime().last_error;
  fake::Runtime().last_error = cudaSuccess;
  return error;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return fake::Do([=] { *version = fake::Runtime().driver; });
}
cudaError_t cudaGetDeviceCount(int* count) {
  return fake::Do([=] { *count = fake::Runtime().num_devices; });
}
cudaError_t cudaGetDevice(int* device) {
  return fake::Do([=] { *device = fake::Runtime().current_device; });
}
cudaError_t cudaSetDevice(int device) {
  return fake::Do([=] { fake::Runtime().current_device = device; });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  return fake::Do([=] { *properties = {"Fake GPU", 9, 0}; });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return fake::Do([=] { *value = fake::Runtime().has_pools ? 1 : 0; });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return fake::Do([=] { *free_bytes = *total_bytes = fake::Runtime().memory_bytes; });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { return fake::Make(pool); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return fake::Count(); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return fake::Do([] { ++fake::Runtime().num_trims; });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return fake::Destroy(pool); }
cudaError_t cudaMallocFromPoolAsync(  // allow(raw-allocation): the fake
    void** memory, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return fake::Allocate(memory, bytes);
}
cudaError_t cudaFreeAsync(  // allow(raw-allocation): the fake
    void* memory, cudaStream_t) {
  return fake::GiveBack(memory);
}
cudaError_t cudaHostAlloc(  // allow(raw-allocation): the fake
    void** memory, size_t bytes, unsigned) {
  return fake::Allocate(memory, bytes);
}
cudaError_t cudaFreeHost(  // allow(raw-allocation): the fake
    void* memory) {
  return fake::GiveBack(memory);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return fake::Do([=] {
    attributes->type = fake::Runtime().all_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->devicePointer = const_cast<void*>(memory);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return fake::Make(stream); }
cudaError_t cudaDeviceSynchronize() { return fake::Count(); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return fake::Count(); }
cudaError_t cudaStreamQuery(cudaStream_t) { return fake::Query(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return fake::Count(); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return fake::Destroy(stream); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return fake::Make(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return fake::Count(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return fake::Query(); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return fake::Destroy(event); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  return fake::Do([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  return fake::Do([=] { std::memset(memory, byte, bytes); });
}

namespace sparseagg::cuda {

cudaError_t Launch(const KernelCall& call, cudaStream_t) {
  return fake::Do([&] { fake::Host().Launch(call).IgnoreError(); });
}
cudaError_t SortKeys32(SortCall& call, int& output, cudaStream_t) { return fake::Sort(call, output); }
cudaError_t SortKeys64(SortCall& call, int& output, cudaStream_t) { return fake::Sort(call, output); }
cudaError_t SelectIndices(SelectCall& call, cudaStream_t) {
  return fake::Do([&] {
    fake::Host().Select(call).IgnoreError();
    fake::Runtime().num_selects += call.d_scratch != nullptr;
  });
}

}  // namespace sparseagg::cuda
