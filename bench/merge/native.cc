// What the comparison of bench/peers calls through ctypes: workloads, limits of memory, and the contestants in native
// code (our engine among them, without Python around it). A C interface; sizes in elements unless named bytes.
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "bench/common/machine.h"
#include "bench/common/reference_sum.h"
#include "bench/common/workloads.h"
#include "host/base/column.h"
#include "python/engine/local_round.h"

namespace sparseagg::bench {
namespace {

// What a contestant returns: sparse, keys in any order.
struct Output {
  Result result;  // of the engine
  std::vector<uint64_t> keys;
  std::vector<float> values;
};

std::string& LastError() {
  static std::string error;
  return error;
}

bool IsNarrow(const Workload& workload) { return HasNarrowKeys(workload.spec); }

size_t ClientSize(const Workload& workload, const ClientArrays& client) {
  return IsNarrow(workload) ? client.narrow_keys.size() : client.wide_keys.size();
}

uint64_t KeyAt(const Workload& workload, const ClientArrays& client, size_t i) {
  return IsNarrow(workload) ? client.narrow_keys[i] : client.wide_keys[i];
}

TensorSpec SpecOf(const Workload& workload, int mode, bool dense) {
  TensorSpec spec = workload.spec;
  spec.aggregation.return_counts = mode == 1;
  if (mode == 2) {
    spec.aggregation.numerics = Numerics::kFixedPoint;
    spec.aggregation.value_bound = 1.0;
    spec.aggregation.max_submissions = workload.clients.size();
  } else {
    spec.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;  // the sums show it
  }
  if (dense) spec.aggregation.result_layout = ResultLayout::kDense;
  return spec;
}

// The path of sa.aggregate without Python: from the callers' arrays to the result, with the same checks.
Result MergeByEngine(const Workload& workload, int mode, bool dense, int threads) {
  auto round = python::LocalRound::Create({SpecOf(workload, mode, dense)}, {}, {.threads = threads});
  if (!round.ok()) throw std::runtime_error(round.status().ToString());
  std::vector<python::Submission> submissions(workload.clients.size());
  for (size_t c = 0; c < workload.clients.size(); ++c) {
    const ClientArrays& client = workload.clients[c];
    submissions[c].client_id = absl::StrFormat("%020d", c);
    python::InputTensor tensor;
    const UpdateColumns columns = BorrowColumns(workload.spec, client);
    std::visit([&tensor](const auto& keys) { tensor.keys = keys; }, columns.keys);
    tensor.values = columns.values;
    submissions[c].tensors = {tensor};
  }
  const absl::Status added = (*round)->Add(std::move(submissions));
  if (!added.ok()) throw std::runtime_error(added.ToString());
  auto results = (*round)->Finish();
  if (!results.ok()) throw std::runtime_error(results.status().ToString());
  Result result = std::move((*results)[0]);
  if (mode != 2 && !(*round)->IsFinite(result)) throw std::runtime_error("the result is not finite");
  return result;
}

// std::sort of (key, row) pairs, then one pass that adds up runs in float32.
void SortAndReduce(const Workload& workload, Output& out) {
  struct Pair {
    uint64_t key;
    const float* row;
  };
  std::vector<Pair> pairs;
  pairs.reserve(workload.num_tuples);
  const size_t row_width = workload.spec.row_width;
  for (const ClientArrays& client : workload.clients) {
    const size_t size = ClientSize(workload, client);
    for (size_t i = 0; i < size; ++i)
      pairs.push_back({KeyAt(workload, client, i), client.values.data() + i * row_width});
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.key < b.key; });
  for (const Pair& pair : pairs) {
    if (out.keys.empty() || out.keys.back() != pair.key) {
      out.keys.push_back(pair.key);
      out.values.insert(out.values.end(), pair.row, pair.row + row_width);
      continue;
    }
    float* row = out.values.data() + out.values.size() - row_width;
    for (size_t c = 0; c < row_width; ++c) row[c] += pair.row[c];
  }
}

// absl::flat_hash_map from key to row number, and rows added in float32. Keys come out in the order they were met.
void Hash(const Workload& workload, Output& out) {
  absl::flat_hash_map<uint64_t, uint32_t> rows;
  const size_t row_width = workload.spec.row_width;
  for (const ClientArrays& client : workload.clients) {
    const size_t size = ClientSize(workload, client);
    for (size_t i = 0; i < size; ++i) {
      const uint64_t key = KeyAt(workload, client, i);
      const float* from = client.values.data() + i * row_width;
      const auto [found, added] = rows.try_emplace(key, static_cast<uint32_t>(out.keys.size()));
      if (added) {
        out.keys.push_back(key);
        out.values.insert(out.values.end(), from, from + row_width);
        continue;
      }
      float* row = out.values.data() + size_t{found->second} * row_width;
      for (size_t c = 0; c < row_width; ++c) row[c] += from[c];
    }
  }
}

template <typename Work>
auto Guard(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    LastError() = error.what();
    return {};
  }
}

constexpr size_t kSweepBytes = size_t{256} << 20;

