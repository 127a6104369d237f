// From Python's objects to submissions. Everything here holds the GIL.
#ifndef SPARSEAGG_PYTHON_ENGINE_INPUTS_H_
#define SPARSEAGG_PYTHON_ENGINE_INPUTS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "host/spec/spec.h"
#include "python/engine/local_round.h"

namespace sparseagg::python {

// Python references that the engine has released on threads without the GIL. A thread with the GIL drops them later.
// Thread-safe.
class Released {
 public:
  ~Released() { Drop(); }
  void Take(std::vector<PyObject*>&& objects);
  // With the GIL.
  void Drop();

 private:
  std::mutex mu_;
  std::vector<PyObject*> objects_;
};

// Reads updates. Arrays that are in wire form already (contiguous, aligned, the tensor's dtype, keys of any integer
// type of 32 or 64 bits) are borrowed, and referenced until the engine lets go of them; everything else goes through
// `convert`, a callable (client_id, update) -> (list of (tensor, keys | None, values | None, num_keys),
// weight | None) that makes wire arrays or raises.
class InputReader {
 public:
  InputReader(absl::Span<const TensorSpec> tensors, std::shared_ptr<Released> released);

  // `update` is what Aggregator.add of the Python package takes; with `pairs`, or a pair of that and a weight.
  Submission Read(std::string client_id, pybind11::handle update, bool pairs, const pybind11::object& convert) const;

 private:
  class Builder;

  bool ReadFast(PyObject* update, bool pairs, Builder& builder) const;
  bool ReadTensor(size_t tensor, PyObject* value, Builder& builder) const;
  void ReadConverted(const pybind11::object& converted, Builder& builder) const;

  absl::Span<const TensorSpec> tensors_;
  std::shared_ptr<Released> released_;
  pybind11::dict index_;  // name -> index
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_INPUTS_H_
