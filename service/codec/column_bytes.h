// Copy of a column's elements to wire bytes.
#ifndef SPARSEAGG_SERVICE_CODEC_COLUMN_BYTES_H_
#define SPARSEAGG_SERVICE_CODEC_COLUMN_BYTES_H_

#include <bit>
#include <cstdint>
#include <string>

namespace sparseagg::service {

static_assert(std::endian::native == std::endian::little, "columns are copied to the wire as they are");

// Returns: the bytes of elements [begin, end). `column` may be null if the interval is empty.
template <typename T>
std::string BytesOf(const T* column, uint64_t begin, uint64_t end) {
  if (begin == end) return "";
  return std::string(reinterpret_cast<const char*>(column + begin), (end - begin) * sizeof(T));
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_COLUMN_BYTES_H_
