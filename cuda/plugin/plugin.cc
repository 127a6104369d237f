// The library's side of plugin.h.
#include "cuda/plugin/plugin.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/simd/kernels.h"

extern "C" __attribute__((visibility("default"))) const char* sparseagg_cuda_plugin(const char* identity,
                                                                                    const void* request, void* answer) {
  using namespace sparseagg;  // NOLINT(google-build-using-namespace): the name of the entry is outside
  if (std::strcmp(identity, cuda::kPluginIdentity) != 0) return cuda::kPluginIdentity;
  const auto& asked = *static_cast<const cuda::PluginRequest*>(request);
  // At the first call only: later ones may come while engines work. A target that this library was built without leaves
  // the best one in force.
  static const absl::Status prepared = [&] {
    internal::ShareColumnStore(asked.column_store);
    return cpu::ForceSimdTarget(asked.simd_target);
  }();
  static_cast<void>(prepared);
  *static_cast<cuda::PluginAnswer*>(answer) = sparseagg::ToStatus([&]() -> cuda::PluginAnswer {
    cuda::PluginAnswer engine = cuda::CreateCudaEngine(asked.cpu, asked.on_fallback, asked.work, asked.choice);
    if (!engine.ok()) return engine;
    return cuda::GuardEngine(*std::move(engine));
  });
  return cuda::kPluginIdentity;
}
