#include "python/engine/device_arrays.h"

#include <pybind11/stl.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "python/engine/dlpack.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;

// CUDA's legacy default stream, as DLPack and the CUDA Array Interface number it. Neither knows a stream 0.
constexpr uintptr_t kLegacyStream = 1;

py::value_error NotReadable(absl::string_view why) { return py::value_error(std::string(why)); }

// Returns: whether entries lie in row-major order without gaps. `strides`: in units of `unit`.
bool IsContiguous(const std::vector<int64_t>& shape, const int64_t* strides, int64_t unit) {
  int64_t expected = unit;
  bool is_contiguous = true;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    is_contiguous = is_contiguous && (shape[d] == 1 || strides[d] == expected);
    expected *= shape[d];
  }
  return is_contiguous;
}

// A capsule's tensor, of either kind, which is given back to its library in the end.
template <typename Managed>
class DlpackArray : public DeviceArray {
 public:
  DlpackArray(py::capsule& capsule, const char* used_name, int device) : managed_(capsule.get_pointer<Managed>()) {
    if constexpr (std::is_same_v<Managed, dlpack::VersionedTensor>) {
      if (managed_->version.major > dlpack::kMajorVersion) {
        throw NotReadable(absl::StrCat("it is described in version ", managed_->version.major,
                                       " of DLPack, but version 1 was asked for"));
      }
    }
    const dlpack::Tensor& tensor = TensorOf(*managed_);
    const dlpack::Device at = tensor.device;
    if ((at.device_type != dlpack::kCuda && at.device_type != dlpack::kCudaManaged) || at.device_id != device) {
      throw NotReadable(absl::StrCat("DLPack places it on device ", at.device_id, " of kind ", at.device_type,
                                     ", but the engine reads CUDA device ", device));
    }
    shape_.assign(tensor.shape, tensor.shape + tensor.ndim);
    dtype_ = NameOf(tensor.dtype);
    is_contiguous_ = tensor.strides == nullptr || IsContiguous(shape_, tensor.strides, 1);
    data_ = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
    // The last step that can fail: from here on the tensor is this object's to delete.
    capsule.set_name(used_name);
  }
  ~DlpackArray() override {
    if (managed_->deleter != nullptr) managed_->deleter(managed_);
  }

 private:
  static const dlpack::Tensor& TensorOf(const Managed& managed) { return managed.tensor; }
  static std::string NameOf(dlpack::DataType type) {
    if (type.lanes != 1) return absl::StrCat("vectors of ", type.lanes);
    const int bits = type.bits;
    switch (type.code) {
      case 0:
        return absl::StrCat("int", bits);
      case 1:
        return absl::StrCat("uint", bits);
      case 2:
        return absl::StrCat("float", bits);
      case 4:
        return absl::StrCat("bfloat", bits);
      case 5:
        return absl::StrCat("complex", bits);
      case 6:
        return "bool";
      default:
        return absl::StrCat("DLPack's type ", static_cast<int>(type.code), " of ", bits, " bits");
    }
  }

  Managed* const managed_;
};

// An array with the CUDA Array Interface, version 3:
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
class InterfaceArray : public DeviceArray {
 public:
  // `fields`: of the array, which may compute them anew at each look.
  InterfaceArray(py::object array, const py::dict& fields) : array_(std::move(array)) {
    if (fields.contains("mask") && !fields["mask"].is_none()) throw NotReadable("some of its entries are masked");
    shape_ = fields["shape"].cast<std::vector<int64_t>>();
    const auto type = fields["typestr"].cast<std::string>();
    dtype_ = NameOf(type);
    const auto address = fields["data"].cast<std::pair<uintptr_t, bool>>().first;
    data_ = reinterpret_cast<const std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): it comes so
    if (fields.contains("strides") && !fields["strides"].is_none()) {
      const auto strides = fields["strides"].cast<std::vector<int64_t>>();
      if (strides.size() != shape_.size()) throw NotReadable("it has other numbers of strides than of axes");
      is_contiguous_ = IsContiguous(shape_, strides.data(), std::stoll(type.substr(2)));
    }
  }

 private:
  // `type`: byte order, kind and bytes, such as "<f4".
  static std::string NameOf(const std::string& type) {
    if (type.size() != 3 || type[0] == '>' || type[2] < '1' || type[2] > '8') return type;
    const int bits = 8 * (type[2] - '0');
    switch (type[1]) {
      case 'i':
        return absl::StrCat("int", bits);
      case 'u':
        return absl::StrCat("uint", bits);
      case 'f':
        return absl::StrCat("float", bits);
      case 'b':
        return "bool";
      default:
        return type;
    }
  }

  const py::object array_;
};