// Bytes a second of `work(begin, end)` over kSweepBytes cut for `threads` threads; the median of several passes.
template <typename Work>
double Rate(int threads, Work work) {
  std::vector<double> seconds;
  tbb::task_arena arena(threads);
  for (int pass = 0; pass < 7; ++pass) {
    const double start = Now();
    arena.execute([&] {
      tbb::parallel_for(
          0, threads, [&](int t) { work(kSweepBytes / threads * t, kSweepBytes / threads * (t + 1)); },
          tbb::static_partitioner());
    });
    seconds.push_back(Now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  return kSweepBytes / seconds[3];
}

}  // namespace
}  // namespace sparseagg::bench

extern "C" {

using sparseagg::bench::Output;
using sparseagg::bench::Workload;

const char* sab_error() { return sparseagg::bench::LastError().c_str(); }

// Workloads A to G, as merge_bench makes them; null on failure.
Workload* sab_workload(const char* name, uint64_t seed, int divide_clients) {
  return sparseagg::bench::Guard([&]() -> Workload* {
    return std::make_unique<Workload>(sparseagg::bench::MakeWorkload(name, seed, divide_clients)).release();
  });
}
void sab_free_workload(Workload* workload) { delete workload; }
const char* sab_description(const Workload* workload) { return workload->description.c_str(); }
uint64_t sab_num_rows(const Workload* workload) { return workload->spec.num_rows; }
uint32_t sab_row_width(const Workload* workload) { return workload->spec.row_width; }
uint64_t sab_clients(const Workload* workload) { return workload->clients.size(); }
// One client's arrays; returns the number of keys, of sab_key_bytes each.
int sab_key_bytes(const Workload* workload) { return sparseagg::bench::IsNarrow(*workload) ? 4 : 8; }
uint64_t sab_client(const Workload* workload, uint64_t client, const void** keys, const float** values) {
  const auto& arrays = workload->clients[client];
  const bool narrow = sparseagg::bench::IsNarrow(*workload);
  *keys = narrow ? static_cast<const void*>(arrays.narrow_keys.data()) : arrays.wide_keys.data();
  *values = arrays.values.data();
  return sparseagg::bench::ClientSize(*workload, arrays);
}

// Contestants: "sort", "hash", "engine". Modes of the engine: 0 canonical, 1 with counts, 2 fixed point. Null on
// failure.
Output* sab_run(const Workload* workload, const char* contestant, int mode, int dense, int threads) {
  return sparseagg::bench::Guard([&]() -> Output* {
    auto out = std::make_unique<Output>();
    const std::string name = contestant;
    if (name == "engine") {
      out->result = sparseagg::bench::MergeByEngine(*workload, mode, dense != 0, threads);
    } else if (name == "sort") {
      sparseagg::bench::SortAndReduce(*workload, *out);
    } else {
      sparseagg::bench::Hash(*workload, *out);
    }
    return out.release();
  });
}
void sab_free_output(Output* output) { delete output; }
// Rows of sort and hash, by key and value.
uint64_t sab_rows(const Output* output, const uint64_t** keys, const float** values) {
  *keys = output->keys.data();
  *values = output->values.data();
  return output->keys.size();
}
// The engine's values, for comparing bits; returns their bytes.
uint64_t sab_engine_values(const Output* output, const void** values) {
  *values = output->result.values.data();
  return output->result.values.size();
}
// How a sparse result of the engine differs from the plain canonical sum; empty if it does not.
const char* sab_difference(const Workload* workload, const Output* output) {
  static std::string text;
  text = sparseagg::bench::CanonicalSums(*workload).FindDifference(workload->spec.aggregation, output->result);
  return text.c_str();
}

// Bytes a second that `threads` threads read, write (to memory that was written before) and copy.
void sab_memory(int threads, double* read, double* write, double* copy) {
  using sparseagg::bench::kSweepBytes;
  sparseagg::Column<char> from(kSweepBytes);
  sparseagg::Column<char> to(kSweepBytes);
  std::memset(from.data(), 1, kSweepBytes);
  std::memset(to.data(), 1, kSweepBytes);
  std::vector<uint64_t> sums(threads * 16);
  *read = sparseagg::bench::Rate(threads, [&](size_t begin, size_t end) {
    const auto* words = reinterpret_cast<const uint64_t*>(from.data());
    uint64_t lanes[8] = {};
    for (size_t i = begin / 8; i < end / 8; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += words[i + lane];
    }
    uint64_t* sum = &sums[begin * threads / kSweepBytes * 16];
    for (const uint64_t lane : lanes) *sum += lane;
  });
  // Every pass writes other bytes, by plain stores.
  *write = sparseagg::bench::Rate(threads, [&](size_t begin, size_t end) {
    auto* words = reinterpret_cast<uint64_t*>(to.data());
    for (size_t i = begin / 8; i < end / 8; ++i) words[i] = i ^ sums[0];
  });
  *copy = sparseagg::bench::Rate(
      threads, [&](size_t begin, size_t end) { std::memcpy(to.data() + begin, from.data() + begin, end - begin); });
}

// Gives back what the engine keeps for its next columns.
void sab_release_memory() { sparseagg::ReleaseFreedColumns(); }

uint64_t sab_peak_bytes() { return sparseagg::bench::PeakMemoryBytes(); }
int sab_reset_peak() { return sparseagg::bench::ResetPeakMemory() ? 1 : 0; }
void sab_cpu_name(char* out, uint64_t size) { std::snprintf(out, size, "%s", sparseagg::bench::CpuName().c_str()); }

}  // extern "C"
