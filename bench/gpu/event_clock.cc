#include <cuda_runtime_api.h>

#include <stdexcept>
#include <vector>

#include "bench/gpu/watched_device.h"
#include "cuda/device/cuda_device.h"

namespace sparseagg::bench {
namespace {

void Check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Events are made once and used again.
class EventClock : public SpanClock {
 public:
  explicit EventClock(cudaStream_t stream) : stream_(stream) {}
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;
  ~EventClock() override {
    for (const Span& span : spans_) {
      cudaEventDestroy(span.begin);
      cudaEventDestroy(span.end);
    }
  }

  void Begin() override {
    if (num_spans_ == spans_.size()) {
      spans_.emplace_back();
      Check(cudaEventCreate(&spans_.back().begin));
      Check(cudaEventCreate(&spans_.back().end));
    }
    Check(cudaEventRecord(spans_[num_spans_].begin, stream_));
  }

  void End(const std::string& name) override {
    Span& span = spans_[num_spans_++];
    span.name = name;
    Check(cudaEventRecord(span.end, stream_));
  }

  std::map<std::string, double> Collect() override {
    std::map<std::string, double> seconds;
    for (size_t i = 0; i < num_spans_; ++i) {
      float milliseconds = 0;
      Check(cudaEventElapsedTime(&milliseconds, spans_[i].begin, spans_[i].end));
      seconds[spans_[i].name] += milliseconds / 1e3;
    }
    num_spans_ = 0;
    return seconds;
  }

 private:
  struct Span {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    std::string name;
  };

  const cudaStream_t stream_;
  std::vector<Span> spans_;
  size_t num_spans_ = 0;  // in use
};

}  // namespace

std::unique_ptr<SpanClock> MakeEventClock(cuda::Device& device) {
  return std::make_unique<EventClock>(dynamic_cast<cuda::CudaDevice&>(device).StreamOf(cuda::Lane::kCompute));
}

}  // namespace sparseagg::bench
