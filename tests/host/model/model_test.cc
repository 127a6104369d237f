#include "host/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/host/model/model_oracle.h"
#include "tests/support/failing_allocation.h"

namespace sparseagg::testing {
namespace {

using ::testing::HasSubstr;

bool IsSet(const std::string& bits, uint64_t i) { return !bits.empty() && (bits[i / 8] >> (i % 8) & 1) != 0; }

// Reads keys one after the other at a version, and compares with the oracle; with `since` also what has changed.
void CheckKeys(const Model& model, const ModelOracle& oracle, const std::vector<uint64_t>& keys, const ReadAt& at,
               bool with_initial) {
  const auto read = model.ReadKeys(0, keys, at, with_initial);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->version, at.version.value_or(oracle.version()));
  ASSERT_EQ(read->num_keys, keys.size());
  const Rows& rows = oracle.At(read->version);
  const auto* values = reinterpret_cast<const float*>(read->rows.values.data());
  const size_t width = read->rows.row_width;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool is_changed = !at.since.has_value() || oracle.IsChanged(keys[i], *at.since, read->version);
    ASSERT_EQ(IsSet(read->unchanged, i), !is_changed) << "key " << keys[i];
    if (!is_changed) continue;
    const auto row = rows.find(keys[i]);
    ASSERT_EQ(IsSet(read->untouched, i), row == rows.end() && !with_initial) << "key " << keys[i];
    if (row == rows.end() && !with_initial) continue;
    const Row want = row == rows.end() ? oracle.Initial(keys[i]) : row->second;
    ASSERT_EQ(Row(values, values + width), want) << "key " << keys[i];
    values += width;
  }
  ASSERT_EQ(reinterpret_cast<const std::byte*>(values), read->rows.values.end());
}

// The same of a range, read in pages.
void CheckRange(const Model& model, const ModelOracle& oracle, const std::vector<uint64_t>& keys, ReadAt at,
                uint64_t page) {
  Rows rows;
  std::set<uint64_t> removed;
  for (uint64_t begin = 0;;) {
    const auto read = model.ReadRange(0, begin, 0, at, page);
    ASSERT_TRUE(read.ok()) << read.status();
    at.version = read->version;
    ASSERT_LE(read->num_keys, page);
    const auto* values = reinterpret_cast<const float*>(read->rows.values.data());
    const size_t width = read->rows.row_width;
    for (uint64_t i = 0; i < read->num_keys; ++i) {
      if (IsSet(read->untouched, i)) {
        removed.insert(read->rows.KeyAt(i));
      } else {
        rows[read->rows.KeyAt(i)] = Row(values, values + width);
        values += width;
      }
    }
    if (!read->next_key.has_value()) break;
    ASSERT_GT(*read->next_key, begin == 0 && read->num_keys == 0 ? 0 : begin);
    begin = *read->next_key;
  }
  const Rows& all = oracle.At(*at.version);
  for (const uint64_t key : keys) {
    const bool is_changed = !at.since.has_value() || oracle.IsChanged(key, *at.since, *at.version);
    const auto row = all.find(key);
    ASSERT_EQ(rows.count(key), is_changed && row != all.end()) << "key " << key;
    if (rows.count(key) != 0) {
      ASSERT_EQ(rows[key], row->second) << "key " << key;
    }
    ASSERT_EQ(removed.count(key), at.since.has_value() && is_changed && row == all.end()) << "key " << key;
  }
}

