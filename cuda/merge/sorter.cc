#include "cuda/merge/sorter.h"

#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<SortedKeys> StartSort(Session& session, DeviceBuffer d_keys, uint32_t count, uint32_t key_bytes,
                                     int key_bits, DeviceBuffer d_carried) {
  SortedKeys sorted;
  sorted.count = count;
  DeviceBuffer keys[2];
  DeviceBuffer payloads[2];  // positions, or the carried values
  keys[0] = std::move(d_keys);
  ASSIGN_OR_RETURN(keys[1], session.Allocate(size_t{count} * key_bytes));
  ASSIGN_OR_RETURN(payloads[1], session.Allocate(size_t{count} * sizeof(uint32_t)));
  const bool carries = d_carried.get() != nullptr;
  if (carries) {
    payloads[0] = std::move(d_carried);
  } else {
    ASSIGN_OR_RETURN(payloads[0], session.Allocate(size_t{count} * sizeof(uint32_t)));
    RETURN_IF_ERROR(session.device().Launch(ExpandRun{payloads[0].get(), sizeof(uint32_t), 0, count}));
  }
  int output = 0;
  if (key_bits > 0) {  // with one row all keys are 0
    SortCall call;
    for (int i = 0; i < 2; ++i) {
      call.d_keys[i] = keys[i].get();
      call.d_payloads[i] = payloads[i].as<uint32_t>();
    }
    call.key_bytes = key_bytes;
    call.end_bit = key_bits;
    call.count = count;
    RETURN_IF_ERROR(session.device().Sort(call).status());
    ASSIGN_OR_RETURN(const DeviceBuffer scratch, session.Allocate(call.scratch_bytes));
    call.d_scratch = scratch.get();
    ASSIGN_OR_RETURN(output, session.device().Sort(call));
  }
  sorted.d_keys = std::move(keys[output]);
  DeviceBuffer& sorted_payloads = carries ? sorted.d_values : sorted.d_positions;
  sorted_payloads = std::move(payloads[output]);
  // Before StartSelect allocates.
  keys[1 - output].Release();
  payloads[1 - output].Release();
  SelectCall heads;
  heads.d_sorted_keys = sorted.d_keys.get();
  heads.key_bytes = key_bytes;
  heads.count = count;
  ASSIGN_OR_RETURN(sorted.heads, session.StartSelect(heads));
  return sorted;
}

}  // namespace sparseagg::cuda
