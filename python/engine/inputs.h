// Reader of Python updates, and the references that keep their arrays alive.
#ifndef SPARSEAGG_PYTHON_ENGINE_INPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_INPUTS_H_

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/spec/spec.h"
#include "python/engine/device_arrays.h"
#include "python/engine/local_round.h"
#include "python/engine/nb.h"

namespace sparseagg::python {

// Python references that the engine no longer needs. The engine releases them on threads without the GIL, so they are
// collected here until a thread with the GIL drops them, in a call of any Aggregator. The process has one: submissions
// move from one Aggregator to another. Never destroyed, because threads may outlive main. Thread-safe.
class Released {
 public:
  static Released& OfProcess();
  // Takes references over. Needs no GIL.
  void Take(absl::Span<PyObject* const> objects);
  // Drops all references, which may run any Python code. Requires: the GIL.
  void Drop();

 private:
  Released() = default;

  std::mutex mu_;
  std::vector<PyObject*> objects_;
};

// The bytes of a Python object, lent by the buffer protocol until this is destroyed. Requires: the GIL.
// Errors: of the object's; BufferError: they do not lie together.
class LentBytes {
 public:
  explicit LentBytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;
  ~LentBytes() { PyBuffer_Release(&view_); }

  absl::string_view bytes() const { return {static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)}; }

 private:
  Py_buffer view_;
};

// References to the arrays of an update, mostly one or two.
using References = absl::InlinedVector<PyObject*, 2>;

// Returns: the owner of these references, new ones of the caller's, which Released takes over on whatever thread the
// owner goes. Null without references.
std::shared_ptr<const void> OwnReferences(References&& references);

// Returns: the tuples of two DeviceArrays, either of which may be None: without keys they are 0, 1, …. Borrows both.
// nullopt: they are not in the form in which the engine reads updates of `spec`.
std::optional<InputTensor> ReadDeviceTensor(const TensorSpec& spec, size_t tensor, const nb::object& keys,
                                            const nb::object& values, uint64_t num_keys);

// Reader of Python updates. Owned by an Aggregator; borrows `tensors`. All calls, the destructor too, require the GIL.
//
// Arrays in wire form (contiguous, aligned, the tensor's dtype, keys of any integer type of 32 or 64 bits), of NumPy or
// on the engine's device, are borrowed, and referenced until the engine releases them. All other updates go through
// `convert`, a callable of the Python package: (client_id, update) -> (list of (tensor, keys | None, values | None,
// num_keys), weight | None). The weight may be a list with one for each tensor (Submission::tensor_weights). It returns
// arrays in wire form, or raises. Keys and values may also both be DeviceArrays, of Aggregator.borrow.
class InputReader {
 public:
  explicit InputReader(absl::Span<const TensorSpec> tensors);

  // From now on leaves 64-bit keys that seem to be in order to the merge (InputTensor::unchecked), of tensors whose
  // engine takes them.
  void LeaveKeys();

  // Reads one update in any form that Aggregator.add of the Python package takes; if `pairs`, also an (update, weight)
  // tuple. May run any Python code, through `convert`.
  // Returns: a submission that references the arrays; it may be used and destroyed without the GIL.
  // Errors: exceptions of `convert`; TypeError if the arrays that it returns are not in wire form.
  Submission Read(std::string client_id, nb::handle update, bool pairs, const nb::object& convert,
                  ArrayBorrower& borrower) const;

 private:
  class Builder;

  // ReadFast, ReadTensor and ReadOnDevice return false if something is not in wire form.
  bool ReadFast(PyObject* update, bool pairs, ArrayBorrower& borrower, Builder& builder) const;
  bool ReadTensor(size_t tensor, PyObject* value, ArrayBorrower& borrower, Builder& builder) const;
  // Reads keys and rows, either of which may be None: without keys, all rows of the tensor.
  bool ReadOnDevice(size_t tensor, PyObject* keys, PyObject* rows, ArrayBorrower& borrower, Builder& builder) const;
  // Adds DeviceArrays, as of ReadDeviceTensor. Returns: false if they are not in the engine's form.
  bool AddDevicePiece(size_t tensor, const nb::object& keys, const nb::object& values, uint64_t num_keys,
                      Builder& builder) const;
  void ReadConverted(const nb::object& converted, ArrayBorrower& borrower, Builder& builder) const;

  absl::Span<const TensorSpec> tensors_;
  nb::dict index_;                 // name -> index
  std::vector<bool> leaves_keys_;  // of each tensor
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_INPUTS_H_
