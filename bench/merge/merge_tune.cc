// Measurement of the planner's costs and sizes (host/cpu/tuning.h) on the machine at hand: both methods of folding a
// block over densities and numbers of clients, and other values of each parameter. tune.py evaluates the times.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/common/machine.h"
#include "bench/common/must.h"
#include "bench/common/workloads.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/merge/blocks.h"
#include "host/cpu/rows/fold.h"
#include "host/cpu/simd/kernels.h"
#include "host/cpu/tuning.h"

namespace sparseagg::bench {
namespace {

using cpu::CurrentTuning;
using cpu::Tuning;

constexpr uint64_t kSeed = 1;
constexpr uint64_t kTuples = uint64_t{1} << 21;
// Above any other cost, so that the other method is chosen.
constexpr double kProhibitive = 1e9;

using Input = cpu::MergeInput<uint32_t, cpu::SumFloat>;

// Sets the tuning while it lives. No merge of another thread may run.
class ScopedTuning {
 public:
  explicit ScopedTuning(const Tuning& tuning) : before_(CurrentTuning()) { CurrentTuning() = tuning; }
  ~ScopedTuning() { CurrentTuning() = before_; }
  ScopedTuning(const ScopedTuning&) = delete;
  ScopedTuning& operator=(const ScopedTuning&) = delete;

