#include "python/engine/device_arrays.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"

namespace sparseagg::python {
namespace {

// CUDA's legacy default stream, as DLPack and the CUDA Array Interface number it. Neither knows a stream 0.
constexpr uintptr_t kLegacyStream = 1;

nb::builtin_exception NotReadable(absl::string_view why) { return nb::value_error(std::string(why).c_str()); }

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

// Returns: NumPy's name of a type of DLPack's, or a text that is no tensor's dtype.
std::string NameOf(nb::dlpack::dtype type) {
  if (type.lanes != 1) return absl::StrCat("vectors of ", type.lanes);
  const int bits = type.bits;
  switch (static_cast<nb::dlpack::dtype_code>(type.code)) {
    case nb::dlpack::dtype_code::Int:
      return absl::StrCat("int", bits);
    case nb::dlpack::dtype_code::UInt:
      return absl::StrCat("uint", bits);
    case nb::dlpack::dtype_code::Float:
      return absl::StrCat("float", bits);
    case nb::dlpack::dtype_code::Bfloat:
      return absl::StrCat("bfloat", bits);
    case nb::dlpack::dtype_code::Complex:
      return absl::StrCat("complex", bits);
    case nb::dlpack::dtype_code::Bool:
      return "bool";
    default:
      return absl::StrCat("DLPack's type ", static_cast<int>(type.code), " of ", bits, " bits");
  }
}

// The same for a type of the CUDA Array Interface: byte order, kind and bytes, such as "<f4".
std::string NameOf(const std::string& type) {
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

std::unique_ptr<DeviceArray> BorrowByDlpack(const nb::object& array, DeviceStream stream) {
  const uintptr_t handle = stream.stream == 0 ? kLegacyStream : stream.stream;
  const nb::object lend = array.attr("__dlpack__");
  nb::object capsule;
  try {
    capsule = lend(nb::arg("stream") = handle, nb::arg("max_version") = nb::make_tuple(nb::dlpack::major_version, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = lend(nb::arg("stream") = handle);  // a library from before DLPack 1.0, which knows no max_version
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    // Begins with its version, at which nanobind does not look.
    const auto major = *static_cast<const uint32_t*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (major > nb::dlpack::major_version) {
      throw NotReadable(absl::StrCat("it is described in version ", major, " of DLPack, but version ",
                                     nb::dlpack::major_version, " was asked for"));
    }
  }
  DeviceArray::Lent lent;
  if (!nb::isinstance<nb::capsule>(capsule) || !nb::try_cast(capsule, lent)) {
    throw NotReadable("its __dlpack__ returns no DLPack capsule");
  }
  const int kind = lent.device_type();
  if ((kind != nb::device::cuda::value && kind != nb::device::cuda_managed::value) ||
      lent.device_id() != stream.device) {
    throw NotReadable(absl::StrCat("DLPack places it on device ", lent.device_id(), " of kind ", kind,
                                   ", but the engine reads CUDA device ", stream.device));
  }
  std::vector<int64_t> shape(lent.shape_ptr(), lent.shape_ptr() + lent.ndim());
  const bool is_contiguous = IsContiguous(shape, lent.stride_ptr(), 1);
  std::string dtype = NameOf(lent.dtype());
  return std::make_unique<DeviceArray>(std::move(lent), std::move(shape), std::move(dtype), is_contiguous);
}

// By version 3 of the interface: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
std::unique_ptr<DeviceArray> BorrowByInterface(const nb::object& array, const LocalRuntime& runtime) {
  const auto fields = nb::cast<nb::dict>(array.attr("__cuda_array_interface__"));  // which may be computed at each look
  const auto has = [&](const char* name) { return fields.contains(name) && !fields[name].is_none(); };
  if (has("mask")) throw NotReadable("some of its entries are masked");
  auto shape = nb::cast<std::vector<int64_t>>(fields["shape"]);
  const auto type = nb::cast<std::string>(fields["typestr"]);
  const auto address = nb::cast<std::pair<uintptr_t, bool>>(fields["data"]).first;
  bool is_contiguous = true;
  if (has("strides")) {
    const auto strides = nb::cast<std::vector<int64_t>>(fields["strides"]);
    if (strides.size() != shape.size()) throw NotReadable("it has other numbers of strides than of axes");
    is_contiguous = IsContiguous(shape, strides.data(), std::stoll(type.substr(2)));
  }
  // None says that nothing has to be awaited, but Numba also says it of its default stream, which is CUDA's: so that
  // stream is followed, which costs little.
  uintptr_t stream = kLegacyStream;
  if (has("stream")) {
    stream = nb::cast<uintptr_t>(fields["stream"]);
    if (stream == 0) throw NotReadable("its __cuda_array_interface__ names the stream 0, which is ambiguous");
  }
  ThrowIfError(WithoutGil([&] { return runtime.FollowStream(stream); }));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it comes so
  DeviceArray::Lent lent(reinterpret_cast<const void*>(address), 0, nullptr, array, nullptr, nb::dtype<uint8_t>(),
                         nb::device::cuda::value);
  return std::make_unique<DeviceArray>(std::move(lent), std::move(shape), NameOf(type), is_contiguous);
}

}  // namespace

std::unique_ptr<DeviceArray> DeviceArray::Borrow(const nb::object& array, const LocalRuntime& runtime) {
  const std::optional<DeviceStream> stream = runtime.device_stream();
  if (!stream.has_value()) throw NotReadable("it is in the memory of a GPU, but the engine reads only host memory");
  return CallPython([&] {
    return nb::hasattr(array, "__dlpack__") ? BorrowByDlpack(array, *stream) : BorrowByInterface(array, runtime);
  });
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
    if (reinterpret_cast<uintptr_t>(data()) % sizeof(Key) != 0) return std::nullopt;
    return absl::MakeConstSpan(reinterpret_cast<const Key*>(data()), size());
  };
  if (shape_.size() != 1 || !is_contiguous_) return std::nullopt;
  if (dtype_ == "int32") return as(int32_t{});
  if (dtype_ == "int64") return as(int64_t{});
  if (dtype_ == "uint32") return as(uint32_t{});
  if (dtype_ == "uint64") return as(uint64_t{});
  return std::nullopt;
}

bool DeviceArray::HasValuesOf(const TensorSpec& spec) const {
  if (!is_contiguous_ || reinterpret_cast<uintptr_t>(data()) % SizeOf(spec.dtype) != 0) return false;
  return dtype_ == Name(spec.dtype) || (spec.dtype == DType::kBFloat16 && dtype_ == "uint16");
}

void DefineDeviceArray(nb::module_& module) {
  nb::class_<DeviceArray>(module, "DeviceArray")
      .def_prop_ro("shape", [](const DeviceArray& a) { return nb::tuple(nb::cast(a.shape())); })
      .def_prop_ro("dtype", &DeviceArray::dtype)
      .def_prop_ro("is_contiguous", &DeviceArray::is_contiguous);
}

}  // namespace sparseagg::python
