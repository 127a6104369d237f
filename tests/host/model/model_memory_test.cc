// The formula of memory_bytes beside what the process takes.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>

#include "host/base/column.h"
#include "tests/host/model/model_oracle.h"
#include "tests/support/sanitized.h"

namespace sparseagg::testing {
namespace {

uint64_t ResidentBytes() {
  malloc_trim(0);
  ReleaseFreedColumns();
  unsigned long long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  EXPECT_EQ(std::fscanf(file, "%llu %llu", &total, &resident), 2);
  std::fclose(file);
  return resident * 4096;
}

// SPARSEAGG_MODEL_ROWS=10000000 for the size of the documentation.
TEST(Model_MemoryBytes, AreWithinATenthOfWhatTheProcessTakes) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer has memory of its own";
  const char* const asked = std::getenv("SPARSEAGG_MODEL_ROWS");
  const uint64_t num_rows = asked == nullptr ? 1'000'000 : std::strtoull(asked, nullptr, 10);
  ModelSpec spec;
  spec.tensors.resize(1);
  ModelTensorSpec& tensor = spec.tensors[0];
  tensor.name = "emb";
  tensor.row_width = 64;
  tensor.optimizer = DefaultOptimizer(OptimizerKind::kFedAdam);
  const uint64_t before = ResidentBytes();
  auto model = *Model::Create(spec);
  constexpr uint64_t kBatch = 50'000;
  for (uint64_t begin = 0; begin < num_rows; begin += kBatch) {
    Result rows;
    rows.row_width = tensor.row_width;
    rows.num_keys = kBatch;
    auto& keys = rows.keys.emplace<Column<uint64_t>>(kBatch);
    for (uint64_t i = 0; i < kBatch; ++i) keys[i] = (begin + i) * 97;
    rows.values.resize(kBatch * rows.row_bytes());
    std::fill_n(reinterpret_cast<float*>(rows.values.data()), kBatch * tensor.row_width, 0.5f);
    const uint64_t memory = model->memory_bytes();
    const uint64_t most = model->BeginBytes({&rows});
    ASSERT_EQ(model->Begin({&rows}), absl::OkStatus());
    EXPECT_LE(model->memory_bytes() - memory, most);
    model->Commit({});
  }
  const auto formula = static_cast<double>(model->memory_bytes());
  const auto taken = static_cast<double>(ResidentBytes() - before);
  std::printf("rows %llu: formula %.1f MB, resident %.1f MB\n", static_cast<unsigned long long>(num_rows),
              formula / 1e6, taken / 1e6);
  EXPECT_GT(taken, 0.9 * formula);
  EXPECT_LT(taken, 1.1 * formula);
}

}  // namespace
}  // namespace sparseagg::testing
