#include "python/engine/numpy.h"

#include <array>

namespace sparseagg::python::numpy {
namespace {

constexpr int kHalf = 23;  // of NPY_TYPES
// By DType: NPY_FLOAT, NPY_HALF, NPY_USHORT, NPY_DOUBLE, and NPY_INT, NPY_LONG, NPY_UINT and NPY_ULONG.
constexpr std::array<int, 8> kTypes = {11, kHalf, 4, 12, 5, 7, 6, 8};
// Bytes of the types up to NPY_DOUBLE, where `long` has 64 bits; 0: bool, which is neither integer nor float.
constexpr std::array<uint8_t, 13> kItemBytes = {0, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 4, 8};
static_assert(sizeof(long) == sizeof(int64_t));  // NOLINT(google-runtime-int)

// PyArray_New: makes an array over `data`, or over new memory.
using New = PyObject* (*)(PyTypeObject* type, int num_axes, const Py_ssize_t* shape, int item_type,
                          const Py_ssize_t* strides, void* data, int item_bytes, int flags, PyObject* object);
using SetBase = int (*)(PyObject* array, PyObject* base);  // PyArray_SetBaseObject, which steals `base`

PyTypeObject* array_type = nullptr;
New make = nullptr;
SetBase set_base = nullptr;

}  // namespace

void Load() {
  nb::object module;
  try {
    module = nb::module_::import_("numpy._core._multiarray_umath");
  } catch (const nb::python_error&) {
    module = nb::module_::import_("numpy.core._multiarray_umath");  // before NumPy 2
  }
  const nb::object capsule = module.attr("_ARRAY_API");
  auto* const table = static_cast<void**>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (table == nullptr) throw nb::python_error();
  array_type = static_cast<PyTypeObject*>(table[2]);
  make = reinterpret_cast<New>(table[93]);
  set_base = reinterpret_cast<SetBase>(table[282]);
}

bool IsArray(const PyObject* object) { return object->ob_type == array_type; }

std::optional<PlainArray> AsPlain(PyObject* object) {
  if (!IsArray(object)) return std::nullopt;
  const auto* const array = reinterpret_cast<const Array*>(object);
  constexpr int kWanted = kIsContiguous | kIsAligned;
  const Descriptor& descriptor = *array->descriptor;
  if ((array->flags & kWanted) != kWanted || descriptor.byte_order == '>') return std::nullopt;
  const auto type = static_cast<size_t>(descriptor.type);
  const size_t item_bytes = type < kItemBytes.size() ? kItemBytes[type] : type == kHalf ? 2 : 0;
  if (item_bytes == 0) return std::nullopt;
  PlainArray out{array->data, 1, array->num_axes, 1, descriptor.kind, item_bytes};
  if (array->num_axes > 0) out.length = array->shape[0];
  for (int d = 0; d < array->num_axes; ++d) out.size *= array->shape[d];
  return out;
}

nb::object View(DType dtype, const std::vector<Py_ssize_t>& shape, const void* data, nb::handle owner) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the caller's from now on
  nb::object array =
      nb::steal(make(array_type, static_cast<int>(shape.size()), shape.data(), kTypes[static_cast<size_t>(dtype)],
                     nullptr, const_cast<void*>(data), 0, kIsContiguous | kIsAligned | kIsWritable, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  if (data != nullptr && set_base(array.ptr(), owner.inc_ref().ptr()) != 0) throw nb::python_error();
  return array;
}

}  // namespace sparseagg::python::numpy
