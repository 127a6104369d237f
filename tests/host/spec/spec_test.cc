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

struct SpecCase {
  std::string name;
  std::function<void(TensorSpec&)> change;
  std::vector<std::string> words;  // of the message, besides the tensor's name; none: the spec is good
};

void Check(const std::vector<SpecCase>& cases) {
  for (const SpecCase& c : cases) {
    SCOPED_TRACE(c.name);
    TensorSpec spec = Plain();
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

TEST(Spec, Binned_IsForSumsOfFloats) {
  for (const Op op : kAllOps) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kUInt32}) {
      TensorSpec spec = Plain();
      spec.aggregation.numerics = Numerics::kBinned;
      spec.aggregation.op = op;
      spec.dtype = dtype;
      spec.modular = IsModular(dtype);
      EXPECT_EQ(Validate(spec).ok(), IsFloat(dtype) && IsSum(op)) << Name(op) << " " << Name(dtype);
      EXPECT_TRUE(!Validate(spec).ok() || !OrderMatters(spec));
    }
  }
}

}  // namespace
}  // namespace sparseagg
