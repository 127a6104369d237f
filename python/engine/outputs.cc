#include "python/engine/outputs.h"

#include <pybind11/numpy.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sparseagg::python {
namespace {

namespace py = pybind11;

py::array View(const py::dtype& dtype, std::vector<py::ssize_t> shape, const void* data, const py::capsule& owner) {
  // An empty column has no memory to view, and for null data numpy allocates an array of its own.
  if (data == nullptr) return {dtype, std::move(shape)};
  return {dtype, std::move(shape), data, owner};
}

py::dtype NumpyDType(DType dtype) {
  return dtype == DType::kBFloat16 ? py::dtype("uint16") : py::dtype(std::string(Name(dtype)));
}

}  // namespace

py::dict ToPython(std::shared_ptr<const Result> result) {
  using Kept = std::shared_ptr<const Result>;
  const Result& r = *result;
  const py::capsule owner(new Kept(std::move(result)), [](void* memory) { delete static_cast<Kept*>(memory); });
  const auto rows = static_cast<py::ssize_t>(r.num_keys);
  py::dict out;
  out["layout"] = r.layout == Layout::kDense ? "dense" : "sparse";
  out["dtype"] = std::string(Name(r.dtype));
  out["keys"] = py::none();
  if (r.layout == Layout::kSparse) {
    out["keys"] = std::visit(
        [&](const auto& keys) {
          using Key = typename std::decay_t<decltype(keys)>::value_type;
          return View(py::dtype::of<Key>(), {rows}, keys.data(), owner);
        },
        r.keys);
  }
  out["values"] = py::none();
  if (r.has_values) {
    std::vector<py::ssize_t> shape = {rows};
    if (r.row_width != 1) shape.push_back(r.row_width);
    out["values"] = View(NumpyDType(r.dtype), std::move(shape), r.values.data(), owner);
  }
  // A column is empty if the spec does not request it or the result has no rows; the package knows the spec.
  out["counts"] = View(py::dtype::of<uint32_t>(), {static_cast<py::ssize_t>(r.counts.size())}, r.counts.data(), owner);
  out["weights"] = View(py::dtype::of<double>(), {static_cast<py::ssize_t>(r.weights.size())}, r.weights.data(), owner);
  std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(r.moments.size() / r.row_width)};
  if (r.row_width != 1) shape.push_back(r.row_width);
  out["moments"] = View(py::dtype::of<double>(), std::move(shape), r.moments.data(), owner);
  out["fixed_point_shift"] = r.fixed_point_shift.has_value() ? py::object(py::int_(*r.fixed_point_shift)) : py::none();
  out["plan"] = r.plan;
  out["num_cut_keys"] = r.num_cut_keys;
  return out;
}

py::dict ToPython(const ClipSummary& clip) {
  py::list factors;
  for (const uint64_t count : clip.factors) factors.append(count);
  py::dict out;
  out["num_clipped"] = clip.num_clipped;
  out["num_l2"] = clip.num_l2;
  out["num_linf"] = clip.num_linf;
  out["num_max_keys"] = clip.num_max_keys;
  out["factors"] = factors;
  return out;
}

}  // namespace sparseagg::python
