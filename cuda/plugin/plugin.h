// What a program and the plug-in library libsparseagg_cuda.so agree on. The library has the CUDA engine; a program
// without it loads the library at run time (load.h).
//
// C++ objects pass between the two, and each has its own copy of host/. This is safe, because
// - both have the same identity: version, headers, compiler and Abseil (CMakeLists.txt);
// - both use the memory allocator of the same C library;
// - columns of both come from the program's column store, because a column that one of them makes is often freed by the
//   other (host/base/column.h);
// - no exception passes between them (GuardEngine);
// - the library is never unloaded.
#ifndef SPARSEAGG_CUDA_PLUGIN_PLUGIN_H_
#define SPARSEAGG_CUDA_PLUGIN_PLUGIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/cuda_engine.h"
#include "cuda/plugin/identity.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// The arguments of CreateCudaEngine, and what the library takes over from the program.
struct PluginRequest {
  CudaEngineOptions options;     // whose on_fallback throws nothing
  void* column_store = nullptr;  // internal::ColumnStore()
  std::string simd_target;       // cpu::CurrentSimdTarget()
};

using PluginAnswer = absl::StatusOr<std::unique_ptr<Engine>>;

// The one function that the library exports. Its name and type never change.
// `identity`: the program's kPluginIdentity. `request`: a PluginRequest. `answer`: a PluginAnswer, which receives what
// CreateCudaEngine returns. If the identities differ, `request` and `answer` are left untouched.
// Returns: the library's identity.
using PluginEntry = const char* (*)(const char* identity, const void* request, void* answer);
inline constexpr char kPluginEntry[] = "sparseagg_cuda_plugin";
inline constexpr char kPluginFile[] = "libsparseagg_cuda.so";

// Returns: an engine that calls `engine`, and turns exceptions of it and of its accumulators into statuses:
// RESOURCE_EXHAUSTED for std::bad_alloc, else INTERNAL. The object's state is then what the exception left.
//
// The engine of a plug-in needs it. Where program and library are linked with -static-libgcc, an exception of one that
// reaches a handler of the other ends the process: each has its own copy of the unwinder (GCC 12; seen in a program of
// ten lines).
std::unique_ptr<Engine> GuardEngine(std::unique_ptr<Engine> engine);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_PLUGIN_PLUGIN_H_
