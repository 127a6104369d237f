#include "python/engine/outputs.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "python/engine/numpy.h"

namespace sparseagg::python {
namespace {

using numpy::View;

}  // namespace

nb::dict ToPython(std::shared_ptr<const Result> result) {
  using Kept = std::shared_ptr<const Result>;
  const Result& r = *result;
  const nb::capsule owner(new Kept(std::move(result)),
                          [](void* memory) noexcept { delete static_cast<Kept*>(memory); });
  const auto rows = static_cast<Py_ssize_t>(r.num_keys);
  nb::dict out;
  out["layout"] = r.layout == Layout::kDense ? "dense" : "sparse";
  out["dtype"] = std::string(Name(r.dtype));
  out["keys"] = nb::none();
  if (r.layout == Layout::kSparse) {
    out["keys"] = std::visit(
        [&](const auto& keys) {
          using Key = typename std::decay_t<decltype(keys)>::value_type;
          return View(sizeof(Key) == 4 ? DType::kUInt32 : DType::kUInt64, {rows}, keys.data(), owner);
        },
        r.keys);
  }
  out["values"] = nb::none();
  if (r.has_values) {
    std::vector<Py_ssize_t> shape = {rows};
    if (r.row_width != 1) shape.push_back(r.row_width);
    out["values"] = View(r.dtype, shape, r.values.data(), owner);
  }
  // A column is empty if the spec does not request it or the result has no rows; the package knows the spec.
  out["counts"] = View(DType::kUInt32, {static_cast<Py_ssize_t>(r.counts.size())}, r.counts.data(), owner);
  out["weights"] = View(DType::kFloat64, {static_cast<Py_ssize_t>(r.weights.size())}, r.weights.data(), owner);
  std::vector<Py_ssize_t> shape = {static_cast<Py_ssize_t>(r.moments.size() / r.row_width)};
  if (r.row_width != 1) shape.push_back(r.row_width);
  out["moments"] = View(DType::kFloat64, shape, r.moments.data(), owner);
  out["plan"] = r.plan;
  out["num_cut_keys"] = r.num_cut_keys;
  return out;
}

nb::dict ToPython(const ClipSummary& clip) {
  nb::list factors;
  for (const uint64_t count : clip.factors) factors.append(count);
  nb::dict out;
  out["num_clipped"] = clip.num_clipped;
  out["num_l2"] = clip.num_l2;
  out["num_linf"] = clip.num_linf;
  out["num_max_keys"] = clip.num_max_keys;
  out["factors"] = factors;
  return out;
}

}  // namespace sparseagg::python
