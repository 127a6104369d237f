#include "bench/common/workloads.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sparseagg::bench {
namespace {

using Random = std::mt19937_64;

double Uniform01(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// Random ranks 0 … n − 1 with probability ∝ (rank + 1)^-exponent, by rejection-inversion (W. Hörmann, G. Derflinger,
// "Rejection-inversion to generate variates from monotone discrete distributions", 1996). exponent > 0, ≠ 1.
class Zipf {
 public:
  Zipf(uint64_t n, double exponent) : n_(n), exponent_(exponent) {
    low_ = Integral(1.5) - 1.0;
    high_ = Integral(static_cast<double>(n) + 0.5);
    shortcut_ = 2.0 - Inverse(Integral(2.5) - std::pow(2.0, -exponent));
  }
  uint64_t operator()(Random& random) const {
    for (;;) {
      const double u = high_ + Uniform01(random) * (low_ - high_);
      const double x = Inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(n_));
      if (k - x <= shortcut_ || u >= Integral(k + 0.5) - std::pow(k, -exponent_)) {
        return static_cast<uint64_t>(k) - 1;
      }
    }
  }

 private:
  double Integral(double x) const { return (std::pow(x, 1.0 - exponent_) - 1.0) / (1.0 - exponent_); }
  double Inverse(double y) const { return std::pow(1.0 + y * (1.0 - exponent_), 1.0 / (1.0 - exponent_)); }

  uint64_t n_;
  double exponent_;
  double low_;
  double high_;
  double shortcut_;
};

// Returns: at least `count` distinct draws, in ascending order.
template <typename Draw>
std::vector<uint64_t> Distinct(size_t count, Draw draw) {
  std::vector<uint64_t> keys;
  while (keys.size() < count) {
    for (size_t missing = count - keys.size() + count / 8; missing > 0; --missing) keys.push_back(draw());
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  }
  return keys;
}

// Drops random keys until `count` are left; the others keep their order.
void DropSurplus(std::vector<uint64_t>& keys, size_t count, Random& random) {
  size_t kept = 0;
  size_t need = count;
  for (size_t i = 0; i < keys.size() && need > 0; ++i) {
    if (random() % (keys.size() - i) < need) {
      keys[kept++] = keys[i];
      --need;
    }
  }
  keys.resize(kept);
}

// Returns: keys of Variant::kSkewed, in ascending order.
std::vector<uint64_t> SkewedKeys(size_t count, uint64_t num_rows, Random& random) {
  const size_t shared = count / 2;
  std::vector<uint64_t> rest = Distinct(count - shared, [&] { return shared + random() % (num_rows - shared); });
  DropSurplus(rest, count - shared, random);
  std::vector<uint64_t> keys(shared);
  std::iota(keys.begin(), keys.end(), uint64_t{0});
  keys.insert(keys.end(), rest.begin(), rest.end());
  return keys;
}

struct Shape {
  const char* name;
  const char* description;
  int clients;
  size_t tuples;
  uint64_t num_rows;
  uint32_t row_width;
  double zipf;  // 0: uniform
  bool shuffled;
  Layout layout = Layout::kSparse;
  bool repeats = false;  // keys are drawn independently, and values are multiples of 1/256, which bfloat16 holds
};

constexpr Shape kShapes[] = {
    {"A", "embedding: 100 x 100k, 10M keys, Zipf 1.1", 100, 100'000, 10'000'000, 1, 1.1, false},
    {"B", "top-k: 50 x 250k, 25M keys, uniform", 50, 250'000, 25'000'000, 1, 0, false},
    {"C", "dense-ish: 64 x 200k, 1M keys, uniform", 64, 200'000, 1'000'000, 1, 0, false},
    {"D", "huge key space: 100 x 100k, 2^40 keys, unsorted", 100, 100'000, uint64_t{1} << 40, 1, 0, true},
    {"D48", "hashed: 80 x 100k, 2^48 keys, unsorted", 80, 100'000, uint64_t{1} << 48, 1, 0, true},
    {"D64", "hashed: 100 x 100k, 2^63 - 1 keys, unsorted", 100, 100'000, (uint64_t{1} << 63) - 1, 1, 0, true},
    {"E", "many small: 10000 x 1k, 10M keys, Zipf 1.1", 10'000, 1'000, 10'000'000, 1, 1.1, false},
    {"F", "rows: 64 x 20k rows of 64, 1M keys, Zipf 1.05", 64, 20'000, 1'000'000, 64, 1.05, false},
    {"G", "hyper-sparse: 100 x 100k, 10^9 keys, uniform", 100, 100'000, 1'000'000'000, 1, 0, false},
    {"H", "dense layer: 20 x 1M, all of 1M keys", 20, 1'000'000, 1'000'000, 1, 0, false, Layout::kDense},
    {"I", "one update: 3M rows of 16, 1M keys, repeated, unsorted", 1, 3'000'000, 1'000'000, 16, 0, true,
     Layout::kSparse, true},
    {"J", "small clients: 5000 x 1.5k, 1.5M keys, uniform", 5'000, 1'500, 1'500'000, 1, 0, false},
    {"K", "nearly dense: 10 x 1.1M, 1.3M keys, uniform", 10, 1'100'000, 1'300'000, 1, 0, false},
    {"L", "repeats: 100 x 84k, 12M keys, 0.7 % repeated, unsorted", 100, 84'000, 12'000'000, 1, 0, true,
     Layout::kSparse, true},
    {"M", "unsorted top-k: 50 x 250k, 25M keys, uniform", 50, 250'000, 25'000'000, 1, 0, true},
};

template <typename T>
void Append(std::ofstream& out, const std::vector<T>& values) {
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

}  // namespace

const char* Name(Variant variant) {
  switch (variant) {
    case Variant::kPlain:
      return "plain";
    case Variant::kShuffled:
      return "shuffled";
    case Variant::kSkewed:
      return "skewed";
  }
  return "";
}

UpdateColumns BorrowColumns(const TensorSpec& spec, const ClientArrays& client) {
  UpdateColumns columns;
  if (spec.layout == Layout::kDense) {
    columns.keys = KeyRun{0, spec.num_rows};
  } else if (HasNarrowKeys(spec)) {
    columns.keys = absl::MakeConstSpan(client.narrow_keys);
  } else {
    columns.keys = absl::MakeConstSpan(client.wide_keys);
  }
  columns.values = reinterpret_cast<const std::byte*>(client.values.data());
  return columns;
}

uint64_t InputBytes(const Workload& workload) {
  const uint64_t key_bytes = workload.spec.layout == Layout::kDense ? 0 : HasNarrowKeys(workload.spec) ? 4 : 8;
  return workload.num_tuples * (key_bytes + workload.spec.row_width * sizeof(float));
}

Workload MakeWorkload(const std::string& name, uint64_t seed, int scale, Variant variant) {
  const auto* shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return name == s.name; });
  if (shape == std::end(kShapes))
    throw std::invalid_argument("no workload '" + name + "'; there are A to M, D48 and D64");
  Workload workload;
  workload.name = shape->name;
  workload.variant = variant;
  workload.description = shape->description;
  workload.spec.name = "tensor";
  workload.spec.num_rows = shape->num_rows;
  workload.spec.row_width = shape->row_width;
  workload.spec.layout = shape->layout;
  const Zipf zipf(shape->num_rows, shape->zipf > 0 ? shape->zipf : 1.1);
  Random random(seed);
  for (int c = 0; c < std::max(1, shape->clients / scale); ++c) {
    std::vector<uint64_t> keys;
    if (shape->layout == Layout::kDense) {
      keys.resize(shape->tuples);
      std::iota(keys.begin(), keys.end(), uint64_t{0});
    } else if (shape->repeats) {
      keys.resize(shape->tuples);
      for (uint64_t& key : keys) key = random() % shape->num_rows;
    } else if (variant == Variant::kSkewed) {
      keys = SkewedKeys(shape->tuples, shape->num_rows, random);
    } else {
      keys = Distinct(shape->tuples, [&] { return shape->zipf > 0 ? zipf(random) : random() % shape->num_rows; });
      DropSurplus(keys, shape->tuples, random);
    }
    if (shape->shuffled || variant == Variant::kShuffled) std::shuffle(keys.begin(), keys.end(), random);
    ClientArrays client;
    if (HasNarrowKeys(workload.spec)) {
      client.narrow_keys.assign(keys.begin(), keys.end());
    } else {
      client.wide_keys = std::move(keys);
    }
    client.values.resize(shape->tuples * shape->row_width);
    for (float& value : client.values) {
      value = shape->repeats ? static_cast<float>(random() >> 56) / 256.0f - 0.5f
                             : static_cast<float>(Uniform01(random) - 0.5);
    }
    workload.num_tuples += shape->tuples;
    workload.clients.push_back(std::move(client));
  }
  return workload;
}

void ExportWorkload(const Workload& workload, const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", workload.name);
  const auto open = [&](const char* suffix) { return std::ofstream(path + suffix, std::ios::binary); };
  std::ofstream keys = open(".keys"), values = open(".values"), sizes = open(".sizes"), facts = open(".json");
  for (const ClientArrays& client : workload.clients) {
    Append(keys, client.narrow_keys);
    Append(keys, client.wide_keys);
    Append(values, client.values);
    Append(sizes, std::vector<uint64_t>{std::max(client.narrow_keys.size(), client.wide_keys.size())});
  }
  facts << absl::StrFormat(
      R"({"name": "%s", "description": "%s", "num_rows": %d, "row_width": %d, "key_bytes": %d, "tuples": %d})",
      workload.name, workload.description, workload.spec.num_rows, workload.spec.row_width,
      HasNarrowKeys(workload.spec) ? 4 : 8, workload.num_tuples);
  for (std::ofstream* out : {&keys, &values, &sizes, &facts}) {
    out->close();
    if (!out->good()) throw std::runtime_error("cannot write into " + folder);
  }
}

}  // namespace sparseagg::bench
