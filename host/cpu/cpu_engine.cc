#include "host/cpu/cpu_engine.h"

#include <tbb/task_arena.h>

#include "absl/strings/str_cat.h"
#include "host/cpu/cpu_accumulator.h"
#include "host/cpu/kernels.h"

namespace sparseagg {
namespace {

class CpuEngine : public Engine {
 public:
  explicit CpuEngine(const CpuEngineOptions& options)
      : arena_(options.num_threads > 0 ? options.num_threads : tbb::task_arena::automatic) {
    arena_.initialize();
  }

  absl::string_view name() const override { return "cpu"; }
  std::string description() const override {
    const int threads = arena_.max_concurrency();
    return absl::StrCat("CPU, ", threads, threads == 1 ? " thread, " : " threads, ", cpu::CurrentSimdTarget());
  }
  absl::Status Probe() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Accumulator>> CreateAccumulator(const TensorSpec& spec) override {
    return cpu::MakeCpuAccumulator(spec, arena_);
  }

 private:
  tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace sparseagg
