// Benchmark workloads: seeded random updates, the same for all engines and peers.
#ifndef SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
#define SPARSEAGG_BENCH_COMMON_WORKLOADS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::bench {

// One client's keys (narrow if num_rows allows), and float32 rows.
struct ClientArrays {
  std::vector<uint32_t> narrow_keys;
  std::vector<uint64_t> wide_keys;
  std::vector<float> values;
};

enum class Variant {
  kPlain,
  kShuffled,  // the same tuples, each client's in random order
  kSkewed,    // half of each client's keys are 0, 1, 2, …, the same for all clients; the rest is uniform
};

const char* Name(Variant variant);  // "plain", …

struct Workload {
  std::string name;  // "A" … "M", "D48", "D64"
  Variant variant = Variant::kPlain;
  std::string description;
  TensorSpec spec;  // SUM, float32
  std::vector<ClientArrays> clients;
  uint64_t num_tuples = 0;  // (key, row) pairs over all clients
};

// Returns: the workload `name`. `scale` divides the number of clients, for quick runs.
// Throws: std::invalid_argument for an unknown name.
Workload MakeWorkload(const std::string& name, uint64_t seed, int scale = 1, Variant variant = Variant::kPlain);

// Writes the files NAME.keys, NAME.values and NAME.sizes (uint64), one client after the other, and NAME.json.
// Throws: std::runtime_error if it cannot.
void ExportWorkload(const Workload& workload, const std::string& folder);

// Returns: a client's arrays as columns, not copied; the arrays must outlive the updates made of them.
UpdateColumns BorrowColumns(const TensorSpec& spec, const ClientArrays& client);

// Returns: the bytes of all keys and values.
uint64_t InputBytes(const Workload& workload);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
