// Results in CUDA memory, as Python objects that lend their arrays to other libraries.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "python/engine/device_arrays.h"
#include "python/engine/outputs.h"

namespace sparseagg::python {
namespace {

namespace dlpack = nb::dlpack;

// What keeps a result's columns. In a child process, which has no CUDA, they are left alone.
class Owner {
 public:
  Owner(std::shared_ptr<const void> columns, const LocalRuntime& runtime)
      : columns_(std::make_unique<std::shared_ptr<const void>>(std::move(columns))), runtime_(runtime) {}
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (runtime_.is_lost) static_cast<void>(columns_.release());
  }

 private:
  std::unique_ptr<std::shared_ptr<const void>> columns_;
  const LocalRuntime& runtime_;
};

// One column of a result in CUDA memory. Immutable. It is complete, so that any stream may read it. Whoever gives the
// last reference back waits until the device has done all work of this process.
class DeviceColumn {
 public:
  DeviceColumn(const void* data, std::vector<int64_t> shape, DType dtype, int device,
               std::shared_ptr<const Owner> owner)
      : data_(data), shape_(std::move(shape)), dtype_(dtype), device_(device), owner_(std::move(owner)) {}

  const std::vector<int64_t>& shape() const { return shape_; }
  std::string dtype() const { return std::string(Name(dtype_)); }
  std::pair<int, int> DlpackDevice() const { return {nb::device::cuda::value, device_}; }

  // DLPack's: https://data-apis.org/array-api/latest/API_specification/generated/array_api.array.__dlpack__.html
  // `stream` needs nothing, for the column is complete. Errors: BufferError: another device, or a copy, is asked for.
  nb::object Dlpack(const nb::object&, const std::optional<std::pair<uint32_t, uint32_t>>& max_version,
                    const std::optional<std::pair<int, int>>& to_device, std::optional<bool> copy) const {
    if (copy.value_or(false)) throw nb::buffer_error("a column of a result is lent, not copied");
    if (to_device.has_value() && *to_device != DlpackDevice()) {
      throw nb::buffer_error(
          absl::StrCat("the column is on CUDA device ", device_, ", and is lent only there").c_str());
    }
    if (max_version.has_value() && max_version->first >= dlpack::major_version) {
      return Lend<VersionedTensor>();
    }
    return Lend<ManagedTensor>();
  }

  // Version 3 of https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
  nb::dict Interface() const {
    if (dtype_ == DType::kBFloat16) {
      throw nb::attribute_error("the CUDA Array Interface has no bfloat16; __dlpack__ has");
    }
    const char kind = IsFloat(dtype_) ? 'f' : IsModular(dtype_) ? 'u' : 'i';
    nb::dict fields;
    fields["shape"] = nb::tuple(nb::cast(shape_));
    fields["typestr"] = absl::StrCat("<", std::string(1, kind), SizeOf(dtype_));
    fields["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(data_), false);
    fields["strides"] = nb::none();
    fields["stream"] = nb::none();
    fields["version"] = 3;
    return fields;
  }

 private:
  // What a capsule points to, with what it needs.
  template <typename Managed>
  struct Lent {
    Managed managed;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    std::shared_ptr<const Owner> owner;
  };

  // nb::ndarray lends by the same, but takes the GIL to take an array back, which some libraries give on a thread that
  // must not wait.
  template <typename Managed>
  nb::object Lend() const {
    auto lent = std::make_unique<Lent<Managed>>(Lent<Managed>{{}, shape_, {}, owner_});
    lent->strides.resize(shape_.size());
    int64_t stride = 1;
    for (size_t d = shape_.size(); d-- > 0;) {
      lent->strides[d] = stride;
      stride *= shape_[d];
    }
    dlpack::dltensor tensor;
    tensor.data = const_cast<void*>(data_);  // NOLINT(cppcoreguidelines-pro-type-const-cast): the caller's from now on
    tensor.device = {nb::device::cuda::value, device_};
    tensor.ndim = static_cast<int32_t>(shape_.size());
    tensor.dtype = {TypeCode(), static_cast<uint8_t>(8 * SizeOf(dtype_)), 1};
    tensor.shape = lent->shape.data();
    tensor.strides = lent->strides.data();
    lent->managed.tensor = tensor;
    if constexpr (std::is_same_v<Managed, VersionedTensor>) lent->managed.major_version = dlpack::major_version;
    lent->managed.manager_context = lent.get();
    lent->managed.deleter = [](Managed* managed) { delete static_cast<Lent<Managed>*>(managed->manager_context); };
    return NewCapsule(&lent.release()->managed);
  }

  uint8_t TypeCode() const {
    const dlpack::dtype_code code = dtype_ == DType::kBFloat16 ? dlpack::dtype_code::Bfloat
                                    : IsFloat(dtype_)          ? dlpack::dtype_code::Float
                                    : IsModular(dtype_)        ? dlpack::dtype_code::UInt
                                                               : dlpack::dtype_code::Int;
    return static_cast<uint8_t>(code);
  }

  const void* const data_;
  const std::vector<int64_t> shape_;
  const DType dtype_;
  const int device_;
  const std::shared_ptr<const Owner> owner_;
};

}  // namespace

nb::dict ToPython(const DeviceResult& result, int device, const LocalRuntime& runtime) {
  const auto owner = std::make_shared<const Owner>(result.owner, runtime);
  const auto rows = static_cast<int64_t>(result.num_keys);
  const auto column = [&](const void* data, std::vector<int64_t> shape, DType dtype) {
    return nb::cast(std::make_unique<DeviceColumn>(data, std::move(shape), dtype, device, owner));
  };
  nb::dict out;
  out["layout"] = result.layout == Layout::kDense ? "dense" : "sparse";
  out["dtype"] = std::string(Name(result.dtype));
  out["keys"] = nb::none();
  if (result.layout == Layout::kSparse) {
    out["keys"] = column(result.d_keys, {rows}, result.key_bytes == 4 ? DType::kUInt32 : DType::kUInt64);
  }
  out["values"] = nb::none();
  if (result.has_values) {
    std::vector<int64_t> shape = {rows};
    if (result.row_width != 1) shape.push_back(result.row_width);
    out["values"] = column(result.d_values, std::move(shape), result.dtype);
  }
  const auto optional = [&](const void* data, DType dtype) -> nb::object {
    // Without rows there is no column, either; the package knows whether the spec asks for one.
    return column(data, {data == nullptr ? 0 : rows}, dtype);
  };
  out["counts"] = optional(result.d_counts, DType::kUInt32);
  out["weights"] = optional(result.d_weights, DType::kFloat64);
  out["plan"] = "";
  return out;
}

void DefineDeviceColumn(nb::module_& module) {
  nb::class_<DeviceColumn>(module, "DeviceColumn")
      .def_prop_ro("shape", [](const DeviceColumn& c) { return nb::tuple(nb::cast(c.shape())); })
      .def_prop_ro("dtype", &DeviceColumn::dtype)
      .def_prop_ro("__cuda_array_interface__", &DeviceColumn::Interface)
      .def("__dlpack_device__", &DeviceColumn::DlpackDevice)
      .def("__dlpack__", &DeviceColumn::Dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none());
}

}  // namespace sparseagg::python
