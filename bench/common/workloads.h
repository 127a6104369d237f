// The workloads that engines are raced on: seeded, random, the same for everyone.
#ifndef SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
#define SPARSEAGG_BENCH_COMMON_WORKLOADS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::bench {

// One client's keys (in 32 bits where the dimension allows), float32 rows, and the weight that aggregations BY_WEIGHT
// give it: a number of examples, of 1 to 1000.
struct ClientArrays {
  std::vector<uint32_t> narrow_keys;
  std::vector<uint64_t> wide_keys;
  std::vector<float> values;
  double weight = 1.0;
};

enum class Variant {
  kPlain,
  kShuffled,  // the same tuples, each client's in random order
  kSkewed,    // half of each client's keys are the lowest there are, the same for all clients; the rest uniform
};

const char* Name(Variant variant);  // "plain", …

struct Workload {
  std::string name;  // "A" … "H"
  Variant variant = Variant::kPlain;
  std::string description;
  TensorSpec spec;  // SUM, float32
  std::vector<ClientArrays> clients;
  uint64_t num_tuples = 0;  // (key, row) pairs over all clients
};

// Workload `name`, one of A to H; std::invalid_argument otherwise. `scale` divides the number of clients, for quick
// runs.
Workload MakeWorkload(const std::string& name, uint64_t seed, int scale = 1, Variant variant = Variant::kPlain);

// A client's arrays as the engine takes them, not copied: they must outlive what is made of them.
UpdateColumns BorrowColumns(const TensorSpec& spec, const ClientArrays& client);

// Bytes of all keys and values.
uint64_t InputBytes(const Workload& workload);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
