#include "host/spec/dtype.h"

namespace sparseagg {

absl::string_view Name(DType dtype) {
  constexpr absl::string_view kNames[] = {"float32", "float16", "bfloat16", "float64",
                                          "int32",   "int64",   "uint32",   "uint64"};
  return kNames[static_cast<size_t>(dtype)];
}

}  // namespace sparseagg
