#include "python/engine/inputs.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/cpu/cpu_engine.h"
#include "python/engine/device_arrays.h"
#include "python/engine/gil.h"
#include "python/engine/numpy.h"

namespace sparseagg::python {
namespace {

using numpy::AsPlain;
using numpy::PlainArray;

// Keys of an update from which on they are left to the merge. A merge of many small updates waits for cache lines, of
// which 64-bit keys fill twice as many as copied ones.
constexpr int64_t kFewestLeft = 4096;

// Returns: the bytes object in which a plain array lies, borrowed, if nobody can change them: NumPy writes to no array
// over a memoryview of bytes. Null for other arrays, also for those that lie in bytes since they were unpickled: they,
// or views of them, are written to.
PyObject* FixedBytes(PyObject* array, const PlainArray& plain) {
  PyObject* base = array;
  while (base != nullptr && numpy::IsArray(base)) base = reinterpret_cast<numpy::Array*>(base)->base;
  if (base == nullptr || PyMemoryView_Check(base) == 0) return nullptr;
  const nb::object bytes = nb::handle(base).attr("obj");  // which the memoryview keeps
  if (PyBytes_CheckExact(bytes.ptr()) == 0) return nullptr;
  const auto offset =
      reinterpret_cast<uintptr_t>(plain.data) - reinterpret_cast<uintptr_t>(PyBytes_AsString(bytes.ptr()));
  const auto size = static_cast<uintptr_t>(PyBytes_Size(bytes.ptr()));
  return offset <= size && static_cast<size_t>(plain.size) * plain.item_bytes <= size - offset ? bytes.ptr() : nullptr;
}

std::optional<InputKeys> AsKeys(const PlainArray& array) {
  if (array.dimensions != 1) return std::nullopt;
  const auto size = static_cast<size_t>(array.size);
  const bool is_signed = array.kind == 'i';
  if (!is_signed && array.kind != 'u') return std::nullopt;
  if (array.item_bytes == 4) {
    if (is_signed) return absl::MakeConstSpan(static_cast<const int32_t*>(array.data), size);
    return absl::MakeConstSpan(static_cast<const uint32_t*>(array.data), size);
  }
  if (array.item_bytes == 8) {
    if (is_signed) return absl::MakeConstSpan(static_cast<const int64_t*>(array.data), size);
    return absl::MakeConstSpan(static_cast<const uint64_t*>(array.data), size);
  }
  return std::nullopt;
}

// Returns: whether the array's dtype is the tensor's; bfloat16 values come as their bits, in uint16.
bool HasWireType(const TensorSpec& spec, const PlainArray& array) {
  if (array.item_bytes != SizeOf(spec.dtype)) return false;
  if (spec.dtype == DType::kBFloat16 || IsModular(spec.dtype)) return array.kind == 'u';
  return array.kind == (IsFloat(spec.dtype) ? 'f' : 'i');
}

}  // namespace

Released& Released::OfProcess() {
  static Released& released = []() -> Released& {
    // The lock is held during a fork, so that no other thread holds it in the child.
    pthread_atfork([] { OfProcess().mu_.lock(); }, [] { OfProcess().mu_.unlock(); }, [] { OfProcess().mu_.unlock(); });
    return *new Released;
  }();
  return released;
}

void Released::Take(absl::Span<PyObject* const> objects) {
  std::lock_guard lock(mu_);
  objects_.insert(objects_.end(), objects.begin(), objects.end());
}

void Released::Drop() {
  std::vector<PyObject*> objects;
  {
    std::lock_guard lock(mu_);
    objects.swap(objects_);
  }
  // May run any Python code, so not under the lock.
  CallPython([&] {
    for (PyObject* object : objects) Py_DECREF(object);
  });
}

std::shared_ptr<const void> OwnReferences(References&& references) {
  class Holder {
   public:
    explicit Holder(References&& objects) : objects_(std::move(objects)) {}
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    ~Holder() { Released::OfProcess().Take(objects_); }

   private:
    References objects_;
  };
  if (references.empty()) return nullptr;
  return std::make_shared<const Holder>(std::move(references));
}

// One submission in the making, with references to its arrays. Build moves the references into the submission, whose
// destruction hands them to Released, on any thread.
class InputReader::Builder {
 public:
  explicit Builder(size_t num_tensors) {
    submission.tensors.reserve(num_tensors);
    references_.reserve(2 * num_tensors);
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  ~Builder() { Clear(); }

  void Hold(PyObject* object) { Hold(object, references_); }
  void HoldKeys(PyObject* keys) { Hold(keys, key_references_); }
  void Clear() {
    submission.tensors.clear();
    submission.weight.reset();
    for (auto* references : {&references_, &key_references_}) {
      for (PyObject* object : *references) Py_DECREF(object);
      references->clear();
    }
  }
  Submission Build() {
    const auto by_index = [](const InputTensor& a, const InputTensor& b) { return a.tensor < b.tensor; };
    auto& tensors = submission.tensors;
    if (!std::is_sorted(tensors.begin(), tensors.end(), by_index)) std::sort(tensors.begin(), tensors.end(), by_index);
    submission.owner = OwnReferences(std::move(references_));
    submission.key_owner = OwnReferences(std::move(key_references_));
    references_.clear();
    key_references_.clear();
    return std::move(submission);
  }

  Submission submission;

 private:
  static void Hold(PyObject* object, References& references) {
    Py_INCREF(object);
    references.push_back(object);
  }

  References references_;
  References key_references_;
};

InputReader::InputReader(absl::Span<const TensorSpec> tensors)
    : tensors_(tensors), leaves_keys_(tensors.size(), false) {
  for (size_t t = 0; t < tensors_.size(); ++t) index_[nb::str(tensors_[t].name.c_str(), tensors_[t].name.size())] = t;
}

void InputReader::LeaveKeys() {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    // Beside rows of several values, the keys cost little.
    leaves_keys_[t] = tensors_[t].row_width == 1 && CpuTakesUncheckedKeys(tensors_[t]);
  }
}

Submission InputReader::Read(std::string client_id, nb::handle update, bool pairs, const nb::object& convert,
                             ArrayBorrower& borrower) const {
  Builder builder(tensors_.size());
  if (!ReadFast(update.ptr(), pairs, borrower, builder)) {
    builder.Clear();
    ReadConverted(CallPython([&] { return convert(client_id, update); }), borrower, builder);
  }
  builder.submission.client_id = std::move(client_id);
  return builder.Build();
}

bool InputReader::ReadFast(PyObject* update, bool pairs, ArrayBorrower& borrower, Builder& builder) const {
  if (pairs && PyTuple_CheckExact(update) && PyTuple_Size(update) == 2) {
    PyObject* second = PyTuple_GetItem(update, 1);
    const bool is_weight = PyFloat_Check(second) != 0 || PyLong_CheckExact(second) != 0;
    if (is_weight) {
      const double weight = PyFloat_AsDouble(second);
      if (weight == -1.0 && PyErr_Occurred() != nullptr) {
        PyErr_Clear();  // an integer beyond float64; `convert` raises the error
        return false;
      }
      builder.submission.weight = weight;
      update = PyTuple_GetItem(update, 0);
    }
  }
  if (!PyDict_CheckExact(update)) return tensors_.size() == 1 && ReadTensor(0, update, borrower, builder);
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(update, &position, &name, &value) != 0) {
    PyObject* index = PyUnicode_CheckExact(name) != 0 ? PyDict_GetItemWithError(index_.ptr(), name) : nullptr;
    if (index == nullptr) return false;
    if (!ReadTensor(PyLong_AsSize_t(index), value, borrower, builder)) return false;
  }
  return true;
}