void CheckAll(const Model& model, const ModelOracle& oracle, const std::vector<uint64_t>& keys, uint64_t oldest,
              Rng& rng) {
  const ModelFigures figures = model.Figures();
  ASSERT_EQ(figures.version, oracle.version());
  ASSERT_EQ(figures.oldest_version, oldest);
  ASSERT_EQ(figures.tensors[0].num_rows, oracle.At(oracle.version()).size());
  ASSERT_EQ(figures.tensors[0].num_removed, oracle.num_removed());
  for (uint64_t version = oldest; version <= oracle.version(); ++version) {
    CheckKeys(model, oracle, keys, {.version = version}, rng.Coin());
    CheckRange(model, oracle, keys, {.version = version}, 1 + rng.Below(keys.size()));
    const uint64_t since = rng.Below(version + 1);
    CheckKeys(model, oracle, keys, {.version = version, .since = since}, rng.Coin());
    CheckRange(model, oracle, keys, {.version = version, .since = since}, 1 + rng.Below(keys.size()));
  }
}

Row RandomRow(uint32_t width, Rng& rng) {
  Row row(width);
  for (float& value : row) value = static_cast<float>(rng.Unit() - 0.5);
  return row;
}

Rows RandomRows(const std::vector<uint64_t>& keys, size_t most, uint32_t width, Rng& rng) {
  Rows rows;
  for (uint64_t n = rng.Below(most + 1); n > 0; --n) rows[keys[rng.Below(keys.size())]] = RandomRow(width, rng);
  return rows;
}

// Whether the model is saved and restored in the middle of the run.
class ModelRunTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(RestoreMidway, ModelRunTest, ::testing::Bool());

TEST_P(ModelRunTest, RandomVersions_EveryKeptVersion_EqualsTheOracle) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    ModelSpec spec;
    spec.keep_versions = static_cast<uint32_t>(rng.Between(1, 6));
    ModelTensorSpec tensor;
    tensor.name = "emb";
    tensor.row_width = rng.Pick<uint32_t>({1, 3, 64});
    tensor.num_rows = rng.Pick<uint64_t>({0, 14});
    tensor.init = {InitKind::kUniform, 0.5, seed};
    tensor.optimizer = DefaultOptimizer(rng.Pick({OptimizerKind::kSgd, OptimizerKind::kFedAvgM, OptimizerKind::kFedAdam,
                                                  OptimizerKind::kFedAdagrad, OptimizerKind::kAssign}));
    tensor.expire_after = rng.Pick<uint32_t>({0, 0, 1, 2, 5});
    tensor.max_rows = rng.Pick<uint64_t>({0, 0, 6, 10});
    spec.tensors = {tensor};
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 14; ++i) keys.push_back(tensor.num_rows == 0 ? i << 60 | i : i);

    const Rows initial = RandomRows(keys, 4, tensor.row_width, rng);
    const Result initial_result = ResultOf(initial, tensor);
    auto model = *Model::Create(spec, {&initial_result});
    ModelOracle oracle(tensor, initial);
    uint64_t restored = 0;
    const int num_versions = 40;
    for (int i = 0; i < num_versions; ++i) {
      const uint64_t oldest =
          std::max(restored, oracle.version() - std::min<uint64_t>(oracle.version(), spec.keep_versions));
      if (rng.OneIn(3)) {  // a version that is abandoned, or that a value beyond float32 refuses
        Rows bad = RandomRows(keys, 5, tensor.row_width, rng);
        const bool refused = tensor.optimizer.kind != OptimizerKind::kAssign && !bad.empty() && rng.Coin();
        if (refused) bad.rbegin()->second.back() = std::numeric_limits<float>::infinity();
        const Result result = ResultOf(bad, tensor);
        const absl::Status begun = model->Begin({&result}, 0.5);
        ASSERT_EQ(begun.code(), refused ? absl::StatusCode::kOutOfRange : absl::StatusCode::kOk) << begun;
        if (begun.ok()) {
          CheckAll(*model, oracle, keys, oldest, rng);
          model->Abandon();
        }
        CheckAll(*model, oracle, keys, oldest, rng);
      }
      if (GetParam() && i == num_versions / 2) {
        auto again = *Model::Create(spec);
        ASSERT_EQ(RestoreAll(Saved(*model), *again), absl::OkStatus());
        model = std::move(again);
        restored = oracle.version();
      }
      const Rows delta = RandomRows(keys, 5, tensor.row_width, rng);
      const Result result = tensor.num_rows != 0 && rng.Coin() ? DenseResultOf(delta, tensor) : ResultOf(delta, tensor);
      ASSERT_EQ(model->Begin(delta.empty() && rng.Coin() ? ModelDelta{} : ModelDelta{&result}), absl::OkStatus());
      CheckKeys(*model, oracle, keys, {}, false);  // not seen yet
      oracle.Apply(delta);
      const ModelVersion made = model->Commit({.source = absl::StrCat("rounds/", i)});
      ASSERT_EQ(made.version, oracle.version());
      ASSERT_EQ(made.num_rows, delta.size());
      CheckAll(*model, oracle, keys, std::max(restored, oldest + (oracle.version() - oldest > spec.keep_versions)),
               rng);
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_EQ(model->Figures().versions.back().source, absl::StrCat("rounds/", num_versions - 1));
  }
}

