// Benchmark workloads: seeded random updates, the same for all engines and peers.
#ifndef SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
#define SPARSEAGG_BENCH_COMMON_WORKLOADS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::bench {

// One client's keys (narrow if num_rows allows), float32 rows, and its weight under BY_WEIGHT, 1 to 1000.
struct ClientArrays {
  std::vector<uint32_t> narrow_keys;
  std::vector<uint64_t> wide_keys;
  std::vector<float> values;
  double weight = 1.0;
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

// Returns: the names in a list such as "ABD64": a capital letter, and digits behind some.
std::vector<std::string> SplitNames(const std::string& names);

// Returns: the workload `name`. `scale` divides the number of clients, for quick runs.
// Throws: std::invalid_argument for an unknown name.
Workload MakeWorkload(const std::string& name, uint64_t seed, int scale = 1, Variant variant = Variant::kPlain);

// Adversarial keys, as many as in workload G. The first two, "uniform" and "uniform, unsorted", are for comparison.
std::vector<std::string> AdversaryNames();

// Returns: 100 clients of 100 000 float32 tuples with keys below 2^30, unless the name says otherwise. `scale` divides
// the number of clients.
// Throws: std::invalid_argument for an unknown name.
Workload MakeAdversary(const std::string& name, uint64_t seed, int scale = 1);

// Writes the files NAME.keys, NAME.values and NAME.sizes (uint64), one client after the other, and NAME.json.
// Throws: std::runtime_error if it cannot.
void ExportWorkload(const Workload& workload, const std::string& folder);

// Returns: a client's arrays as columns, not copied; the arrays must outlive the updates made of them.
UpdateColumns BorrowColumns(const TensorSpec& spec, const ClientArrays& client);

// Returns: the bytes of all keys and values.
uint64_t InputBytes(const Workload& workload);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_COMMON_WORKLOADS_H_