bool InputReader::ReadTensor(size_t tensor, PyObject* value, ArrayBorrower& borrower, Builder& builder) const {
  const TensorSpec& spec = tensors_[tensor];
  InputTensor input;
  input.tensor = tensor;
  if (PyTuple_CheckExact(value) && PyTuple_Size(value) == 2) {
    PyObject* key_object = PyTuple_GetItem(value, 0);
    PyObject* value_object = PyTuple_GetItem(value, 1);
    const auto key_array = AsPlain(key_object);
    if (key_object == Py_None) return false;
    if (!key_array.has_value()) return ReadOnDevice(tensor, key_object, value_object, borrower, builder);
    const auto keys = AsKeys(*key_array);
    if (!keys.has_value()) return false;
    input.keys = *keys;
    const bool has_key_type = key_array->kind == 'u' && key_array->item_bytes == KeyBytes(spec);
    PyObject* const bytes = has_key_type ? FixedBytes(key_object, *key_array) : nullptr;
    input.has_fixed_keys = bytes != nullptr;
    if (leaves_keys_[tensor] && key_array->item_bytes == sizeof(uint64_t) && key_array->size >= kFewestLeft) {
      const auto* const wide = static_cast<const uint64_t*>(key_array->data);
      input.unchecked = LookOver(spec, absl::MakeConstSpan(wide, static_cast<size_t>(key_array->size)));
    }
    const bool stay = input.has_fixed_keys || input.unchecked.has_value();
    stay ? builder.Hold(bytes != nullptr ? bytes : key_object) : builder.HoldKeys(key_object);
    if (value_object != Py_None) {
      const auto values = AsPlain(value_object);
      if (!values.has_value() || !HasWireType(spec, *values)) return false;
      // Compared by division: size × row_width could overflow.
      if (values->size % spec.row_width != 0 || values->size / spec.row_width != key_array->size) return false;
      if (values->dimensions > 1 && values->length != key_array->size) return false;
      input.values = static_cast<const std::byte*>(values->data);
      builder.Hold(value_object);
    }
  } else {
    const auto values = AsPlain(value);
    if (!values.has_value()) return ReadOnDevice(tensor, Py_None, value, borrower, builder);
    if (!HasWireType(spec, *values) || spec.num_rows == 0) return false;
    const auto size = static_cast<uint64_t>(values->size);
    if (size % spec.row_width != 0 || size / spec.row_width != spec.num_rows) return false;
    // `convert` knows which other shapes are allowed.
    if (values->dimensions > 1 && static_cast<uint64_t>(values->length) != spec.num_rows) return false;
    input.keys = KeyRun{0, spec.num_rows};
    input.values = static_cast<const std::byte*>(values->data);
    builder.Hold(value);
  }
  builder.submission.tensors.push_back(input);
  return true;
}

