// The CPU engine with hooks, by which tests delay it or make it fail.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_HOOKED_ENGINE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_HOOKED_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/base/status_macros.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"
#include "host/unfinished_rows.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {

// Functions that run before the engine's operations. An error of a hook replaces the operation. Set them before the
// server starts.
struct EngineHooks {
  std::function<absl::Status()> create = [] { return absl::OkStatus(); };
  std::function<absl::Status()> prepare = [] { return absl::OkStatus(); };
  std::function<absl::Status()> add = [] { return absl::OkStatus(); };
  std::function<absl::Status()> read = [] { return absl::OkStatus(); };  // ReadPending
  std::function<absl::Status()> finish = [] { return absl::OkStatus(); };
};

// A hook that holds the operation.
//
//   Hold adding;
//   hooks.add = adding.Hook();
//   adding.Wait();  // until the operation has begun
//   adding.Release();
class Hold {
 public:
  std::function<absl::Status()> Hook() {
    return [this] {
      begun_.Notify();
      released_.Wait();
      return absl::OkStatus();
    };
  }
  void Wait() { begun_.Wait(); }
  void Release() { released_.Notify(); }

 private:
  Event begun_;
  Event released_;
};

class HookedAccumulator final : public Accumulator {
 public:
  HookedAccumulator(std::unique_ptr<Accumulator> inner, const EngineHooks* hooks)
      : inner_(std::move(inner)), hooks_(*hooks) {}

  absl::StatusOr<std::unique_ptr<PreparedUpdate>> Prepare(ValidatedUpdate update) const override {
    RETURN_IF_ERROR(hooks_.prepare());
    return inner_->Prepare(std::move(update));
  }
  absl::Status Add(std::unique_ptr<PreparedUpdate> update) override {
    RETURN_IF_ERROR(hooks_.add());
    return inner_->Add(std::move(update));
  }
  absl::Status MergeFrom(Accumulator&& other) override {
    return inner_->MergeFrom(std::move(*static_cast<HookedAccumulator&>(other).inner_));
  }
  bool KeepsAll() const override { return inner_->KeepsAll(); }
  void Remove(absl::Span<const uint32_t> indices) override { inner_->Remove(indices); }
  void MultiplyWeights(absl::Span<const double> factors) override { inner_->MultiplyWeights(factors); }
  Pending pending() const override { return inner_->pending(); }
  absl::StatusOr<std::vector<UpdateRows>> ReadPending(RowOrder order) override {
    RETURN_IF_ERROR(hooks_.read());
    return inner_->ReadPending(order);
  }
  absl::StatusOr<UnfinishedRows> ExportRows(uint64_t first, uint64_t last, uint64_t max_rows) override {
    return inner_->ExportRows(first, last, max_rows);
  }
  PartialTotals Totals() const override { return inner_->Totals(); }
  uint64_t ReadBytes(const PreparedUpdate* next) const override { return inner_->ReadBytes(next); }
  absl::StatusOr<Result> Finish(SubmissionOrder order) && override {
    RETURN_IF_ERROR(hooks_.finish());
    return std::move(*inner_).Finish(order);
  }
  absl::Status FoldPending(SubmissionOrder order) override { return inner_->FoldPending(order); }
  uint64_t PrepareBytes(const ValidatedUpdate& update) const override { return inner_->PrepareBytes(update); }
  uint64_t FoldBytes(const PreparedUpdate* next) const override { return inner_->FoldBytes(next); }
  uint64_t FinishBytes(const PreparedUpdate* next) const override { return inner_->FinishBytes(next); }
  uint64_t num_submissions() const override { return inner_->num_submissions(); }
  size_t memory_bytes() const override { return inner_->memory_bytes(); }

 private:
  const std::unique_ptr<Accumulator> inner_;
  const EngineHooks& hooks_;
};

class HookedEngine final : public Engine {
 public:
  explicit HookedEngine(const EngineHooks* hooks) : hooks_(hooks) {}  // borrowed

  absl::string_view name() const override { return "cpu"; }
  std::string description() const override { return inner_->description(); }
  absl::Status Probe() const override { return inner_->Probe(); }
  std::vector<DeviceState> devices() const override { return inner_->devices(); }
  // As the CPU engine's, whose own is 1000 under sanitizers: tests count on memory that merges have not taken.
  uint64_t min_pending_bytes() const override { return uint64_t{64} << 20; }
  void ReleaseDeviceMemory() override { inner_->ReleaseDeviceMemory(); }
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override {
    RETURN_IF_ERROR(hooks_->create());
    ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> inner, inner_->CreateAccumulator(spec));
    return std::make_unique<HookedAccumulator>(std::move(inner), hooks_);
  }

 private:
  const EngineHooks* const hooks_;
  const std::unique_ptr<Engine> inner_ = CreateCpuEngine({2});
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_HOOKED_ENGINE_H_
