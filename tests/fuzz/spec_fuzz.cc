// Specs of any bytes: refused as the fault of the sender, or a round that merges a submission and ends.
#include <memory>

#include "service/base/clock.h"
#include "service/codec/parse.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/registry.h"
#include "service/server_context.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/specs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg;
  using namespace sparseagg::service;
  static const std::unique_ptr<Engine> engine = CreateCpuEngine({1});
  static ServerContext server(engine.get(), SystemClock(), SmallLimits(), 1);
  static Registry registry(server.ForRounds());
  v1::RoundSpec spec;
  absl::Status status = ParseSpec(Cut({reinterpret_cast<const char*>(data), size}, 1000), server.limits, &spec);
  if (status.ok()) {
    absl::StatusOr<RoundConfig> config = DecodeRoundSpec(spec, server.limits);
    status = config.status();
    if (status.ok()) {
      config->id = "r";
      const absl::StatusOr<std::shared_ptr<Round>> round = registry.Create(*std::move(config));
      status = round.status();
      if (status.ok()) {
        (*round)->Close().IgnoreError();
        Require(registry.Delete(kDefaultTenant, "r").ok(), "the round is there");
      }
    }
  }
  Require(status.ok() || IsCallersFault(status), "the sender's fault", status.ToString());
  return 0;
}
