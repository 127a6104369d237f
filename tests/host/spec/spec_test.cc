// Validate: which specs have a meaning.
#include "host/spec/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/spec/dtype.h"

namespace sparseagg {
namespace {

using ::testing::HasSubstr;

constexpr DType kAllDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                                DType::kInt32,   DType::kInt64,   DType::kUInt32,   DType::kUInt64};
constexpr Op kAllOps[] = {Op::kSum, Op::kMean, Op::kCoordinateMean, Op::kUnion, Op::kMin, Op::kMax};

TensorSpec Plain() {
  TensorSpec spec;
  spec.name = "embedding";
  spec.num_rows = 100;
  return spec;
}

TensorSpec FixedPoint() {
  TensorSpec spec = Plain();
  spec.aggregation.numerics = Numerics::kFixedPoint;
  spec.aggregation.value_bound = 1.0;
  spec.aggregation.max_submissions = 10;
  return spec;
}

struct SpecCase {
  std::string name;
  std::function<void(TensorSpec&)> change;
  std::vector<std::string> words;  // of the message, besides the tensor's name; none: the spec is good
  bool fixed_point = false;        // starts from FixedPoint() instead of Plain()
};

void Check(const std::vector<SpecCase>& cases) {
  for (const SpecCase& c : cases) {
    SCOPED_TRACE(c.name);
    TensorSpec spec = c.fixed_point ? FixedPoint() : Plain();
    ASSERT_TRUE(Validate(spec).ok()) << "before the change";
    c.change(spec);
    const absl::Status status = Validate(spec);
    if (c.words.empty()) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(Quoted(spec)));
    for (const std::string& word : c.words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

TEST(Spec, RowWidth_OutOfRange_IsRefused) {
  Check({{"row_width 0", [](TensorSpec& s) { s.row_width = 0; }, {"row_width", "0"}},
         {"row_width 1", [](TensorSpec& s) { s.row_width = 1; }, {}},
         {"wide", [](TensorSpec& s) { s.row_width = 1 << 20; }, {}}});
}

TEST(Spec, Modular_GoesWithUnsignedDTypesOnly) {
  for (const DType dtype : kAllDTypes) {
    TensorSpec spec = Plain();
    spec.dtype = dtype;
    EXPECT_EQ(Validate(spec).ok(), !IsModular(dtype)) << Name(dtype);
    if (IsModular(dtype)) {
      EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr("modular"));
    }
    spec.modular = true;
    EXPECT_EQ(Validate(spec).ok(), IsModular(dtype)) << Name(dtype);
    if (!IsModular(dtype)) {
      EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr(std::string(Name(dtype))));
    }
  }
}

TEST(Spec, Modular_TakesSumAndUnionUniform) {
  for (const DType dtype : {DType::kUInt32, DType::kUInt64}) {
    TensorSpec spec = Plain();
    spec.dtype = dtype;
    spec.modular = true;
    for (const Op op : kAllOps) {
      spec.aggregation.op = op;
      EXPECT_EQ(Validate(spec).ok(), op == Op::kSum || op == Op::kUnion) << Name(op);
      if (!Validate(spec).ok()) {
        EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr(std::string(Name(op))));
      }
    }
    spec.aggregation.op = Op::kSum;
    spec.aggregation.weighting = Weighting::kByWeight;
    EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr("weight"));
    spec.aggregation.weighting = Weighting::kUniform;
    spec.aggregation.result_dtype = DType::kFloat32;
    EXPECT_THAT(std::string(Validate(spec).message()), HasSubstr("result_dtype"));
  }
}

TEST(Spec, ResultDType_IsFloat32OrFloat64) {
  for (const DType dtype : kAllDTypes) {
    for (const DType wire : {DType::kFloat16, DType::kFloat64, DType::kInt32, DType::kInt64}) {
      TensorSpec spec = Plain();
      spec.dtype = wire;
      spec.aggregation.result_dtype = dtype;
      EXPECT_EQ(Validate(spec).code(), dtype == DType::kFloat32 || dtype == DType::kFloat64
                                           ? absl::StatusCode::kOk
                                           : absl::StatusCode::kInvalidArgument)
          << Name(dtype);
    }
  }
}

TEST(Spec, DenseLayouts_NeedNumRows) {
  Check({{"dense result", [](TensorSpec& s) { s.aggregation.result_layout = ResultLayout::kDense; }, {}},
         {"dense tensor", [](TensorSpec& s) { s.layout = Layout::kDense; }, {}},
         {"dense result, num_rows 0",
          [](TensorSpec& s) { s.aggregation.result_layout = ResultLayout::kDense, s.num_rows = 0; },
          {"num_rows"}},
         {"dense tensor, num_rows 0", [](TensorSpec& s) { s.layout = Layout::kDense, s.num_rows = 0; }, {"num_rows"}},
         {"auto, num_rows 0",
          [](TensorSpec& s) { s.aggregation.result_layout = ResultLayout::kAuto, s.num_rows = 0; },
          {}},
         {"sparse, num_rows 0", [](TensorSpec& s) { s.num_rows = 0; }, {}}});
}

TEST(Spec, DenseThreshold_IsInZeroToOne) {
  const auto threshold = [](double t) { return [t](TensorSpec& s) { s.aggregation.dense_threshold = t; }; };
  Check({{"1", threshold(1.0), {}},
         {"smallest", threshold(0x1p-1074), {}},
         {"0", threshold(0.0), {"dense_threshold", "0"}},
         {"negative", threshold(-0.5), {"dense_threshold", "-0.5"}},
         {"above 1", threshold(1.5), {"dense_threshold", "1.5"}},
         {"nan", threshold(std::nan("")), {"dense_threshold"}},
         {"inf", threshold(HUGE_VAL), {"dense_threshold"}}});
}

