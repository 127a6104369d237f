// DeviceAccumulator: one tensor's state in one aggregation, merged on a device.
#ifndef SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_
#define SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "cuda/device_engine.h"
#include "cuda/merge/tensor_shape.h"
#include "host/accumulation.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// A validated update, kept as it was sent; a large one has a copy on the device, too, and one of Engine::Import is only
// there. Sorting and folding happen on the device, at the merge.
class DevicePrepared : public PreparedUpdate {
 public:
  // `send_to`: the device that gets a copy now; nullopt: none does. `engine` outlives this.
  DevicePrepared(DeviceEngine& engine, const TensorShape& shape, ValidatedUpdate update, std::optional<size_t> send_to);
  size_t memory_bytes() const override { return update_.on_device() ? 0 : key_bytes_ + value_bytes_; }
  // Bytes of the keys and values of Engine::Import, in device memory.
  size_t device_bytes() const { return update_.on_device() ? key_bytes_ + value_bytes_ : 0; }
  const ValidatedUpdate& update() const { return update_; }
  void MultiplyWeight(double factor) { update_ = update_.WithWeight(update_.weight() * factor); }

 private:
  ValidatedUpdate update_;
  size_t key_bytes_;  // 0 for a run of consecutive keys, which is held as two numbers
  size_t value_bytes_;
  PreloadedArrays preloaded_;  // keys and values; goes before them
};

// One tensor's state in one aggregation whose merges run on a device. Created by DeviceEngine::CreateAccumulator, owned
// by an Aggregation. host/engine.h has the contract of every method, its errors and its thread-safety (Prepare: any
// number of threads; all others: one thread at a time); this class adds only what is said here.
//
// Data: between operations all data is in host memory: the updates as they were sent, and the rows of earlier merges.
// The exception are updates of Engine::Import, which stay in device memory, where the caller keeps them. Copies of
// large updates go to the device when they arrive, and those of merged rows stay there, as far as there is room. An
// operation copies the rest of its input to the device, and its output back. All updates are kept until FoldPending or
// Finish.
//
// Failure of the device changes no bit of the result and loses no data, because none is only on the device. (Updates of
// Engine::Import are: where they cannot be copied from a device that failed, the operation fails, UNAVAILABLE.) It is
// no error for the caller. The accumulator hands its updates and merged rows to an accumulator of the CPU engine
// (cpu_), which gets all calls from then on. Handing over takes memory. Where there is none, Add, MergeFrom,
// FoldPending and Finish return RESOURCE_EXHAUSTED. Nothing is lost or added twice: the update of a failed Add is in
// the sum if num_submissions() has grown, and the next Add, FoldPending or Finish hands over the rest. After a failed
// MergeFrom or Finish the accumulator may only be destroyed.
//
// Several devices: Finish cuts a round in which nothing was merged before, and whose keys ascend strictly in every
// update, into ranges of keys, one for each device that works, with about as many tuples in each. They are merged side
// by side, and their results joined in order of keys. All other work is done by the accumulator's home, one of the
// devices, or by the next one if it fails.
//
// Blocks: Prepare sends updates of Tuning::min_resident_bytes or more to the device. It, MergeFrom, FoldPending,
// Finish, and whatever destroys an update wait for the device, which runs one operation of the process at a time.
// Deterministic: the bits depend on the updates and on the order given to FoldPending and Finish, not on batches or
// failures.
class DeviceAccumulator : public Accumulator {
 public:
  // `engine` outlives the accumulator. `cpu` is an empty accumulator of the CPU engine for the same spec; with `on_cpu`
  // the accumulator uses it from the start, because the device has failed before or does not merge such tensors.
  DeviceAccumulator(DeviceEngine& engine, const TensorSpec& spec, std::unique_ptr<Accumulator> cpu, bool on_cpu)
      : engine_(engine),
        home_(engine.NextHome()),
        spec_(spec),
        shape_(spec_),
        checks_(engine.CreateOnCpu(spec)),
        cpu_(std::move(cpu)),
        on_cpu_(on_cpu) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override;
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override;
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override;
  Pending pending() const override;
  absl::Status MergeFrom(Accumulator&& other) override;
  bool KeepsAll() const override { return bases_.empty() && (!on_cpu_ || cpu_->KeepsAll()); }
  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override;
  PartialTotals Totals() const override;
  void Remove(absl::Span<const uint32_t> indices) override;
  void MultiplyWeights(absl::Span<const double> factors) override;
  // Hands the updates to the CPU engine.
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override;
  uint64_t ReadBytes(const PreparedUpdate* next) const override {
    return on_cpu_ ? cpu_->ReadBytes(next) : FinishBytes(next);
  }
  // Where the order of submissions matters, the accumulator hands its updates to the CPU engine: only that one folds
  // sums before the end whose order matters.
  absl::Status FoldPending(SubmissionOrder order) override;
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override;
  absl::StatusOr<DeviceResult> FinishOnDevice(SubmissionOrder order) && override;
  uint64_t num_submissions() const override;
  size_t memory_bytes() const override;
  uint64_t FoldBytes(const PreparedUpdate* next) const override;
  uint64_t FinishBytes(const PreparedUpdate* next) const override;

