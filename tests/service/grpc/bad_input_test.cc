// Bad input: the code and the text of each error. The round must be as if the submission had never been sent.
#include <functional>
#include <limits>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct BadInput {
  const char* name;
  std::function<void(v1::UpdateChunk&)> spoil;  // a good chunk, the whole submission
  Code code;
  std::vector<std::string> message;  // what it must name
  bool chunk_zero_only = false;      // no fault in a later chunk
};

void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

// Returns: a spec of sparse "v" with row_width 2 and dense "d", weighted.
v1::RoundSpec TableSpec() {
  v1::RoundSpec spec = SumSpec(100);
  spec.mutable_tensors(0)->set_row_width(2);
  v1::TensorSpec* dense = spec.add_tensors();
  dense->set_name("d");
  dense->set_dtype(v1::DTYPE_FLOAT32);
  dense->set_num_rows(3);
  dense->set_layout(v1::TENSOR_LAYOUT_DENSE);
  dense->mutable_aggregation()->set_op(v1::OP_MEAN);
  spec.mutable_aggregation()->set_weighting(v1::WEIGHTING_BY_WEIGHT);
  spec.mutable_aggregation()->set_return_counts(true);
  spec.mutable_aggregation()->set_return_weights(true);
  spec.set_max_tuples_per_submission(20);
  spec.set_max_bytes_per_submission(200);
  return spec;
}

v1::UpdateChunk GoodChunk(const std::string& round, const std::string& client) {
  v1::UpdateChunk chunk = MakeChunk(round, client, {3, 50, 99}, {1, 2, 3, 4, 5, 6});
  v1::TensorSlice* dense = chunk.add_slices();
  dense->set_tensor("d");
  dense->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
  dense->set_values(Packed<float>({7, 8, 9}));
  chunk.set_weight(2.0);
  return chunk;
}

void SetValue(v1::UpdateChunk& chunk, float value) {
  chunk.mutable_slices(0)->set_values(Packed<float>({1, 2, 3, value, 5, 6}));
}

void SetPackedKeys(v1::UpdateChunk& chunk, v1::KeyEncoding encoding, uint64_t num_keys, const std::string& bytes) {
  v1::TensorSlice* slice = chunk.mutable_slices(0);
  slice->set_key_encoding(encoding);
  slice->set_first_key(3);
  slice->set_num_keys(num_keys);
  slice->set_keys(bytes);
}

