// The rounds of a server without a network, for the fuzz targets.
#ifndef SPARSEAGG_TESTS_FUZZ_ROUNDS_H_
#define SPARSEAGG_TESTS_FUZZ_ROUNDS_H_

#include <memory>

#include "host/cpu/cpu_engine.h"
#include "host/engine.h"
#include "service/base/clock.h"
#include "service/base/limits.h"
#include "service/base/log.h"
#include "service/models/model_registry.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"
#include "service/streams/stream_registry.h"

namespace sparseagg::service {

// Limits under which an input takes little time and memory, whatever it asks for.
inline Limits SmallLimits() {
  Limits limits;
  limits.memory_limit_bytes = uint64_t{256} << 20;
  limits.max_memory_per_tenant = uint64_t{4} << 20;
  limits.max_tuples_per_submission = 100'000;
  limits.max_tensors = 16;
  limits.max_row_width = 64;
  return limits;
}

// One for each target, or for each restart. `store` null: nothing is stored.
struct Rounds {
  explicit Rounds(Store* store = nullptr) : server(engine.get(), &SystemClock(), SmallLimits(), 1, store) {
    ConfigureLog(LogLevel::kOff, LogFormat::kText);
  }

  const std::unique_ptr<Engine> engine = CreateCpuEngine({1});
  ServerContext server;
  Registry registry{server.ForRounds()};
  StreamRegistry streams{&registry, server.ForRounds()};
  ModelRegistry models{&registry, &streams, server.ForRounds()};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_FUZZ_ROUNDS_H_
