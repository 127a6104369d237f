// One tensor's state in a round on a device.
#ifndef SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_
#define SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/device_engine.h"
#include "cuda/fallback_bytes.h"
#include "cuda/rows.h"
#include "cuda/tensor_shape.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

class DevicePrepared : public PreparedUpdate {
 public:
  DevicePrepared(ValidatedUpdate update, size_t bytes) : update_(std::move(update)), bytes_(bytes) {}
  size_t memory_bytes() const override { return bytes_; }
  const ValidatedUpdate& update() const { return update_; }

 private:
  ValidatedUpdate update_;
  size_t bytes_;
};

// Between operations everything is in host memory: the updates as they were sent, and, where the order of submissions
// does not matter, the rows of earlier merges. So a device that fails takes nothing with it.
//
// When it does, a round of which nothing was merged yet goes over to the CPU engine; another goes on with the same
// kernels on the host, since rows cannot be given to the CPU engine.
class DeviceAccumulator : public Accumulator {
 public:
  // `cpu`: an empty accumulator of the CPU engine for the same spec, used from the start if `on_cpu`.
  DeviceAccumulator(DeviceEngine& engine, const TensorSpec& spec, std::unique_ptr<Accumulator> cpu, bool on_cpu)
      : engine_(engine), spec_(spec), shape_(spec), cpu_(std::move(cpu)), on_cpu_(on_cpu) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override;
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override;
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override;
  // UNIMPLEMENTED when one of the two went over to the CPU engine and the other cannot.
  absl::Status MergeFrom(Accumulator&& other) override;
  // UNIMPLEMENTED where the order matters, unless it went over to the CPU engine.
  absl::Status FoldPending(SubmissionOrder order) override;
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override;
  uint64_t num_submissions() const override;
  size_t memory_bytes() const override;
  uint64_t FoldBytes(const PreparedUpdate* next) const override;
  uint64_t FinishBytes(const PreparedUpdate* next) const override;

 private:
  // What a MEAN divides by.
  double TotalWeight(SubmissionOrder order) const;
  size_t PendingBytes() const;
  absl::Status MergeIfDue();
  absl::Status MergePending();
  uint64_t GrowthBytesOf(const PreparedUpdate* prepared) const;
  // What waits, with `next` if there is one.
  FallbackInput FallbackInputWith(const PreparedUpdate* next) const;
  // The most that handing all of that to the CPU engine takes beside it.
  uint64_t HandOverBytes(const PreparedUpdate* next) const;
  std::vector<const ValidatedUpdate*> UpdatesIn(SubmissionOrder order) const;
  std::vector<const ValidatedUpdate*> PendingUpdates() const;
  std::vector<const HostRows*> Bases() const;
  // Hands all submissions to the CPU engine, and lets go of each, so that both never hold it. Only while there are no
  // bases. After an error it goes on where it stopped, when it is called again.
  absl::Status GoToCpu();
  void DropFirstPending();
  absl::Status AddToCpu(const ValidatedUpdate& update);

  DeviceEngine& engine_;
  const TensorSpec spec_;
  const TensorShape shape_;
  std::unique_ptr<Accumulator> cpu_;
  bool on_cpu_;  // then what is below is empty, but for submissions that could not be handed over
  std::deque<std::unique_ptr<DevicePrepared>> pending_;  // all submissions, or those not merged yet
  std::vector<double> weights_;                          // of every submission, in order of Add
  std::vector<HostRows> bases_;                          // of merges; several only after MergeFrom
  size_t pending_bytes_ = 0;
  uint64_t pending_keys_ = 0;
  // If they are handed to the CPU engine: by how much they grow, and the most that preparing one of them takes.
  uint64_t growth_bytes_ = 0;
  uint64_t prepare_bytes_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_
