// A model in memory, by itself: reads of some rows, and versions by FedAdam. Prints JSON: medians of 21, of the CPU
// time of the thread, which other work of the machine does not change much.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <vector>

#include "host/base/column.h"
#include "host/model/model.h"

namespace {

using sparseagg::Column;
using sparseagg::Model;
using sparseagg::Result;

constexpr uint32_t kWidth = 64;
constexpr uint64_t kVersionRows = 100'000;
constexpr int kRepetitions = 21;

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double MedianSeconds(const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < kRepetitions; ++i) {
    const double begin = CpuSeconds();
    work();
    seconds.push_back(CpuSeconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
  return seconds[kRepetitions / 2];
}

std::vector<uint64_t> RandomKeys(uint64_t count, uint64_t num_rows, bool ascending, std::mt19937_64& random) {
  std::vector<uint64_t> keys(count);
  for (uint64_t& key : keys) key = random() % num_rows;
  if (!ascending) return keys;
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

Result ResultOf(const std::vector<uint64_t>& keys, std::mt19937_64& random) {
  Result result;
  result.row_width = kWidth;
  result.num_keys = keys.size();
  result.keys = Column<uint64_t>(keys);
  result.values.resize(keys.size() * result.row_bytes());
  auto* values = reinterpret_cast<float*>(result.values.data());
  for (size_t i = 0; i < keys.size() * kWidth; ++i) values[i] = static_cast<float>(random() % 2001) * 1e-5f - 1e-2f;
  return result;
}

void Apply(Model& model, const Result& rows) {
  if (!model.Begin({&rows}).ok()) std::abort();
  model.Commit({});
}

double ResidentMegabytes() {
  malloc_trim(0);
  sparseagg::ReleaseFreedColumns();
  unsigned long long total = 0;
  unsigned long long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%llu %llu", &total, &resident) != 2) std::abort();
  std::fclose(file);
  return static_cast<double>(resident) * 4096e-6;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures a model in memory.");
  uint64_t num_rows = 1'000'000;
  app.add_option("--rows", num_rows, "Rows of the model, of 64 float32 values");
  CLI11_PARSE(app, argc, argv);

  sparseagg::ModelSpec spec;
  spec.keep_versions = 16;
  spec.tensors.resize(1);
  spec.tensors[0].name = "emb";
  spec.tensors[0].row_width = kWidth;
  spec.tensors[0].optimizer = sparseagg::DefaultOptimizer(sparseagg::OptimizerKind::kFedAdam);
  const double before = ResidentMegabytes();
  const auto model = *Model::Create(spec);
  std::mt19937_64 random(1);
  for (uint64_t begin = 0; begin < num_rows; begin += kVersionRows) {
    std::vector<uint64_t> keys;
    for (uint64_t key = begin; key < std::min(num_rows, begin + kVersionRows); ++key) keys.push_back(key);
    Apply(*model, ResultOf(keys, random));
  }
  const double formula = static_cast<double>(model->memory_bytes()) * 1e-6;
  const double resident = ResidentMegabytes() - before;

  const Result delta = ResultOf(RandomKeys(kVersionRows, num_rows, true, random), random);
  for (uint32_t i = 0; i <= spec.keep_versions; ++i) Apply(*model, delta);  // from now on memory is used again
  const double apply = MedianSeconds([&] { Apply(*model, delta); });
  const double num_values = static_cast<double>(delta.num_keys) * kWidth;
  const auto read = [&](uint64_t versions_behind) {
    const auto keys = RandomKeys(5000, num_rows, false, random);
    return MedianSeconds([&] {
      if (!model->ReadKeys(0, keys, {.version = model->version() - versions_behind}, false).ok()) std::abort();
    });
  };
  std::printf(
      "{\"rows\": %llu, \"memory_formula_mb\": %.1f, \"memory_resident_mb\": %.1f, \"apply_ns_per_value\": %.2f, "
      "\"read_5000_us\": %.0f, \"read_5000_16_versions_behind_us\": %.0f}\n",
      static_cast<unsigned long long>(num_rows), formula, resident, apply * 1e9 / num_values, read(0) * 1e6,
      read(16) * 1e6);
  return 0;
}
