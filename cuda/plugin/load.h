// Loads the CUDA engine from its plug-in library, in programs that are built without it.
#ifndef SPARSEAGG_CUDA_PLUGIN_LOAD_H_
#define SPARSEAGG_CUDA_PLUGIN_LOAD_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/cuda_engine.h"
#include "host/cpu/cpu_engine.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// Returns: where LoadCudaEngine looks if it is given no path: beside the program, in the lib folder beside the
// program's folder, and, for a program inside the Python package, in the package sparseagg_cuda13.
std::vector<std::string> CudaPluginPaths();

// Loads the library and creates its engine, as CreateCudaEngine does. The library stays loaded until the process ends.
// `path`: the library's; empty: the first of CudaPluginPaths() that is there.
// Errors: UNAVAILABLE: there is no such file, or it cannot be loaded or is no plug-in, or it belongs to another build;
// or, in the words of CreateCudaEngine, this machine has no usable GPU.
// Thread-safe.
absl::StatusOr<std::unique_ptr<Engine>> LoadCudaEngine(const std::string& path, CudaEngineOptions options = {});

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_PLUGIN_LOAD_H_
