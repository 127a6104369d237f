#include "host/update_builder.h"

#ifdef SPARSEAGG_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/status_macros.h"
#include "host/wire/bitmap_keys.h"
#include "host/wire/delta_keys.h"

namespace sparseagg {
namespace {

absl::Status Invalid(const TensorSpec& spec, uint64_t chunk, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ", chunk ", chunk, ": ", problem));
}

absl::Status CheckValueBytes(const TensorSpec& spec, uint64_t chunk, const SliceView& slice, uint64_t count) {
  if (!slice.has_values) {
    if (spec.aggregation.op == Op::kUnion) return absl::OkStatus();
    return Invalid(spec, chunk, absl::StrCat(count, " keys without values; only union takes that"));
  }
  if (!wire::Widens(slice.value_packing, spec.dtype)) {
    return Invalid(spec, chunk, absl::StrCat("values are packed in a way that does not widen to ", Name(spec.dtype)));
  }
  const auto counted = wire::CountValues(slice.value_packing, spec.dtype, slice.values.size());
  if (!counted.ok()) return Invalid(spec, chunk, counted.status().message());
  const uint64_t num_values = *counted;
  // Compared by division: count × width could overflow.
  if (num_values % spec.width != 0 || num_values / spec.width != count) {
    return Invalid(spec, chunk,
                   absl::StrCat(count, " keys of width ", spec.width, " do not fit ", num_values, " values"));
  }
  return absl::OkStatus();
}

// What growth made room for in advance goes back, since an update may be kept for long; an eighth may stay.
template <typename T>
Column<T> WithoutWaste(Column<T> column) {
  if (column.capacity() - column.size() <= column.size() / 8) return column;
  return Column<T>(column.begin(), column.end());
}

}  // namespace

absl::StatusOr<uint64_t> CountKeys(const SliceView& slice) {
  const auto whole_keys = [&](size_t key_bytes) -> absl::StatusOr<uint64_t> {
    if (slice.keys.size() % key_bytes == 0) return slice.keys.size() / key_bytes;
    return absl::InvalidArgumentError(absl::StrCat(slice.keys.size(), " bytes of keys are no multiple of ", key_bytes));
  };
  Column<char> storage;
  switch (slice.key_type) {
    case SliceView::Keys::kU32:
      return whole_keys(sizeof(uint32_t));
    case SliceView::Keys::kU64:
      return whole_keys(sizeof(uint64_t));
    case SliceView::Keys::kImplicit:
      if (slice.keys.empty()) return slice.num_keys;
      return absl::InvalidArgumentError(absl::StrCat("implicit keys have no bytes, not ", slice.keys.size()));
    case SliceView::Keys::kDeltaBitpacked:
      RETURN_IF_ERROR(wire::CheckDeltaKeys(slice.keys.Flatten(storage), slice.num_keys));
      return slice.num_keys;
    case SliceView::Keys::kBitmap:
      return wire::CountBitmapKeys(slice.keys.Flatten(storage));
  }
  return absl::InternalError("a type of keys that is none");
}

UpdateBuilder::UpdateBuilder(const TensorSpec* spec) : spec_(spec) {}

absl::Status UpdateBuilder::Append(uint64_t chunk, const SliceView& slice) {
  const absl::StatusOr<uint64_t> counted = CountKeys(slice);
  if (!counted.ok()) return Invalid(*spec_, chunk, counted.status().message());
  const uint64_t count = *counted;
  RETURN_IF_ERROR(CheckValueBytes(*spec_, chunk, slice, count));
  const internal::Place place{spec_, chunk};
  internal::KeyOrder order = order_;
  const bool is_run = slice.key_type == SliceView::Keys::kImplicit;
  if (spec_->layout == Layout::kDense && (!is_run || (count > 0 && slice.first_key != num_keys_))) {
    return Invalid(*spec_, chunk,
                   is_run ? absl::StrCat("layout dense goes on at key ", num_keys_, ", not at ", slice.first_key)
                          : std::string("layout dense takes implicit keys"));
  }
  if (is_run) {
    RETURN_IF_ERROR(internal::ScanRun(place, slice.first_key, count, order));
  } else if (count > 0) {
    RETURN_IF_ERROR(AppendKeys(place, slice, count, order));
  }
  if (slice.has_values) {
    absl::Status status = AppendValues(place, slice, count);
    if (!status.ok()) {
      if (!is_run && count > 0) DropKeysFrom(num_keys_);
      return status;
    }
  }
  // Nothing can be refused from here on.
  order_ = order;
  if (count == 0) return absl::OkStatus();
  if (is_run) StoreImplicit({slice.first_key, count});
  num_keys_ += count;
  return absl::OkStatus();
}

