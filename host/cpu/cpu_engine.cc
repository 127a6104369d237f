#include "host/cpu/cpu_engine.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "host/cpu/accumulators.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"

namespace sparseagg {
namespace cpu {

namespace {

// Returns: an empty accumulator for one tensor, of the type (key type and fold) that its spec needs. `arena` runs its
// merges and must outlive it.
std::unique_ptr<Accumulator> MakeCpuAccumulator(const TensorSpec& spec, tbb::task_arena& arena) {
  switch (spec.aggregation.op) {
    case Op::kUnion:
      return MakeTypedAccumulator<SumModular>(spec, arena);  // no columns: nothing is summed but counts
    case Op::kMin:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MinFloat>(spec, arena)
                                 : MakeTypedAccumulator<MinInteger>(spec, arena);
    case Op::kMax:
      return IsFloat(spec.dtype) ? MakeTypedAccumulator<MaxFloat>(spec, arena)
                                 : MakeTypedAccumulator<MaxInteger>(spec, arena);
    case Op::kMedian:
    case Op::kTrimmedMean:
    case Op::kQuantile:
      return MakeOrderAccumulator(spec, arena);
    case Op::kSum:
    case Op::kMean:
    case Op::kCoordinateMean:
      break;
  }
  if (spec.aggregation.numerics == Numerics::kBinned) {
    if (spec.layout == Layout::kDense) return MakeBinnedAccumulator(spec, arena);
    return spec.dtype == DType::kFloat64 ? MakeTypedAccumulator<SumBinned<WideBinnedSum>>(spec, arena)
                                         : MakeTypedAccumulator<SumBinned<NarrowBinnedSum>>(spec, arena);
  }
  if (spec.modular) return MakeTypedAccumulator<SumModular>(spec, arena);
  if (IsSignedInteger(spec.dtype)) return MakeTypedAccumulator<SumInteger>(spec, arena);
  return MakeTypedAccumulator<SumFloat>(spec, arena);
}

}  // namespace
}  // namespace cpu

namespace {

// Allows oneTBB to run `num_threads` threads. Without this, oneTBB starts no more workers than there are cores, and
// warns on stderr. oneTBB obeys the smallest of several global_control objects, so there is one, for the largest engine
// so far.
void AllowThreads(int num_threads) {
  using tbb::global_control;
  static std::mutex mutex;
  static global_control* control = nullptr;  // the last one is never destroyed: the scheduler may be gone by then
  const std::lock_guard<std::mutex> lock(mutex);
  const auto threads = static_cast<size_t>(num_threads);
  if (threads <= global_control::active_value(global_control::max_allowed_parallelism)) return;
  auto larger = std::make_unique<global_control>(global_control::max_allowed_parallelism, threads);
  delete control;
  control = larger.release();
}

class CpuEngine : public Engine {
 public:
  explicit CpuEngine(const CpuEngineOptions& options)
      : arena_(options.num_threads > 0 ? options.num_threads : tbb::task_arena::automatic) {
    if (options.num_threads > 0) AllowThreads(options.num_threads);
    arena_.initialize();
  }

  absl::string_view name() const override { return "cpu"; }
  std::string description() const override {
    const int threads = arena_.max_concurrency();
    return absl::StrCat("CPU, ", threads, threads == 1 ? " thread, " : " threads, ", cpu::CurrentSimdTarget());
  }
  absl::Status Probe() const override { return absl::OkStatus(); }
  uint64_t min_pending_bytes() const override { return cpu::CurrentTuning().min_pending_bytes; }
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override {
    return cpu::MakeCpuAccumulator(spec, arena_);
  }

 private:
  tbb::task_arena arena_;
};

}  // namespace

bool CpuTakesUncheckedKeys(const TensorSpec& spec) {
  const AggregationSpec& a = spec.aggregation;
  // Bounds, private rounds and sums of squares read keys before the merge.
  const bool merges_only = !spec.clip.has_bound() && !spec.privacy.has_value() && !a.return_moments;
  return IsSum(a.op) && IsFloat(spec.dtype) && a.numerics == Numerics::kCanonical && spec.layout == Layout::kSparse &&
         HasNarrowKeys(spec) && merges_only;
}

std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace sparseagg
