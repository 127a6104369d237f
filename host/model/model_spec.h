// Specification of a model: its tensors, their initial values, and the optimizer. proto/sparseagg/v1/models.proto has
// the contract.
#ifndef SPARSEAGG_HOST_MODEL_MODEL_SPEC_H_
#define SPARSEAGG_HOST_MODEL_MODEL_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/spec/dtype.h"
#include "host/spec/spec.h"

namespace sparseagg {

enum class InitKind : uint8_t { kZeros, kUniform, kNormal };

// The values of untouched rows.
struct InitSpec {
  InitKind kind = InitKind::kZeros;
  double scale = 0.0;
  uint64_t seed = 0;
};

enum class OptimizerKind : uint8_t { kSgd, kFedAvgM, kFedAdagrad, kFedAdam, kFedYogi, kAssign };

// An optimizer with its defaults resolved (DefaultOptimizer). An option that the kind does not have is 0.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 1.0;
  double momentum = 0.0;
  double beta_1 = 0.0;
  double beta_2 = 0.0;
  double tau = 0.0;
  bool bias_correction = false;
  bool gradients = false;  // the merged rows are gradients: the step takes their negative

  bool HasM() const { return kind == OptimizerKind::kFedAvgM || (IsAdaptive() && beta_1 != 0.0); }
  bool HasV() const { return IsAdaptive(); }
  // Returns: the values of state that each value of a row has: 0 to 2.
  size_t NumSlots() const { return (HasM() ? 1 : 0) + (HasV() ? 1 : 0); }
  bool IsAdaptive() const {
    return kind == OptimizerKind::kFedAdagrad || kind == OptimizerKind::kFedAdam || kind == OptimizerKind::kFedYogi;
  }
};

// Returns: the optimizer of this kind with the default of each option.
OptimizerSpec DefaultOptimizer(OptimizerKind kind);

// One tensor of a model.
struct ModelTensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t num_rows = 0;  // 0: any uint64 is a key
  uint32_t row_width = 1;
  InitSpec init;
  OptimizerSpec optimizer;
  uint32_t expire_after = 0;  // versions; 0: rows never expire
  uint64_t max_rows = 0;      // 0: no limit

  size_t row_bytes() const { return SizeOf(dtype) * row_width; }
  // The planes of a row: x, then m and v if the optimizer has them. Returns: bytes of one.
  size_t NumPlanes() const { return 1 + optimizer.NumSlots(); }
  size_t PlaneBytes(size_t plane) const {
    return plane == 0 ? row_bytes() : row_width * (dtype == DType::kFloat64 ? sizeof(double) : sizeof(float));
  }
  // Returns: bytes of a touched row with its state: the memory formula of Model.memory_bytes without older versions.
  size_t TouchedRowBytes() const;
  // Returns: the keys of a block: the largest power of two up to 16384 whose rows take at most 256 KiB, or 1.
  uint32_t BlockRows() const;
};

enum class ReadsPolicy : uint8_t { kUnset, kKeys, kBlocks, kWhole };

struct ModelSpec {
  std::vector<ModelTensorSpec> tensors;
  uint32_t keep_versions = 2;  // older versions that can be read
  ReadsPolicy reads = ReadsPolicy::kUnset;

  // Returns: the index of the tensor; an empty name stands for the only tensor. Errors: INVALID_ARGUMENT: no such
  // tensor; the message lists the tensors.
  absl::StatusOr<size_t> ChooseTensor(absl::string_view name) const;
};

// Checks that every combination of fields has a meaning. Errors: INVALID_ARGUMENT names tensor, field and value.
absl::Status Validate(const ModelSpec& spec);
// The same of the ranges of an optimizer's options. `tensor`: for the error; empty: the model's.
absl::Status Validate(const OptimizerSpec& spec, absl::string_view tensor);

// Checks that results of a round's tensor can be applied to a tensor of a model. `is_initial`: as version 0, without a
// step. Errors: INVALID_ARGUMENT: another num_rows, row_width or dtype, or a union, which has no values.
// FAILED_PRECONDITION: the optimizer adds, and the round propagates non-finite values. Both name tensor and values.
absl::Status CheckFits(const ModelTensorSpec& tensor, const TensorSpec& of_round, bool is_initial);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_MODEL_SPEC_H_
