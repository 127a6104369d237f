#include "python/engine/device_arrays.h"

#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "python/engine/gil.h"

namespace sparseagg::python {
namespace {

// CUDA's legacy default stream, as DLPack and the CUDA Array Interface number it. Neither knows a stream 0.
constexpr uintptr_t kLegacyStream = 1;

uintptr_t OrLegacy(uintptr_t stream) { return stream == 0 ? kLegacyStream : stream; }

// Whether a kind of memory, as DLPack numbers it, is a CUDA device's.
bool IsCuda(int kind) { return kind == nb::device::cuda::value || kind == nb::device::cuda_managed::value; }

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

// Throws what a C function of Python's has raised. Some raise nothing.
[[noreturn]] void ThrowRaised() {
  if (PyErr_Occurred() == nullptr) throw NotReadable("its DLPack function has failed without a reason");
  throw nb::python_error();
}

// Returns: the tensor in a capsule of DLPack's.
std::unique_ptr<DeviceArray> FromCapsule(const nb::object& capsule, const DeviceStream& reader, uintptr_t stream) {
  constexpr const char* kVersioned = kCapsuleName<VersionedTensor>;
  if (PyCapsule_IsValid(capsule.ptr(), kVersioned) != 0) {  // nanobind does not look at the version
    const auto* const managed = static_cast<const VersionedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kVersioned));
    if (managed->major_version > nb::dlpack::major_version) {
      throw NotReadable(absl::StrCat("it is described in version ", managed->major_version, " of DLPack, but version ",
                                     nb::dlpack::major_version, " was asked for"));
    }
  }
  DeviceArray::Lent lent;
  if (!nb::isinstance<nb::capsule>(capsule) || !nb::try_cast(capsule, lent)) {
    throw NotReadable("its __dlpack__ returns no DLPack capsule");
  }
  const int kind = lent.device_type();
  if (!IsCuda(kind) || lent.device_id() != reader.device) {
    throw NotReadable(absl::StrCat("DLPack places it on device ", lent.device_id(), " of kind ", kind,
                                   ", but the engine reads CUDA device ", reader.device));
  }
  std::vector<int64_t> shape(lent.shape_ptr(), lent.shape_ptr() + lent.ndim());
  const bool is_contiguous = IsContiguous(shape, lent.stride_ptr(), 1);
  std::string dtype = NameOf(lent.dtype());
  return std::make_unique<DeviceArray>(std::move(lent), std::move(shape), std::move(dtype), is_contiguous, stream);
}

// The library makes the engine's stream wait for the array.
std::unique_ptr<DeviceArray> BorrowByDlpack(const nb::object& array, const DeviceStream& reader) {
  const uintptr_t handle = OrLegacy(reader.stream);
  const nb::object lend = array.attr("__dlpack__");
  nb::object capsule;
  try {
    capsule = lend(nb::arg("stream") = handle, nb::arg("max_version") = nb::make_tuple(nb::dlpack::major_version, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = lend(nb::arg("stream") = handle);  // a library from before DLPack 1.0, which knows no max_version
  }
  return FromCapsule(capsule, reader, /*stream=*/0);
}

// By version 3 of the interface: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
std::unique_ptr<DeviceArray> BorrowByInterface(const nb::object& array) {
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
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it comes so
  DeviceArray::Lent lent(reinterpret_cast<const void*>(address), 0, nullptr, array, nullptr, nb::dtype<uint8_t>(),
                         nb::device::cuda::value);
  return std::make_unique<DeviceArray>(std::move(lent), std::move(shape), NameOf(type), is_contiguous, stream);
}

}  // namespace

// From version 1.3 on: https://dmlc.github.io/dlpack/latest/python_spec.html. A type has it in a capsule. The functions
// return 0, or else raise.
struct ExchangeApi {
  uint32_t major_version;
  uint32_t minor_version;
  const ExchangeApi* earlier;  // of an older major version
  void* allocate;
  int (*lend)(void* array, VersionedTensor** out);  // waits for nothing
  void* to_array;
  void* describe;
  int (*work_stream)(int32_t device_kind, int32_t device, void** out);  // the stream that the caller's work goes to
};

void ArrayBorrower::LookAt(nb::handle array) {
  const nb::handle type = array.type();
  if (type.is(type_)) return;
  type_ = nb::borrow(type);
  has_dlpack_ = nb::hasattr(type, "__dlpack__");
  has_interface_ = nb::hasattr(type, "__cuda_array_interface__");
  has_gradients_ = nb::hasattr(type, "detach");
  has_negations_ = nb::hasattr(type, "resolve_neg");
  api_ = nullptr;
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return;
  api_ = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api_ != nullptr && api_->major_version > nb::dlpack::major_version) api_ = api_->earlier;
  if (api_ == nullptr) return;
  void* stream = nullptr;
  if (api_->work_stream(nb::device::cuda::value, reader_->device, &stream) != 0) {
    type_.reset();
    ThrowRaised();
  }
  work_stream_ = OrLegacy(reinterpret_cast<uintptr_t>(stream));
}

std::unique_ptr<DeviceArray> ArrayBorrower::Borrow(nb::object array) {
  if (!reader_.has_value()) throw NotReadable("it is in the memory of a GPU, but the engine reads only host memory");
  return CallPython([&] {
    LookAt(array);
    if (has_gradients_ && api_ == nullptr) array = array.attr("detach")();
    if (has_negations_) array = array.attr("resolve_neg")();
    if (api_ != nullptr) {
      VersionedTensor* lent = nullptr;
      if (api_->lend(array.ptr(), &lent) != 0) ThrowRaised();
      return FromCapsule(NewCapsule(lent), *reader_, work_stream_);
    }
    return has_dlpack_ ? BorrowByDlpack(array, *reader_) : BorrowByInterface(array);
  });
}

nb::object ArrayBorrower::TryBorrow(nb::handle array) {
  if (!reader_.has_value()) return {};
  return CallPython([&]() -> nb::object {
    try {
      LookAt(array);
      if (api_ == nullptr && has_dlpack_) {
        const nb::object device = array.attr("__dlpack_device__")();
        if (!IsCuda(nb::cast<int>(device[0])) || nb::cast<int>(device[1]) != reader_->device) return {};
      } else if (api_ == nullptr && !has_interface_) {
        return {};
      }
      return nb::cast(Borrow(nb::borrow(array)));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return {};
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {  // of a conversion
      return {};
    }
  });
}

std::optional<std::pair<int, uintptr_t>> StreamOf(const LocalRuntime& runtime) {
  const std::optional<DeviceStream> stream = runtime.engine.device_stream();
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
