// Bytes that need not lie in one place.
#ifndef SPARSEAGG_HOST_PIECES_H_
#define SPARSEAGG_HOST_PIECES_H_

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/column.h"

namespace sparseagg {

// A sequence of bytes in one or several pieces, as it came from the wire. Borrows them; cheap to copy.
class Pieces {
 public:
  Pieces() = default;
  // In one piece.
  Pieces(absl::string_view whole) : whole_(whole), size_(whole.size()) {}  // NOLINT: the same
  Pieces(const std::string& whole) : Pieces(absl::string_view(whole)) {}   // NOLINT: the same
  Pieces(const char* whole) : Pieces(absl::string_view(whole)) {}          // NOLINT: the same
  // `pieces` itself is borrowed, too.
  explicit Pieces(absl::Span<const absl::string_view> pieces) {
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

#endif  // SPARSEAGG_HOST_PIECES_H_