TEST(Model_AllocationThatFails, LeavesTheModelAsItWas) {
  ModelTensorSpec tensor;
  tensor.name = "emb";
  tensor.row_width = 64;
  tensor.init = {InitKind::kNormal, 0.1, 1};
  tensor.optimizer = DefaultOptimizer(OptimizerKind::kFedAdam);
  tensor.expire_after = 2;
  Rng rng(5);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 400; ++i) keys.push_back(i * 977);
  ModelSpec spec;
  spec.tensors = {tensor};
  auto model = *Model::Create(spec);
  ModelOracle oracle(tensor, {});
  for (int version = 0; version < 8; ++version) {
    const Rows delta = RandomRows(keys, 150, tensor.row_width, rng);
    const Result result = ResultOf(delta, tensor);
    bool failed = true;
    for (long before = 0; failed; ++before) {
      absl::Status begun;
      {
        FailingAllocation failing(before);
        begun = Try([&] { return model->Begin({&result}); });
        failed = failing.failed();
      }
      ASSERT_EQ(begun.ok(), !failed) << begun;
      const uint64_t oldest = oracle.version() - std::min<uint64_t>(oracle.version(), 2);
      if (failed) CheckKeys(*model, oracle, keys, {.version = oldest}, false);
      CheckKeys(*model, oracle, keys, {}, false);
    }
    oracle.Apply(delta);
    {
      FailingAllocation failing(0);
      model->Commit({});
    }
    CheckAll(*model, oracle, keys, oracle.version() - std::min<uint64_t>(oracle.version(), 2), rng);
  }
}

ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.tensors.resize(2);
  spec.tensors[0].name = "emb";
  spec.tensors[0].num_rows = 10;
  spec.tensors[0].row_width = 4;
  spec.tensors[1].name = "head";
  spec.tensors[1].num_rows = 3;
  return spec;
}

TEST(Model_ReadsThatHaveNoMeaning, SayWhy) {
  auto model = *Model::Create(SmallSpec());
  for (int i = 0; i < 7; ++i) {
    ASSERT_EQ(model->Begin({}), absl::OkStatus());
    model->Commit({});
  }
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  const uint64_t key = 10;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  expect(model->ReadKeys(0, {&key, 1}, {}, false).status(), invalid, "tensor 'emb': key 10 is not below num_rows 10");
  expect(model->ReadKeys(0, {}, {.version = 9}, false).status(), invalid,
         "version 9 does not exist yet; the newest is 7");
  expect(model->ReadRange(0, 0, 0, {.since = 8}, 5).status(), invalid, "version 8 does not exist yet");
  expect(model->ReadRange(0, 5, 4, {}, 5).status(), invalid, "begins at 5 and ends before, at 4");
  expect(model->ReadKeys(0, {}, {.version = 3}, false).status(), absl::StatusCode::kFailedPrecondition,
         "version 3 is not kept any more; the oldest version is 5");
}

