// Arrays in CUDA memory that other Python libraries lend.
#ifndef SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_
#define SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "python/engine/local_runtime.h"
#include "python/engine/nb.h"

namespace sparseagg::python {

// One array in CUDA memory, borrowed from its library: the Python class _engine.DeviceArray. Immutable. Its destruction
// gives the array back, so it needs the GIL, as all Python objects do.
class DeviceArray {
 public:
  // Keeps the array at its library, and has its address.
  using Lent = nb::ndarray<nb::ro>;

  // Borrows an array by DLPack, or by version 2 or 3 of the CUDA Array Interface if its library has no DLPack. Reads on
  // the engine's device_stream() come after the writes that the library has queued so far.
  // Requires: the GIL, which is released while the engine is busy. Runs Python code of the library.
  // Errors: exceptions of the library. ValueError: DLPack places the array on another device, or describes it in an
  // unknown version; or the engine reads only host memory. StatusException: the device has failed, or cannot follow the
  // stream that the interface names, as where the array is on another GPU.
  static std::unique_ptr<DeviceArray> Borrow(const nb::object& array, const LocalRuntime& runtime);

  DeviceArray(Lent lent, std::vector<int64_t> shape, std::string dtype, bool is_contiguous)
      : lent_(std::move(lent)), shape_(std::move(shape)), dtype_(std::move(dtype)), is_contiguous_(is_contiguous) {}

  const std::byte* data() const { return static_cast<const std::byte*>(lent_.data()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  // Returns: NumPy's name of the type, or "bfloat16"; for any other type a text that is no tensor's dtype.
  const std::string& dtype() const { return dtype_; }
  // Whether rows follow one another, and values in them, without gaps.
  bool is_contiguous() const { return is_contiguous_; }
  uint64_t size() const;  // number of entries

  // Return: nullopt or false if the array is not in the form that the engine reads.
  std::optional<InputKeys> AsKeys() const;
  bool HasValuesOf(const TensorSpec& spec) const;

 private:
  Lent lent_;
  std::vector<int64_t> shape_;
  std::string dtype_;
  bool is_contiguous_;
};

// Returns: the number of the CUDA device whose arrays Borrow takes, and the stream that reads them, as a number.
// nullopt: it takes none.
std::optional<std::pair<int, uintptr_t>> StreamOf(const LocalRuntime& runtime);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_
