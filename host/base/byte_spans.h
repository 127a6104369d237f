// A sequence of bytes in one or several spans of memory.
#ifndef SPARSEAGG_HOST_BASE_BYTE_SPANS_H_
#define SPARSEAGG_HOST_BASE_BYTE_SPANS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"

namespace sparseagg {

// A sequence of bytes in one or several spans, as it came from the wire. Borrows the bytes. Cheap to copy.
class ByteSpans {
 public:
  ByteSpans() = default;
  ByteSpans(absl::string_view whole) : whole_(whole), size_(whole.size()) {}    // NOLINT: implicit
  ByteSpans(const std::string& whole) : ByteSpans(absl::string_view(whole)) {}  // NOLINT: implicit
  ByteSpans(const char* whole) : ByteSpans(absl::string_view(whole)) {}         // NOLINT: implicit
  // Borrows the array of `spans`, too.
  explicit ByteSpans(absl::Span<const absl::string_view> spans) {
    for (const absl::string_view span : spans) size_ += span.size();
    if (spans.size() == 1) {
      whole_ = spans[0];
    } else {
      spans_ = spans;
    }
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Copies all bytes to `out`.
  void CopyTo(void* out) const {
    auto* to = static_cast<char*>(out);
    if (!whole_.empty()) std::memcpy(to, whole_.data(), whole_.size());
    for (const absl::string_view span : spans_) {
      if (!span.empty()) std::memcpy(to, span.data(), span.size());
      to += span.size();
    }
  }

  // Calls `take(batch)` for one batch of bytes after the other, until a call returns an error. A batch is small enough
  // for the cache, so that several passes over it read memory once. Its size is a multiple of `unit`. A unit that
  // begins in one span and ends in the next is passed as a copy. Requires: unit ≤ 8; size() is a multiple of `unit`.
  template <typename Take>
  absl::Status ForEachBatch(size_t unit, Take take) const {
    constexpr size_t kBatchBytes = size_t{16} << 10;
    char cut[8];  // the begin of a unit that ends in a later span
    size_t cut_bytes = 0;
    const auto take_span = [&](absl::string_view span) -> absl::Status {
      if (cut_bytes > 0) {
        const size_t more = std::min(unit - cut_bytes, span.size());
        std::copy_n(span.data(), more, cut + cut_bytes);
        cut_bytes += more;
        span.remove_prefix(more);
        if (cut_bytes < unit) return absl::OkStatus();
        cut_bytes = 0;
        RETURN_IF_ERROR(take(absl::string_view(cut, unit)));
      }
      while (span.size() >= unit) {
        const size_t size = std::min(kBatchBytes, span.size() / unit * unit);
        RETURN_IF_ERROR(take(span.substr(0, size)));
        span.remove_prefix(size);
      }
      std::copy_n(span.data(), span.size(), cut);
      cut_bytes = span.size();
      return absl::OkStatus();
    };
    if (spans_.empty()) return take_span(whole_);
    for (const absl::string_view span : spans_) RETURN_IF_ERROR(take_span(span));
    return absl::OkStatus();
  }

  // Returns: the bytes in one span. Bytes in several spans are copied to `storage` first.
  absl::string_view Flatten(Column<char>& storage) const {
    if (spans_.empty()) return whole_;
    storage.clear();
    storage.resize(size_);
    CopyTo(storage.data());
    return {storage.data(), storage.size()};
  }

 private:
  absl::string_view whole_;
  absl::Span<const absl::string_view> spans_;  // empty if all bytes are in whole_
  size_t size_ = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_BYTE_SPANS_H_
