// Arrays in CUDA memory that other Python libraries lend, and DLPack's structures.
#ifndef SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_
#define SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "python/engine/local_runtime.h"
#include "python/engine/nb.h"

namespace sparseagg::python {

// What DLPack's two kinds of capsules point to: https://dmlc.github.io/dlpack/latest/c_api.html
struct ManagedTensor {
  nb::dlpack::dltensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};
struct VersionedTensor {
  uint32_t major_version;
  uint32_t minor_version;
  void* manager_context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  nb::dlpack::dltensor tensor;
};

template <typename Managed>
constexpr const char* kCapsuleName = std::is_same_v<Managed, VersionedTensor> ? "dltensor_versioned" : "dltensor";

// Returns: a capsule that owns the tensor. Whoever takes the tensor over gives the capsule another name.
template <typename Managed>
nb::object NewCapsule(Managed* managed) {
  PyObject* const capsule = PyCapsule_New(managed, kCapsuleName<Managed>, [](PyObject* object) {
    if (PyCapsule_IsValid(object, kCapsuleName<Managed>) == 0) return;
    auto* const kept = static_cast<Managed*>(PyCapsule_GetPointer(object, kCapsuleName<Managed>));
    if (kept->deleter != nullptr) kept->deleter(kept);
  });
  if (capsule != nullptr) return nb::steal(capsule);
  if (managed->deleter != nullptr) managed->deleter(managed);
  throw nb::python_error();
}

// One array in CUDA memory, borrowed from its library: the Python class _engine.DeviceArray. Immutable. Its destruction
// gives the array back, so it needs the GIL, as all Python objects do.
class DeviceArray {
 public:
  // Keeps the array at its library, and has its address.
  using Lent = nb::ndarray<nb::ro>;

  DeviceArray(Lent lent, std::vector<int64_t> shape, std::string dtype, bool is_contiguous, uintptr_t stream)
      : lent_(std::move(lent)),
        shape_(std::move(shape)),
        dtype_(std::move(dtype)),
        is_contiguous_(is_contiguous),
        stream_(stream) {}

  const std::byte* data() const { return static_cast<const std::byte*>(lent_.data()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  // Returns: NumPy's name of the type, or "bfloat16"; for any other type a text that is no tensor's dtype.
  const std::string& dtype() const { return dtype_; }
  // Whether rows follow one another, and values in them, without gaps.
  bool is_contiguous() const { return is_contiguous_; }
  uint64_t size() const;  // number of entries
  // Where the library may still write the array, as of DeviceUpdate::streams.
  uintptr_t stream() const { return stream_; }

  // Return: nullopt or false if the array is not in the form that the engine reads.
  std::optional<InputKeys> AsKeys() const;
  bool HasValuesOf(const TensorSpec& spec) const;

 private:
  Lent lent_;
  std::vector<int64_t> shape_;
  std::string dtype_;
  bool is_contiguous_;
  uintptr_t stream_;
};

struct ExchangeApi;  // DLPack's table of C functions

// Borrows arrays for one call of the package. So it asks the engine once for its stream, and the type of the arrays
// once for its protocols, and by DLPack's C functions for its stream. All members require the GIL, and run Python code
// of the library that owns the array.
class ArrayBorrower {
 public:
  explicit ArrayBorrower(const LocalRuntime& runtime) : reader_(runtime.engine.device_stream()) {}

  // Borrows an array by the C functions of DLPack, or else by its Python methods, or else by version 2 or 3 of the CUDA
  // Array Interface. Its gradient and a pending negation of torch are left out.
  // Errors: exceptions of the library. ValueError: DLPack places the array on another device, or describes it in an
  // unknown version; or the engine reads only host memory.
  std::unique_ptr<DeviceArray> Borrow(nb::object array);

  // Returns: the array as a Python object; null if it is in host memory, on another device, no array, or cannot be
  // borrowed. The package then converts it, or says why it cannot. Errors: of Python that are no Exception.
  nb::object TryBorrow(nb::handle array);

 private:
  // Looks at the type of `array`, unless it is that of the last one.
  void LookAt(nb::handle array);

  const std::optional<DeviceStream> reader_;
  nb::object type_;
  const ExchangeApi* api_ = nullptr;  // null: the type has none
  uintptr_t work_stream_ = 0;         // of the library, if there is an API
  bool has_dlpack_ = false;
  bool has_interface_ = false;
  bool has_gradients_ = false;
  bool has_negations_ = false;
};

// Returns: the number of the CUDA device whose arrays Borrow takes, and the stream that reads them, as a number.
// nullopt: it takes none.
std::optional<std::pair<int, uintptr_t>> StreamOf(const LocalRuntime& runtime);

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_DEVICE_ARRAYS_H_
