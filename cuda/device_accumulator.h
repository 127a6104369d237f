// DeviceAccumulator: one tensor's state in one aggregation, merged on a device.
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
#include "host/accumulation.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// A validated update, kept as it was sent. Sorting and folding happen on the device, at the merge.
class DevicePrepared : public PreparedUpdate {
 public:
  // `bytes`: of its keys and values.
  DevicePrepared(ValidatedUpdate update, size_t bytes) : update_(std::move(update)), bytes_(bytes) {}
  size_t memory_bytes() const override { return bytes_; }
  const ValidatedUpdate& update() const { return update_; }

 private:
  ValidatedUpdate update_;
  size_t bytes_;
};

// One tensor's state in one aggregation whose merges run on a device. Created by DeviceEngine::CreateAccumulator, owned
// by an Aggregation, which calls it as host/engine.h says:
//
//   auto accumulator = engine.CreateAccumulator(spec).value();
//   auto prepared = accumulator->Prepare(update);          // checked on the device, or on the host if it is small
//   accumulator->Add(*std::move(prepared));                // kept in host memory; merged on arrival where that is
//   exact Result result = std::move(*accumulator).Finish(order).value();
//
// Where the data is: between operations everything is in host memory, the updates as they were sent and the rows of
// earlier merges (`bases_`). An operation copies to the device what it needs and copies the result back.
//
// Device failure: a failed device takes nothing with it. An accumulator without merged rows hands its updates to the
// CPU engine and goes on there. An accumulator with merged rows goes on with the device's kernels executed on the host,
// because the CPU engine cannot take those rows. Both give the same bits.
//
// Thread-safety: as Accumulator. Operations on the device of all accumulators of an engine happen one at a time.
// Deterministic: the bits depend on the updates and on their canonical order only, not on batches or on failures.
class DeviceAccumulator : public Accumulator {
 public:
  // `engine` outlives the accumulator. `cpu` is an empty accumulator of the CPU engine for the same spec; with `on_cpu`
  // the accumulator uses it from the start, because the device has failed before.
  DeviceAccumulator(DeviceEngine& engine, const TensorSpec& spec, std::unique_ptr<Accumulator> cpu, bool on_cpu)
      : engine_(engine), spec_(spec), shape_(spec), cpu_(std::move(cpu)), on_cpu_(on_cpu) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override;
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override;
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override;
  // Errors: besides those of Accumulator, UNIMPLEMENTED when one of the two has gone over to the CPU engine and the
  // other has merged rows.
  absl::Status MergeFrom(Accumulator&& other) override;
  // Errors: besides those of Accumulator, UNIMPLEMENTED where the order of submissions matters, unless the accumulator
  // has gone over to the CPU engine.
  absl::Status FoldPending(SubmissionOrder order) override;
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override;
  uint64_t num_submissions() const override;
  size_t memory_bytes() const override;
  uint64_t FoldBytes(const PreparedUpdate* next) const override;
  uint64_t FinishBytes(const PreparedUpdate* next) const override;

 private:
  // Merges the pending updates if they take enough memory (host/accumulation.h).
  absl::Status MergeIfDue();
  absl::Status MergePending();
  uint64_t GrowthBytesOf(const PreparedUpdate* prepared) const;
  // The sizes of what is pending and merged, with `next` added if it is not null.
  FallbackInput FallbackInputWith(const PreparedUpdate* next) const;
  // The most memory that handing the pending updates to the CPU engine takes, in addition to the updates.
  uint64_t HandOverBytes(const PreparedUpdate* next) const;
  std::vector<const ValidatedUpdate*> UpdatesIn(SubmissionOrder order) const;
  std::vector<const ValidatedUpdate*> PendingUpdates() const;
  std::vector<const HostRows*> Bases() const;
  // Hands all pending updates to the CPU engine and releases each as soon as it is there. Continues where it stopped
  // when it is called again after an error. Requires: no bases (else UNIMPLEMENTED).
  absl::Status GoToCpu();
  void DropFirstPending();
  absl::Status AddToCpu(const ValidatedUpdate& update);

  DeviceEngine& engine_;
  const TensorSpec spec_;
  const TensorShape shape_;
  std::unique_ptr<Accumulator> cpu_;
  // The accumulator works on cpu_. pending_ then holds only updates that could not be handed over yet; the other
  // members below are empty.
  bool on_cpu_;
  std::deque<std::unique_ptr<DevicePrepared>> pending_;  // all updates, or those not merged yet
  PendingSize pending_size_{sizeof(DevicePrepared)};     // of pending_
  std::vector<double> weights_;                          // of every submission, in order of Add
  std::vector<HostRows> bases_;                          // rows of earlier merges; several only after MergeFrom
  uint64_t growth_bytes_ = 0;   // by how much the pending updates grow when the CPU engine prepares them; saturates
  uint64_t prepare_bytes_ = 0;  // the most temporary memory that preparing one of them takes
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_
