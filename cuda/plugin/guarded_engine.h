// An engine that throws no exceptions.
#ifndef SPARSEAGG_CUDA_PLUGIN_GUARDED_ENGINE_H_
#define SPARSEAGG_CUDA_PLUGIN_GUARDED_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "host/engine.h"

namespace sparseagg::cuda {

// Returns: an engine that calls `engine`, and turns exceptions of it and of its accumulators into statuses:
// RESOURCE_EXHAUSTED for std::bad_alloc, else INTERNAL. The state after such an error is that of the exception.
//
// The engine of a plug-in needs it. Where program and library are linked with -static-libgcc, an exception of one that
// reaches a handler of the other ends the process: each has its own copy of the unwinder (GCC 12; seen in a program of
// ten lines).
std::unique_ptr<Engine> GuardEngine(std::unique_ptr<Engine> engine);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_PLUGIN_GUARDED_ENGINE_H_
