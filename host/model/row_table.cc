#include "host/model/row_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/base/stream_copy.h"
#include "host/model/initial_rows.h"

namespace sparseagg {
namespace {

// Rows that a loop over random rows fetches ahead.
constexpr size_t kAhead = 8;

void Fetch(const std::byte* memory, size_t bytes) {
  for (size_t byte = 0; byte < std::min<size_t>(bytes, 512); byte += 64) __builtin_prefetch(memory + byte);
}

}  // namespace

void KeyMap::Reserve(size_t more, SharedMutex* mu) {
  if (HasRoom(more)) return;
  KeyMap larger;
  larger.entries_.resize(std::bit_ceil((size_ + more) / 3 * 4 + 8));
  std::fill(larger.entries_.begin(), larger.entries_.end(), Entry{0, 0, kNone});
  ForEach([&](uint64_t key, uint32_t value) { larger.Set(key, value); });
  WriterLock lock(mu);
  std::swap(entries_, larger.entries_);
}

void KeyMap::Set(uint64_t key, uint32_t value) {
  Entry& entry = entries_[SlotOf(key)];
  size_ += entry.value == kNone;
  entry = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), value};
}

void KeyMap::Erase(uint64_t key) {
  if (Find(key) != kNone) EraseAt(SlotOf(key));
}

void KeyMap::EraseAt(size_t slot) {
  const size_t mask = entries_.size() - 1;
  for (size_t next = Next(slot); entries_[next].value != kNone; next = Next(next)) {
    if (((next - HomeOf(entries_[next].key())) & mask) < ((next - slot) & mask)) continue;
    entries_[slot] = entries_[next];
    slot = next;
  }
  entries_[slot].value = kNone;
  --size_;
}

bool KeyMap::EraseUpTo(uint32_t value) {
  const size_t before = size_;
  for (size_t slot = 0; slot < entries_.size(); ++slot) {
    while (entries_[slot].value <= value) EraseAt(slot);
  }
  return size_ < before;
}

RowTable::RowTable(const ModelTensorSpec& spec, uint32_t position, uint32_t keep_versions, SharedMutex* mu)
    : spec_(spec),
      position_(position),
      keep_versions_(keep_versions),
      mu_(*mu),
      steps_(spec.optimizer),
      steps_before_(steps_),
      planes_(spec.NumPlanes()) {}

size_t RowTable::BlockRows() const { return std::max<size_t>(1, kBlockBytes / spec_.TouchedRowBytes()); }

uint64_t RowTable::BeginBytes(const Result* delta) const {
  const uint64_t num_new = delta == nullptr ? 0 : NumPresent(*delta);
  const uint64_t row = 2 * spec_.TouchedRowBytes();  // with what it takes to undo it
  uint64_t bytes = SaturatingAdd(SaturatingMultiply(num_new, row), index_.ReserveBytes(num_new));
  if (spec_.max_rows != 0 && index_.size() + num_new > spec_.max_rows) bytes = SaturatingAdd(bytes, 16 * index_.size());
  return SaturatingAdd(bytes, 2 * (kBlockBytes + row));
}

absl::Status RowTable::Begin(uint32_t version, const Result* delta, std::optional<double> learning_rate) {
  const uint64_t num_touched = delta == nullptr ? 0 : NumPresent(*delta);
  if (spec_.max_rows != 0 && num_touched > spec_.max_rows) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tensor '", spec_.name, "': ", num_touched, " rows at once; max_rows is ", spec_.max_rows));
  }
  if (keys_.size() + num_touched >= kFreeSlot) {
    return absl::ResourceExhaustedError(absl::StrCat("tensor '", spec_.name, "' would have 2^32 rows"));
  }
  Undo undo;
  undo.version = version;
  undo.planes.resize(planes_.size());
  Reserve(num_touched, version == 0 ? 0 : std::min(num_touched, index_.size()), undo);
  {
    WriterLock lock(&mu_);
    undo_.push_back(std::move(undo));
    steps_before_ = steps_;
    if (learning_rate.has_value() && spec_.optimizer.kind != OptimizerKind::kAssign) {
      steps_.set_learning_rate(*learning_rate);
    }
  }
  is_begun_ = true;
  has_other_keys_ = false;
  if (num_touched > 0) {
    const OptimizerSpec optimizer = version == 0 ? DefaultOptimizer(OptimizerKind::kAssign) : spec_.optimizer;
    if (version != 0) steps_.Advance(optimizer);
    Planes work(planes_.size());
    for (size_t p = 0; p < work.size(); ++p) work[p].resize(BlockRows() * spec_.PlaneBytes(p));
    RETURN_IF_ERROR(ForEachPart(*delta, BlockRows(), [&](absl::Span<const uint64_t> keys, const std::byte* values) {
      return Touch(optimizer, keys, values, delta->dtype, work);
    }));
  }
  Remove(ChooseRemovals(version));
  return absl::OkStatus();
}

