// Bytes that need not lie in one place.
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

// A sequence of bytes in one or several pieces, as it came from the wire. Borrows them; cheap to copy.
class ByteSpans {
 public:
  ByteSpans() = default;
  // In one piece.
  ByteSpans(absl::string_view whole) : whole_(whole), size_(whole.size()) {}    // NOLINT: the same
  ByteSpans(const std::string& whole) : ByteSpans(absl::string_view(whole)) {}  // NOLINT: the same
  ByteSpans(const char* whole) : ByteSpans(absl::string_view(whole)) {}         // NOLINT: the same
  // `pieces` itself is borrowed, too.
  explicit ByteSpans(absl::Span<const absl::string_view> pieces) {
    for (const absl::string_view piece : pieces) size_ += piece.size();
    if (pieces.size() == 1) {
      whole_ = pieces[0];
    } else {
      pieces_ = pieces;
    }
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void CopyTo(void* out) const {
    auto* to = static_cast<char*>(out);
    if (!whole_.empty()) std::memcpy(to, whole_.data(), whole_.size());
    for (const absl::string_view piece : pieces_) {
      if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }

  // Calls `take(bytes)` with one batch after the other until one returns an error. Batches are so small that several
  // passes over one find it in the cache, and have a multiple of `unit` bytes, as all of these together must; what lies
  // in two pieces is put together in a copy. `unit` ≤ 8.
  template <typename Take>
  absl::Status ForEachBatch(size_t unit, Take take) const {
    constexpr size_t kBatchBytes = size_t{16} << 10;
    char cut[8];  // the begin of a unit of which the rest is in the next piece
    size_t cut_bytes = 0;
    const auto take_piece = [&](absl::string_view piece) -> absl::Status {
      if (cut_bytes > 0) {
        const size_t more = std::min(unit - cut_bytes, piece.size());
        std::copy_n(piece.data(), more, cut + cut_bytes);
        cut_bytes += more;
        piece.remove_prefix(more);
        if (cut_bytes < unit) return absl::OkStatus();
        cut_bytes = 0;
        RETURN_IF_ERROR(take(absl::string_view(cut, unit)));
      }
      while (piece.size() >= unit) {
        const size_t size = std::min(kBatchBytes, piece.size() / unit * unit);
        RETURN_IF_ERROR(take(piece.substr(0, size)));
        piece.remove_prefix(size);
      }
      std::copy_n(piece.data(), piece.size(), cut);
      cut_bytes = piece.size();
      return absl::OkStatus();
    };
    if (pieces_.empty()) return take_piece(whole_);
    for (const absl::string_view piece : pieces_) RETURN_IF_ERROR(take_piece(piece));
    return absl::OkStatus();
  }

  // The bytes in one piece: where they are, or, if they lie in several, in `storage`, which is overwritten then.
  absl::string_view Flatten(Column<char>& storage) const {
    if (pieces_.empty()) return whole_;
    storage.clear();
    storage.resize(size_);
    CopyTo(storage.data());
    return {storage.data(), storage.size()};
  }

 private:
  absl::string_view whole_;
  absl::Span<const absl::string_view> pieces_;  // if not whole
  size_t size_ = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_BYTE_SPANS_H_
