#include "cuda/sorter.h"

#include <utility>

#include "host/base/status_macros.h"

namespace sparseagg::cuda {

absl::StatusOr<Sorter> Sorter::Start(Session& session, DeviceBuffer d_keys, uint32_t count, uint32_t key_bytes,
                                     int key_bits) {
  Sorter sorter;
  SortedKeys& sorted = sorter.sorted_;
  sorted.count = count;
  DeviceBuffer keys[2];
  DeviceBuffer positions[2];
  keys[0] = std::move(d_keys);
  ASSIGN_OR_RETURN(keys[1], session.Allocate(size_t{count} * key_bytes));
  for (DeviceBuffer& buffer : positions) {
    ASSIGN_OR_RETURN(buffer, session.Allocate(size_t{count} * sizeof(uint32_t)));
  }
  RETURN_IF_ERROR(session.device().Launch(Enumerate{positions[0].as<uint32_t>(), count}));
  int output = 0;
  if (key_bits > 0) {  // a dimension of 1 has no bits to sort by
    SortCall call;
    for (int i = 0; i < 2; ++i) {
      call.d_keys[i] = keys[i].get();
      call.d_positions[i] = positions[i].as<uint32_t>();
    }
    call.key_bytes = key_bytes;
    call.end_bit = key_bits;
    call.count = count;
    ASSIGN_OR_RETURN(call.scratch_bytes, session.device().SortScratchBytes(call));
    ASSIGN_OR_RETURN(const DeviceBuffer scratch, session.Allocate(call.scratch_bytes));
    call.d_scratch = scratch.get();
    ASSIGN_OR_RETURN(output, session.device().Sort(call));
  }
  sorted.d_keys = std::move(keys[output]);
  sorted.d_positions = std::move(positions[output]);
  keys[1 - output].Release();
  positions[1 - output].Release();

  ASSIGN_OR_RETURN(const DeviceBuffer flags, session.Allocate(count));
  RETURN_IF_ERROR(session.device().Launch(FlagHeads{sorted.d_keys.get(), key_bytes, count, flags.as<uint8_t>()}));
  ASSIGN_OR_RETURN(sorter.heads_, session.StartSelect(flags, count, count));
  return sorter;
}

absl::StatusOr<SortedKeys> Sorter::Finish(Session& session) && {
  ASSIGN_OR_RETURN(Session::Selection heads, session.FinishSelect(std::move(heads_)));
  sorted_.d_begin = std::move(heads.d_indices);
  sorted_.num_segments = heads.count;
  return std::move(sorted_);
}

}  // namespace sparseagg::cuda