 private:
  const Tuning before_;
};

Tuning OnlyTableFolds() {
  Tuning tuning;
  tuning.sort_tuple_cost = kProhibitive;
  return tuning;
}

Tuning OnlySortFolds() {
  Tuning tuning;
  tuning.table_slot_cost = kProhibitive;
  return tuning;
}

// Seconds from the last submission to the result.
double TimeFinish(Engine& engine, const Workload& workload) {
  const auto aggregation = Must(Aggregation::Create(engine, {workload.spec}));
  for (size_t k = 0; k < workload.clients.size(); ++k) {
    ValidatedUpdate update =
        Must(ValidatedUpdate::Create(workload.spec, BorrowColumns(workload.spec, workload.clients[k]), 1.0));
    Check(aggregation->Add(absl::StrFormat("%020d", k), Must(aggregation->Prepare({std::move(update)}))));
  }
  const double start = Now();
  const std::vector<Result> results = Must(std::move(*aggregation).Finish());
  return Now() - start;
}

// Times each tuning `repetitions` times, in turns.
// Returns: a list of seconds for each tuning.
std::vector<std::vector<double>> TimeInTurns(Engine& engine, const Workload& workload,
                                             const std::vector<Tuning>& tunings, int repetitions) {
  std::vector<std::vector<double>> seconds(tunings.size());
  for (int i = -1; i < repetitions; ++i) {  // the first one warms up
    for (size_t t = 0; t < tunings.size(); ++t) {
      const ScopedTuning scope(tunings[t]);
      const double taken = TimeFinish(engine, workload);
      if (i >= 0) seconds[t].push_back(taken);
    }
  }
  return seconds;
}

std::string Numbers(const std::vector<double>& values) {
  return absl::StrCat(
      "[",
      absl::StrJoin(values, ", ", [](std::string* out, double value) { absl::StrAppendFormat(out, "%.9g", value); }),
      "]");
}

// Clients of equally many tuples. Keys have random gaps, so that there are about `density` tuples a key over all
// clients.
Workload MakeSparse(size_t clients, double density) {
  Workload workload;
  workload.spec.name = "t";
  std::mt19937_64 random(kSeed);
  const size_t tuples = kTuples / clients;
  const double mean_gap = static_cast<double>(clients) / density;
  std::exponential_distribution<double> gap(1.0 / std::max(mean_gap - 1.0, 1e-9));
  uint64_t last = 0;
  for (size_t k = 0; k < clients; ++k) {
    ClientArrays client;
    client.values.assign(tuples, 1.0f + static_cast<float>(k));
    client.narrow_keys.reserve(tuples);
    uint64_t key = random() % static_cast<uint64_t>(mean_gap + 1.0);
    for (size_t i = 0; i < tuples; ++i) {
      client.narrow_keys.push_back(static_cast<uint32_t>(key));
      last = std::max(last, key);
      key += 1 + static_cast<uint64_t>(gap(random));
    }
    workload.num_tuples += tuples;
    workload.clients.push_back(std::move(client));
  }
  if (last >= uint64_t{1} << 32) throw std::logic_error("keys beyond 32 bits");
  workload.spec.num_rows = last + 1;
  return workload;
}

// Returns: how often the planner expects each cost: visits, slots, values, sorted tuples. The expected time is linear
// in the costs, so each number is the expected time with that cost 1 and the others 0.
std::vector<double> Expected(const Workload& workload, cpu::Method method) {
  std::vector<std::unique_ptr<cpu::CpuUpdate>> updates;
  Input input;
  input.spec = &workload.spec;
  input.shape.counts = false;
  for (const ClientArrays& client : workload.clients) {
    const auto update = Must(ValidatedUpdate::Create(workload.spec, BorrowColumns(workload.spec, client), 1.0));
    updates.push_back(Must(cpu::PrepareUpdate(workload.spec, update)));
    input.updates.push_back(updates.back().get());
  }
  const ScopedTuning scope(method == cpu::Method::kTable ? OnlyTableFolds() : OnlySortFolds());
  std::vector<std::pair<uint32_t, uint32_t>> bounds;
  std::vector<uint64_t> tuples;
  for (const auto& block : cpu::ChooseBlocks(input).blocks) {
    bounds.push_back({block.first, block.last});
    tuples.push_back(block.tuples);
  }
  std::vector<double> expected;
  for (double Tuning::*cost :
       {&Tuning::visit_cost, &Tuning::table_slot_cost, &Tuning::table_value_cost, &Tuning::sort_tuple_cost}) {
    Tuning unit;
    unit.visit_cost = unit.table_slot_cost = unit.table_value_cost = unit.sort_tuple_cost = 0;
    unit.*cost = 1;
    const ScopedTuning one(unit);
    double sum = 0;
    for (size_t i = 0; i < bounds.size(); ++i) {
      const auto block = cpu::PlanBlock(bounds[i].first, bounds[i].second, tuples[i], uint64_t{1}, updates.size(), 0);
      sum += method == cpu::Method::kTable ? block.table_cost : block.sort_cost;
    }
    expected.push_back(sum);
  }
  return expected;
}

std::vector<std::string> MeasureCosts(Engine& engine, int repetitions) {
  std::vector<std::string> records;
  for (const size_t clients : {4, 16, 64, 256, 1024, 4096}) {
    for (int log_density = -10; log_density <= 2; ++log_density) {
      const double density = std::exp2(log_density);
      if (density > static_cast<double>(clients) / 2) continue;  // keys of a client are distinct
      const Workload workload = MakeSparse(clients, density);
      const auto seconds = TimeInTurns(engine, workload, {OnlyTableFolds(), OnlySortFolds(), Tuning()}, repetitions);
      records.push_back(absl::StrFormat(
          R"({"clients": %d, "density": %.9g, "tuples": %d, "table": %s, "sort": %s, "planned": %s, )"
          R"("table_expected": %s, "sort_expected": %s})",
          clients, density, workload.num_tuples, Numbers(seconds[0]), Numbers(seconds[1]), Numbers(seconds[2]),
          Numbers(Expected(workload, cpu::Method::kTable)), Numbers(Expected(workload, cpu::Method::kSort))));
      std::fprintf(stderr, ".");
    }
  }
  return records;
}

// A member of Tuning. One of `size` and `cost` is set.
struct Parameter {
  const char* name;
  uint64_t Tuning::*size = nullptr;
  double Tuning::*cost = nullptr;