absl::Status RowTable::Touch(const OptimizerSpec& optimizer, absl::Span<const uint64_t> keys, const std::byte* values,
                             DType dtype, Planes& work) {
  const size_t n = keys.size();
  Column<uint32_t> slots(n);
  size_t num_new = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) index_.Prefetch(keys[i + kAhead]);
    slots[i] = index_.Find(keys[i]);
    num_new += slots[i] == kNone;
    for (size_t p = 0; slots[i] != kNone && p < planes_.size(); ++p) Fetch(RowOf(p, slots[i]), spec_.PlaneBytes(p));
  }
  for (size_t p = 0; p < planes_.size(); ++p) {
    const size_t bytes = spec_.PlaneBytes(p);
    for (size_t i = 0; i < n; ++i) {
      std::byte* const to = work[p].data() + i * bytes;
      if (slots[i] != kNone) {
        std::memcpy(to, RowOf(p, slots[i]), bytes);
      } else if (p == 0) {
        WriteInitialRows(spec_, position_, keys.subspan(i, 1), to);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
  StepRows step;
  step.num_values = n * spec_.row_width;
  step.dtype = spec_.dtype;
  step.x = work[0].data();
  if (spec_.optimizer.HasM()) step.m = work[1].data();
  if (spec_.optimizer.HasV()) step.v = work.back().data();
  step.delta_dtype = dtype;
  step.delta = values;
  step.delta_factor = optimizer.gradients ? -1.0 : 1.0;
  if (const size_t bad = TakeStep(optimizer, steps_.Rate(optimizer), step); bad < step.num_values) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor '", spec_.name, "': the step of key ", keys[bad / spec_.row_width], " gives column ",
                     bad % spec_.row_width,
                     IsFloat(spec_.dtype) ? " a value that is not finite" : " a value that int32 cannot hold"));
  }

  index_.Reserve(num_new, &mu_);
  WriterLock lock(&mu_);
  const size_t num_slots = keys_.size() + num_new;
  keys_.reserve(num_slots, Growth::kAhead);
  touched_.reserve(num_slots, Growth::kAhead);
  for (size_t p = 0; p < planes_.size(); ++p) planes_[p].reserve(num_slots * spec_.PlaneBytes(p), Growth::kAhead);
  Undo& undo = undo_.back();
  Reserve(undo.keys.size() + n, undo.planes[0].size() / spec_.row_bytes() + n - num_new, undo);
  for (size_t i = 0; i < n; ++i) {  // allocates nothing
    uint32_t slot = slots[i];
    if (slot != kNone) {
      KeepOld(keys[i], slot, undo);
    } else {
      const uint32_t removed = removed_.Find(keys[i]);
      undo.keys.push_back(keys[i]);
      undo.touched.push_back(removed == kNone ? kNever : removed);
      undo.row.push_back(kNone);
      removed_.Erase(keys[i]);
      slot = TakeSlot();
      keys_[slot] = keys[i];
      index_.Set(keys[i], slot);
      has_other_keys_ = true;
    }
    touched_[slot] = undo.version;
    for (size_t p = 0; p < planes_.size(); ++p) {
      std::memcpy(RowOf(p, slot), work[p].data() + i * spec_.PlaneBytes(p), spec_.PlaneBytes(p));
    }
  }
  internal::EndStreaming();
  undo.num_touched = undo.keys.size();
  return absl::OkStatus();
}

