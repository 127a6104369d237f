// The CPU engine, which every build has.
#ifndef SPARSEAGG_HOST_CPU_CPU_ENGINE_H_
#define SPARSEAGG_HOST_CPU_CPU_ENGINE_H_

#include <memory>

#include "host/engine.h"

namespace sparseagg {

struct CpuEngineOptions {
  int num_threads = 0;  // that merges use; 0: one per core
};

// Returns: an engine that folds on the CPU, with the fastest vector instructions of this machine. Design:
// docs/design.md.
//
//   const std::unique_ptr<Engine> engine = CreateCpuEngine({/*num_threads=*/2});
//   std::unique_ptr<Accumulator> accumulator = *engine->CreateAccumulator(spec);
//   RETURN_IF_ERROR(accumulator->Add(*accumulator->Prepare(*ValidatedUpdate::Create(spec, columns, weight))));
//   StatusOr<Result> result = std::move(*accumulator).Finish(/*order=*/{0});
std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options = {});

// Returns: whether this engine's accumulators of such a tensor take ValidatedUpdate::CreateWithUncheckedKeys: canonical
// sums of sparse floats with 32-bit keys.
bool CpuTakesUncheckedKeys(const TensorSpec& spec);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_CPU_CPU_ENGINE_H_
