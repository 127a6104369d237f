#include <cuda_runtime.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

#include <stdexcept>

#include "bench/thrust_peer.h"  // allow(include): a benchmark's own kernels

namespace sparseagg::bench {
namespace {

void Check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <typename Key>
std::vector<double> Time(const std::vector<Key>& keys, const std::vector<float>& values, int repetitions) {
  cudaStream_t stream;
  cudaEvent_t begin;
  cudaEvent_t end;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  const thrust::device_vector<Key> d_keys(keys.begin(), keys.end());
  const thrust::device_vector<float> d_values(values.begin(), values.end());
  thrust::device_vector<Key> d_sorted_keys(keys.size());
  thrust::device_vector<float> d_sorted_values(values.size());
  thrust::device_vector<Key> d_result_keys(keys.size());
  thrust::device_vector<float> d_result_values(values.size());
  const auto policy = thrust::cuda::par_nosync.on(stream);
  std::vector<double> seconds;
  for (int i = -1; i < repetitions; ++i) {
    thrust::copy(policy, d_keys.begin(), d_keys.end(), d_sorted_keys.begin());  // it sorts in place
    thrust::copy(policy, d_values.begin(), d_values.end(), d_sorted_values.begin());
    Check(cudaEventRecord(begin, stream));
    thrust::sort_by_key(policy, d_sorted_keys.begin(), d_sorted_keys.end(), d_sorted_values.begin());
    thrust::reduce_by_key(policy, d_sorted_keys.begin(), d_sorted_keys.end(), d_sorted_values.begin(),
                          d_result_keys.begin(), d_result_values.begin());
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 0) seconds.push_back(milliseconds / 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return seconds;
}

}  // namespace

std::vector<double> ThrustSortReduceSeconds(const std::vector<uint32_t>& keys, const std::vector<float>& values,
                                            int repetitions) {
  return Time(keys, values, repetitions);
}
std::vector<double> ThrustSortReduceSeconds(const std::vector<uint64_t>& keys, const std::vector<float>& values,
                                            int repetitions) {
  return Time(keys, values, repetitions);
}

}  // namespace sparseagg::bench