class BadInputTest : public ServerFixture, public ::testing::WithParamInterface<BadInput> {
 protected:
  // Runs a round of two good clients, and `between` between them. Returns: the serialized result.
  std::string ResultWith(const std::string& id, const std::function<void(const std::string&)>& between) {
    const std::string name = Create(TableSpec(), id);
    EXPECT_THAT(client().SubmitUnary({GoodChunk(name, "a")}), IsOk());
    between(name);
    EXPECT_THAT(client().SubmitUnary({GoodChunk(name, "z")}), IsOk());
    const auto round = client().Finish(name);
    EXPECT_THAT(round, IsOk());
    EXPECT_EQ(round->state(), v1::ROUND_STATE_DONE);
    EXPECT_EQ(round->num_submissions(), 2);
    EXPECT_EQ(round->num_tuples(), 12);
    EXPECT_EQ(round->num_uploads(), 0);
    return client().ResultBytes(name);
  }
  void ExpectRefusal(const absl::Status& status) {
    EXPECT_THAT(status, HasCode(GetParam().code));
    for (const std::string& part : GetParam().message) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
};

TEST_P(BadInputTest, Submission_Refused_LeavesTheRoundUnharmed) {
  const std::string expected = ResultWith("control", [](const std::string&) {});
  const auto unary = ResultWith("unary", [&](const std::string& name) {
    v1::UpdateChunk chunk = GoodChunk(name, "m");
    GetParam().spoil(chunk);
    ExpectRefusal(client().SubmitUnary({chunk}).status());
    EXPECT_THAT(client().Commit(chunk), ::testing::Not(IsOk()));
  });
  EXPECT_EQ(unary, expected);
  const auto streamed = ResultWith("stream", [&](const std::string& name) {
    v1::UpdateChunk chunk = GoodChunk(name, "m");
    GetParam().spoil(chunk);
    ExpectRefusal(client().SubmitStream({chunk}).status());
  });
  EXPECT_EQ(streamed, expected);
  if (GetParam().chunk_zero_only) return;
  const auto second = ResultWith("second", [&](const std::string& name) {
    v1::UpdateChunk good = MakeChunk(name, "m", {}, {}, 0, false);
    good.set_weight(2.0);
    v1::UpdateChunk chunk = GoodChunk(name, "m");
    chunk.set_sequence(1);
    GetParam().spoil(chunk);
    EXPECT_THAT(client().SubmitStream({good, chunk}), HasCode(GetParam().code));
  });
  EXPECT_EQ(second, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadInputTest,
    ::testing::Values(
        BadInput{"KeyIsNumRows",
                 [](auto& c) {
                   c.mutable_slices(0)->set_keys(Packed<uint32_t>({3, 100, 99}));
                 },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "100"}},
        BadInput{"NumKeysDisagrees",
                 [](auto& c) { c.mutable_slices(0)->set_num_keys(4); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "num_keys 4"}},
        BadInput{"UnknownTensor",
                 [](auto& c) { c.mutable_slices(0)->set_tensor("nope"); },
                 Code::kInvalidArgument,
                 {"'nope'", "'v'", "'d'"}},
        BadInput{"WrongDtype",
                 [](auto& c) { c.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_INT32); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "int32", "float32"}},
        BadInput{"NotSorted",
                 [](auto& c) {
                   c.mutable_slices(0)->set_keys(Packed<uint32_t>({3, 99, 50}));
                   c.mutable_slices(0)->set_keys_sorted(true);
                 },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "position 2", "keys_sorted", "key 50 follows key 99"}},
        BadInput{"NotUnique",
                 [](auto& c) {
                   c.mutable_slices(0)->set_keys(Packed<uint32_t>({50, 3, 50}));
                   c.mutable_slices(0)->set_keys_unique(true);
                 },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "position 2", "keys_unique", "50"}},
        BadInput{
            "ValueNaN", [](auto& c) { SetValue(c, kNaN); }, Code::kInvalidArgument, {"tensor 'v'", "chunk 0", "nan"}},
        BadInput{"WeightNegative", [](auto& c) { c.set_weight(-1); }, Code::kInvalidArgument, {"weight -1"}},
        BadInput{
            "WeightMissing", [](auto& c) { c.clear_weight(); }, Code::kInvalidArgument, {"weight", "missing"}, true},
        BadInput{
            "DenseMissing", [](auto& c) { c.mutable_slices()->RemoveLast(); }, Code::kInvalidArgument, {"tensor 'd'"}},
        BadInput{"DenseWithKeys",
                 [](auto& c) {
                   c.mutable_slices(1)->set_key_encoding(v1::KEY_ENCODING_U32);
                   c.mutable_slices(1)->set_keys(Packed<uint32_t>({0, 1, 2}));
                 },
                 Code::kInvalidArgument,
                 {"tensor 'd'", "implicit"}},
        BadInput{"KeyEncodingUnknown",
                 [](auto& c) { c.mutable_slices(0)->set_key_encoding(static_cast<v1::KeyEncoding>(42)); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "42", "U32, U64, IMPLICIT, DELTA_BITPACKED"}},
        BadInput{"KeyEncodingMissing",
                 [](auto& c) { c.mutable_slices(0)->clear_key_encoding(); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "key_encoding", "U32, U64, IMPLICIT"}},
        BadInput{"ValueEncodingUnknown",
                 [](auto& c) { c.mutable_slices(0)->set_value_encoding(static_cast<v1::ValueEncoding>(42)); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "42", "FLOAT32"}},
        BadInput{"FirstKeyWithU32",
                 [](auto& c) { c.mutable_slices(0)->set_first_key(1); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "first_key 1"}},
        BadInput{"DeltaPadding",
                 [](auto& c) { SetPackedKeys(c, v1::KEY_ENCODING_DELTA_BITPACKED, 3, "\x06\x80\x0b\xf1"); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "bits behind the last key"}},
        BadInput{"DeltaNumKeysMissing",
                 [](auto& c) {
                   SetPackedKeys(c, v1::KEY_ENCODING_DELTA_BITPACKED, 3, "\x06\x80\x0b\x03");
                   c.mutable_slices(0)->clear_num_keys();
                 },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "num_keys 0"}},
        BadInput{"PackedTooManyTuples",
                 [](auto& c) {
                   SetPackedKeys(c, v1::KEY_ENCODING_DELTA_BITPACKED, 21, std::string(1, '\0'));
                   c.mutable_slices(0)->set_values(Packed(std::vector<float>(42, 1)));
                 },
                 Code::kResourceExhausted,
                 {"tensor 'v'", "chunk 0", "max_tuples_per_submission 20"}},
        BadInput{"PackedTooManyBytes",
                 [](auto& c) {
                   SetPackedKeys(c, v1::KEY_ENCODING_DELTA_BITPACKED, 17, std::string(1, '\0'));
                   c.mutable_slices(0)->set_values(Packed(std::vector<float>(34, 1)));
                 },
                 Code::kResourceExhausted,
                 {"tensor 'v'", "chunk 0", "204, more than max_bytes_per_submission 200"}},
        BadInput{"ValuesOfAWiderType",
                 [](auto& c) { c.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_FLOAT64); },
                 Code::kInvalidArgument,
                 {"tensor 'v'", "chunk 0", "float64", "float32"}},
        BadInput{"NarrowTooManyBytes",
                 [](auto& c) {
                   c.mutable_slices(0)->set_keys(Packed(std::vector<uint32_t>(17, 1)));
                   c.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
                   c.mutable_slices(0)->set_values(Packed(std::vector<uint16_t>(34, 1)));
                 },
                 Code::kResourceExhausted,
                 {"tensor 'v'", "chunk 0", "204, more than max_bytes_per_submission 200"}},
        BadInput{"NoClientId", [](auto& c) { c.clear_client_id(); }, Code::kInvalidArgument, {"client_id"}, true},
        BadInput{"LongClientId",
                 [](auto& c) { c.set_client_id(std::string(257, 'x')); },
                 Code::kInvalidArgument,
                 {"client_id", "257"},
                 true},
        BadInput{"NoSubmissionId",
                 [](auto& c) { c.clear_submission_id(); },
                 Code::kInvalidArgument,
                 {"submission_id"},
                 true},
        BadInput{"LongSubmissionId",
                 [](auto& c) { c.set_submission_id(std::string(257, 'x')); },
                 Code::kInvalidArgument,
                 {"submission_id", "257"}},
        BadInput{"Gap", [](auto& c) { c.set_sequence(5); }, Code::kFailedPrecondition, {"chunk 5", "chunk 0"}, true},
        BadInput{"NotLast", [](auto& c) { c.set_last(false); }, Code::kFailedPrecondition, {"last", "chunk 1"}}),
    [](const auto& test) { return test.param.name; });

