// Entries: the values of each key of a range, gathered from all updates.
#ifndef SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_
#define SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/base/column.h"
#include "host/cpu/order/lanes.h"

namespace sparseagg::cpu {

// Keys of equally many entries, whose values lie in planes: plane p holds entry p of each of the keys.
struct EntryGroup {
  uint32_t place = 0;  // of the first key's first entry
  uint32_t count = 0;  // entries of each key
  uint32_t first = 0;  // index in Entries::by_count of the first key
  uint32_t keys = 0;   // at most kGroupLanes
};

// Entries of a range of keys, in canonical order of submissions within a key. Each entry has a place, and its values
// and weight are found by it. There are two ways to place entries:
//   in groups   keys of equally many entries, at most kMaxNetwork, and rows narrower than a vector: entry p of lane l
//               is at place + p · kGroupLanes + l, and each column has planes of its own
//   one by one  all others: entry p of a key is at place + p, and its row is contiguous
// Owned by one thread of a merge. Calls: Begin, AddKey for each key, Arrange; then entries are put. Not thread-safe.
template <typename Key, typename T>
class Entries {
 public:
  // `keeps_weights`, `keeps_sources`: whether entries have those.
  Entries(size_t columns, bool keeps_weights, bool keeps_sources)
      : columns_(columns),
        groups_keys_(columns < kGroupLanes),
        keeps_weights_(keeps_weights),
        keeps_sources_(keeps_sources) {}

  void Begin(uint64_t max_keys) {
    keys_.resize(max_keys);
    counts_.resize(max_keys);
    num_keys_ = 0;
  }
  // The next key, in ascending order. A count of 0 adds nothing.
  void AddKey(Key key, uint32_t count) {
    keys_[num_keys_] = key;
    counts_[num_keys_] = count;
    num_keys_ += count > 0 ? 1 : 0;
  }

  // Chooses the places of all keys' entries. Returns: false: there are 2^32 or more places.
  bool Arrange() {
    keys_.resize(num_keys_);
    places_.resize(num_keys_);
    by_count_.resize(num_keys_);
    groups_.resize(0);
    uint32_t ends[kMaxNetwork + 2] = {};  // of the counts below; index kMaxNetwork + 1: those placed one by one
    for (size_t i = 0; i < num_keys_; ++i) ++ends[ClassOf(counts_[i])];
    uint32_t begin = 0;
    for (uint32_t& end : ends) begin += std::exchange(end, begin);
    for (size_t i = 0; i < num_keys_; ++i) by_count_[ends[ClassOf(counts_[i])]++] = static_cast<uint32_t>(i);
    num_grouped_ = ends[kMaxNetwork];
    uint64_t place = 0;
    for (uint32_t count = 1; count <= kMaxNetwork; ++count) {
      for (uint32_t first = ends[count - 1]; first < ends[count]; first += kGroupLanes) {
        const uint32_t keys = std::min<uint32_t>(kGroupLanes, ends[count] - first);
        if (place > UINT32_MAX) return false;
        groups_.push_back({static_cast<uint32_t>(place), count, first, keys});
        for (uint32_t lane = 0; lane < keys; ++lane) places_[by_count_[first + lane]] = groups_.back().place + lane;
        place += uint64_t{count} * kGroupLanes;
      }
    }
    for (size_t i = num_grouped_; i < num_keys_; ++i) {
      if (place > UINT32_MAX) return false;
      places_[by_count_[i]] = static_cast<uint32_t>(place);
      place += counts_[by_count_[i]];
    }
    values_.resize(place * columns_ + kGroupLanes);
    if (keeps_weights_) weights_.resize(place + kGroupLanes);
    if (keeps_sources_) sources_.resize(place);
    return place <= UINT32_MAX;
  }

