#include "host/updates/update_builder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/base/stream_copy.h"
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

// Takes the bytes of a slice, batch by batch, to where they are kept. They are read again when the round is merged, or
// the submission sorted: many of them would have left the cache by then, and would have driven out what is needed now.
class Copier {
 public:
  explicit Copier(uint64_t bytes) : streams_(bytes >= kSmallestStreamed) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  ~Copier() {
    if (streams_) internal::EndStreaming();
  }
  void Copy(void* to, absl::string_view batch) const {
    if (streams_) {
      internal::StreamCopy(to, batch.data(), batch.size());
    } else {
      std::memcpy(to, batch.data(), batch.size());
    }
  }

 private:
  static constexpr uint64_t kSmallestStreamed = uint64_t{64} << 10;
  const bool streams_;
};

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

absl::Status UpdateBuilder::Append(uint64_t chunk, const SliceView& slice, Growth growth) {
  const absl::StatusOr<uint64_t> counted = CountKeys(slice);
  if (!counted.ok()) return Invalid(*spec_, chunk, counted.status().message());
  const uint64_t count = *counted;
  // Implicit keys of UNION take no bytes.
  if (count > std::numeric_limits<uint64_t>::max() - num_keys_) {
    return Invalid(*spec_, chunk, absl::StrCat("with ", count, " keys more there are 2^64 or more"));
  }
  RETURN_IF_ERROR(CheckValueBytes(*spec_, chunk, slice, count));
  const internal::Place place{spec_, chunk};
  const bool is_run = slice.key_type == SliceView::Keys::kImplicit;
  if (spec_->layout == Layout::kDense && (!is_run || (count > 0 && slice.first_key != num_keys_))) {
    return Invalid(*spec_, chunk,
                   is_run ? absl::StrCat("layout dense goes on at key ", num_keys_, ", not at ", slice.first_key)
                          : std::string("layout dense takes implicit keys"));
  }
  if (is_run) RETURN_IF_ERROR(internal::ScanRun(place, slice.first_key, count, order_));
  const Sizes sizes = SizesWith(slice, count);
  HasNarrowKeys(*spec_) ? narrow_keys_.MakeRoom(sizes.keys, growth) : wide_keys_.MakeRoom(sizes.keys, growth);
  values_.MakeRoom(sizes.value_bytes, growth);
  if (count > 0 && is_run) {
    StoreImplicit({slice.first_key, count});
  } else if (count > 0) {
    LeaveRun();
    RETURN_IF_ERROR(AppendKeys(place, slice, count));
  }
  if (count > 0) chunk_begins_.push_back({chunk, num_keys_});
  num_keys_ += count;
  return slice.has_values ? AppendValues(place, slice, count) : absl::OkStatus();
}

// At least one.
absl::Status UpdateBuilder::AppendKeys(const internal::Place& place, const SliceView& slice, uint64_t count) {
  const auto append = [&](auto& column) {
    column.resize(num_keys_ + count);
    return slice.has_packed_keys() ? AppendPackedKeys(place, slice, count, column)
                                   : AppendPlainKeys(place, slice, count, column);
  };
  return HasNarrowKeys(*spec_) ? append(narrow_keys_) : append(wide_keys_);
}

template <typename Key>
absl::Status UpdateBuilder::AppendPlainKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                                            Column<Key>& column) {
  const size_t sent_bytes = slice.key_type == SliceView::Keys::kU32 ? sizeof(uint32_t) : sizeof(uint64_t);
  using Other = std::conditional_t<sizeof(Key) == sizeof(uint32_t), uint64_t, uint32_t>;
  const Copier copier(count * sizeof(Key));
  uint64_t position = 0;
  return slice.keys.ForEachBatch(sent_bytes, [&](absl::string_view batch) -> absl::Status {
    Key* const out = column.data() + num_keys_ + position;
    const size_t n = batch.size() / sent_bytes;
    RETURN_IF_ERROR(internal::ScanKeys(place, position, batch.data(), n, static_cast<int>(sent_bytes), order_));
    if (sent_bytes == sizeof(Key)) {
      key_hash_.Add(batch.data(), batch.size());
      copier.Copy(out, batch);
    } else {
      for (size_t i = 0; i < n; ++i) {
        Other key;
        std::memcpy(&key, batch.data() + i * sizeof(key), sizeof(key));
        out[i] = static_cast<Key>(key);
      }
      key_hash_.Add(out, n * sizeof(Key));
    }
    position += n;
    return absl::OkStatus();
  });
}

// Decodes to where the keys are kept. Packed keys strictly ascend, so that the first and the last tell their order.
template <typename Key>
absl::Status UpdateBuilder::AppendPackedKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                                             Column<Key>& column) {
  Column<char> storage;
  const absl::string_view keys = slice.keys.Flatten(storage);
  const uint64_t largest = spec_->dimension == 0 ? std::numeric_limits<uint64_t>::max() : spec_->dimension - 1;
  Key* const out = column.data() + num_keys_;
  const bool is_bitmap = slice.key_type == SliceView::Keys::kBitmap;
  const wire::DecodedKeys decoded = is_bitmap ? wire::DecodeBitmapKeys(keys, slice.first_key, count, largest, out)
                                              : wire::DecodeDeltaKeys(keys, slice.first_key, count, largest, out);
  if (decoded.count == count) {
    internal::ExtendOrder(order_, out[0], out[count - 1]);
    key_hash_.Add(out, count * sizeof(Key));
    return absl::OkStatus();
  }
  if (!decoded.wraps) return internal::KeyTooLarge(place, decoded.count, decoded.bad_key);
  return absl::InvalidArgumentError(absl::StrCat(place.ToString(decoded.count), ": the keys pass 2^64-1"));
}