void RowTable::Reserve(size_t num_entries, size_t num_rows, Undo& undo) const {
  undo.keys.reserve(num_entries, Growth::kAhead);
  undo.touched.reserve(num_entries, Growth::kAhead);
  undo.row.reserve(num_entries, Growth::kAhead);
  for (size_t p = 0; p < undo.planes.size(); ++p) {
    undo.planes[p].reserve(num_rows * spec_.PlaneBytes(p), Growth::kAhead);
  }
}

void RowTable::KeepOld(uint64_t key, uint32_t slot, Undo& undo) {
  undo.keys.push_back(key);
  undo.touched.push_back(touched_[slot]);
  undo.row.push_back(static_cast<uint32_t>(undo.planes[0].size() / spec_.row_bytes()));
  for (size_t p = 0; p < planes_.size(); ++p) {
    Column<std::byte>& plane = undo.planes[p];
    plane.resize(plane.size() + spec_.PlaneBytes(p));
    internal::StreamCopy(plane.end() - spec_.PlaneBytes(p), RowOf(p, slot), spec_.PlaneBytes(p));
  }
}

uint32_t RowTable::TakeSlot() {
  if (free_slots_.empty()) {
    ResizeSlots(keys_.size() + 1);
    return static_cast<uint32_t>(keys_.size() - 1);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void RowTable::ResizeSlots(size_t num_slots) {
  keys_.resize(num_slots);
  touched_.resize(num_slots);
  for (size_t p = 0; p < planes_.size(); ++p) planes_[p].resize(num_slots * spec_.PlaneBytes(p));
}

Column<uint64_t> RowTable::ChooseRemovals(uint32_t version) {
  Column<uint64_t> dead;
  const bool expires = spec_.expire_after != 0 && version - oldest_touch_ > spec_.expire_after;
  const bool is_full = spec_.max_rows != 0 && index_.size() > spec_.max_rows;
  if (!expires && !is_full) return dead;
  uint32_t oldest = version;
  std::vector<std::pair<uint32_t, uint64_t>> left;  // (touched, key) of the rows that may be removed
  for (size_t slot = 0; slot < touched_.size(); ++slot) {
    const uint32_t touched = touched_[slot];
    if (touched == kFreeSlot || touched == version) continue;
    if (expires && version - touched > spec_.expire_after) {
      dead.push_back(keys_[slot]);
      continue;
    }
    oldest = std::min(oldest, touched);
    if (is_full) left.emplace_back(touched, keys_[slot]);
  }
  oldest_touch_ = oldest;
  if (is_full && index_.size() - dead.size() > spec_.max_rows) {
    const auto excess = static_cast<std::ptrdiff_t>(index_.size() - dead.size() - spec_.max_rows);
    std::nth_element(left.begin(), left.begin() + excess - 1, left.end());
    for (std::ptrdiff_t i = 0; i < excess; ++i) dead.push_back(left[static_cast<size_t>(i)].second);
  }
  std::sort(dead.begin(), dead.end());
  return dead;
}

void RowTable::Remove(absl::Span<const uint64_t> keys) {
  if (keys.empty()) return;
  removed_.Reserve(keys.size(), &mu_);
  ReserveMore(keys.size(), free_slots_);
  has_other_keys_ = true;
  for (size_t begin = 0; begin < keys.size(); begin += BlockRows()) {
    const absl::Span<const uint64_t> block = keys.subspan(begin, BlockRows());
    WriterLock lock(&mu_);
    Undo& undo = undo_.back();
    Reserve(undo.keys.size() + block.size(), undo.planes[0].size() / spec_.row_bytes() + block.size(), undo);
    for (const uint64_t key : block) {
      const uint32_t slot = index_.Find(key);
      KeepOld(key, slot, undo);
      removed_.Set(key, undo.version);
      index_.Erase(key);
      touched_[slot] = kFreeSlot;
      free_slots_.push_back(slot);
    }
    internal::EndStreaming();
  }
}

void RowTable::Commit() {
  is_begun_ = false;
  Undo& newest = undo_.back();
  newest.planes.resize(1);
  num_rows_ = index_.size();
  num_removed_ += newest.keys.size() - newest.num_touched;
  if (has_other_keys_) ++num_key_changes_;
  const uint32_t forgotten = newest.version - std::min(newest.version, keep_versions_);
  while (!undo_.empty() && undo_.front().version <= forgotten) undo_.pop_front();
  const bool forgets = removed_.size() > std::max<size_t>(kMostRemembered, index_.size() / 4);
  if (forgets && removed_.EraseUpTo(forgotten)) oldest_since_ = forgotten;
}

void RowTable::Abandon() {
  if (!is_begun_) return;
  oldest_touch_ = 0;
  for (bool is_done = false; !is_done;) {
    WriterLock lock(&mu_);
    Undo& undo = undo_.back();
    for (size_t i = 0; i < kAbandonRows && !undo.keys.empty(); ++i) RestoreLast(undo);
    is_done = undo.keys.empty();
    if (!is_done) continue;
    undo_.pop_back();
    steps_ = steps_before_;
  }
  is_begun_ = false;
}

// Goes backwards, so that each row gets the slot that it had.
void RowTable::RestoreLast(Undo& undo) {
  const size_t last = undo.keys.size() - 1;
  const uint64_t key = undo.keys[last];
  const uint32_t row = undo.row[last];
  uint32_t slot = index_.Find(key);
  if (last >= undo.num_touched) {
    slot = TakeSlot();
    index_.Set(key, slot);
    removed_.Erase(key);
  }
  undo.num_touched = std::min(undo.num_touched, last);
  if (row != kNone) {
    touched_[slot] = undo.touched[last];
    for (size_t p = 0; p < planes_.size(); ++p) {
      const size_t bytes = spec_.PlaneBytes(p);
      std::memcpy(RowOf(p, slot), undo.planes[p].data() + row * bytes, bytes);
      undo.planes[p].resize(row * bytes);
    }
  } else {
    index_.Erase(key);
    if (undo.touched[last] != kNever) removed_.Set(key, undo.touched[last]);
    touched_[slot] = kFreeSlot;
    if (slot + size_t{1} == keys_.size()) {
      ResizeSlots(slot);
    } else {
      free_slots_.push_back(slot);  // from where it came, so there is capacity
    }
  }
  undo.keys.resize(last);
  undo.touched.resize(last);
  undo.row.resize(last);
}

RowTable::Found RowTable::Find(uint64_t key, uint32_t version) const {
  Found found;
  const uint32_t slot = index_.Find(key);
  if (slot != kNone) {
    found = {planes_[0].data() + slot * spec_.row_bytes(), touched_[slot]};
  } else if (const uint32_t removed = removed_.Find(key); removed != kNone) {
    found.touched = removed;
  }
  while (found.touched > version) {
    const Undo& undo = undo_[found.touched - undo_.front().version];
    const uint64_t* const middle = undo.keys.begin() + undo.num_touched;
    const uint64_t* at = std::lower_bound(undo.keys.begin(), middle, key);
    if (at == middle || *at != key) at = std::lower_bound(middle, undo.keys.end(), key);
    const auto entry = static_cast<size_t>(at - undo.keys.begin());
    const uint32_t row = undo.row[entry];
    found = {row == kNone ? nullptr : undo.planes[0].data() + row * spec_.row_bytes(), undo.touched[entry]};
  }
  return found;
}

std::shared_ptr<const Column<uint64_t>> RowTable::SortedKeys() const {
  MutexLock sorting(&sorted_mu_);
  std::shared_ptr<Column<uint64_t>> keys;
  uint64_t at;
  {
    ReaderLock lock(&mu_);
    at = num_key_changes_;
    if (sorted_ != nullptr && sorted_at_ == at) return sorted_;
    keys = std::make_shared<Column<uint64_t>>();
    keys->reserve(index_.size() + removed_.size());
    for (size_t slot = 0; slot < keys_.size(); ++slot) {
      if (touched_[slot] != kFreeSlot) keys->push_back(keys_[slot]);
    }
    removed_.ForEach([&](uint64_t key, uint32_t) { keys->push_back(key); });
  }
  std::sort(keys->begin(), keys->end());
  sorted_ = keys;
  sorted_at_ = at;
  return keys;
}

uint64_t RowTable::memory_bytes() const {
  uint64_t bytes = index_.size() * spec_.TouchedRowBytes() + 24 * removed_.size();
  for (const Undo& undo : undo_) {
    bytes += 16 * undo.keys.size();
    for (const Column<std::byte>& plane : undo.planes) bytes += plane.size();
  }
  return bytes;
}

RowTable::Header RowTable::SavedHeader() const {
  return {steps_.learning_rate(),          steps_.power_1(), steps_.power_2(),
          index_.size() + removed_.size(), num_removed_,     oldest_since_};
}

void RowTable::RestoreHeader(const Header& header) {
  steps_ = StepState(header.learning_rate, header.power_1, header.power_2);
  num_removed_ = header.num_removed;
  oldest_since_ = static_cast<uint32_t>(header.oldest_since);
}

absl::Status RowTable::Save(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const {
  const size_t most_rows = std::max<size_t>(1, (RowBlock::kMaxBytes - 128) / spec_.TouchedRowBytes());
  Column<uint64_t> keys;
  Column<uint32_t> touched;
  Planes planes(planes_.size());
  const auto write = [&](RowBlock::Kind kind) {
    if (keys.empty()) return absl::OkStatus();
    const auto bytes = [](const auto& column) {
      return absl::string_view(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(column[0]));
    };
    RowBlock block;
    block.kind = kind;
    block.dtype = spec_.dtype;
    block.tensor = position_;
    block.num_rows = keys.size();
    block.keys = bytes(keys);
    block.touched = bytes(touched);
    for (size_t p = 0; p < planes.size(); ++p) block.planes[p] = bytes(planes[p]);
    const absl::Status written = block.Write(take);
    keys.clear();
    touched.clear();
    for (Column<std::byte>& plane : planes) plane.clear();
    return written;
  };
  for (uint32_t slot = 0; slot < keys_.size(); ++slot) {
    if (touched_[slot] == kFreeSlot) continue;
    keys.push_back(keys_[slot]);
    touched.push_back(touched_[slot]);
    for (size_t p = 0; p < planes.size(); ++p) {
      planes[p].Append(planes_[p].data() + slot * spec_.PlaneBytes(p), spec_.PlaneBytes(p));
    }
    if (keys.size() == most_rows) RETURN_IF_ERROR(write(RowBlock::Kind::kRows));
  }
  RETURN_IF_ERROR(write(RowBlock::Kind::kRows));
  absl::Status status;
  removed_.ForEach([&](uint64_t key, uint32_t version) {
    keys.push_back(key);
    touched.push_back(version);
    if (keys.size() == most_rows) status.Update(write(RowBlock::Kind::kRemoved));
  });
  status.Update(write(RowBlock::Kind::kRemoved));
  return status;
}

absl::Status RowTable::Restore(const RowBlock& block) {
  if (block.kind == RowBlock::Kind::kDelta) return absl::DataLossError("a snapshot of a model has a block of a log");
  const Column<uint64_t> keys = block.Keys();
  Column<uint32_t> touched(keys.size());
  std::copy_n(block.touched.data(), block.touched.size(), reinterpret_cast<char*>(touched.data()));
  const bool is_rows = block.kind == RowBlock::Kind::kRows;
  KeyMap& map = is_rows ? index_ : removed_;
  map.Reserve(keys.size(), &mu_);
  for (size_t i = 0; i < keys.size(); ++i) {
    map.Set(keys[i], is_rows ? static_cast<uint32_t>(keys_.size() + i) : touched[i]);
  }
  if (!is_rows) return absl::OkStatus();
  num_rows_ = index_.size();
  keys_.Append(keys.data(), keys.size());
  touched_.Append(touched.data(), touched.size());
  for (size_t p = 0; p < planes_.size(); ++p) {
    planes_[p].Append(reinterpret_cast<const std::byte*>(block.planes[p].data()), block.planes[p].size());
  }
  return absl::OkStatus();
}

}  // namespace sparseagg