TEST(Model_StepOutOfRange, NamesKeyAndColumnAndLeavesAllTensors) {
  const ModelSpec spec = SmallSpec();
  auto model = *Model::Create(spec);
  const Result emb = ResultOf({{2, {1, 1, 1, 1}}}, spec.tensors[0]);
  const Result head = ResultOf({{0, {1}}, {1, {std::numeric_limits<float>::infinity()}}}, spec.tensors[1]);
  const absl::Status begun = model->Begin({&emb, &head}, 0.25);
  EXPECT_EQ(begun.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(begun.message(), HasSubstr("tensor 'head': the step of key 1 gives column 0 a value that is not finite"));
  const ModelFigures figures = model->Figures();
  EXPECT_EQ(figures.version, 0u);
  EXPECT_EQ(model->memory_bytes(), 0u);
  EXPECT_EQ(figures.tensors[0].num_rows, 0u);
  EXPECT_EQ(figures.tensors[1].learning_rate, 1.0);
  EXPECT_EQ(figures.versions.size(), 1u);
}

TEST(Model_LearningRate, CountsFromItsStepOn) {
  const ModelSpec spec = SmallSpec();
  auto model = *Model::Create(spec);
  const Result head = ResultOf({{0, {1}}}, spec.tensors[1]);
  for (const double rate : {0.5, 0.25}) {
    ASSERT_EQ(model->Begin({nullptr, &head}, rate), absl::OkStatus());
    model->Commit({});
  }
  EXPECT_EQ(model->Figures().tensors[0].learning_rate, 0.25);
  const uint64_t key = 0;
  const auto read = model->ReadKeys(1, {&key, 1}, {}, false);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(read->rows.values.data()), 0.75f);
}

