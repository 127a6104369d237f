// Memory for bulk data: uninitialised, and in huge pages once it is large.
#ifndef SPARSEAGG_HOST_BASE_COLUMN_H_
#define SPARSEAGG_HOST_BASE_COLUMN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/base/saturating.h"

namespace sparseagg {
namespace internal {

// `bytes` of memory, aligned to 64; pages are taken from the system only when first touched. Throws std::bad_alloc.
void* AllocateColumn(size_t bytes);
void FreeColumn(void* memory, size_t bytes) noexcept;
// Gives pages behind the first `used` bytes back to the system; the memory stays valid. False: it is too small for
// that.
bool TrimColumn(void* memory, size_t bytes, size_t used) noexcept;

// Whether columns of `bytes` have pages of their own.
bool IsMappedColumn(size_t bytes);
// Makes a mapped column one of `bytes`, which are more, and returns where it is now. Pages move, not what they hold, so
// that no more is held meanwhile. Throws std::bad_alloc, and nothing changed.
void* ExtendColumn(void* memory, size_t bytes);

inline constexpr size_t kDefaultKeptColumnBytes = size_t{256} << 20;

// No machine addresses more; sums of this and a few pages do not wrap.
inline constexpr size_t kMaxColumnBytes = size_t{1} << 62;

}  // namespace internal

// Large columns that are freed are kept for later ones, up to `bytes` in all, the most recent first. 0 gives all back
// to the system at once. The default is 256 MiB. Thread-safe.
void KeepFreedColumns(size_t bytes);
// Gives back those that are kept now; later ones are kept as before. Thread-safe.
void ReleaseFreedColumns();

// How a column grows that holds something.
enum class Growth {
  kAhead,  // to twice its capacity at least, by copying
  kExact,  // to what is asked for; a large one never holds more than that
};

// A contiguous array that, unlike std::vector, does not write to elements it only makes room for: resize() leaves new
// ones uninitialised, so a column may be made as long as it could get and be cut to what it got, at the cost of the
// latter. Large columns come from huge pages, since faults on small ones cost a merge almost half its speed.
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
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }

  // New elements are uninitialised. Grows ahead.
  void resize(size_t size) {
    reserve(size, Growth::kAhead);
    size_ = size;
  }
  size_t capacity() const { return capacity_; }
  // Extends the capacity to `size` elements or more. Does nothing if the capacity is enough.
  void reserve(size_t size, Growth growth = Growth::kExact) {
    if (size <= capacity_) return;
    Extends(growth) ? Extend(size) : Grow(CapacityFor(size, growth));
  }
  // Returns: bytes that reserve temporarily needs in addition to those of the capacity. Saturates.
  uint64_t ReserveBytes(uint64_t size, Growth growth) const {
    if (size <= capacity_) return 0;
    return SaturatingMultiply(CapacityFor(size, growth) - (Extends(growth) ? capacity_ : 0), sizeof(T));
  }
  void clear() { size_ = 0; }
  void push_back(T value) {
    if (size_ == capacity_) Grow(std::max<size_t>(size_ + 1, 2 * capacity_));
    data_[size_++] = value;
  }
  void Append(const T* values, size_t count) {
    const size_t before = size_;
    resize(before + count);
    std::copy_n(values, count, data_ + before);
  }
  // Gives back what it takes beyond its size, but for an eighth. Elements may move.
  void Trim() {
    if (capacity_ - size_ <= size_ / 8) return;
    if (!internal::TrimColumn(data_, capacity_ * sizeof(T), size_ * sizeof(T))) *this = Column(begin(), end());
  }

  friend bool operator==(const Column& a, const Column& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static size_t BytesOf(size_t capacity) {
    if (capacity > internal::kMaxColumnBytes / sizeof(T)) throw std::bad_alloc();
    return capacity * sizeof(T);
  }
  size_t CapacityFor(size_t size, Growth growth) const {
    return growth == Growth::kExact || size_ == 0 ? size : std::max(size, 2 * capacity_);
  }
  bool Extends(Growth growth) const {
    return growth == Growth::kExact && internal::IsMappedColumn(capacity_ * sizeof(T));
  }
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
    if (data_ != nullptr) internal::FreeColumn(data_, capacity_ * sizeof(T));
  }
  void Swap(Column& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_COLUMN_H_
