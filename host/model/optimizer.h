// One step of an optimizer on rows: the one definition, for models and for sparseagg.optimizers in Python.
#ifndef SPARSEAGG_HOST_MODEL_OPTIMIZER_H_
#define SPARSEAGG_HOST_MODEL_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>

#include "host/model/model_spec.h"
#include "host/spec/dtype.h"

namespace sparseagg {

// The state of a tensor that all its rows share. Saved with the model. Not thread-safe.
class StepState {
 public:
  explicit StepState(const OptimizerSpec& spec) : StepState(spec.learning_rate, spec.beta_1, spec.beta_2) {}
  // Restores a saved state.
  StepState(double learning_rate, double power_1, double power_2)
      : learning_rate_(learning_rate), power_1_(power_1), power_2_(power_2) {}

  // Counts a step of the tensor: multiplies the powers by beta_1 and beta_2.
  void Advance(const OptimizerSpec& spec) {
    power_1_ *= spec.beta_1;
    power_2_ *= spec.beta_2;
  }
  // Returns: the rate of the current step: learning_rate, or with bias correction
  // learning_rate · (√(1 − power_2) / (1 − power_1)).
  double Rate(const OptimizerSpec& spec) const;

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }
  double power_1() const { return power_1_; }
  double power_2() const { return power_2_; }

 private:
  double learning_rate_;
  double power_1_;  // beta_1 at the start, so that step t has beta_1^(t+1), as in Flower
  double power_2_;
};

// Values of some rows, one row after the other, each array with as many values. Borrowed; changed in place.
struct StepRows {
  size_t num_values = 0;
  DType dtype = DType::kFloat32;  // of x: a float; kAssign: any
  void* x = nullptr;
  void* m = nullptr;                    // float32; float64 if x is; null unless HasM
  void* v = nullptr;                    // likewise, HasV
  DType delta_dtype = DType::kFloat32;  // any float; that of x if x is of integers, or int64 for int32
  const void* delta = nullptr;
  double delta_factor = 1.0;  // of delta, in float64: −1 for gradients
};

// Takes one step of each row. `rate`: StepState::Rate. Computes in float64, in the order that models.proto writes,
// without fused operations; rounds x, m and v once each.
// Returns: the index of the first value of which x, m or v is not finite afterwards, with kAssign of the first one that
// an int32 x does not hold; num_values if there is none. All values are computed in any case. Requires:
// DefaultFloatEnvironment. Thread-safe. Deterministic: equal inputs give equal bits, however the rows are divided among
// calls. Cost: about 4 ns a value of FedAdam.
size_t TakeStep(const OptimizerSpec& spec, double rate, const StepRows& rows);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_OPTIMIZER_H_