 private:
  // Whether the updates are so few that the CPU engine merges them faster (Tuning::min_merge_values). Then Finish hands
  // them over.
  bool IsSmall() const;
  // Whether a validated update could still be refused, since an integer row leaves int64 when its duplicates are added
  // or when it is weighted. The CPU engine finds that out, by preparing it.
  static bool NeedsRangeCheck(const TensorSpec& spec, const ValidatedUpdate& update);
  absl::Status MergePending();
  absl::Status AddPartial(std::unique_ptr<PreparedUpdate> update);
  // Bytes by which an update grows in host memory when the CPU engine prepares it: rows of repeated keys are folded in
  // 64 bits, and arrays on the device are copied.
  // Returns: 0 for null, and for a partial.
  uint64_t GrowthBytesOf(const PreparedUpdate* prepared) const;
  // Adds a pending update to device_bytes_, growth_bytes_ and prepare_bytes_.
  void CountHandOver(const DevicePrepared& pending);
  // The most rows of a merge of everything, with `next` if it is not null.
  uint64_t MaxRowsWith(const PreparedUpdate* next) const;
  // The most memory that handing everything to the CPU engine, and its next merge, take in addition.
  uint64_t HandOverBytes(const PreparedUpdate* next) const;
  // The pending updates; where the order matters, in this one, of all submissions.
  std::vector<const ValidatedUpdate*> UpdatesIn(SubmissionOrder order) const;
  // Where an operation on all updates runs: only on the first device, if updates are in its memory.
  Place PlaceOfAll() const { return device_bytes_ > 0 ? Place{0, /*only=*/true} : Place{home_, /*only=*/false}; }
  // Merges `updates` and what was merged before, and finishes. Errors: of the device only.
  absl::StatusOr<Finished> MergeAndFinish(Session& session, int shrink, const TensorSpec& spec, double total_weight,
                                          absl::Span<const UnfinishedRows> bases,
                                          const std::vector<const ValidatedUpdate*>& updates) const;
  // The same in ranges of keys on all devices. Returns: nothing if the round is not cut.
  absl::StatusOr<std::optional<Finished>> FinishInParts(double total_weight,
                                                        const std::vector<const ValidatedUpdate*>& updates);
  // Hands the rows of earlier merges and all pending updates to the CPU engine and releases each as soon as it is
  // there. Continues where it stopped when it is called again after an error.
  absl::Status GoToCpu();
  // Hands the rows of the last base over, with the weights of all that is merged. Changes nothing after an error.
  absl::Status HandOverBase();
  void DropFirstPending();
  absl::Status AddToCpu(const ValidatedUpdate& update);
  // Errors: as of the CPU engine's, and of DeviceEngine::CopyToHost.
  absl::StatusOr<std::unique_ptr<PreparedUpdate>> PrepareOnCpu(const Accumulator& cpu,
                                                               const ValidatedUpdate& update) const;

  DeviceEngine& engine_;
  const size_t home_;                          // a device of the engine
  TensorSpec spec_;                            // only MultiplyWeights changes it
  TensorShape shape_;                          // the spec in the terms of the kernels
  const std::unique_ptr<Accumulator> checks_;  // of the CPU engine, and always empty: Prepare uses it on any thread
  std::unique_ptr<Accumulator> cpu_;
  // The accumulator works on cpu_. Then bases_, weights_ and pending_ (with its sizes) hold only what could not be
  // handed over yet.
  std::atomic<bool> on_cpu_;                             // Prepare reads it on any thread
  std::deque<std::unique_ptr<DevicePrepared>> pending_;  // all updates, or those not merged yet
  PendingSize pending_size_{sizeof(DevicePrepared)};     // of pending_
  // Of every submission: of the merged ones, which include partials (kPartialWeight), and then of the pending ones. In
  // order of Add but for partials, whose place changes no sum.
  std::vector<double> weights_;
  PartialTotals partials_;                        // of those with kPartialWeight
  std::vector<UnfinishedRows> bases_;             // rows of earlier merges; several only after MergeFrom and partials
  std::unique_ptr<PreloadedArrays> base_copies_;  // of the last merge, on the device; go before the rows do
  uint64_t device_bytes_ = 0;  // of the pending updates that are only in device memory, where their callers have them
  // What handing the pending updates to the CPU engine would take: the bytes by which they grow together (2^64 − 1 if
  // there are more), and the temporary memory of preparing the most expensive one.
  uint64_t growth_bytes_ = 0;
  uint64_t prepare_bytes_ = 0;
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_DEVICE_ACCUMULATOR_H_
