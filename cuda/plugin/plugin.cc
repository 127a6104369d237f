// The library's side of plugin.h: the entry, and GuardEngine, which forwards each call and turns exceptions into
// statuses.
#include "cuda/plugin/plugin.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/simd/kernels.h"
#include "host/unfinished_rows.h"

namespace sparseagg::cuda {
namespace {

class GuardedAccumulator final : public Accumulator {
 public:
  explicit GuardedAccumulator(std::unique_ptr<Accumulator> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    return sparseagg::ToStatus([&] { return inner_->Prepare(std::move(update)); });
  }
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    return sparseagg::ToStatus([&] { return inner_->Add(std::move(update)); });
  }
  absl::Status MergeFrom(Accumulator&& other) override {
    return sparseagg::ToStatus(
        [&] { return inner_->MergeFrom(std::move(*static_cast<GuardedAccumulator&>(other).inner_)); });
  }
  absl::Status FoldPending(SubmissionOrder order) override {
    return sparseagg::ToStatus([&] { return inner_->FoldPending(order); });
  }
  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override {
    return sparseagg::ToStatus([&] { return inner_->ExportRows(first, last, max_rows); });
  }
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override {
    return sparseagg::ToStatus([&] { return inner_->ReadPending(order); });
  }
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    return sparseagg::ToStatus([&] { return std::move(*inner_).Finish(order); });
  }
  absl::StatusOr<DeviceResult> FinishOnDevice(SubmissionOrder order) && override {
    return sparseagg::ToStatus([&] { return std::move(*inner_).FinishOnDevice(order); });
  }

  // Allocate nothing.
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override { return inner_->PrepareBytes(update); }
  PartialTotals Totals() const override { return inner_->Totals(); }
  bool KeepsAll() const override { return inner_->KeepsAll(); }
  void Remove(absl::Span<const uint32_t> indices) override { inner_->Remove(indices); }
  void MultiplyWeights(absl::Span<const double> factors) override { inner_->MultiplyWeights(factors); }
  Pending pending() const override { return inner_->pending(); }
  uint64_t ReadBytes(const PreparedUpdate* next) const override { return inner_->ReadBytes(next); }
  uint64_t num_submissions() const override { return inner_->num_submissions(); }
  size_t memory_bytes() const override { return inner_->memory_bytes(); }
  uint64_t FoldBytes(const PreparedUpdate* next) const override { return inner_->FoldBytes(next); }
  uint64_t FinishBytes(const PreparedUpdate* next) const override { return inner_->FinishBytes(next); }

 private:
  const std::unique_ptr<Accumulator> inner_;
};

class GuardedEngine final : public Engine {
 public:
  explicit GuardedEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}

  absl::string_view name() const override { return inner_->name(); }
  std::string description() const override {
    return sparseagg::ToStatus([&] { return absl::StatusOr<std::string>(inner_->description()); }).value_or("");
  }
  absl::Status Probe() const override {
    return sparseagg::ToStatus([&] { return inner_->Probe(); });
  }
  std::vector<DeviceState> devices() const override {
    using States = std::vector<DeviceState>;
    return sparseagg::ToStatus([&] { return absl::StatusOr<States>(inner_->devices()); }).value_or(States());
  }
  void ReleaseDeviceMemory() override {
    const auto release = [&] {
      inner_->ReleaseDeviceMemory();
      return absl::OkStatus();
    };
    sparseagg::ToStatus(release).IgnoreError();  // if the host lacks memory for the call, the device's stays reserved
  }
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override {
    return sparseagg::ToStatus([&]() -> absl::StatusOr<std::unique_ptr<Accumulator>> {
      absl::StatusOr<std::unique_ptr<Accumulator>> inner = inner_->CreateAccumulator(spec);
      if (!inner.ok()) return inner;
      return std::make_unique<GuardedAccumulator>(*std::move(inner));
    });
  }
  uint64_t min_pending_bytes() const override { return inner_->min_pending_bytes(); }
  std::optional<DeviceStream> device_stream() const override { return inner_->device_stream(); }
  absl::Status Import(absl::Span<DeviceUpdate> updates, std::vector<ValidatedUpdate>& imported) override {
    return sparseagg::ToStatus([&] { return inner_->Import(updates, imported); });
  }

 private:
  const std::unique_ptr<Engine> inner_;
};

}  // namespace

std::unique_ptr<Engine> GuardEngine(std::unique_ptr<Engine> engine) {
  return std::make_unique<GuardedEngine>(std::move(engine));
}

}  // namespace sparseagg::cuda

extern "C" __attribute__((visibility("default"))) const char* sparseagg_cuda_plugin(const char* identity,
                                                                                    const void* request, void* answer) {
  using namespace sparseagg;  // NOLINT(google-build-using-namespace): the name of the entry is outside
  if (std::strcmp(identity, cuda::kPluginIdentity) != 0) return cuda::kPluginIdentity;
  const auto& asked = *static_cast<const cuda::PluginRequest*>(request);
  *static_cast<cuda::PluginAnswer*>(answer) = sparseagg::ToStatus([&]() -> cuda::PluginAnswer {
    // Only at the first call: engines may be working at later ones. If this library lacks the target, its best one
    // stays.
    static std::once_flag once;
    std::call_once(once, [&] {
      internal::ShareColumnStore(asked.column_store);
      cpu::ForceSimdTarget(asked.simd_target).IgnoreError();
    });
    cuda::PluginAnswer engine = cuda::CreateCudaEngine(asked.options);
    if (!engine.ok()) return engine;
    return cuda::GuardEngine(*std::move(engine));
  });
  return cuda::kPluginIdentity;
}
