#include "host/updates/slice.h"

#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/wire/delta_keys.h"

namespace sparseagg {
namespace {

// The number of values in the slice; 0 without values. INVALID_ARGUMENT without tensor and chunk, as of CountKeys.
absl::StatusOr<uint64_t> CountValues(const TensorSpec& spec, const SliceView& view) {
  if (!view.has_values) return 0;
  if (!wire::Widens(view.value_packing, spec.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(wire::Name(view.value_packing), " values do not widen to ", Name(spec.dtype)));
  }
  return wire::CountValues(view.value_packing, spec.dtype, view.values.size());
}

// The number of keys in the slice. `rows`: how many rows its values make, which decides where implicit keys do not
// declare their number.
absl::StatusOr<uint64_t> CountKeys(const SliceView& view, uint64_t rows) {
  const auto whole_keys = [&](size_t key_bytes) -> absl::StatusOr<uint64_t> {
    if (view.first_key != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_key ", view.first_key, " does not go with U32 and U64 keys"));
    }
    if (view.keys.size() % key_bytes == 0) return view.keys.size() / key_bytes;
    return absl::InvalidArgumentError(absl::StrCat(view.keys.size(), " bytes of keys are no multiple of ", key_bytes));
  };
  Column<char> storage;
  switch (view.key_type) {
    case SliceView::Keys::kU32:
      return whole_keys(sizeof(uint32_t));
    case SliceView::Keys::kU64:
      return whole_keys(sizeof(uint64_t));
    case SliceView::Keys::kImplicit:
      if (view.keys.empty()) return view.num_keys != 0 ? view.num_keys : rows;
      return absl::InvalidArgumentError(absl::StrCat("implicit keys have no bytes, not ", view.keys.size()));
    case SliceView::Keys::kDeltaBitpacked:
      RETURN_IF_ERROR(wire::CheckDeltaKeys(view.keys.Flatten(storage), view.num_keys));
      return view.num_keys;
  }
  return absl::InternalError("unknown key type");
}

// Checks that the slice has `num_keys` keys as declared, and one row for each.
absl::Status CheckCounts(const TensorSpec& spec, const SliceView& view, uint64_t num_keys, uint64_t num_values) {
  if (view.num_keys != 0 && view.num_keys != num_keys) {
    return absl::InvalidArgumentError(absl::StrCat("num_keys ", view.num_keys, " does not agree with ",
                                                   view.keys.size(), " bytes of keys, which hold ", num_keys));
  }
  if (!view.has_values) {
    if (spec.aggregation.op == Op::kUnion) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(num_keys, " keys without values; only union takes that"));
  }
  // Compared by division: num_keys × row_width could overflow.
  if (num_values % spec.row_width != 0 || num_values / spec.row_width != num_keys) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_keys, " keys of row_width ", spec.row_width, " do not fit ", num_values, " values"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InvalidSlice(const TensorSpec& spec, uint64_t chunk, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ", chunk ", chunk, ": ", problem));
}

absl::StatusOr<CheckedSlice> CheckedSlice::Create(const TensorSpec& spec, uint64_t chunk, const SliceView& view) {
  const absl::StatusOr<uint64_t> num_values = CountValues(spec, view);
  if (!num_values.ok()) return InvalidSlice(spec, chunk, num_values.status().message());
  const absl::StatusOr<uint64_t> num_keys = CountKeys(view, *num_values / spec.row_width);
  if (!num_keys.ok()) return InvalidSlice(spec, chunk, num_keys.status().message());
  if (const absl::Status status = CheckCounts(spec, view, *num_keys, *num_values); !status.ok()) {
    return InvalidSlice(spec, chunk, status.message());
  }
  CheckedSlice slice;
  slice.view_ = view;
  slice.chunk_ = chunk;
  slice.num_keys_ = *num_keys;
  slice.num_values_ = *num_values;
  slice.key_bytes_ = slice.has_packed_keys() ? *num_keys * KeyBytes(spec) : view.keys.size();
  slice.value_bytes_ = *num_values * SizeOf(spec.dtype);
  return slice;
}

}  // namespace sparseagg
