#include "host/updates/update_builder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/base/stream_copy.h"
#include "host/wire/delta_keys.h"

namespace sparseagg {
namespace {

// Copies the bytes of a slice, batch by batch, to where they are kept. Large slices are copied past the caches: they
// are read again only when the round is merged or the submission is sorted, and would evict what is needed before that.
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

template <typename Key>
ContentHash ComputeRunHash(KeyRun run) {
  constexpr size_t kBatch = 512;
  ContentHasher hash;
  Key batch[kBatch];
  for (uint64_t begin = 0; begin < run.count; begin += kBatch) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kBatch, run.count - begin));
    std::iota(batch, batch + n, static_cast<Key>(run.first + begin));
    hash.Add(batch, n * sizeof(Key));
  }
  return hash.Digest();
}

// Returns: the hash of the keys of a run. A thread keeps the hashes of long runs, because all updates of a dense tensor
// have the same keys: hashing 60 million takes 30 ms.
template <typename Key>
ContentHash HashRun(KeyRun run) {
  constexpr uint64_t kShortestKept = 4096;
  constexpr size_t kMostKept = 1024;
  if (run.count < kShortestKept) return ComputeRunHash<Key>(run);
  thread_local absl::flat_hash_map<std::pair<uint64_t, uint64_t>, ContentHash> kept;  // by first key and count
  const std::pair<uint64_t, uint64_t> key(run.first, run.count);
  if (const auto found = kept.find(key); found != kept.end()) return found->second;
  const ContentHash hash = ComputeRunHash<Key>(run);
  if (kept.size() >= kMostKept) kept.clear();
  kept.emplace(key, hash);
  return hash;
}

}  // namespace

UpdateBuilder::UpdateBuilder(const TensorSpec* spec) : spec_(spec) {}

absl::Status UpdateBuilder::Append(const CheckedSlice& slice, Growth growth) {
  const uint64_t count = slice.num_keys();
  const uint64_t first_key = slice.view().first_key;
  // Implicit keys of UNION take no bytes, so that no limit on bytes keeps their number below 2^64.
  if (count > std::numeric_limits<uint64_t>::max() - num_keys_) {
    return InvalidSlice(*spec_, slice.chunk(), absl::StrCat("with ", count, " more keys there are 2^64 or more"));
  }
  const internal::InputLocation location{spec_, slice.chunk()};
  const bool is_run = slice.view().key_type == SliceView::Keys::kImplicit;
  if (spec_->layout == Layout::kDense && (!is_run || (count > 0 && first_key != num_keys_))) {
    return InvalidSlice(*spec_, slice.chunk(),
                        is_run ? absl::StrCat("layout dense continues at key ", num_keys_, ", not at ", first_key)
                               : std::string("layout dense takes implicit keys"));
  }
  if (is_run) RETURN_IF_ERROR(internal::CheckKeyRun(location, first_key, count, order_));
  const Sizes sizes = SizesWith(slice);
  HasNarrowKeys(*spec_) ? narrow_keys_.reserve(sizes.keys, growth) : wide_keys_.reserve(sizes.keys, growth);
  values_.reserve(sizes.value_bytes, growth);
  if (count > 0 && is_run) {
    AppendRun({first_key, count});
  } else if (count > 0) {
    ExpandRun();
    RETURN_IF_ERROR(AppendKeys(location, slice));
  }
  if (count > 0) chunk_begins_.push_back({slice.chunk(), num_keys_});
  num_keys_ += count;
  return slice.view().has_values ? AppendValues(location, slice) : absl::OkStatus();
}

// Requires: the slice has keys.
absl::Status UpdateBuilder::AppendKeys(const internal::InputLocation& location, const CheckedSlice& slice) {
  const auto append = [&](auto& column) {
    column.resize(num_keys_ + slice.num_keys());
    return slice.has_packed_keys() ? AppendPackedKeys(location, slice, column)
                                   : AppendPlainKeys(location, slice, column);
  };
  return HasNarrowKeys(*spec_) ? append(narrow_keys_) : append(wide_keys_);
}