  // Returns: whether ArrangeFull serves keys of `count` entries.
  bool CanBeFull(uint64_t count) const {
    return columns_ == 1 && !keeps_weights_ && !keeps_sources_ && count > 0 && count <= kMaxNetwork;
  }
  // Begin, AddKey and Arrange for `keys` keys from `first` on that have `count` entries each: the places of kGroupLanes
  // keys follow each other. Requires: CanBeFull(count). Returns: as Arrange.
  bool ArrangeFull(Key first, uint32_t keys, uint32_t count) {
    const uint64_t num_groups = (uint64_t{keys} + kGroupLanes - 1) / kGroupLanes;
    const uint64_t places = num_groups * count * kGroupLanes;
    if (places > UINT32_MAX) return false;
    num_keys_ = num_grouped_ = keys;
    keys_.resize(keys);
    counts_.resize(keys);
    places_.resize(keys);
    by_count_.resize(keys);
    for (uint32_t i = 0; i < keys; ++i) {
      keys_[i] = static_cast<Key>(first + i);
      counts_[i] = count;
      places_[i] = i / kGroupLanes * count * kGroupLanes + i % kGroupLanes;
      by_count_[i] = i;
    }
    groups_.resize(num_groups);
    for (uint32_t g = 0; g < num_groups; ++g) {
      const auto first_key = static_cast<uint32_t>(g * kGroupLanes);
      groups_[g] = {places_[first_key], count, first_key, std::min<uint32_t>(kGroupLanes, keys - first_key)};
    }
    values_.resize(places + kGroupLanes);
    return true;
  }

  size_t size() const { return num_keys_; }
  Key key(size_t i) const { return keys_[i]; }
  const Key* keys() const { return keys_.data(); }
  uint32_t count(size_t i) const { return counts_[i]; }
  const uint32_t* counts() const { return counts_.data(); }

  // The place of key i's first entry, and how far apart those of its entries are.
  uint32_t place(size_t i) const { return places_[i]; }
  uint32_t step(size_t i) const { return groups_keys_ && counts_[i] <= kMaxNetwork ? kGroupLanes : 1; }
  bool all_grouped() const { return num_grouped_ == num_keys_; }

  T* ValuesAt(uint32_t place, bool is_grouped) {
    if (!is_grouped) return values_.data() + size_t{place} * columns_;
    return values_.data() + size_t{place / kGroupLanes} * kGroupLanes * columns_ + place % kGroupLanes;
  }
  size_t ColumnStep(bool is_grouped) const { return is_grouped ? kGroupLanes : 1; }
  double* weights() { return weights_.data(); }
  uint32_t* sources() { return sources_.data(); }
  bool keeps_weights() const { return keeps_weights_; }
  bool keeps_sources() const { return keeps_sources_; }

  const Column<EntryGroup>& groups() const { return groups_; }
  // Indices of keys: those of the groups, then those placed one by one.
  const Column<uint32_t>& by_count() const { return by_count_; }
  size_t num_grouped() const { return num_grouped_; }

  // Returns: the entries of key i, for LaneEvaluator.
  LaneRows<T> RowsOf(size_t i) {
    const bool is_grouped = step(i) > 1;
    LaneRows<T> rows;
    rows.values = ValuesAt(places_[i], is_grouped);
    rows.count = counts_[i];
    rows.columns = columns_;
    rows.column_step = ColumnStep(is_grouped);
    rows.row_step = is_grouped ? kGroupLanes * columns_ : columns_;
    if (keeps_weights_) rows.weights = weights_.data() + places_[i];
    if (keeps_sources_) rows.sources = sources_.data() + places_[i];
    rows.place_step = step(i);
    return rows;
  }

 private:
  uint32_t ClassOf(uint32_t count) const {
    return groups_keys_ && count <= kMaxNetwork ? count : static_cast<uint32_t>(kMaxNetwork + 1);
  }

  const size_t columns_;
  const bool groups_keys_;
  const bool keeps_weights_;
  const bool keeps_sources_;
  size_t num_keys_ = 0;
  size_t num_grouped_ = 0;
  Column<Key> keys_;
  Column<uint32_t> counts_;
  Column<uint32_t> places_;
  Column<uint32_t> by_count_;
  Column<EntryGroup> groups_;
  Column<T> values_;
  Column<double> weights_;    // by place
  Column<uint32_t> sources_;  // by place: index of the entry's update
};

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ORDER_ENTRIES_H_