std::unique_ptr<DeviceArray> BorrowByDlpack(const py::object& array, DeviceStream stream) {
  const uintptr_t handle = stream.stream == 0 ? kLegacyStream : stream.stream;
  const py::object lend = array.attr("__dlpack__");
  py::object lent;
  try {
    lent = lend(py::arg("stream") = handle, py::arg("max_version") = py::make_tuple(dlpack::kMajorVersion, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    lent = lend(py::arg("stream") = handle);  // a library from before DLPack 1.0, which knows no max_version
  }
  if (PyCapsule_IsValid(lent.ptr(), "dltensor_versioned") != 0) {
    auto capsule = py::reinterpret_borrow<py::capsule>(lent);
    return std::make_unique<DlpackArray<dlpack::VersionedTensor>>(capsule, "used_dltensor_versioned", stream.device);
  }
  if (PyCapsule_IsValid(lent.ptr(), "dltensor") != 0) {
    auto capsule = py::reinterpret_borrow<py::capsule>(lent);
    return std::make_unique<DlpackArray<dlpack::ManagedTensor>>(capsule, "used_dltensor", stream.device);
  }
  throw NotReadable("its __dlpack__ returns no DLPack capsule");
}

std::unique_ptr<DeviceArray> BorrowByInterface(const py::object& array, const LocalRuntime& runtime) {
  const auto fields = array.attr("__cuda_array_interface__").cast<py::dict>();
  auto borrowed = std::make_unique<InterfaceArray>(array, fields);
  // None says that nothing has to be awaited, but Numba also says it of its default stream, which is CUDA's: so that
  // stream is followed, which costs little.
  uintptr_t stream = kLegacyStream;
  if (fields.contains("stream") && !fields["stream"].is_none()) {
    stream = fields["stream"].cast<uintptr_t>();
    if (stream == 0) throw NotReadable("its __cuda_array_interface__ names the stream 0, which is ambiguous");
  }
  ThrowIfError(WithoutGil([&] { return runtime.FollowStream(stream); }));
  return borrowed;
}

}  // namespace

std::unique_ptr<DeviceArray> DeviceArray::Borrow(const py::object& array, const LocalRuntime& runtime) {
  const std::optional<DeviceStream> stream = runtime.device_stream();
  if (!stream.has_value()) throw NotReadable("it is in the memory of a GPU, but the engine reads only host memory");
  if (py::hasattr(array, "__dlpack__")) return BorrowByDlpack(array, *stream);
  return BorrowByInterface(array, runtime);
}

std::optional<std::pair<int, uintptr_t>> StreamOf(const LocalRuntime& runtime) {
  const std::optional<DeviceStream> stream = runtime.device_stream();
  if (!stream.has_value()) return std::nullopt;
  return std::make_pair(stream->device, stream->stream);
}

uint64_t DeviceArray::size() const {
  uint64_t size = 1;
  for (const int64_t length : shape_) size *= static_cast<uint64_t>(length);
  return size;
}

std::optional<InputKeys> DeviceArray::AsKeys() const {
  const auto as = [this](auto key) -> std::optional<InputKeys> {
    using Key = decltype(key);
    if (reinterpret_cast<uintptr_t>(data_) % sizeof(Key) != 0) return std::nullopt;
    return absl::MakeConstSpan(reinterpret_cast<const Key*>(data_), size());
  };
  if (shape_.size() != 1 || !is_contiguous_) return std::nullopt;
  if (dtype_ == "int32") return as(int32_t{});
  if (dtype_ == "int64") return as(int64_t{});
  if (dtype_ == "uint32") return as(uint32_t{});
  if (dtype_ == "uint64") return as(uint64_t{});
  return std::nullopt;
}

bool DeviceArray::HasValuesOf(const TensorSpec& spec) const {
  if (!is_contiguous_ || reinterpret_cast<uintptr_t>(data_) % SizeOf(spec.dtype) != 0) return false;
  return dtype_ == Name(spec.dtype) || (spec.dtype == DType::kBFloat16 && dtype_ == "uint16");
}

void DefineDeviceArray(py::module_& module) {
  py::class_<DeviceArray>(module, "DeviceArray")
      .def_property_readonly("shape", [](const DeviceArray& a) { return py::tuple(py::cast(a.shape())); })
      .def_property_readonly("dtype", &DeviceArray::dtype)
      .def_property_readonly("is_contiguous", &DeviceArray::is_contiguous);
}

}  // namespace sparseagg::python
