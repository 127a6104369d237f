// The library's side of plugin.h.
#include "cuda/plugin/plugin.h"

#include <cstring>
#include <mutex>
#include <utility>

#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/simd/kernels.h"

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
    cuda::PluginAnswer engine = cuda::CreateCudaEngine(asked.cpu, asked.on_fallback, asked.work, asked.choice);
    if (!engine.ok()) return engine;
    return cuda::GuardEngine(*std::move(engine));
  });
  return cuda::kPluginIdentity;
}
