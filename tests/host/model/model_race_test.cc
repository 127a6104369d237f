// Readers on threads while a writer applies versions: each read is one version, whole.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/host/model/model_oracle.h"
#include "tests/support/sanitized.h"

namespace sparseagg::testing {
namespace {

constexpr uint64_t kNumKeys = 300;

// Version v sets, in every column of each row that it touches, the value v: so a row tells which version it is of, and
// the oracle is a function of key and version.
bool Touches(uint64_t version, uint64_t key, uint64_t seed) { return Rng(seed ^ (version << 20) ^ key).OneIn(8); }

TEST(Model_ReadersBesideAWriter, SeeWholeVersions) {
  const int num_versions = kSanitized ? 1500 : 10'000;
  for (const uint32_t keep : {1u, 7u, 40u}) {
    SCOPED_TRACE(keep);
    ModelSpec spec;
    spec.keep_versions = keep;
    spec.tensors.resize(1);
    ModelTensorSpec& tensor = spec.tensors[0];
    tensor.name = "t";
    tensor.row_width = 16;
    tensor.optimizer = DefaultOptimizer(OptimizerKind::kAssign);
    tensor.expire_after = 30;
    auto model = *Model::Create(spec);
    std::atomic<bool> is_over = false;
    std::atomic<uint64_t> num_reads = 0;

    // Returns: the version that key's row is of at `version`; 0: untouched.
    const auto row_at = [&](uint64_t key, uint64_t version) -> uint64_t {
      for (uint64_t v = version; v > 0 && version - v <= tensor.expire_after; --v) {
        if (Touches(v, key, keep)) return v;
      }
      return 0;
    };
    const auto read = [&](uint64_t reader) {
      Rng rng(reader);
      while (!is_over) {
        const uint64_t newest = model->version();
        const uint64_t version = newest - rng.Below(std::min<uint64_t>(newest, keep) + 1);
        std::vector<uint64_t> keys;
        for (int i = 0; i < 100; ++i) keys.push_back(rng.Below(kNumKeys));
        const bool is_range = rng.OneIn(8);
        const auto rows = is_range ? model->ReadRange(0, 0, 0, {.version = version}, kNumKeys)
                                   : model->ReadKeys(0, keys, {.version = version}, true);
        if (!rows.ok()) {  // the writer was faster
          ASSERT_EQ(rows.status().code(), absl::StatusCode::kFailedPrecondition) << rows.status();
          continue;
        }
        const auto* values = reinterpret_cast<const float*>(rows->rows.values.data());
        uint64_t num_rows = 0;
        for (uint64_t i = 0; i < rows->num_keys; ++i, values += tensor.row_width) {
          const uint64_t key = is_range ? rows->rows.KeyAt(i) : keys[i];
          const auto want = static_cast<float>(row_at(key, version));
          for (uint32_t c = 0; c < tensor.row_width; ++c) {
            ASSERT_EQ(values[c], want) << "key " << key << " version " << version << " of " << newest;
          }
          num_rows += want != 0;
        }
        if (is_range) {
          uint64_t present = 0;
          for (uint64_t key = 0; key < kNumKeys; ++key) present += row_at(key, version) != 0;
          ASSERT_EQ(num_rows, present);
        }
        ++num_reads;
      }
    };
    std::vector<std::thread> readers;
    for (uint64_t reader = 0; reader < 3; ++reader) readers.emplace_back(read, reader);
    for (int version = 1; version <= num_versions; ++version) {
      Rows rows;
      for (uint64_t key = 0; key < kNumKeys; ++key) {
        if (Touches(static_cast<uint64_t>(version), key, keep)) rows[key] = Row(16, static_cast<float>(version));
      }
      const Result result = ResultOf(rows, tensor);
      if (version % 5 == 0) {
        Result other = ResultOf({{7, Row(16, -1.0f)}, {kNumKeys + 5, Row(16, -1.0f)}}, tensor);
        EXPECT_EQ(model->Begin({&other}), absl::OkStatus());
        model->Abandon();
      }
      EXPECT_EQ(model->Begin({&result}), absl::OkStatus());
      model->Commit({});
    }
    is_over = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_GT(num_reads, 0u);
  }
}

}  // namespace
}  // namespace sparseagg::testing
