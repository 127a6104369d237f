// Texts of a bounded length.
#ifndef SPARSEAGG_SERVICE_BASE_SHORT_TEXT_H_
#define SPARSEAGG_SERVICE_BASE_SHORT_TEXT_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Returns: the beginning of `text`, at most `max_bytes` of it, cut between two UTF-8 characters.
inline absl::string_view Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_SHORT_TEXT_H_
