// Slices in wire form, for tests of UpdateBuilder.
#ifndef SPARSEAGG_TESTS_HOST_UPDATES_SLICES_H_
#define SPARSEAGG_TESTS_HOST_UPDATES_SLICES_H_

#include <string>
#include <variant>
#include <vector>

#include "host/updates/update_builder.h"
#include "host/wire/delta_keys.h"
#include "tests/support/values.h"

namespace sparseagg::testing {

inline TensorSpec Spec(uint64_t num_rows = 1000, uint32_t row_width = 1) {
  TensorSpec spec;
  spec.name = "embedding";
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  return spec;
}

// A slice that owns its bytes.
struct Slice {
  SliceView::Keys type = SliceView::Keys::kU32;
  std::string keys;
  std::string values;
  uint64_t first_key = 0;
  uint64_t num_keys = 0;
  bool has_values = true;

  SliceView view() const { return {type, keys, first_key, num_keys, has_values, values}; }
};

inline std::string Floats(const std::vector<double>& values) { return PackFloats(DType::kFloat32, values); }

inline Slice U32(const std::vector<uint64_t>& keys, const std::vector<double>& values) {
  Slice slice{SliceView::Keys::kU32, "", Floats(values)};
  for (const uint64_t key : keys) AppendBits(DType::kUInt32, key, slice.keys);
  return slice;
}

inline Slice U64(const std::vector<uint64_t>& keys, const std::vector<double>& values) {
  Slice slice{SliceView::Keys::kU64, "", Floats(values)};
  for (const uint64_t key : keys) AppendBits(DType::kUInt64, key, slice.keys);
  return slice;
}

inline Slice Implicit(uint64_t first, uint64_t count, const std::vector<double>& values) {
  return {SliceView::Keys::kImplicit, "", Floats(values), first, count};
}

// Of keys that ascend.
inline Slice Delta(const std::vector<uint64_t>& keys, const std::vector<double>& values) {
  return {SliceView::Keys::kDeltaBitpacked, wire::EncodeDeltaKeys(keys), Floats(values), keys.empty() ? 0 : keys[0],
          keys.size()};
}

inline absl::Status Append(UpdateBuilder& builder, const TensorSpec& spec, uint64_t chunk, const SliceView& view) {
  const auto slice = CheckedSlice::Create(spec, chunk, view);
  return slice.ok() ? builder.Append(*slice) : slice.status();
}

inline std::vector<uint64_t> KeysOf(const ValidatedUpdate& update) {
  std::vector<uint64_t> keys;
  if (const auto* run = std::get_if<KeyRun>(&update.keys())) {
    for (uint64_t i = 0; i < run->count; ++i) keys.push_back(run->first + i);
  } else if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&update.keys())) {
    keys.assign(narrow->begin(), narrow->end());
  } else {
    const auto& wide = std::get<absl::Span<const uint64_t>>(update.keys());
    keys.assign(wide.begin(), wide.end());
  }
  return keys;
}

inline std::vector<double> FloatsOf(const ValidatedUpdate& update, uint32_t row_width = 1) {
  std::vector<double> values;
  for (size_t i = 0; i < update.num_keys() * row_width; ++i) {
    values.push_back(ReadFloat(DType::kFloat32, reinterpret_cast<const char*>(update.values()) + 4 * i));
  }
  return values;
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_UPDATES_SLICES_H_
