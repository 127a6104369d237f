// ResolveClips: which bounds apply to which tensor, and which have no meaning.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "host/spec/clip.h"

namespace sparseagg {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TensorSpec Tensor(const char* name, DType dtype = DType::kFloat32) {
  TensorSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.num_rows = 100;
  return spec;
}

TEST(ResolveClips, BoundsWithoutMeaning_AreRefusedByName) {
  TensorSpec dense = Tensor("e");
  dense.layout = Layout::kDense;
  TensorSpec propagates = Tensor("e");
  propagates.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;
  TensorSpec median = Tensor("e");
  median.aggregation.op = Op::kMedian;
  TensorSpec keys = Tensor("e");
  keys.aggregation.op = Op::kUnion;
  const TensorSpec floats = Tensor("e");
  const TensorSpec integers = Tensor("e", DType::kInt64);
  const ClipSpec none;
  struct Case {
    ClipSpec round;
    ClipSpec own;
    TensorSpec spec;
    const char* text;
  };
  const ClipSpec only_policy = {.on_clip = ClipPolicy::kReject};
  for (const auto& [round, own, spec, text] : std::vector<Case>{
           {{.l2 = 0.0}, none, floats, "clip.l2 0 is not in [2^-500, 2^500]"},
           {{.l2 = kInfinity}, none, floats, "clip.l2 inf is not in [2^-500, 2^500]"},
           {{.l2 = std::numeric_limits<double>::quiet_NaN()}, none, floats, "clip.l2 nan is not in [2^-500, 2^500]"},
           {{.linf = -1.0}, none, floats, "clip.linf -1 is not in [2^-500, 2^500]"},
           {{.linf = 0x1p501}, none, floats, "clip.linf 6.54678e+150 is not in [2^-500, 2^500]"},
           {{.max_keys = 0}, none, floats, "clip.max_keys 0: nothing would be left"},
           {only_policy, none, floats, "clip has on_clip and no bound: l2, linf or max_keys"},
           {{.l2 = 1.0}, none, integers, "clip.l2 has no effect: no tensor of floats takes it"},
           {{.linf = 1.0}, none, keys, "clip.linf has no effect: no tensor of floats takes it"},
           {{.max_keys = 1}, none, dense, "clip.max_keys has no effect: no sparse tensor of floats takes it"},
           {{.l2 = 1.0}, {.l2 = 2.0}, floats, "clip.l2 has no effect: no tensor of floats takes it"},
           {{.l2 = 1.0}, none, propagates, "tensor 'e': clip needs on_nonfinite reject: NaN and Inf have no norm"},
           {{.l2 = 1.0},
            none,
            median,
            "tensor 'e': clip.l2 multiplies values, and order statistics choose among values as they are; use on_clip "
            "reject, or linf and max_keys"},
           {none, {.l2 = -2.0}, floats, "tensor 'e': clip.l2 -2 is not in [2^-500, 2^500]"},
           {none, {.l2 = 1.0}, integers, "tensor 'e': clip is for floats, not int64"},
           {none, {.linf = 1.0}, keys, "tensor 'e': clip is for values, and union has none"},
           {none,
            {.max_keys = 5},
            dense,
            "tensor 'e': clip.max_keys 5 is for sparse tensors: a dense one has all 100 keys"},
           {{.l2 = 1.0},
            only_policy,
            floats,
            "tensor 'e': clip.on_clip has no effect: the tensor has no bound of its own"},
       }) {
    std::vector<TensorSpec> specs = {spec};
    const absl::Status status = ResolveClips(round, {own}, absl::MakeSpan(specs));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(), text);
  }
}

}  // namespace
}  // namespace sparseagg
