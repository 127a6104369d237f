// Partials of any bytes: they are refused by name, or can be added and exported again.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/partials.h"

namespace {

using sparseagg::Aggregation;
using sparseagg::service::IsCallersFault;
using sparseagg::service::Require;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<sparseagg::Engine> engine = sparseagg::CreateCpuEngine({.num_threads = 1});
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const sparseagg::TensorSpec& spec : sparseagg::PartialSpecs()) {
    const std::vector<sparseagg::TensorSpec> specs = {spec};
    sparseagg::PartialBuilder builder(specs);
    absl::Status status = builder.Append(bytes);
    Require(status.ok() || IsCallersFault(status), "a bad block is its sender's fault", status.message());
    if (!status.ok()) continue;
    auto blocks = std::move(builder).Finish();
    Require(blocks.ok() || IsCallersFault(blocks.status()), "a bad partial is its sender's fault");
    if (!blocks.ok()) continue;
    const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, specs);
    auto prepared = aggregation->PreparePartial(*std::move(blocks));
    Require(prepared.ok(), "a partial that was checked can be prepared");
    status = aggregation->Add("leaf", *std::move(prepared));
    Require(status.ok() || IsCallersFault(status), "a partial that was checked can be added", status.message());
    if (!status.ok()) continue;
    const std::string again = sparseagg::ExportAll(*aggregation, 0);
    sparseagg::PartialBuilder second(specs);
    Require(second.Append(again).ok() && std::move(second).Finish().ok(), "what is exported can be added");
    const auto results = std::move(*aggregation).Finish();
    Require(results.ok() || IsCallersFault(results.status()), "a partial that was added can be finished");
  }
  return 0;
}