TEST(Spec, Fill_OfIntegerResults_IsAnIntegerInRange) {
  const auto fill = [](DType dtype, double value, Op op = Op::kSum) {
    return [=](TensorSpec& s) {
      s.dtype = dtype;
      s.modular = IsModular(dtype);
      s.aggregation.op = op;
      s.aggregation.fill = value;
    };
  };
  const auto float_result = [](double value) {
    return [=](TensorSpec& s) {
      s.dtype = DType::kInt32;
      s.aggregation.result_dtype = DType::kFloat32;
      s.aggregation.fill = value;
    };
  };
  Check({{"float", fill(DType::kFloat16, 0.1), {}},
         {"int", fill(DType::kInt32, -3.0), {}},
         {"int beyond int32", fill(DType::kInt32, 0x1p40), {}},
         {"fraction", fill(DType::kInt64, 0.5), {"fill", "0.5"}},
         {"least int64", fill(DType::kInt64, -0x1p63), {}},
         {"2^63", fill(DType::kInt64, 0x1p63), {"fill"}},
         {"below int64", fill(DType::kInt64, -0x1p63 - 2048.0), {"fill"}},
         {"largest uint32", fill(DType::kUInt32, 4294967295.0), {}},
         {"2^32", fill(DType::kUInt32, 0x1p32), {"fill"}},
         {"negative uint32", fill(DType::kUInt32, -1.0), {"fill", "-1"}},
         {"large uint64", fill(DType::kUInt64, 0x1p63), {}},
         {"2^64", fill(DType::kUInt64, 0x1p64), {"fill"}},
         {"union has no values", fill(DType::kInt64, 0.5, Op::kUnion), {}},
         {"int to float", float_result(0.5), {}}});
}

TEST(Spec, FixedPoint_Floats_NeedBounds) {
  const auto by_weight = [](double bound) {
    return [bound](TensorSpec& s) {
      s.aggregation.weighting = Weighting::kByWeight;
      s.aggregation.weight_bound = bound;
    };
  };
  const auto value_bound = [](double bound) { return [bound](TensorSpec& s) { s.aggregation.value_bound = bound; }; };
  Check({{"no value_bound", value_bound(0.0), {"value_bound"}, true},
         {"negative value_bound", value_bound(-1.0), {"value_bound", "-1"}, true},
         {"nan value_bound", value_bound(std::nan("")), {"value_bound"}, true},
         {"inf value_bound", value_bound(HUGE_VAL), {"value_bound"}, true},
         {"smallest value_bound", value_bound(0x1p-900), {}, true},
         {"below", value_bound(0x1.fp-901), {"value_bound"}, true},
         {"largest value_bound", value_bound(0x1p900), {}, true},
         {"above", value_bound(0x1.1p900), {"value_bound"}, true},
         {"no max_submissions", [](TensorSpec& s) { s.aggregation.max_submissions = 0; }, {"max_submissions"}, true},
         {"no weight_bound", by_weight(0.0), {"weight_bound"}, true},
         {"negative weight_bound", by_weight(-2.0), {"weight_bound", "-2"}, true},
         {"nan weight_bound", by_weight(std::nan("")), {"weight_bound"}, true},
         {"weight_bound", by_weight(100.0), {}, true},
         {"largest weight_bound", by_weight(0x1p900), {}, true},
         {"too large weight_bound", by_weight(0x1p901), {"weight_bound"}, true},
         {"propagate",
          [](TensorSpec& s) { s.aggregation.on_nonfinite = NonfinitePolicy::kPropagate; },
          {"propagate"},
          true}});
}

TEST(Spec, FixedPoint_OtherOpsAndIntegers_NeedNoBounds) {
  for (const Op op : kAllOps) {
    for (const DType dtype : {DType::kFloat32, DType::kInt32, DType::kInt64, DType::kUInt32}) {
      TensorSpec spec = Plain();
      spec.aggregation.numerics = Numerics::kFixedPoint;
      spec.aggregation.op = op;
      spec.dtype = dtype;
      spec.modular = IsModular(dtype);
      const bool is_sum = op == Op::kSum || op == Op::kMean || op == Op::kCoordinateMean;
      if (spec.modular && op != Op::kSum && op != Op::kUnion) continue;
      EXPECT_EQ(Validate(spec).ok(), !(dtype == DType::kFloat32 && is_sum)) << Name(op) << " " << Name(dtype);
      EXPECT_EQ(UsesFixedPoint(spec), dtype == DType::kFloat32 && is_sum);
      if (dtype == DType::kFloat32 && !is_sum) {
        spec.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;
        EXPECT_TRUE(Validate(spec).ok()) << "nothing is fixed-point here";
      }
    }
  }
}

TEST(Spec, FixedPoint_WeightsThatAreSummed_NeedABound) {
  // Means of integers, and return_weights with any op.
  for (const Op op : kAllOps) {
    for (const bool return_weights : {false, true}) {
      TensorSpec spec = Plain();
      spec.dtype = DType::kInt32;
      AggregationSpec& a = spec.aggregation;
      a.op = op;
      a.numerics = Numerics::kFixedPoint;
      a.weighting = Weighting::kByWeight;
      a.return_weights = return_weights;
      a.max_submissions = 10;
      const bool is_needed = return_weights || op == Op::kMean || op == Op::kCoordinateMean;
      EXPECT_EQ(Validate(spec).ok(), !is_needed) << Name(op);
      a.weight_bound = 1000.0;
      EXPECT_TRUE(Validate(spec).ok()) << Name(op);
      a.max_submissions = 0;
      EXPECT_EQ(Validate(spec).ok(), !is_needed) << Name(op);
    }
  }
}

}  // namespace
}  // namespace sparseagg
