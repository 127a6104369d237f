// Checks of an update whose arrays are in device memory: whether it must be refused, and how its keys are ordered. A
// refusal is rare, and the host makes its message.
#ifndef SPARSEAGG_CUDA_KERNELS_IMPORT_H_
#define SPARSEAGG_CUDA_KERNELS_IMPORT_H_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "cuda/kernels/block.h"
#include "cuda/kernels/fold.h"
#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

// What was found: 0 or 1 each, set by any number of threads.
struct ImportFindings {
  uint32_t bad_key = 0;    // a key is negative, or above max_key
  uint32_t descends = 0;   // a key is below the one before it
  uint32_t repeats = 0;    // a key is not above the one before it
  uint32_t bad_value = 0;  // a value is NaN or infinite
};

// Copies keys of any integer type into the tensor's key type, and checks them. Element-wise over keys.
struct ImportKeys {
  const void* d_from = nullptr;
  Number type = Number::kInt64;  // of d_from: kInt32, kInt64, kUInt32 or kUInt64
  uint64_t count = 0;
  uint64_t max_key = 0;
  void* d_to = nullptr;    // count keys
  uint32_t key_bytes = 4;  // of d_to: 4 or 8
  ImportFindings* d_findings = nullptr;

  uint64_t size() const { return count; }

  SPARSEAGG_HD void operator()(uint64_t i) const {
    bool is_negative = false;
    const uint64_t key = Load(i, is_negative);
    // Several threads may write the same 1.
    if (is_negative || key > max_key) StoreRelaxed(&d_findings->bad_key, uint32_t{1});
    if (i > 0) {
      bool before_is_negative = false;
      const uint64_t before = Load(i - 1, before_is_negative);
      if (before > key) StoreRelaxed(&d_findings->descends, uint32_t{1});
      if (before >= key) StoreRelaxed(&d_findings->repeats, uint32_t{1});
    }
    if (key_bytes == sizeof(uint32_t)) {
      static_cast<uint32_t*>(d_to)[i] = static_cast<uint32_t>(key);
    } else {
      static_cast<uint64_t*>(d_to)[i] = key;
    }
  }

  SPARSEAGG_HD uint64_t Load(uint64_t i, bool& is_negative) const {
    switch (type) {
      case Number::kInt32:
        is_negative = static_cast<const int32_t*>(d_from)[i] < 0;
        return static_cast<uint32_t>(static_cast<const int32_t*>(d_from)[i]);
      case Number::kUInt32:
        return static_cast<const uint32_t*>(d_from)[i];
      case Number::kInt64:
        is_negative = static_cast<const int64_t*>(d_from)[i] < 0;
        return static_cast<uint64_t>(static_cast<const int64_t*>(d_from)[i]);
      default:
        return static_cast<const uint64_t*>(d_from)[i];
    }
  }
};

// Looks for NaN and infinities. Element-wise over values of a float type.
struct CheckFinite {
  const void* d_values = nullptr;
  Number type = Number::kFloat32;
  uint64_t count = 0;
  ImportFindings* d_findings = nullptr;

  uint64_t size() const { return count; }

  SPARSEAGG_HD void operator()(uint64_t i) const {
    // A comparison with NaN is false.
    if (!(fabs(LoadFloat(d_values, type, i)) <= DBL_MAX)) StoreRelaxed(&d_findings->bad_value, uint32_t{1});
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_IMPORT_H_
