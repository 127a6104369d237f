#include "host/model/model_spec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "host/base/status_macros.h"

namespace sparseagg {
namespace {

constexpr size_t kMaxBlockBytes = size_t{256} << 10;
constexpr size_t kMaxBlockRows = 16384;
// Of a touched row besides its values: its key, its version, and its entry in the index.
constexpr size_t kRowOverhead = 40;

absl::string_view Name(OptimizerKind kind) {
  constexpr absl::string_view kNames[] = {"sgd", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "assign"};
  return kNames[static_cast<size_t>(kind)];
}

absl::Status Invalid(const ModelTensorSpec& tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "': ", problem));
}

absl::Status ValidateInit(const ModelTensorSpec& tensor) {
  const InitSpec& init = tensor.init;
  if (init.kind == InitKind::kZeros) {
    if (init.scale == 0.0 && init.seed == 0) return absl::OkStatus();
    return Invalid(tensor, "initial zeros have neither scale nor seed");
  }
  if (!IsFloat(tensor.dtype)) {
    return Invalid(tensor, absl::StrCat("initial values of dtype ", Name(tensor.dtype), " can only be zeros"));
  }
  if (init.scale >= 0x1p-126 && init.scale <= 0x1p100) return absl::OkStatus();
  return Invalid(tensor, absl::StrFormat("the scale %g of initial values is not in [2^-126, 2^100]", init.scale));
}

absl::Status ValidateTensor(const ModelTensorSpec& tensor) {
  if (tensor.row_width == 0) return Invalid(tensor, "row_width must be at least 1");
  RETURN_IF_ERROR(ValidateInit(tensor));
  RETURN_IF_ERROR(Validate(tensor.optimizer, tensor.name));
  const bool adds = tensor.optimizer.kind != OptimizerKind::kAssign;
  if (adds && tensor.dtype != DType::kFloat32 && tensor.dtype != DType::kFloat64) {
    return Invalid(tensor, absl::StrCat("the optimizer ", Name(tensor.optimizer.kind), " is for float32 and float64; ",
                                        Name(tensor.dtype), " takes assign"));
  }
  return absl::OkStatus();
}

}  // namespace

OptimizerSpec DefaultOptimizer(OptimizerKind kind) {
  OptimizerSpec spec;
  spec.kind = kind;
  if (kind == OptimizerKind::kAssign) spec.learning_rate = 0.0;
  if (kind == OptimizerKind::kFedAvgM) spec.momentum = 0.9;
  if (!spec.IsAdaptive()) return spec;
  spec.tau = 1e-3;
  spec.learning_rate = kind == OptimizerKind::kFedYogi ? 0.01 : 0.1;
  if (kind == OptimizerKind::kFedAdagrad) return spec;
  spec.beta_1 = 0.9;
  spec.beta_2 = 0.99;
  spec.bias_correction = kind == OptimizerKind::kFedAdam;
  return spec;
}

size_t ModelTensorSpec::TouchedRowBytes() const {
  return row_bytes() + optimizer.NumSlots() * PlaneBytes(1) + kRowOverhead;
}

uint32_t ModelTensorSpec::BlockRows() const {
  const size_t rows = std::clamp<size_t>(kMaxBlockBytes / row_bytes(), 1, kMaxBlockRows);
  return static_cast<uint32_t>(std::bit_floor(rows));
}

absl::StatusOr<size_t> ModelSpec::ChooseTensor(absl::string_view name) const {
  if (name.empty() && tensors.size() == 1) return 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  const auto append = [](std::string* out, const ModelTensorSpec& tensor) { absl::StrAppend(out, tensor.name); };
  return absl::InvalidArgumentError(
      absl::StrCat("the model has no tensor '", name, "'; it has: ", absl::StrJoin(tensors, ", ", append)));
}

absl::Status Validate(const OptimizerSpec& spec, absl::string_view tensor) {
  const auto refuse = [&](absl::string_view option, double value, absl::string_view range) {
    return absl::InvalidArgumentError(absl::StrFormat("%s%s %g of the optimizer %s is not %s",
                                                      tensor.empty() ? "" : absl::StrCat("tensor '", tensor, "': "),
                                                      option, value, Name(spec.kind), range));
  };
  const auto is_fraction = [](double value) { return value >= 0.0 && value < 1.0; };
  if (!(spec.learning_rate >= 0.0 && std::isfinite(spec.learning_rate))) {
    return refuse("learning_rate", spec.learning_rate, "a finite number of 0 or more");
  }
  if (!is_fraction(spec.momentum)) return refuse("momentum", spec.momentum, "in [0, 1)");
  if (!is_fraction(spec.beta_1)) return refuse("beta_1", spec.beta_1, "in [0, 1)");
  if (!is_fraction(spec.beta_2)) return refuse("beta_2", spec.beta_2, "in [0, 1)");
  if (spec.IsAdaptive() && !(spec.tau > 0.0 && std::isfinite(spec.tau))) {
    return refuse("tau", spec.tau, "a finite number above 0");
  }
  return absl::OkStatus();
}

absl::Status Validate(const ModelSpec& spec) {
  if (spec.tensors.empty()) return absl::InvalidArgumentError("a model needs at least one tensor");
  absl::flat_hash_set<absl::string_view> names;
  for (const ModelTensorSpec& tensor : spec.tensors) {
    RETURN_IF_ERROR(CheckId(tensor.name, "the name of a tensor"));
    if (!names.insert(tensor.name).second) return Invalid(tensor, "the name is given twice");
    RETURN_IF_ERROR(ValidateTensor(tensor));
    if (spec.reads == ReadsPolicy::kBlocks && tensor.num_rows == 0)
      return Invalid(tensor, "reads blocks needs num_rows");
  }
  if (spec.keep_versions >= 1 && spec.keep_versions <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("keep_versions ", spec.keep_versions, " is not in [1, 65535]"));
}

absl::Status CheckFits(const ModelTensorSpec& tensor, const TensorSpec& of_round, bool is_initial) {
  if (of_round.aggregation.op == Op::kUnion) return Invalid(tensor, "a union has no values");
  if (of_round.num_rows != tensor.num_rows || of_round.row_width != tensor.row_width) {
    return Invalid(tensor,
                   absl::StrCat("the round has num_rows ", of_round.num_rows, " and row_width ", of_round.row_width,
                                ", the model has ", tensor.num_rows, " and ", tensor.row_width));
  }
  const bool adds = !is_initial && tensor.optimizer.kind != OptimizerKind::kAssign;
  const DType dtype = ResultDType(of_round);
  const bool fits = adds ? dtype == DType::kFloat32 || dtype == DType::kFloat64
                         : dtype == tensor.dtype || (dtype == DType::kInt64 && tensor.dtype == DType::kInt32);
  if (!fits) {
    return Invalid(tensor, absl::StrCat("the round's result is ", Name(dtype), "; the model takes ",
                                        adds ? "float32 and float64" : Name(tensor.dtype)));
  }
  if (adds && of_round.aggregation.on_nonfinite == NonfinitePolicy::kPropagate) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", tensor.name, "': the round has on_nonfinite propagate, and the model adds: use reject"));
  }
  return absl::OkStatus();
}

}  // namespace sparseagg
