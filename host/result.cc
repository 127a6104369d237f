#include "host/result.h"

namespace sparseagg {

size_t Result::memory_bytes() const {
  const size_t key_bytes = std::visit([](const auto& column) { return column.size() * sizeof(column[0]); }, keys);
  return key_bytes + values.size() + counts.size() * sizeof(uint32_t) + weights.size() * sizeof(double);
}

}  // namespace sparseagg
