// Specs of any bytes: refused as the fault of the sender, or a round that merges a submission and ends.
#include <memory>

#include "service/codec/parse.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg;
  using namespace sparseagg::service;
  static Rounds rounds;
  const Limits& limits = rounds.server.limits;
  v1::RoundSpec spec;
  absl::Status status = ParseSpec(Cut({reinterpret_cast<const char*>(data), size}, 1000), limits, &spec);
  if (status.ok()) {
    absl::StatusOr<RoundConfig> config = DecodeRoundSpec(spec, limits);
    status = config.status();
    if (status.ok()) {
      config->id = "r";
      const absl::StatusOr<std::shared_ptr<Round>> round = rounds.registry.Create(*std::move(config));
      status = round.status();
      if (status.ok()) {
        (*round)->Close().IgnoreError();
        rounds.registry.Delete(kDefaultTenant, "r").status().IgnoreError();  // a short result_ttl may have removed it
      }
    }
  }
  Require(status.ok() || IsCallersFault(status), "the sender's fault", status.ToString());
  return 0;
}
