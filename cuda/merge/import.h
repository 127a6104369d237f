// Updates whose arrays are in device memory: their validation on the device, and copies of them in host memory.
#ifndef SPARSEAGG_CUDA_MERGE_IMPORT_H_
#define SPARSEAGG_CUDA_MERGE_IMPORT_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device/device.h"
#include "cuda/merge/tensor_shape.h"
#include "cuda/transfer/session.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// What the device found of an update.
struct ImportedKeys {
  bool refused = false;  // the update must be refused; why, the host finds in a copy
  bool sorted = true;
  bool unique = true;
  DeviceBuffer d_keys;  // in the tensor's key type, on Lane::kCopy; empty for a run
};

// Copies keys into the tensor's key type, and validates them and `values`, as host/updates/update.h says. All arrays
// are in device memory, written in the order of Lane::kCopy. Errors: of the device only. Blocks: until it has checked
// the update.
absl::StatusOr<ImportedKeys> ImportColumns(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                           const InputKeys& keys, const std::byte* values);

// Arrays of an update, copied from the device to host memory.
struct HostArrays {
  InputKeys keys;
  const std::byte* values = nullptr;
  std::shared_ptr<const void> owner;
};

// Values are not copied for keys whose number cannot be right: validation ends before it reads them.
// Errors: of the device; RESOURCE_EXHAUSTED. Blocks: until the copies are there.
absl::StatusOr<HostArrays> CopyToHost(Session& session, const TensorSpec& spec, const InputKeys& keys,
                                      const std::byte* values);

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_MERGE_IMPORT_H_
