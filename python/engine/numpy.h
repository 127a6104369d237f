// NumPy's arrays by its C interface, of which versions 1 and 2 share all that is used here. nb::ndarray is no
// substitute: it reads an array in a microsecond instead of nanoseconds, does not show what owns the memory, and
// exports 64-bit integers as C's long long, which NumPy tells from int64.
#ifndef SPARSEAGG_PYTHON_ENGINE_NUMPY_H_
#define SPARSEAGG_PYTHON_ENGINE_NUMPY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "host/spec/dtype.h"
#include "python/engine/nb.h"

namespace sparseagg::python::numpy {

// The first members of NumPy's PyArray_Descr and PyArrayObject.
struct Descriptor {
  PyObject_HEAD;
  PyObject* scalar_type;
  char kind;
  char letter;
  char byte_order;
  char unused;
  int type;
};
struct Array {
  PyObject_HEAD;
  void* data;
  int num_axes;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;  // owns `data`; null: the array does
  Descriptor* descriptor;
  int flags;
};
inline constexpr int kIsContiguous = 0x1;
inline constexpr int kIsAligned = 0x100;
inline constexpr int kIsWritable = 0x400;

// Properties of an array whose type is exactly numpy.ndarray, contiguous, aligned and in the machine's byte order.
struct PlainArray {
  const void* data;
  Py_ssize_t size;
  int dimensions;
  Py_ssize_t length;  // of the first axis; 1 if there is none
  char kind;          // 'i', 'u', 'f'
  size_t item_bytes;
};

// Loads the interface. Requires: the GIL; nothing below is called before.
void Load();

bool IsArray(const PyObject* object);  // exactly numpy.ndarray

// Returns: nullopt if the object is not a plain array of integers or floats.
std::optional<PlainArray> AsPlain(PyObject* object);

// Returns: an array over memory that `owner` keeps. Without memory, which columns without rows have none of, a new one.
// bfloat16 values are their bits, in uint16.
nb::object View(DType dtype, const std::vector<Py_ssize_t>& shape, const void* data, nb::handle owner);

}  // namespace sparseagg::python::numpy

#endif  // SPARSEAGG_PYTHON_ENGINE_NUMPY_H_
