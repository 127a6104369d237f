// Packed keys of the wire, for the package's client.
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
#include "python/engine/inputs.h"
#include "python/engine/messages.h"
#include "python/engine/numpy.h"

namespace sparseagg::python {
namespace {

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

using Keys = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple EncodeKeys(const Keys& keys, bool implicit, bool delta) {
  const auto [name, bytes] =
      keys.itemsize() == sizeof(uint32_t)
          ? Encode(absl::MakeConstSpan(static_cast<const uint32_t*>(keys.data()), keys.size()), implicit, delta)
          : Encode(absl::MakeConstSpan(static_cast<const uint64_t*>(keys.data()), keys.size()), implicit, delta);
  return nb::make_tuple(name, ToBytes(bytes));
}

template <typename Key>
nb::object Decode(absl::string_view bytes, uint64_t first_key, uint64_t num_keys) {
  constexpr uint64_t kLargest = std::numeric_limits<Key>::max();
  constexpr DType kType = sizeof(Key) == sizeof(uint32_t) ? DType::kUInt32 : DType::kUInt64;
  nb::object keys = numpy::View(kType, {static_cast<Py_ssize_t>(num_keys)}, nullptr, {});
  auto* const data = static_cast<Key*>(reinterpret_cast<numpy::Array*>(keys.ptr())->data);
  const wire::DecodedKeys decoded = wire::DecodeDeltaKeys(bytes, first_key, num_keys, kLargest, data);
  if (decoded.count != num_keys) {
    ThrowIfError(absl::InvalidArgumentError(decoded.wraps ? "the keys pass 2^64-1"
                                                          : absl::StrCat("key ", decoded.bad_key, " is too large")));
  }
  return keys;
}

nb::object DecodeKeys(nb::handle data, uint64_t first_key, uint64_t num_keys, size_t key_bytes) {
  const LentBytes lent(data);
  const absl::string_view bytes = lent.bytes();
  ThrowIfError(wire::CheckDeltaKeys(bytes, num_keys));
  return key_bytes == sizeof(uint32_t) ? Decode<uint32_t>(bytes, first_key, num_keys)
                                       : Decode<uint64_t>(bytes, first_key, num_keys);
}

}  // namespace

void DefineWireKeys(nb::module_& module) {
  module.def("encode_keys", &EncodeKeys, nb::arg("keys"), nb::arg("implicit"), nb::arg("delta"));
  module.def("decode_keys", &DecodeKeys, nb::arg("data"), nb::arg("first_key"), nb::arg("num_keys"),
             nb::arg("key_bytes"));
}

}  // namespace sparseagg::python
