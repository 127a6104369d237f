#include "host/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace sparseagg::testing {
namespace {

ModelSpec GoodSpec() {
  ModelSpec spec;
  spec.tensors.resize(2);
  spec.tensors[0].name = "a";
  spec.tensors[1].name = "b";
  return spec;
}

TEST(ValidateModel_SpecWithoutMeaning, NamesTensorAndField) {
  EXPECT_EQ(Validate(GoodSpec()), absl::OkStatus());
  struct Case {
    void (*change)(ModelSpec&);
    const char* text;
  };
  constexpr Case kCases[] = {
      {[](ModelSpec& s) { s.tensors.clear(); }, "at least one tensor"},
      {[](ModelSpec& s) { s.tensors[1].name = "a"; }, "tensor 'a': the name is given twice"},
      {[](ModelSpec& s) { s.tensors[1].name = ""; }, "the name of a tensor"},
      {[](ModelSpec& s) { s.tensors[1].row_width = 0; }, "tensor 'b': row_width"},
      {[](ModelSpec& s) { s.tensors[1].init.scale = 1; }, "tensor 'b': initial zeros have neither scale nor seed"},
      {[](ModelSpec& s) { s.tensors[1].init.kind = InitKind::kUniform; }, "the scale 0 of initial values"},
      {[](ModelSpec& s) {
         s.tensors[1].init = {InitKind::kNormal, 0x1p101, 0};
       },
       "is not in [2^-126, 2^100]"},
      {[](ModelSpec& s) {
         s.tensors[1].dtype = DType::kInt64;
         s.tensors[1].init = {InitKind::kNormal, 1.0, 0};
       },
       "tensor 'b': initial values of dtype int64 can only be zeros"},
      {[](ModelSpec& s) { s.tensors[1].dtype = DType::kFloat16; }, "the optimizer sgd is for float32 and float64"},
      {[](ModelSpec& s) { s.tensors[1].optimizer.learning_rate = -1; },
       "tensor 'b': learning_rate -1 of the optimizer"},
      {[](ModelSpec& s) { s.tensors[1].optimizer.learning_rate = std::numeric_limits<double>::infinity(); }, "inf"},
      {[](ModelSpec& s) { s.tensors[1].optimizer.momentum = 1; }, "momentum 1 of the optimizer sgd is not in [0, 1)"},
      {[](ModelSpec& s) { s.tensors[1].optimizer.beta_1 = -0.1; }, "beta_1 -0.1"},
      {[](ModelSpec& s) { s.tensors[1].optimizer.beta_2 = std::numeric_limits<double>::quiet_NaN(); }, "beta_2 nan"},
      {[](ModelSpec& s) {
         s.tensors[1].optimizer = DefaultOptimizer(OptimizerKind::kFedAdam);
         s.tensors[1].optimizer.tau = 0;
       },
       "tau 0 of the optimizer fedadam is not a finite number above 0"},
      {[](ModelSpec& s) { s.reads = ReadsPolicy::kBlocks; }, "tensor 'a': reads blocks needs num_rows"},
      {[](ModelSpec& s) { s.keep_versions = 0; }, "keep_versions 0 is not in [1, 65535]"},
      {[](ModelSpec& s) { s.keep_versions = 65536; }, "keep_versions 65536"},
  };
  for (const Case& bad : kCases) {
    ModelSpec spec = GoodSpec();
    bad.change(spec);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(bad.text));
  }
}

TEST(DefaultOptimizer_EveryKind, IsValid) {
  for (int kind = 0; kind <= static_cast<int>(OptimizerKind::kAssign); ++kind) {
    EXPECT_EQ(Validate(DefaultOptimizer(static_cast<OptimizerKind>(kind)), ""), absl::OkStatus());
  }
}

TEST(ModelTensorSpec_BlockRows, FillAtMost256KiB) {
  ModelTensorSpec tensor;
  tensor.row_width = 64;
  EXPECT_EQ(tensor.BlockRows(), 1024u);
  tensor.row_width = 65;
  EXPECT_EQ(tensor.BlockRows(), 512u);
  tensor.row_width = 1;
  EXPECT_EQ(tensor.BlockRows(), 16384u);
  tensor.row_width = 100'000;
  EXPECT_EQ(tensor.BlockRows(), 1u);
}

}  // namespace
}  // namespace sparseagg::testing
