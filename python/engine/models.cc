// Initial rows of models, and the steps of their optimizers.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "host/base/float_environment.h"
#include "host/model/initial_rows.h"
#include "host/model/optimizer.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/messages.h"
#include "python/engine/numpy.h"
#include "service/codec/model_codec.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::python {
namespace {

using RowKeys = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StepArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using StepInput = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

nb::object InitialRows(const nb::bytes& tensor, uint32_t position, const RowKeys& keys) {
  const ModelTensorSpec spec = ValueOrThrow(service::DecodeModelTensor(ParseMessage<v1::ModelTensor>(tensor), nullptr));
  const nb::object rows = numpy::View(spec.dtype, {static_cast<Py_ssize_t>(keys.size() * spec.row_width)}, nullptr, {});
  auto* const out = static_cast<std::byte*>(reinterpret_cast<numpy::Array*>(rows.ptr())->data);
  WithoutGil([&] {
    const DefaultFloatEnvironment environment;
    WriteInitialRows(spec, position, {keys.data(), keys.size()}, out);
    return 0;
  });
  return rows.attr("view")("uint8").attr("reshape")(keys.size(), spec.row_bytes());
}

// The Python class _engine.OptimizerSteps.
class OptimizerSteps {
 public:
  using Powers = std::pair<double, double>;

  OptimizerSteps(const nb::bytes& optimizer, const std::optional<Powers>& powers)
      : spec_(ValueOrThrow(service::DecodeOptimizer(ParseMessage<v1::OptimizerSpec>(optimizer), ""))), steps_(spec_) {
    if (powers.has_value()) steps_ = StepState(spec_.learning_rate, powers->first, powers->second);
  }

  nb::tuple Slots() const {
    if (spec_.HasM()) return spec_.HasV() ? nb::make_tuple("m", "v") : nb::make_tuple("m");
    return spec_.HasV() ? nb::make_tuple("v") : nb::make_tuple();
  }
  Powers powers() const { return {steps_.power_1(), steps_.power_2()}; }
  void Advance() { steps_.Advance(spec_); }

  void Take(const std::string& dtype, const StepArray& x, const std::optional<StepArray>& m,
            const std::optional<StepArray>& v, const StepInput& delta, double factor) const {
    StepRows rows;
    rows.num_values = x.size();
    rows.dtype = FloatOf(dtype);
    rows.x = x.data();
    rows.delta_dtype = delta.itemsize() == sizeof(double) ? DType::kFloat64 : DType::kFloat32;
    rows.delta = delta.data();
    rows.delta_factor = factor;
    const size_t state_bytes = rows.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    const auto check = [&](bool is_needed, const auto& array, size_t item_bytes) {
      if (is_needed == array.has_value() &&
          (!is_needed || (array->size() == rows.num_values && array->itemsize() == item_bytes))) {
        return;
      }
      ThrowIfError(absl::InvalidArgumentError("arrays of a step that do not go together"));
    };
    check(true, std::optional(x), SizeOf(rows.dtype));
    check(true, std::optional(delta), SizeOf(rows.delta_dtype));
    check(spec_.HasM(), m, state_bytes);
    check(spec_.HasV(), v, state_bytes);
    if (m.has_value()) rows.m = m->data();
    if (v.has_value()) rows.v = v->data();
    WithoutGil([&] {
      const DefaultFloatEnvironment environment;
      return TakeStep(spec_, steps_.Rate(spec_), rows);
    });
  }

 private:
  static DType FloatOf(const std::string& name) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      if (name == Name(dtype)) return dtype;
    }
    throw StatusException{absl::InvalidArgumentError("no dtype of floats")};
  }

  OptimizerSpec spec_;
  StepState steps_;
};

}  // namespace

void DefineModels(nb::module_& module) {
  module.def("initial_rows", &InitialRows, nb::arg("tensor"), nb::arg("position"), nb::arg("keys"));
  nb::class_<OptimizerSteps>(module, "OptimizerSteps")
      .def(nb::init<const nb::bytes&, const std::optional<OptimizerSteps::Powers>&>(), nb::arg("optimizer"),
           nb::arg("powers").none() = nb::none())
      .def_prop_ro("slots", &OptimizerSteps::Slots)
      .def_prop_ro("powers", &OptimizerSteps::powers)
      .def("advance", &OptimizerSteps::Advance)
      .def("take", &OptimizerSteps::Take, nb::arg("dtype"), nb::arg("x"), nb::arg("m").none(), nb::arg("v").none(),
           nb::arg("delta"), nb::arg("factor"));
}

}  // namespace sparseagg::python
