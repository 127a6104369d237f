#include "python/engine/wire_keys.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/wire/delta_keys.h"
#include "python/engine/errors.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;

constexpr const char* kPlain = "plain";
constexpr const char* kImplicit = "implicit";
constexpr const char* kDelta = "delta_bitpacked";

// The smallest encoding of keys among those that are allowed, and its bytes; a plain one wins a tie, and has no bytes.
template <typename Key>
std::pair<std::string, std::string> Encode(absl::Span<const Key> keys, bool implicit, bool delta) {
  if (keys.empty()) return {kPlain, ""};
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] <= keys[i - 1]) return {kPlain, ""};
  }
  if (implicit && keys.back() - keys.front() == keys.size() - 1) return {kImplicit, ""};
  if (delta && wire::DeltaKeyBytes(keys) < keys.size() * sizeof(Key)) return {kDelta, wire::EncodeDeltaKeys(keys)};
  return {kPlain, ""};
}

py::tuple EncodeKeys(const py::array& keys, bool implicit, bool delta) {
  const auto size = static_cast<size_t>(keys.size());
  const auto [name, bytes] =
      keys.itemsize() == sizeof(uint32_t)
          ? Encode(absl::MakeConstSpan(static_cast<const uint32_t*>(keys.data()), size), implicit, delta)
          : Encode(absl::MakeConstSpan(static_cast<const uint64_t*>(keys.data()), size), implicit, delta);
  return py::make_tuple(name, py::bytes(bytes));
}

template <typename Key>
py::array Decode(absl::string_view bytes, uint64_t first_key, uint64_t num_keys) {
  constexpr uint64_t kLargest = std::numeric_limits<Key>::max();
  py::array_t<Key> keys(static_cast<py::ssize_t>(num_keys));
  const wire::DecodedKeys decoded = wire::DecodeDeltaKeys(bytes, first_key, num_keys, kLargest, keys.mutable_data());
  if (decoded.count != num_keys) {
    ThrowIfError(absl::InvalidArgumentError(decoded.wraps ? "the keys pass 2^64-1"
                                                          : absl::StrCat("key ", decoded.bad_key, " is too large")));
  }
  return keys;
}

py::array DecodeKeys(const py::buffer& data, uint64_t first_key, uint64_t num_keys, size_t key_bytes) {
  const py::buffer_info info = data.request();
  const absl::string_view bytes(static_cast<const char*>(info.ptr), static_cast<size_t>(info.size * info.itemsize));
  ThrowIfError(wire::CheckDeltaKeys(bytes, num_keys));
  return key_bytes == sizeof(uint32_t) ? Decode<uint32_t>(bytes, first_key, num_keys)
                                       : Decode<uint64_t>(bytes, first_key, num_keys);
}

}  // namespace

void DefineWireKeys(py::module_& module) {
  module.def("encode_keys", &EncodeKeys, py::arg("keys"), py::arg("implicit"), py::arg("delta"));
  module.def("decode_keys", &DecodeKeys, py::arg("data"), py::arg("first_key"), py::arg("num_keys"),
             py::arg("key_bytes"));
}

}  // namespace sparseagg::python
