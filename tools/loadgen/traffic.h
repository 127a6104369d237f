// A workload in serialized messages.
#ifndef SPARSEAGG_TOOLS_LOADGEN_TRAFFIC_H_
#define SPARSEAGG_TOOLS_LOADGEN_TRAFFIC_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/workloads.h"

namespace sparseagg::bench {

// The update of one client. The first chunk has no ids, so that it can be sent to any round (WithIds).
struct Submission {
  std::string client_id;
  std::vector<grpc::ByteBuffer> chunks;  // at least one
  uint64_t tuples = 0;
  uint64_t bytes = 0;  // of the serialized chunks
};

// The updates of all clients.
struct Traffic {
  std::vector<Submission> submissions;  // in the order of the clients, which is that of their ids
  uint64_t tuples = 0;
  uint64_t bytes = 0;
};

// The encodings of keys and values.
struct WireForm {
  bool packed_keys = false;     // DELTA_BITPACKED instead of U32 or U64; keys must strictly ascend
  bool float16_values = false;  // instead of FLOAT32
};

// Rounds the values of the workload to float16, so that FLOAT16 encodes them exactly.
// Errors: std::invalid_argument if a value is beyond the range of float16.
void RoundValuesToFloat16(Workload& workload);

// Makes several clients of each one, with `tuples` tuples each, or fewer.
void SplitClients(Workload& workload, uint64_t tuples);

// Encodes the updates in chunks of about `chunk_bytes` encoded keys and values, and at least one tuple.
// Errors: std::invalid_argument if `form` cannot represent the keys or values exactly.
Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes, const WireForm& form = {});

// Returns: an id like "c00000007"; ids sort as their numbers do.
std::string ClientId(size_t number);

// Returns: the first chunk of the submission with its ids, for `round`. Shares the memory of the tuples.
grpc::ByteBuffer WithIds(const Submission& submission, const std::string& round);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_TRAFFIC_H_