absl::Status UpdateBuilder::AppendValues(const internal::Place& place, const SliceView& slice, uint64_t count) {
  const size_t size_before = values_.size();
  const uint64_t num_values = count * spec_->width;
  if (KeepsValues()) values_.resize(size_before + num_values * SizeOf(spec_->dtype));
  std::byte* const out = values_.data() + size_before;
  return slice.value_packing == wire::ValuePacking::kInt8Scaled ? TakeScaledValues(place, slice, num_values, out)
                                                                : TakeValues(place, slice, num_values, out);
}

// Writes to `out`, if values are kept.
absl::Status UpdateBuilder::TakeValues(const internal::Place& place, const SliceView& slice, uint64_t num_values,
                                       std::byte* out) {
  const bool is_packed = slice.value_packing != wire::ValuePacking::kOwn;
  const size_t sent_bytes = wire::PackedSize(slice.value_packing, spec_->dtype);
  const size_t value_bytes = SizeOf(spec_->dtype);
  const Copier copier(num_values * value_bytes);
  Column<std::byte> widened;
  uint64_t before = 0;
  return slice.values.ForEachBatch(sent_bytes, [&](absl::string_view batch) -> absl::Status {
    const size_t n = batch.size() / sent_bytes;
    if (is_packed) {
      widened.resize(n * value_bytes);
      RETURN_IF_ERROR(wire::UnpackValues(slice.value_packing, spec_->dtype, batch, n, widened.data()));
      batch = {reinterpret_cast<const char*>(widened.data()), widened.size()};
    }
    RETURN_IF_ERROR(internal::ScanValues(place, before, batch.data(), n));
    before += n;
    if (!KeepsValues()) return absl::OkStatus();
    value_hash_.Add(batch.data(), batch.size());
    copier.Copy(out, batch);
    out += batch.size();
    return absl::OkStatus();
  });
}

// As TakeValues. The scales stand before all values, so these are decoded in one piece.
absl::Status UpdateBuilder::TakeScaledValues(const internal::Place& place, const SliceView& slice, uint64_t num_values,
                                             std::byte* out) {
  Column<char> storage;
  const absl::string_view packed = slice.values.Flatten(storage);
  const absl::Status status = KeepsValues()
                                  ? wire::UnpackValues(slice.value_packing, spec_->dtype, packed, num_values, out)
                                  : wire::CheckScales(packed, num_values);
  if (!status.ok()) return Invalid(*spec_, place.chunk.value_or(0), status.message());
  if (KeepsValues()) value_hash_.Add(out, num_values * SizeOf(spec_->dtype));
  return absl::OkStatus();
}

// Writes out the keys that are held as a run.
void UpdateBuilder::LeaveRun() {
  if (!is_run_) return;
  is_run_ = false;
  StoreRun(run_);
}

// Whether the keys are one run, with all keys so far.
bool UpdateBuilder::GoesOnRun(KeyRun keys) const {
  if (num_keys_ == 0) return true;
  // Key 0 follows no key, though the sum wraps to it at the end of the key space.
  return is_run_ && keys.first != 0 && keys.first == run_.first + run_.count;
}

UpdateBuilder::Sizes UpdateBuilder::SizesWith(const SliceView& slice, uint64_t count) const {
  Sizes sizes{HasNarrowKeys(*spec_) ? narrow_keys_.size() : wide_keys_.size(), values_.size()};
  if (count == 0) return sizes;
  if (slice.key_type != SliceView::Keys::kImplicit || !GoesOnRun({slice.first_key, count})) {
    sizes.keys = SaturatingAdd(sizes.keys, SaturatingAdd(count, is_run_ ? run_.count : 0));
  }
  if (KeepsValues() && slice.has_values) {
    const uint64_t bytes = slice.value_packing == wire::ValuePacking::kOwn
                               ? slice.values.size()
                               : SaturatingMultiply(count, uint64_t{spec_->width} * SizeOf(spec_->dtype));
    sizes.value_bytes = SaturatingAdd(sizes.value_bytes, bytes);
  }
  return sizes;
}

uint64_t UpdateBuilder::RoomBytes(const SliceView& slice, Growth growth) const {
  const Sizes sizes = SizesWith(slice, slice.num_keys);
  const uint64_t key_bytes =
      HasNarrowKeys(*spec_) ? narrow_keys_.RoomBytes(sizes.keys, growth) : wide_keys_.RoomBytes(sizes.keys, growth);
  const bool begins_fit = slice.num_keys == 0 || chunk_begins_.size() < chunk_begins_.capacity();
  const uint64_t begins_bytes = begins_fit ? 0 : 2 * chunk_begins_.capacity() * sizeof(ChunkBegin);
  return SaturatingAdd(SaturatingAdd(key_bytes, values_.RoomBytes(sizes.value_bytes, growth)), begins_bytes);
}

