// A workload as it goes over the wire: serialised once, sent many times.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_TRAFFIC_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_TRAFFIC_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"

namespace sparseagg::bench {

// One client's update. The first chunk lacks its ids, so that it fits any round: see WithIds.
struct Submission {
  std::string client_id;
  std::vector<grpc::ByteBuffer> chunks;  // at least one
  uint64_t tuples = 0;
  uint64_t bytes = 0;  // of the serialised chunks
};

struct Traffic {
  std::vector<Submission> submissions;  // in the order of the workload's clients, and of their ids
  uint64_t tuples = 0;
  uint64_t bytes = 0;
};

// How keys and values are put into bytes.
struct WireForm {
  bool packed_keys = false;     // DELTA_BITPACKED instead of U32 or U64; keys must strictly ascend
  bool float16_values = false;  // instead of FLOAT32
};

// Rounds the workload's values to float16, so that packing them changes nothing any more. std::invalid_argument: one is
// beyond its range.
void RoundValuesToFloat16(Workload& workload);

// Chunks of about `chunk_bytes` of packed keys and values each, at least one tuple. std::invalid_argument: the keys or
// values do not go into `form` as they are.
Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes, const WireForm& form = {});

// "c00000007": in the order of the numbers.
std::string ClientId(size_t number);

// The submission's first chunk as one to `round`; the tuples are shared, not copied.
grpc::ByteBuffer WithIds(const Submission& submission, const std::string& round);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_TRAFFIC_H_