bool InputReader::ReadOnDevice(size_t tensor, PyObject* keys, PyObject* rows, ArrayBorrower& borrower,
                               Builder& builder) const {
  // The code of a library may take them out of the update.
  const std::array<nb::object, 2> given = {nb::borrow(keys), nb::borrow(rows)};
  std::array<nb::object, 2> lent;
  for (size_t i = 0; i < given.size(); ++i) {
    if (numpy::IsArray(given[i].ptr())) return false;
    lent[i] = given[i].is_none() ? nb::none() : borrower.TryBorrow(given[i]);
    if (!lent[i].is_valid()) return false;
  }
  const bool has_keys = !lent[0].is_none();
  const bool has_rows = !lent[1].is_none();
  const uint64_t num_keys = has_keys ? nb::cast<const DeviceArray&>(lent[0]).size() : tensors_[tensor].num_rows;
  if (num_keys == 0 || !(has_keys || has_rows)) return false;
  if (has_rows) {  // `convert` knows which other shapes are allowed
    const std::vector<int64_t>& shape = nb::cast<const DeviceArray&>(lent[1]).shape();
    if (shape.size() > 1 && static_cast<uint64_t>(shape[0]) != num_keys) return false;
  }
  return AddDevicePiece(tensor, lent[0], lent[1], num_keys, builder);
}

void InputReader::ReadConverted(const nb::object& converted, ArrayBorrower& borrower, Builder& builder) const {
  const auto [pieces, weight] = nb::cast<std::pair<nb::list, nb::object>>(converted);
  if (nb::isinstance<nb::list>(weight)) {
    builder.submission.tensor_weights = nb::cast<std::vector<double>>(weight);
  } else if (!weight.is_none()) {
    builder.submission.weight = nb::cast<double>(weight);
  }
  for (const nb::handle piece : pieces) {
    const auto [tensor, keys, values, num_keys] = nb::cast<std::tuple<size_t, nb::object, nb::object, uint64_t>>(piece);
    if (tensor >= tensors_.size()) throw nb::type_error("convert: there is no such tensor");
    if (nb::isinstance<DeviceArray>(keys) || nb::isinstance<DeviceArray>(values)) {
      if (!AddDevicePiece(tensor, keys, values, num_keys, builder)) {
        throw nb::type_error("convert: not arrays of a device in the engine's form");
      }
    } else if (keys.is_none()) {
      const auto array = AsPlain(values.ptr());
      if (!array.has_value() || !HasWireType(tensors_[tensor], *array) ||
          static_cast<uint64_t>(array->size) != num_keys * tensors_[tensor].row_width) {
        throw nb::type_error("convert: not the values of a run");
      }
      builder.Hold(values.ptr());
      builder.submission.tensors.push_back({tensor, KeyRun{0, num_keys}, static_cast<const std::byte*>(array->data)});
    } else if (!ReadTensor(tensor, nb::make_tuple(keys, values).ptr(), borrower, builder)) {
      throw nb::type_error("convert: not arrays in wire form");
    }
  }
}

bool InputReader::AddDevicePiece(size_t tensor, const nb::object& keys, const nb::object& values, uint64_t num_keys,
                                 Builder& builder) const {
  const std::optional<InputTensor> input = ReadDeviceTensor(tensors_[tensor], tensor, keys, values, num_keys);
  if (!input.has_value()) return false;
  builder.submission.tensors.push_back(*input);
  if (!keys.is_none()) builder.HoldKeys(keys.ptr());
  if (!values.is_none()) builder.Hold(values.ptr());
  return true;
}

std::optional<InputTensor> ReadDeviceTensor(const TensorSpec& spec, size_t tensor, const nb::object& keys,
                                            const nb::object& values, uint64_t num_keys) {
  InputTensor input{tensor, KeyRun{0, num_keys}, nullptr, /*on_device=*/true};
  if (!keys.is_none()) {
    const auto& array = nb::cast<const DeviceArray&>(keys);
    const std::optional<InputKeys> read = array.AsKeys();
    if (!read.has_value() || array.size() != num_keys) return std::nullopt;
    input.keys = *read;
    input.streams[0] = array.stream();
  }
  if (!values.is_none()) {
    const auto& array = nb::cast<const DeviceArray&>(values);
    if (!array.HasValuesOf(spec) || array.size() != num_keys * spec.row_width) return std::nullopt;
    input.values = array.data();
    input.streams[1] = array.stream();
  }
  return input;
}

}  // namespace sparseagg::python