void UpdateBuilder::StoreImplicit(KeyRun keys) {
  if (GoesOnRun(keys)) {
    run_ = num_keys_ == 0 ? keys : KeyRun{run_.first, run_.count + keys.count};
    is_run_ = true;
    return;
  }
  LeaveRun();
  StoreRun(keys);
}

void UpdateBuilder::StoreRun(KeyRun run) {
  const auto store = [&](auto& column) {
    const size_t before = column.size();
    column.resize(before + run.count);
    std::iota(column.begin() + before, column.end(), static_cast<std::decay_t<decltype(column[0])>>(run.first));
    key_hash_.Add(column.data() + before, run.count * sizeof(column[0]));
  };
  HasNarrowKeys(*spec_) ? store(narrow_keys_) : store(wide_keys_);
}

void UpdateBuilder::Reserve(uint64_t num_keys) {
  HasNarrowKeys(*spec_) ? narrow_keys_.reserve(num_keys) : wide_keys_.reserve(num_keys);
  if (KeepsValues()) values_.reserve(num_keys * spec_->width * SizeOf(spec_->dtype));
}

size_t UpdateBuilder::memory_bytes() const {
  return narrow_keys_.capacity() * sizeof(uint32_t) + wide_keys_.capacity() * sizeof(uint64_t) + values_.capacity() +
         chunk_begins_.capacity() * sizeof(ChunkBegin);
}

// The type in which keys are held follows from the tensor, however they were packed; only a run is not held.
ContentHash UpdateBuilder::HashKeys() const {
  if (!is_run_) return key_hash_.Digest();
  ContentHasher hash = key_hash_;
  const auto add_run = [&](auto type) {
    constexpr size_t kBatch = 512;
    decltype(type) batch[kBatch];
    for (uint64_t begin = 0; begin < run_.count; begin += kBatch) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(kBatch, run_.count - begin));
      std::iota(batch, batch + n, static_cast<decltype(type)>(run_.first + begin));
      hash.Add(batch, n * sizeof(type));
    }
  };
  HasNarrowKeys(*spec_) ? add_run(uint32_t{}) : add_run(uint64_t{});
  return hash.Digest();
}

ContentHash UpdateBuilder::HashContent() const {
  const ContentHash keys = HashKeys();
  const ContentHash values = value_hash_.Digest();
  const uint64_t both[] = {keys.first, keys.second, values.first, values.second};
  return HashOf(both, sizeof(both));
}

absl::Status UpdateBuilder::BrokenPromise(uint64_t index, absl::string_view what) const {
  const auto after = std::upper_bound(chunk_begins_.begin(), chunk_begins_.end(), index,
                                      [](uint64_t i, const ChunkBegin& begin) { return i < begin.first; });
  const ChunkBegin& begin = *std::prev(after);
  return absl::InvalidArgumentError(
      absl::StrCat(internal::Place{spec_, begin.chunk}.ToString(index - begin.first), ": ", what));
}

template <typename Key>
absl::Status UpdateBuilder::CheckPromisesOf(const Column<Key>& keys) const {
  if (declared_sorted_ && !order_.sorted) {
    const auto before = std::adjacent_find(keys.begin(), keys.end(), std::greater<>());
    return BrokenPromise(static_cast<uint64_t>(before + 1 - keys.begin()),
                         absl::StrCat("keys_sorted was declared, but key ", before[1], " follows key ", before[0]));
  }
  if (!MustSeekRepeats()) return absl::OkStatus();
  Column<Key> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  const auto repeat = std::adjacent_find(sorted.begin(), sorted.end());
  if (repeat == sorted.end()) return absl::OkStatus();
  const auto again = std::find(std::find(keys.begin(), keys.end(), *repeat) + 1, keys.end(), *repeat);
  return BrokenPromise(static_cast<uint64_t>(again - keys.begin()),
                       absl::StrCat("keys_unique was declared, but key ", *repeat, " is repeated"));
}

absl::Status UpdateBuilder::CheckPromises() const {
  return narrow_keys_.empty() ? CheckPromisesOf(wide_keys_) : CheckPromisesOf(narrow_keys_);
}

uint64_t UpdateBuilder::FinishBytes() const {
  if (!MustSeekRepeats()) return 0;
  return narrow_keys_.size() * sizeof(uint32_t) + wide_keys_.size() * sizeof(uint64_t);
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
  storage->narrow_keys = std::move(narrow_keys_);
  storage->wide_keys = std::move(wide_keys_);
  storage->values = std::move(values_);
  // What growth made room for in advance goes back, since an update may be kept for long.
  storage->narrow_keys.Trim();
  storage->wide_keys.Trim();
  storage->values.Trim();

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
  update.weight_ = WeightInUse(*spec_, weight);
  update.sorted_ = order_.sorted;
  update.unique_ = order_.unique;
  return update;
}

}  // namespace sparseagg