// Values, like keys, are copied or decoded to where they are kept, and looked at there while they are in the cache.
// INVALID_ARGUMENT leaves the values unchanged.
absl::Status UpdateBuilder::AppendValues(const internal::Place& place, const SliceView& slice, uint64_t count) {
  const bool is_kept = spec_->aggregation.op != Op::kUnion;
  Column<std::byte> dropped;
  Column<std::byte>& values = is_kept ? values_ : dropped;
  const size_t size_before = values.size();
  const uint64_t num_values = count * spec_->width;
  values.resize(size_before + num_values * SizeOf(spec_->dtype));
  std::byte* const out = values.data() + size_before;
  absl::Status status;
  if (slice.value_packing == wire::ValuePacking::kOwn) {
    slice.values.CopyTo(out);
  } else {
    Column<char> storage;
    status = wire::UnpackValues(slice.value_packing, spec_->dtype, slice.values.Flatten(storage), num_values, out);
  }
  if (!status.ok()) {
    status = Invalid(*spec_, place.chunk.value_or(0), status.message());
  } else {
    status = internal::ScanValues(place, reinterpret_cast<const char*>(out), count);
  }
  if (!status.ok()) values.resize(size_before);
  return status;
}

// At least one. INVALID_ARGUMENT leaves the keys unchanged.
absl::Status UpdateBuilder::AppendKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                                       internal::KeyOrder& order) {
  LeaveRun();
  if (slice.has_packed_keys()) return AppendPackedKeys(place, slice, count, order);
  const int key_bytes = slice.key_type == SliceView::Keys::kU32 ? 4 : 8;
  const auto append = [&](auto& column) {
    using Key = std::remove_reference_t<decltype(column[0])>;
    if (sizeof(Key) == static_cast<size_t>(key_bytes)) {
      column.resize(num_keys_ + count);
      Key* const out = column.data() + num_keys_;
      slice.keys.CopyTo(out);
      return internal::ScanKeys(place, reinterpret_cast<const char*>(out), count, key_bytes, order);
    }
    Column<char> storage;
    const absl::string_view keys = slice.keys.Flatten(storage);
    RETURN_IF_ERROR(internal::ScanKeys(place, keys.data(), count, key_bytes, order));
    using Sent = std::conditional_t<sizeof(Key) == 4, uint64_t, uint32_t>;
    column.resize(num_keys_ + count);
    for (uint64_t i = 0; i < count; ++i) {
      Sent key;
      std::memcpy(&key, keys.data() + i * sizeof(key), sizeof(key));
      column[num_keys_ + i] = static_cast<Key>(key);
    }
    return absl::OkStatus();
  };
  absl::Status status = HasNarrowKeys(*spec_) ? append(narrow_keys_) : append(wide_keys_);
  if (!status.ok()) DropKeysFrom(num_keys_);
  return status;
}

// Decodes to where the keys are kept. Packed keys strictly ascend, so that the first and the last tell their order.
absl::Status UpdateBuilder::AppendPackedKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                                             internal::KeyOrder& order) {
  Column<char> storage;
  const absl::string_view keys = slice.keys.Flatten(storage);
  const uint64_t largest = spec_->dimension == 0 ? std::numeric_limits<uint64_t>::max() : spec_->dimension - 1;
  const auto append = [&](auto& column) {
    column.resize(num_keys_ + count);
    const bool is_bitmap = slice.key_type == SliceView::Keys::kBitmap;
    auto* out = column.data() + num_keys_;
    const wire::DecodedKeys decoded = is_bitmap ? wire::DecodeBitmapKeys(keys, slice.first_key, count, largest, out)
                                                : wire::DecodeDeltaKeys(keys, slice.first_key, count, largest, out);
    if (decoded.count == count) internal::ExtendOrder(order, out[0], out[count - 1]);
    return decoded;
  };
  const wire::DecodedKeys decoded = HasNarrowKeys(*spec_) ? append(narrow_keys_) : append(wide_keys_);
  if (decoded.count == count) return absl::OkStatus();
  DropKeysFrom(num_keys_);
  if (!decoded.wraps) return internal::KeyTooLarge(place, decoded.count, decoded.bad_key);
  return absl::InvalidArgumentError(absl::StrCat(place.ToString(decoded.count), ": the keys pass 2^64-1"));
}

void UpdateBuilder::DropKeysFrom(uint64_t num_keys) {
  HasNarrowKeys(*spec_) ? narrow_keys_.resize(num_keys) : wide_keys_.resize(num_keys);
}

// Writes out the keys that are held as a run.
void UpdateBuilder::LeaveRun() {
  if (!is_run_) return;
  is_run_ = false;
  StoreRun(run_);
}

