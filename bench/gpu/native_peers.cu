#include <cuda_runtime.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <stdexcept>
#include <utility>

#include "bench/gpu/native_peers.h"

namespace sparseagg::bench {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2

void Check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct Add {
  __host__ __device__ float operator()(float a, float b) const { return a + b; }
};

// A stream, two events on it, and memory to push everything else out of the L2.
class Timer {
 public:
  Timer() : flush_(kFlushBytes) {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }

  template <typename Work>
  double Seconds(Work work) {
    Check(cudaMemsetAsync(thrust::raw_pointer_cast(flush_.data()), 1, kFlushBytes, stream_));
    Check(cudaEventRecord(begin_, stream_));
    work();
    Check(cudaEventRecord(end_, stream_));
    Check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds / 1e3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  thrust::device_vector<char> flush_;
};

template <typename Key>
struct Arrays {
  Arrays(const std::vector<Key>& keys, const std::vector<float>& values)
      : keys_in(keys.begin(), keys.end()),
        values_in(values.begin(), values.end()),
        keys(keys.size()),
        values(values.size()),
        result_keys(keys.size()),
        result_values(values.size()) {}
  size_t size() const { return keys.size(); }

  const thrust::device_vector<Key> keys_in;
  const thrust::device_vector<float> values_in;
  thrust::device_vector<Key> keys;  // sorted
  thrust::device_vector<float> values;
  thrust::device_vector<Key> result_keys;
  thrust::device_vector<float> result_values;
};

// `once` runs a peer, which leaves its rows in `arrays`, and returns the seconds and the number of rows.
template <typename Key, typename Once>
PeerRun VerifyAndTime(const Arrays<Key>& arrays, const RowCheck<Key>& check, int repetitions, Once once) {
  PeerRun run;
  run.num_rows = once().second;
  std::vector<Key> keys(run.num_rows);
  std::vector<float> sums(run.num_rows);
  thrust::copy_n(arrays.result_keys.begin(), run.num_rows, keys.begin());
  thrust::copy_n(arrays.result_values.begin(), run.num_rows, sums.begin());
  run.failure = check(keys, sums);
  for (int i = 0; i < repetitions && run.failure.empty(); ++i) run.seconds.push_back(once().first);
  return run;
}

template <typename Key>
PeerRun RunThrust(Arrays<Key>& arrays, Timer& timer, int repetitions, const RowCheck<Key>& check) {
  const auto policy = thrust::cuda::par_nosync.on(timer.stream());
  return VerifyAndTime(arrays, check, repetitions, [&] {
    uint64_t num_rows = 0;
    thrust::copy(policy, arrays.keys_in.begin(), arrays.keys_in.end(), arrays.keys.begin());  // it sorts in place
    thrust::copy(policy, arrays.values_in.begin(), arrays.values_in.end(), arrays.values.begin());
    const double seconds = timer.Seconds([&] {
      thrust::sort_by_key(policy, arrays.keys.begin(), arrays.keys.end(), arrays.values.begin());
      const auto ends = thrust::reduce_by_key(policy, arrays.keys.begin(), arrays.keys.end(), arrays.values.begin(),
                                              arrays.result_keys.begin(), arrays.result_values.begin());
      num_rows = ends.first - arrays.result_keys.begin();
    });
    return std::pair(seconds, num_rows);
  });
}

template <typename Key>
PeerRun RunCub(Arrays<Key>& arrays, Timer& timer, int key_bits, int repetitions, const RowCheck<Key>& check) {
  const auto raw = [](auto& vector) { return thrust::raw_pointer_cast(vector.data()); };
  const cudaStream_t stream = timer.stream();
  const auto size = static_cast<int64_t>(arrays.size());
  thrust::device_vector<int64_t> num_rows(1);
  const auto sort = [&](void* d_scratch, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(d_scratch, bytes, raw(arrays.keys_in), raw(arrays.keys),
                                           raw(arrays.values_in), raw(arrays.values), size, 0, key_bits, stream);
  };
  const auto reduce = [&](void* d_scratch, size_t& bytes) {
    return cub::DeviceReduce::ReduceByKey(d_scratch, bytes, raw(arrays.keys), raw(arrays.result_keys),
                                          raw(arrays.values), raw(arrays.result_values), raw(num_rows), Add(), size,
                                          stream);
  };
  size_t sort_bytes = 0;
  size_t reduce_bytes = 0;
  Check(sort(nullptr, sort_bytes));
  Check(reduce(nullptr, reduce_bytes));
  thrust::device_vector<char> sort_scratch(sort_bytes);
  thrust::device_vector<char> reduce_scratch(reduce_bytes);
  Check(cudaDeviceSynchronize());
  return VerifyAndTime(arrays, check, repetitions, [&] {
    const double seconds = timer.Seconds([&] {
      Check(sort(raw(sort_scratch), sort_bytes));
      Check(reduce(raw(reduce_scratch), reduce_bytes));
    });
    return std::pair(seconds, static_cast<uint64_t>(num_rows[0]));
  });
}

template <typename Work>
PeerRun Named(const std::string& name, Work work) {
  PeerRun run;
  try {
    run = work();
  } catch (const std::exception& error) {
    run.failure = error.what();
  }
  run.name = name;
  return run;
}

template <typename Key>
std::vector<PeerRun> Run(const std::vector<Key>& keys, const std::vector<float>& values, int key_bits, int repetitions,
                         const RowCheck<Key>& check) {
  Timer timer;
  Arrays<Key> arrays(keys, values);
  Check(cudaDeviceSynchronize());  // the arrays were filled elsewhere than on the timer's stream
  return {Named("thrust", [&] { return RunThrust(arrays, timer, repetitions, check); }),
          Named("cub", [&] { return RunCub(arrays, timer, key_bits, repetitions, check); })};
}

}  // namespace

std::vector<PeerRun> RunNativePeers(const std::vector<uint32_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions, const RowCheck<uint32_t>& check) {
  return Run(keys, values, key_bits, repetitions, check);
}

std::vector<PeerRun> RunNativePeers(const std::vector<uint64_t>& keys, const std::vector<float>& values, int key_bits,
                                    int repetitions, const RowCheck<uint64_t>& check) {
  return Run(keys, values, key_bits, repetitions, check);
}

}  // namespace sparseagg::bench
