// The formulas of models.proto, one value at a time.
#ifndef SPARSEAGG_TESTS_HOST_MODEL_STEP_REFERENCE_H_
#define SPARSEAGG_TESTS_HOST_MODEL_STEP_REFERENCE_H_

#include <cmath>

#include "host/model/model_spec.h"

namespace sparseagg::testing {

struct StepValue {
  double x = 0.0, m = 0.0, v = 0.0;
};

// Returns: the value after step `steps` (1, 2, …) of the tensor, not rounded.
inline StepValue ReferenceStep(const OptimizerSpec& spec, int steps, StepValue value, double delta) {
  const double d = spec.gradients ? -delta : delta;
  double rate = spec.learning_rate;
  if (spec.bias_correction) {
    double p1 = spec.beta_1, p2 = spec.beta_2;
    for (int t = 0; t < steps; ++t) p1 *= spec.beta_1, p2 *= spec.beta_2;
    rate = spec.learning_rate * (std::sqrt(1.0 - p2) / (1.0 - p1));
  }
  const double square = d * d;
  switch (spec.kind) {
    case OptimizerKind::kAssign:
      return {delta, 0.0, 0.0};
    case OptimizerKind::kSgd:
      return {value.x + rate * d, 0.0, 0.0};
    case OptimizerKind::kFedAvgM:
      value.m = spec.momentum * value.m + d;
      return {value.x + rate * value.m, value.m, 0.0};
    case OptimizerKind::kFedAdagrad:
      value.v += square;
      break;
    case OptimizerKind::kFedAdam:
      value.v = spec.beta_2 * value.v + (1.0 - spec.beta_2) * square;
      break;
    case OptimizerKind::kFedYogi:
      const double difference = value.v - square;
      const double sign = difference > 0 ? 1.0 : difference < 0 ? -1.0 : 0.0;
      value.v = value.v - (1.0 - spec.beta_2) * square * sign;
      break;
  }
  double m = d;
  if (spec.beta_1 != 0.0) m = value.m = spec.beta_1 * value.m + (1.0 - spec.beta_1) * d;
  value.x = value.x + rate * m / (std::sqrt(value.v) + spec.tau);
  return value;
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_MODEL_STEP_REFERENCE_H_
