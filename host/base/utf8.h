// UTF-8, one character at a time.
#ifndef SPARSEAGG_HOST_BASE_UTF8_H_
#define SPARSEAGG_HOST_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sparseagg {

// A character of UTF-8.
struct Utf8Character {
  size_t num_bytes = 0;  // 0: the text is empty, or does not begin with a character
  uint32_t code_point = 0;
};

// Returns: the first character of `text`. Overlong forms, surrogates and code points above U+10FFFF are no characters
// (RFC 3629).
inline Utf8Character FirstUtf8Character(absl::string_view text) {
  if (text.empty()) return {};
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {1, first};
  const size_t num_bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < num_bytes) return {};
  uint32_t code_point = first & (0x7Fu >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code_point = code_point << 6 | (next & 0x3Fu);
  }
  const bool is_overlong = (num_bytes == 3 && code_point < 0x800) || (num_bytes == 4 && code_point < 0x10000);
  const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (is_overlong || is_surrogate || code_point > 0x10FFFF) return {};
  return {num_bytes, code_point};
}

// Returns: whether all of `text` is UTF-8.
inline bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t num_bytes = FirstUtf8Character(text).num_bytes;
    if (num_bytes == 0) return false;
    text.remove_prefix(num_bytes);
  }
  return true;
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_UTF8_H_