template <typename Key>
absl::Status UpdateBuilder::AppendPlainKeys(const internal::InputLocation& location, const CheckedSlice& slice,
                                            Column<Key>& column) {
  const size_t sent_bytes = slice.view().key_type == SliceView::Keys::kU32 ? sizeof(uint32_t) : sizeof(uint64_t);
  using Other = std::conditional_t<sizeof(Key) == sizeof(uint32_t), uint64_t, uint32_t>;
  const Copier copier(slice.num_keys() * sizeof(Key));
  uint64_t position = 0;
  return slice.view().keys.ForEachBatch(sent_bytes, [&](absl::string_view batch) -> absl::Status {
    Key* const out = column.data() + num_keys_ + position;
    const size_t n = batch.size() / sent_bytes;
    RETURN_IF_ERROR(internal::CheckKeys(location, position, batch.data(), n, static_cast<int>(sent_bytes), order_));
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

// Packed keys strictly ascend, so that the first and the last key of the slice are enough to follow the order.
template <typename Key>
absl::Status UpdateBuilder::AppendPackedKeys(const internal::InputLocation& location, const CheckedSlice& slice,
                                             Column<Key>& column) {
  Column<char> storage;
  const absl::string_view keys = slice.view().keys.Flatten(storage);
  const uint64_t first_key = slice.view().first_key;
  const uint64_t count = slice.num_keys();
  const uint64_t largest = spec_->num_rows == 0 ? std::numeric_limits<uint64_t>::max() : spec_->num_rows - 1;
  Key* const out = column.data() + num_keys_;
  const wire::DecodedKeys decoded = wire::DecodeDeltaKeys(keys, first_key, count, largest, out);
  if (decoded.count == count) {
    internal::ExtendOrder(order_, out[0], out[count - 1]);
    key_hash_.Add(out, count * sizeof(Key));
    return absl::OkStatus();
  }
  if (!decoded.wraps) return internal::KeyBeyondNumRows(location, decoded.count, decoded.bad_key);
  const uint64_t last = decoded.count == 0 ? first_key : uint64_t{out[decoded.count - 1]};
  return absl::InvalidArgumentError(
      absl::StrCat(location.ToString(decoded.count), ": the keys pass 2^64-1 after key ", last));
}

absl::Status UpdateBuilder::AppendValues(const internal::InputLocation& location, const CheckedSlice& slice) {
  const size_t size_before = values_.size();
  if (KeepsValues()) values_.resize(size_before + slice.value_bytes());
  std::byte* const out = values_.data() + size_before;
  return slice.view().value_packing == wire::ValuePacking::kInt8Scaled ? AppendScaledValues(location, slice, out)
                                                                       : AppendFloatsOrIntegers(location, slice, out);
}

absl::Status UpdateBuilder::AppendFloatsOrIntegers(const internal::InputLocation& location, const CheckedSlice& slice,
                                                   std::byte* out) {
  const wire::ValuePacking packing = slice.view().value_packing;
  const bool is_packed = packing != wire::ValuePacking::kOwn;
  const size_t sent_bytes = wire::PackedSize(packing, spec_->dtype);
  const size_t value_bytes = SizeOf(spec_->dtype);
  const Copier copier(slice.value_bytes());
  Column<std::byte> widened;
  const uint64_t first_key = num_keys_ - slice.num_keys();
  const auto key_at = [&](uint64_t position) { return KeyAt(first_key + position); };
  uint64_t before = 0;
  return slice.view().values.ForEachBatch(sent_bytes, [&](absl::string_view batch) -> absl::Status {
    const size_t n = batch.size() / sent_bytes;
    if (is_packed) {
      widened.resize(n * value_bytes);
      RETURN_IF_ERROR(wire::UnpackValues(packing, spec_->dtype, batch, n, widened.data()));
      batch = {reinterpret_cast<const char*>(widened.data()), widened.size()};
    }
    RETURN_IF_ERROR(internal::CheckValues(location, before, batch.data(), n, key_at));
    before += n;
    if (!KeepsValues()) return absl::OkStatus();
    value_hash_.Add(batch.data(), batch.size());
    copier.Copy(out, batch);
    out += batch.size();
    return absl::OkStatus();
  });
}

// The scales precede all values, so these are decoded in one piece.
absl::Status UpdateBuilder::AppendScaledValues(const internal::InputLocation& location, const CheckedSlice& slice,
                                               std::byte* out) {
  Column<char> storage;
  const absl::string_view packed = slice.view().values.Flatten(storage);
  const wire::ValuePacking packing = slice.view().value_packing;
  const absl::Status status = KeepsValues() ? wire::UnpackValues(packing, spec_->dtype, packed, slice.num_values(), out)
                                            : wire::CheckScales(packed, slice.num_values());
  if (!status.ok()) {
    const uint64_t value = wire::FindBadScale(packed, slice.num_values());
    const uint64_t key = KeyAt(num_keys_ - slice.num_keys() + value / spec_->row_width);
    return absl::InvalidArgumentError(absl::StrCat(location.ToString(key, value), ": ", status.message()));
  }
  if (KeepsValues()) value_hash_.Add(out, slice.value_bytes());
  return absl::OkStatus();
}

uint64_t UpdateBuilder::KeyAt(uint64_t index) const {
  if (is_run_) return run_.first + index;
  return HasNarrowKeys(*spec_) ? narrow_keys_[index] : wide_keys_[index];
}

void UpdateBuilder::ExpandRun() {
  if (!is_run_) return;
  is_run_ = false;
  WriteRun(run_);
}

bool UpdateBuilder::ExtendsRun(KeyRun keys) const {
  if (num_keys_ == 0) return true;
  // Key 0 follows no key, though the sum wraps to it at the end of the key space.
  return is_run_ && keys.first != 0 && keys.first == run_.first + run_.count;
}

UpdateBuilder::Sizes UpdateBuilder::SizesWith(const CheckedSlice& slice) const {
  Sizes sizes{HasNarrowKeys(*spec_) ? narrow_keys_.size() : wide_keys_.size(), values_.size()};
  const uint64_t count = slice.num_keys();
  if (count == 0) return sizes;
  const SliceView& view = slice.view();
  if (view.key_type != SliceView::Keys::kImplicit || !ExtendsRun({view.first_key, count})) {
    sizes.keys = SaturatingAdd(sizes.keys, SaturatingAdd(count, is_run_ ? run_.count : 0));
  }
  if (KeepsValues()) sizes.value_bytes = SaturatingAdd(sizes.value_bytes, slice.value_bytes());
  return sizes;
}

uint64_t UpdateBuilder::AppendBytes(const CheckedSlice& slice, Growth growth) const {
  const Sizes sizes = SizesWith(slice);
  const uint64_t key_bytes = HasNarrowKeys(*spec_) ? narrow_keys_.ReserveBytes(sizes.keys, growth)
                                                   : wide_keys_.ReserveBytes(sizes.keys, growth);
  const bool begins_fit = slice.num_keys() == 0 || chunk_begins_.size() < chunk_begins_.capacity();
  const uint64_t begins_bytes = begins_fit ? 0 : 2 * chunk_begins_.capacity() * sizeof(ChunkBegin);
  return SaturatingAdd(SaturatingAdd(key_bytes, values_.ReserveBytes(sizes.value_bytes, growth)), begins_bytes);
}

void UpdateBuilder::AppendRun(KeyRun keys) {
  if (ExtendsRun(keys)) {
    run_ = num_keys_ == 0 ? keys : KeyRun{run_.first, run_.count + keys.count};
    is_run_ = true;
    return;
  }
  ExpandRun();
  WriteRun(keys);
}

void UpdateBuilder::WriteRun(KeyRun run) {
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
  if (KeepsValues()) values_.reserve(num_keys * spec_->row_width * SizeOf(spec_->dtype));
}

uint64_t UpdateBuilder::ReserveBytes(uint64_t num_keys) const {
  const uint64_t row_bytes = KeepsValues() ? SizeOf(spec_->dtype) * spec_->row_width : 0;
  return SaturatingMultiply(num_keys, KeyBytes(*spec_) + row_bytes);
}

size_t UpdateBuilder::memory_bytes() const {
  return narrow_keys_.capacity() * sizeof(uint32_t) + wide_keys_.capacity() * sizeof(uint64_t) + values_.capacity() +
         chunk_begins_.capacity() * sizeof(ChunkBegin);
}

// Stored keys have the tensor's key type, however they were packed. Only a run is not stored, and is hashed here.
ContentHash UpdateBuilder::HashKeys() const {
  if (!is_run_) return key_hash_.Digest();
  return HasNarrowKeys(*spec_) ? HashRun<uint32_t>(run_) : HashRun<uint64_t>(run_);
}

ContentHash UpdateBuilder::HashContent() const {
  const ContentHash keys = HashKeys();
  const ContentHash values = value_hash_.Digest();
  const uint64_t both[] = {keys.first, keys.second, values.first, values.second};
  return HashOf(both, sizeof(both));
}

UpdateContent UpdateBuilder::Content() const {
  UpdateContent content;
  content.num_keys = num_keys_;
  if (is_run_) {
    content.keys = run_;
  } else if (HasNarrowKeys(*spec_)) {
    content.keys = absl::MakeConstSpan(narrow_keys_.data(), narrow_keys_.size());
  } else {
    content.keys = absl::MakeConstSpan(wide_keys_.data(), wide_keys_.size());
  }
  content.values = absl::MakeConstSpan(values_.data(), values_.size());
  return content;
}

absl::Status UpdateBuilder::InvalidKey(uint64_t index, absl::string_view problem) const {
  const auto after = std::upper_bound(chunk_begins_.begin(), chunk_begins_.end(), index,
                                      [](uint64_t i, const ChunkBegin& begin) { return i < begin.first; });
  const ChunkBegin& begin = *std::prev(after);
  return absl::InvalidArgumentError(
      absl::StrCat(internal::InputLocation{spec_, begin.chunk}.ToString(index - begin.first), ": ", problem));
}

template <typename Key>
absl::Status UpdateBuilder::CheckDeclarationsOf(const Column<Key>& keys) const {
  if (declared_sorted_ && !order_.sorted) {
    const auto before = std::adjacent_find(keys.begin(), keys.end(), std::greater<>());
    return InvalidKey(static_cast<uint64_t>(before + 1 - keys.begin()),
                      absl::StrCat("keys_sorted was declared, but key ", before[1], " follows key ", before[0]));
  }
  if (!MustSearchRepeats()) return absl::OkStatus();
  Column<Key> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  const auto repeat = std::adjacent_find(sorted.begin(), sorted.end());
  if (repeat == sorted.end()) return absl::OkStatus();
  const auto again = std::find(std::find(keys.begin(), keys.end(), *repeat) + 1, keys.end(), *repeat);
  return InvalidKey(static_cast<uint64_t>(again - keys.begin()),
                    absl::StrCat("keys_unique was declared, but key ", *repeat, " is repeated"));
}

absl::Status UpdateBuilder::CheckDeclarations() const {
  return narrow_keys_.empty() ? CheckDeclarationsOf(wide_keys_) : CheckDeclarationsOf(narrow_keys_);
}

uint64_t UpdateBuilder::FinishBytes() const {
  if (!MustSearchRepeats()) return 0;
  return narrow_keys_.size() * sizeof(uint32_t) + wide_keys_.size() * sizeof(uint64_t);
}

absl::StatusOr<ValidatedUpdate> UpdateBuilder::Finish(double weight) && {
  RETURN_IF_ERROR(ValidateWeight(*spec_, weight));
  if (spec_->layout == Layout::kDense && num_keys_ != spec_->num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(*spec_), ": layout dense needs all ", spec_->num_rows, " rows, not ", num_keys_));
  }
  RETURN_IF_ERROR(CheckDeclarations());
  struct Storage {
    Column<uint32_t> narrow_keys;
    Column<uint64_t> wide_keys;
    std::shared_ptr<const Column<std::byte>> values;
  };
  auto storage = std::make_shared<Storage>();
  storage->narrow_keys = std::move(narrow_keys_);
  storage->wide_keys = std::move(wide_keys_);
  // An update may be kept for long, so that spare capacity is released.
  storage->narrow_keys.Trim();
  storage->wide_keys.Trim();
  values_.Trim();
  storage->values = std::make_shared<const Column<std::byte>>(std::move(values_));

  ValidatedUpdate update;
  if (is_run_) {
    update.columns_.keys = run_;
  } else if (HasNarrowKeys(*spec_)) {
    update.columns_.keys = absl::MakeConstSpan(storage->narrow_keys.data(), storage->narrow_keys.size());
  } else {
    update.columns_.keys = absl::MakeConstSpan(storage->wide_keys.data(), storage->wide_keys.size());
  }
  update.columns_.values = storage->values->empty() ? nullptr : storage->values->data();
  update.columns_.value_owner = storage->values;
  update.columns_.owner = std::move(storage);
  update.num_keys_ = num_keys_;
  update.weight_ = WeightInUse(*spec_, weight);
  update.sorted_ = order_.sorted;
  update.unique_ = order_.unique;
  return update;
}

}  // namespace sparseagg