  double Of(const Tuning& tuning) const { return cost != nullptr ? tuning.*cost : static_cast<double>(tuning.*size); }
  Tuning Scaled(double factor) const {
    Tuning tuning;
    if (cost != nullptr) {
      tuning.*cost *= factor;
    } else {
      tuning.*size = static_cast<uint64_t>(factor * Of(tuning));
    }
    return tuning;
  }
};

std::vector<std::string> MeasureParameters(Engine& engine, int repetitions, const std::string& names) {
  const std::vector<Parameter> parameters = {{"visit_cost", nullptr, &Tuning::visit_cost},
                                             {"table_slot_cost", nullptr, &Tuning::table_slot_cost},
                                             {"table_value_cost", nullptr, &Tuning::table_value_cost},
                                             {"sort_tuple_cost", nullptr, &Tuning::sort_tuple_cost},
                                             {"block_values", &Tuning::block_values},
                                             {"block_tuples_per_cursor", &Tuning::block_tuples_per_cursor},
                                             {"window_values", &Tuning::window_values},
                                             {"max_window_values", &Tuning::max_window_values},
                                             {"window_tuples_per_cursor", &Tuning::window_tuples_per_cursor},
                                             {"tuples_ahead", &Tuning::tuples_ahead},
                                             {"total_tuples_ahead", &Tuning::total_tuples_ahead},
                                             {"sort_values", &Tuning::sort_values},
                                             {"sort_tuples_per_cursor", &Tuning::sort_tuples_per_cursor}};
  const std::vector<double> factors = {0.25, 0.5, 1, 2, 4};
  std::vector<std::string> records;
  for (const char name : names) {
    const Workload workload = MakeWorkload(std::string(1, name), kSeed);
    for (const Parameter& parameter : parameters) {
      std::vector<Tuning> tunings;
      for (const double factor : factors) tunings.push_back(parameter.Scaled(factor));
      const auto seconds = TimeInTurns(engine, workload, tunings, repetitions);
      for (size_t i = 0; i < factors.size(); ++i) {
        records.push_back(absl::StrFormat(R"({"name": "%s", "workload": "%c", "value": %g, "now": %g, "seconds": %s})",
                                          parameter.name, name, parameter.Of(tunings[i]), parameter.Of(Tuning()),
                                          Numbers(seconds[i])));
      }
      std::fprintf(stderr, ".");
    }
  }
  return records;
}

void Run(const std::string& out_path, int repetitions, const std::string& workloads) {
  const auto engine = CreateCpuEngine({1});
  const Tuning tuning;
  const std::vector<std::string> costs = MeasureCosts(*engine, repetitions);
  const std::vector<std::string> parameters = MeasureParameters(*engine, repetitions, workloads);
  std::fprintf(stderr, "\n");
  std::ofstream out(out_path);
  out << absl::StrFormat(
      "{\n\"date\": \"%s\", \"cpu\": \"%s\", \"simd\": \"%s\", \"seed\": %d,\n\"costs_now\": {\"visit_cost\": %g, "
      "\"table_slot_cost\": %g, \"table_value_cost\": %g, \"sort_tuple_cost\": %g},\n\"cells\": "
      "[\n%s\n],\n\"parameters\": "
      "[\n%s\n]\n}\n",
      Today(), CpuName(), cpu::CurrentSimdTarget(), kSeed, tuning.visit_cost, tuning.table_slot_cost,
      tuning.table_value_cost, tuning.sort_tuple_cost, absl::StrJoin(costs, ",\n"), absl::StrJoin(parameters, ",\n"));
  if (!out.good()) throw std::runtime_error("cannot write " + out_path);
}

}  // namespace
}  // namespace sparseagg::bench

int main(int argc, char** argv) {
  CLI::App app("Measures the costs and sizes that the planner of the CPU engine goes by, on one thread.");
  std::string out;
  std::string workloads = "ABCEG";
  int repetitions = 5;
  app.add_option("--out", out, "JSON file to write")->required();
  app.add_option("--workloads", workloads, "letters of the workloads that other values are tried on")
      ->capture_default_str();
  app.add_option("--repetitions", repetitions, "timed runs of each")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    sparseagg::bench::Run(out, repetitions, workloads);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "merge_tune: %s\n", error.what());
    return 1;
  }
  return 0;
}