class BadInputInLargeRoundTest : public ServerFixture {};

TEST_F(BadInputInLargeRoundTest, MalformedUpdate_InTheMiddleOfARoundOf100_LeavesTheResultOfThe99) {
  const auto run = [&](const std::string& id, bool with_malformed) {
    const std::string name = Create(TableSpec(), id);
    for (int c = 0; c < 100; ++c) {
      v1::UpdateChunk chunk = GoodChunk(name, "client-" + std::to_string(c));
      chunk.set_weight(1.0 / (c + 3));
      SetValue(chunk, 0.1f * c);
      if (c != 50) {
        EXPECT_THAT(c % 2 == 0 ? client().SubmitUnary({chunk}) : client().SubmitStream({chunk}), IsOk());
      } else if (with_malformed) {
        chunk.mutable_slices(0)->set_keys(Packed<uint32_t>({3, 50, 100}));
        EXPECT_THAT(client().SubmitStream({chunk}), HasCode(Code::kInvalidArgument));
      }
    }
    const auto round = client().Finish(name);
    EXPECT_THAT(round, IsOk());
    EXPECT_EQ(round->num_submissions(), 99);
    EXPECT_EQ(round->num_refused(), with_malformed ? 1 : 0);
    return client().ResultBytes(name);
  };
  EXPECT_EQ(run("malformed", true), run("of-99", false));
}

}  // namespace
}  // namespace sparseagg::service
