// Arrays of bulk data: uninitialised, and in huge pages once they are large.
#ifndef SPARSEAGG_HOST_BASE_COLUMN_H_
#define SPARSEAGG_HOST_BASE_COLUMN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/base/saturating.h"

namespace sparseagg {
namespace internal {

// Allocates `bytes` of uninitialised memory, aligned to 64. The system provides pages when they are first touched.
// Throws std::bad_alloc.
void* AllocateColumn(size_t bytes);
void FreeColumn(void* memory, size_t bytes) noexcept;

// Gives pages behind the first `used` bytes back to the system. The memory stays valid.
// Returns: false if the memory is too small to have pages of its own.
bool TrimColumn(void* memory, size_t bytes, size_t used) noexcept;

// Whether columns of `bytes` are mapped: have pages of their own.
bool IsMappedColumn(size_t bytes);
// Extends a mapped column to `bytes`. Moves its pages in the address space instead of copying them, so that old and new
// memory are never held together. Throws std::bad_alloc, and then the column is unchanged.
// Returns: where the column is now.
// Requires: the column is mapped and has fewer bytes.
void* ExtendColumn(void* memory, size_t bytes);

// The store of freed columns, for ShareColumnStore in another copy of this library in the process.
void* ColumnStore();
// Makes this copy of the library use another copy's store, so that columns may pass between the two: each store knows
// the mapped columns that it has made, and can free no others. Requires: both are the same build, the other copy stays
// loaded, and this one has made no column yet.
void ShareColumnStore(void* store);

// Default of KeepFreedColumns.
inline constexpr size_t kDefaultKeptColumnBytes = size_t{256} << 20;

// Beyond what any machine addresses. Sums of this and a few pages do not wrap.
inline constexpr size_t kMaxColumnBytes = size_t{1} << 62;

}  // namespace internal

// Sets how many bytes of freed columns are kept for later columns; the default is 256 MiB. Beyond the limit the least
// recently freed columns go back to the system. Only columns of 128 KiB or more are kept.
// Thread-safe.
void KeepFreedColumns(size_t bytes);
// Gives all kept columns back to the system. Columns freed later are kept as before.
// Thread-safe.
void ReleaseFreedColumns();

// How a column that holds elements gets more capacity.
enum class Growth {
  kAhead,  // to at least twice its capacity: amortised O(1) for each element
  kExact,  // to the size that is asked for
};

// A contiguous array that owns its memory. Unlike std::vector, it does not initialise new elements: resize() leaves
// them undefined, and untouched pages cost nothing. So a column may be made as long as it could become and then be cut
// to its true size. Large columns come from huge pages, since page faults on small pages cost a merge almost half its
// speed. They grow without holding old and new memory together.
//
// Functions throw std::bad_alloc, and then the column is unchanged. Not thread-safe.
template <typename T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;

  Column() = default;
  explicit Column(size_t size) { resize(size); }
  Column(std::initializer_list<T> values) : Column(values.begin(), values.end()) {}
  Column(const std::vector<T>& values) : Column(values.begin(), values.end()) {}  // NOLINT: same contents
  template <typename Iterator>
  Column(Iterator begin, Iterator end) {
    resize(static_cast<size_t>(end - begin));
    std::copy(begin, end, data_);
  }
  // Elements in memory that `owner` keeps, with room for `capacity`; none yet. The column lets go of the owner where
  // others free their memory, and grows by copying to memory of its own.
  Column(T* memory, size_t capacity, std::shared_ptr<const void> owner)
      : data_(memory), capacity_(capacity), owner_(std::move(owner)) {}
  Column(const Column& other) : Column(other.begin(), other.end()) {}
  Column(Column&& other) noexcept { Swap(other); }
  Column& operator=(Column other) noexcept {
    Swap(other);
    return *this;
  }
  ~Column() { Release(); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool is_lent() const { return owner_ != nullptr; }  // the memory has another owner
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }

  // New elements are uninitialised. Capacity grows ahead.
  void resize(size_t size) {
    reserve(size, Growth::kAhead);
    size_ = size;
  }
  size_t capacity() const { return capacity_; }
  // Extends the capacity to `size` elements or more. Does nothing if the capacity is enough.
  void reserve(size_t size, Growth growth = Growth::kExact) {
    if (size <= capacity_) return;
    const size_t capacity = CapacityFor(size, growth);
    IsMapped() ? Extend(capacity) : Grow(capacity);
  }
  // Returns: bytes that reserve temporarily needs in addition to those of the capacity. Saturates.
  uint64_t ReserveBytes(uint64_t size, Growth growth) const {
    if (size <= capacity_) return 0;
    return SaturatingMultiply(CapacityFor(size, growth) - (IsMapped() ? capacity_ : 0), sizeof(T));
  }
  void clear() { size_ = 0; }
  void push_back(T value) {
    if (size_ == capacity_) reserve(size_ + 1, Growth::kAhead);
    data_[size_++] = value;
  }
  void Append(const T* values, size_t count) {
    const size_t before = size_;
    resize(before + count);
    std::copy_n(values, count, data_ + before);
  }
  // Releases capacity beyond 9/8 of the size, unless someone else owns the memory. Elements may move.
  void Trim() {
    if (owner_ != nullptr || capacity_ - size_ <= size_ / 8) return;
    if (!internal::TrimColumn(data_, capacity_ * sizeof(T), size_ * sizeof(T))) *this = Column(begin(), end());
  }

  friend bool operator==(const Column& a, const Column& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  // Throws std::bad_alloc if no machine has that many bytes.
  static size_t BytesOf(size_t capacity) {
    if (capacity > internal::kMaxColumnBytes / sizeof(T)) throw std::bad_alloc();
    return capacity * sizeof(T);
  }
  size_t CapacityFor(size_t size, Growth growth) const {
    return growth == Growth::kExact || size_ == 0 ? size : std::max(size, 2 * capacity_);
  }
  // Whether the column grows by moving pages, rather than by copying to fresh ones, which would be cleared first.
  bool IsMapped() const { return owner_ == nullptr && internal::IsMappedColumn(capacity_ * sizeof(T)); }
  void Extend(size_t capacity) {
    data_ = static_cast<T*>(internal::ExtendColumn(data_, BytesOf(capacity)));
    capacity_ = capacity;
  }
  void Grow(size_t capacity) {
    T* larger = static_cast<T*>(internal::AllocateColumn(BytesOf(capacity)));
    if (size_ > 0) std::copy_n(data_, size_, larger);
    Release();
    data_ = larger;
    capacity_ = capacity;
  }
  void Release() {
    if (owner_ != nullptr) {
      owner_.reset();
    } else if (data_ != nullptr) {
      internal::FreeColumn(data_, capacity_ * sizeof(T));
    }
  }
  void Swap(Column& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    owner_.swap(other.owner_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
  std::shared_ptr<const void> owner_;  // of the memory; null: the column itself
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_COLUMN_H_