void UpdateBuilder::StoreImplicit(KeyRun keys) {
  if (num_keys_ == 0) {
    run_ = keys;
    is_run_ = true;
    return;
  }
  // Key 0 follows no key, though the sum wraps to it at the end of the key space.
  if (is_run_ && keys.first != 0 && keys.first == run_.first + run_.count) {
    run_.count += keys.count;
    return;
  }
  LeaveRun();
  StoreRun(keys);
}

void UpdateBuilder::StoreRun(KeyRun run) {
  const bool narrow = HasNarrowKeys(*spec_);
  for (uint64_t i = 0; i < run.count; ++i) {
    if (narrow) {
      narrow_keys_.push_back(static_cast<uint32_t>(run.first + i));
    } else {
      wide_keys_.push_back(run.first + i);
    }
  }
}

void UpdateBuilder::Reserve(uint64_t num_keys) {
  HasNarrowKeys(*spec_) ? narrow_keys_.reserve(num_keys) : wide_keys_.reserve(num_keys);
  if (spec_->aggregation.op != Op::kUnion) values_.reserve(num_keys * spec_->width * SizeOf(spec_->dtype));
}

size_t UpdateBuilder::memory_bytes() const {
  return narrow_keys_.capacity() * sizeof(uint32_t) + wide_keys_.capacity() * sizeof(uint64_t) + values_.capacity();
}

std::pair<uint64_t, uint64_t> UpdateBuilder::ContentHash() const {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  // The type in which keys are held follows from the tensor, however they were packed; only a run is not held.
  const auto hash_run = [&](auto type) {
    constexpr size_t kBatch = 512;
    decltype(type) batch[kBatch];
    for (uint64_t begin = 0; begin < run_.count; begin += kBatch) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(kBatch, run_.count - begin));
      for (size_t i = 0; i < n; ++i) batch[i] = static_cast<decltype(type)>(run_.first + begin + i);
      XXH3_128bits_update(state.get(), batch, n * sizeof(type));
    }
  };
  if (is_run_) {
    HasNarrowKeys(*spec_) ? hash_run(uint32_t{}) : hash_run(uint64_t{});
  } else {
    XXH3_128bits_update(state.get(), narrow_keys_.data(), narrow_keys_.size() * sizeof(uint32_t));
    XXH3_128bits_update(state.get(), wide_keys_.data(), wide_keys_.size() * sizeof(uint64_t));
  }
  XXH3_128bits_update(state.get(), values_.data(), values_.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return {hash.high64, hash.low64};
}

absl::Status UpdateBuilder::CheckPromises() const {
  if (declared_sorted_ && !order_.sorted) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(*spec_), ": keys_sorted was declared, but keys descend"));
  }
  if (!declared_unique_ || order_.unique) return absl::OkStatus();
  // Not strictly ascending. Only a sorted copy can tell whether a key is repeated.
  const auto find_repeat = [&](auto keys) -> absl::Status {
    std::sort(keys.begin(), keys.end());
    const auto repeat = std::adjacent_find(keys.begin(), keys.end());
    if (repeat == keys.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(*spec_), ": keys_unique was declared, but key ", *repeat, " is repeated"));
  };
  return narrow_keys_.empty() ? find_repeat(wide_keys_) : find_repeat(narrow_keys_);
}

absl::StatusOr<ValidatedUpdate> UpdateBuilder::Finish(double weight) && {
  RETURN_IF_ERROR(ValidateWeight(*spec_, weight));
  if (spec_->layout == Layout::kDense && num_keys_ != spec_->dimension) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(*spec_), ": layout dense needs all ", spec_->dimension, " rows, not ", num_keys_));
  }
  RETURN_IF_ERROR(CheckPromises());
  struct Storage {
    Column<uint32_t> narrow_keys;
    Column<uint64_t> wide_keys;
    Column<std::byte> values;
  };
  auto storage = std::make_shared<Storage>();
  storage->narrow_keys = WithoutWaste(std::move(narrow_keys_));
  storage->wide_keys = WithoutWaste(std::move(wide_keys_));
  storage->values = WithoutWaste(std::move(values_));

  ValidatedUpdate update;
  if (is_run_) {
    update.columns_.keys = run_;
  } else if (HasNarrowKeys(*spec_)) {
    update.columns_.keys = absl::MakeConstSpan(storage->narrow_keys.data(), storage->narrow_keys.size());
  } else {
    update.columns_.keys = absl::MakeConstSpan(storage->wide_keys.data(), storage->wide_keys.size());
  }
  update.columns_.values = storage->values.empty() ? nullptr : storage->values.data();
  update.columns_.owner = std::move(storage);
  update.num_keys_ = num_keys_;
  update.weight_ = spec_->aggregation.weighting == Weighting::kByWeight ? weight : 1.0;
  update.sorted_ = order_.sorted;
  update.unique_ = order_.unique;
  return update;
}

}  // namespace sparseagg