TEST(Model_MoreRowsAtOnceThanMaxRows, AreRefused) {
  ModelSpec spec = SmallSpec();
  spec.tensors[1].max_rows = 1;
  const Result head = ResultOf({{0, {1}}, {2, {1}}}, spec.tensors[1]);
  EXPECT_EQ(Model::Create(spec, {nullptr, &head}).status().code(), absl::StatusCode::kResourceExhausted);
  auto model = *Model::Create(spec);
  const absl::Status begun = model->Begin({nullptr, &head});
  EXPECT_EQ(begun.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(begun.message(), HasSubstr("tensor 'head': 2 rows at once; max_rows is 1"));
}

TEST(Model_ManyRemovals_AreForgotten, AndReadsSinceThenAreRefused) {
  ModelSpec spec;
  spec.keep_versions = 1;
  spec.tensors.resize(1);
  spec.tensors[0].name = "t";
  spec.tensors[0].expire_after = 1;
  auto model = *Model::Create(spec);
  Rows rows;
  for (uint64_t key = 0; key < 70'000; ++key) rows[key * 3] = {1.0f};
  const Result all = ResultOf(rows, spec.tensors[0]);
  for (int version = 1; version <= 4; ++version) {  // version 3 removes them, version 4 forgets that
    ASSERT_EQ(model->Begin({version == 1 ? &all : nullptr}), absl::OkStatus());
    model->Commit({});
    const ModelFigures figures = model->Figures();
    EXPECT_EQ(figures.tensors[0].num_rows, version < 3 ? 70'000u : 0u);
    EXPECT_EQ(figures.tensors[0].num_removed, version < 3 ? 0u : 70'000u);
    EXPECT_EQ(figures.tensors[0].oldest_since, version < 4 ? 0u : 3u);
    EXPECT_EQ(model->memory_bytes() == 0, version == 4);
    if (version != 3) continue;
    const auto removed = model->ReadRange(0, 0, 0, {.since = 2}, 100'000);
    ASSERT_TRUE(removed.ok());
    EXPECT_EQ(removed->num_keys, 70'000u);
    EXPECT_EQ(removed->num_sent, 0u);
  }
  const absl::Status forgotten = model->ReadKeys(0, {}, {.since = 2}, false).status();
  EXPECT_EQ(forgotten.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(forgotten.message(), HasSubstr("removals before version 3 are forgotten; read the whole tensor"));
  EXPECT_TRUE(model->ReadKeys(0, {}, {.since = 3}, false).ok());
}

TEST(Model_DamagedSnapshots, AreDataLoss) {
  const ModelSpec spec = SmallSpec();
  auto model = *Model::Create(spec);
  const Result emb = ResultOf({{2, {1, 1, 1, 1}}, {5, {1, 1, 1, 1}}}, spec.tensors[0]);
  ASSERT_EQ(model->Begin({&emb, nullptr}), absl::OkStatus());
  model->Commit({.source = "rounds/r", .empty_reason = "none"});
  const std::vector<std::string> pieces = Saved(*model);
  ASSERT_EQ(pieces.size(), 2u);
  const auto restore = [&](std::vector<std::string> changed) { return RestoreAll(changed, **Model::Create(spec)); };
  EXPECT_EQ(restore(pieces), absl::OkStatus());
  EXPECT_EQ(restore({pieces[0]}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(restore({pieces[1]}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(restore({pieces[0], pieces[1], pieces[1]}).code(), absl::StatusCode::kDataLoss);
  for (size_t piece = 0; piece < 2; ++piece) {
    for (size_t size = 0; size < pieces[piece].size(); ++size) {
      std::vector<std::string> cut = pieces;
      cut[piece].resize(size);
      EXPECT_EQ(restore(cut).code(), absl::StatusCode::kDataLoss) << piece << " cut at " << size;
    }
  }
  for (size_t bit = 0; bit < 8 * pieces[0].size(); ++bit) {  // the store's checksums find these: no bad access here
    std::vector<std::string> changed = pieces;
    changed[0][bit / 8] = static_cast<char>(changed[0][bit / 8] ^ 1 << bit % 8);
    const absl::Status restored = restore(changed);
    EXPECT_TRUE(restored.ok() || restored.code() == absl::StatusCode::kDataLoss) << bit << ": " << restored;
  }
}

TEST(MatchResults_OfARound, GoByNameAndMustFit) {
  const ModelSpec spec = SmallSpec();
  TensorSpec head;
  head.name = "head";
  head.num_rows = 3;
  TensorSpec emb = head;
  emb.name = "emb";
  emb.num_rows = spec.tensors[0].num_rows;
  emb.row_width = spec.tensors[0].row_width;
  std::vector<Result> results = {ResultOf({{0, {1}}}, spec.tensors[1]), ResultOf({{2, Row(4)}}, spec.tensors[0])};
  EXPECT_THAT(*MatchResults(spec, {head, emb}, results, false), ::testing::ElementsAre(&results[1], &results[0]));
  results[1] = ResultOf({}, spec.tensors[0]);
  EXPECT_THAT(*MatchResults(spec, {head, emb}, results, false), ::testing::ElementsAre(nullptr, &results[0]));
  results[0] = DenseResultOf({}, spec.tensors[1]);  // no row is present
  EXPECT_THAT(*MatchResults(spec, {head}, results, false), ::testing::ElementsAre(nullptr, nullptr));
  const auto refuse = [&](TensorSpec changed, const char* text) {
    const absl::Status status = MatchResults(spec, {changed}, results, false).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  TensorSpec other = head;
  other.name = "tail";
  refuse(other, "the model has no tensor 'tail'; it has: emb, head");
  other = head;
  other.row_width = 2;
  refuse(other, "num_rows 3 and row_width 2, the model has 3 and 1");
  other = head;
  other.dtype = DType::kInt32;
  refuse(other, "the round's result is int64; the model takes float32 and float64");
  other = head;
  other.aggregation.op = Op::kUnion;
  refuse(other, "a union has no values");
  other = head;
  other.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;
  refuse(other, "on_nonfinite propagate");
  EXPECT_TRUE(MatchResults(spec, {other}, results, /*is_initial=*/true).ok());
}

}  // namespace
}  // namespace sparseagg::testing
