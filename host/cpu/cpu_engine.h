// The engine that is always there.
#ifndef SPARSEAGG_HOST_CPU_CPU_ENGINE_H_
#define SPARSEAGG_HOST_CPU_CPU_ENGINE_H_

#include <memory>

#include "host/engine.h"

namespace sparseagg {

struct CpuEngineOptions {
  int num_threads = 0;  // of Finish; 0: one per core
};

std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options = {});

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CPU_CPU_ENGINE_H_
