#include "python/engine/local_runtime.h"

#include <pthread.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/plugin/load.h"
#include "host/base/status_macros.h"
#include "host/cpu/cpu_engine.h"

namespace sparseagg::python {
namespace {

std::string Describe(const Engine& engine) { return absl::StrCat(engine.name(), " (", engine.description(), ")"); }

// The runtimes of the process, one for each number of threads and kind of engine.
//
// A forked child has none of its parent's threads, so their unfinished work never ends there. The child makes runtimes
// of its own, which work on the calling threads, and leaves its parent's runtimes as they are. It never gets an engine
// of a device that its parent has used.
class LocalRuntimes {
 public:
  static absl::StatusOr<LocalRuntime*> Of(int threads, bool device) {
    LocalRuntimes& runtimes = All();
    std::lock_guard lock(runtimes.mu_);
    if (device && runtimes.cuda_is_lost_) return CudaLostInFork();
    if (device && runtimes.cuda_ == nullptr) return absl::FailedPreconditionError("the CUDA engine is not loaded");
    LocalRuntime*& runtime = runtimes.by_kind_[{threads, device}];
    if (runtime == nullptr) {
      Engine& engine = device ? *runtimes.cuda_ : *CreateCpuEngine({threads}).release();
      runtime = new LocalRuntime(engine, device, threads);
    }
    return runtime;
  }

  static absl::StatusOr<std::string> LoadCuda(const std::string& path) {
    LocalRuntimes& runtimes = All();
    std::lock_guard lock(runtimes.mu_);
    if (runtimes.cuda_is_lost_) return CudaLostInFork();
    if (runtimes.cuda_ == nullptr) {
      ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, cuda::LoadCudaEngine(path));
      RETURN_IF_ERROR(engine->Probe());
      runtimes.cuda_ = engine.release();
    }
    return Describe(*runtimes.cuda_);
  }

  // Returns: the engine of LoadCuda, or null.
  static Engine* Cuda() {
    LocalRuntimes& runtimes = All();
    std::lock_guard lock(runtimes.mu_);
    return runtimes.cuda_is_lost_ ? nullptr : runtimes.cuda_;
  }

 private:
  LocalRuntimes() {
    // The lock is held during the fork, so that no other thread changes the map or holds the lock in the child.
    pthread_atfork([] { All().mu_.lock(); }, [] { All().mu_.unlock(); }, [] { All().ForgetParents(); });
  }

  void ForgetParents() {
    for (const auto& [kind, runtime] : by_kind_) runtime->is_lost = runtime->device;
    by_kind_.clear();
    cuda_is_lost_ = cuda_is_lost_ || cuda_ != nullptr;
    mu_.unlock();
  }

  static LocalRuntimes& All() {
    static LocalRuntimes& runtimes = *new LocalRuntimes;
    return runtimes;
  }

  std::mutex mu_;
  std::map<std::pair<int, bool>, LocalRuntime*> by_kind_;  // threads, device
  Engine* cuda_ = nullptr;
  bool cuda_is_lost_ = false;
};

}  // namespace

std::string LocalRuntime::Describe() const { return python::Describe(engine); }

absl::StatusOr<LocalRuntime*> LocalRuntimeOf(int threads, bool device) { return LocalRuntimes::Of(threads, device); }

absl::Status CudaLostInFork() {
  return absl::FailedPreconditionError(
      "CUDA was used before the fork, and does not work in the child: start processes with the method \"spawn\", or "
      "use device=\"cuda\" only in the children");
}

absl::StatusOr<std::string> LoadCuda(const std::string& path) { return LocalRuntimes::LoadCuda(path); }

void ReleaseDeviceMemory() {
  if (Engine* const engine = LocalRuntimes::Cuda(); engine != nullptr) engine->ReleaseDeviceMemory();
}

}  // namespace sparseagg::python
