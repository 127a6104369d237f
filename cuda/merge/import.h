// Updates whose arrays are in device memory: their validation on the device, and copies of them in host memory.
#ifndef SPARSEAGG_CUDA_MERGE_IMPORT_H_
#define SPARSEAGG_CUDA_MERGE_IMPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/device/device.h"
#include "cuda/kernels/import.h"
#include "cuda/transfer/session.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::cuda {

// What the device found of updates.
struct ImportedUpdates {
  struct Update {
    const void* d_keys = nullptr;  // in the tensor's key type; null for a run
    uint32_t found = 0;            // bits of kernels/import.h

    // The update must be refused; why, the host finds in a copy.
    bool refused() const { return (found & (kBadForm | kBadKey | kBadValue)) != 0; }
    bool sorted() const { return (found & kDescends) == 0; }
    bool unique() const { return (found & kRepeats) == 0; }
  };
  std::vector<Update> updates;
  DeviceBuffer d_keys;  // of all updates, on Lane::kCopy; empty if all have runs
};

// Copies keys into the key types of their tensors, and validates them and the values, as host/updates/update.h says.
// All arrays are in device memory, written in the order of Lane::kCopy. Errors: of the device only. Blocks: until the
// device has checked the updates. Cost: the same calls of the device for any number of updates, as far as their table
// (ImportTask) fits a staging buffer.
absl::StatusOr<ImportedUpdates> ImportColumns(Session& session, absl::Span<const DeviceUpdate> updates);

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
