#include "host/partial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/base/binned.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "host/spec/validate.h"
#include "host/updates/update.h"

namespace sparseagg {
namespace {

constexpr char kMagic[4] = {'S', 'A', 'P', 'R'};
constexpr uint16_t kVersion = 2;
constexpr uint8_t kHasCounts = 1;
constexpr uint8_t kHasWeights = 2;
constexpr uint8_t kHasZeroWeight = 4;
// Sums of integer weights are exact up to here.
constexpr int64_t kMaxIntegerWeights = int64_t{1} << 53;

enum class PartialFold : uint8_t {
  kNone,
  kInteger = 2,
  kModular,
  kMinFloat,
  kMaxFloat,
  kMinInteger,
  kMaxInteger,
  kBinned
};

struct Head {
  char magic[4];
  uint16_t version;
  uint16_t name_bytes;
  uint64_t block_bytes;
  uint8_t fold;
  uint8_t key_bytes;
  uint8_t flags;
  uint8_t dtype;
  uint32_t columns;
  uint64_t zero;
  uint64_t tensor_rows;
  uint64_t num_submissions;
  int64_t weight_sum;
  uint64_t num_rows;
  uint64_t first;
  uint64_t last;
};
static_assert(sizeof(Head) == 80);

bool IsBinned(const TensorSpec& spec) { return spec.aggregation.numerics == Numerics::kBinned; }

PartialFold FoldOf(const TensorSpec& spec) {
  const Op op = spec.aggregation.op;
  if (op == Op::kUnion) return PartialFold::kNone;
  if (op == Op::kMin) return IsFloat(spec.dtype) ? PartialFold::kMinFloat : PartialFold::kMinInteger;
  if (op == Op::kMax) return IsFloat(spec.dtype) ? PartialFold::kMaxFloat : PartialFold::kMaxInteger;
  if (IsBinned(spec)) return PartialFold::kBinned;
  return spec.modular ? PartialFold::kModular : PartialFold::kInteger;
}

int BinnedBins(const TensorSpec& spec) {
  return spec.dtype == DType::kFloat64 ? WideBinnedSum::kBins : NarrowBinnedSum::kBins;
}

size_t AccBytes(const TensorSpec& spec) {
  if (IsBinned(spec)) return static_cast<size_t>(BinnedBins(spec)) * sizeof(int64_t);
  return FoldOf(spec) == PartialFold::kInteger ? 16 : 8;
}

size_t AccRowBytes(const TensorSpec& spec) { return NumColumns(spec) * AccBytes(spec); }

// Returns: the head that blocks of a tensor have, without what differs from block to block.
Head HeadOf(const TensorSpec& spec) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.name_bytes = static_cast<uint16_t>(spec.name.size());
  head.fold = static_cast<uint8_t>(FoldOf(spec));
  head.key_bytes = static_cast<uint8_t>(KeyBytes(spec));
  head.flags = (NeedsCounts(spec) ? kHasCounts : 0) | (NeedsKeyWeights(spec) ? kHasWeights : 0);
  head.dtype = static_cast<uint8_t>(spec.dtype);
  head.columns = NumColumns(spec);
  head.tensor_rows = spec.num_rows;
  return head;
}

uint64_t Padded(uint64_t bytes) { return SaturatingAdd(bytes, 7) & ~uint64_t{7}; }

// The bytes a row that each column takes, in their order.
struct Widths {
  size_t keys, accs, counts, weights, tops;
  uint64_t Sum() const { return keys + accs + counts + weights + tops; }
};
Widths WidthsOf(const TensorSpec& spec) {
  return {KeyBytes(spec), AccRowBytes(spec), NeedsCounts(spec) ? sizeof(uint32_t) : 0,
          NeedsKeyWeights(spec) ? sizeof(BinnedWeights) : 0, IsBinned(spec) ? NumColumns(spec) : 0};
}

// What is wrong with a block, and where it is.
class BlockPlace {
 public:
  explicit BlockPlace(uint64_t offset) : offset_(offset) {}
  void SetTensor(const TensorSpec& spec) { tensor_ = absl::StrCat(" (", Quoted(spec), ")"); }
  absl::Status Invalid(absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat("the partial's block at byte ", offset_, tensor_, ": ", problem));
  }
  template <typename A, typename B>
  absl::Status Expect(absl::string_view field, A found, B expected) const {
    if (found == expected) return absl::OkStatus();
    return Invalid(absl::StrCat(field, " is ", found, ", and the aggregation has ", expected));
  }

 private:
  const uint64_t offset_;
  std::string tensor_;
};

template <typename Key>
absl::Status CheckKeys(const BlockPlace& place, const TensorSpec& spec, const PartialBlock& block) {
  const auto* keys = reinterpret_cast<const Key*>(block.rows.keys.data());
  for (uint64_t row = 0; row < block.rows.num_rows; ++row) {
    const uint64_t key = keys[row];
    if (row > 0 && keys[row - 1] >= key) {
      return place.Invalid(absl::StrCat("key ", key, " of row ", row, " does not follow ", keys[row - 1]));
    }
    if (key < block.first || key > block.last) {
      return place.Invalid(absl::StrCat("key ", key, " of row ", row, " is not in the block's interval, ", block.first,
                                        " to ", block.last));
    }
    if (spec.num_rows != 0 && key >= spec.num_rows) {
      return place.Invalid(absl::StrCat("key ", key, " of row ", row, " is not below num_rows ", spec.num_rows));
    }
  }
  return absl::OkStatus();
}

// Returns: the first value below -low or above high, or the number of values.
template <typename T>
uint64_t FirstBeyond(const Column<std::byte>& column, unsigned __int128 low, unsigned __int128 high) {
  const size_t num = column.size() / sizeof(T);
  const auto* values = reinterpret_cast<const T*>(column.data());
  for (size_t i = 0; i < num; ++i) {
    const auto value = static_cast<__int128>(values[i]);
    const auto bits = static_cast<unsigned __int128>(value);
    const auto magnitude = value < 0 ? -bits : bits;
    if (magnitude > (value < 0 ? low : high)) return i;
  }
  return num;
}

// Returns: whether n terms, which may be infinite, can have made these digits and this top.
template <int K, int W>
bool IsBinnedSum(const int64_t* digits, int64_t top, uint64_t n, bool may_be_infinite) {
  using Sum = BinnedSum<K, W>;
  const int64_t bin = top & Sum::kBinMask;
  if (top < 0 || top > 255 || bin < K - 1 || bin > Sum::kMaxBin) return false;
  if (top != bin && !may_be_infinite) return false;
  const auto most = static_cast<__int128>(n) << (W - 1);
  return std::all_of(digits, digits + K, [&](int64_t digit) { return digit <= most && digit >= -most; });
}

// Returns: whether this is a sum of n weights.
bool IsSumOfWeights(const BinnedWeights& weights, uint64_t n) {
  if (!IsBinnedSum<WideBinnedSum::kBins, WideBinnedSum::kBits>(weights.digits, weights.top, n, false)) return false;
  const WideBinnedSum sum = weights.Sum();
  if (n == 0) return sum == WideBinnedSum();
  return sum.Value() >= 0.0 && sum.Value() <= kMaxWeight * static_cast<double>(n);
}

std::string TextOf(const BinnedWeights& weights) {
  return absl::StrCat("with the digits ", absl::StrJoin(weights.digits, ", "), " and the top ", weights.top);
}

absl::Status CheckAccs(const BlockPlace& place, const TensorSpec& spec, PartialBlock& block) {
  const AggregationSpec& a = spec.aggregation;
  const uint64_t n = block.totals.num_submissions;
  const uint64_t num = block.rows.accs.size() / AccBytes(spec);
  const auto beyond = [&](uint64_t at) {
    return at == num ? absl::OkStatus()
                     : place.Invalid(absl::StrCat("value ", at % spec.row_width, " of row ", at / spec.row_width,
                                                  " is larger than ", n, " submissions can make it"));
  };
  switch (FoldOf(spec)) {
    case PartialFold::kBinned: {
      const auto* digits = reinterpret_cast<const int64_t*>(block.rows.accs.data());
      const auto* tops = reinterpret_cast<const uint8_t*>(block.rows.tops.data());
      const bool is_wide = spec.dtype == DType::kFloat64;
      const auto is_sum = is_wide ? &IsBinnedSum<WideBinnedSum::kBins, WideBinnedSum::kBits>
                                  : &IsBinnedSum<NarrowBinnedSum::kBins, NarrowBinnedSum::kBits>;
      // A value of a float64, or its product with a weight, may leave float64.
      const bool may_be_infinite =
          a.on_nonfinite == NonfinitePolicy::kPropagate || is_wide || a.weighting == Weighting::kByWeight;
      const int bins = BinnedBins(spec);
      uint64_t at = 0;
      while (at < num && is_sum(digits + at * static_cast<uint64_t>(bins), tops[at], n, may_be_infinite)) ++at;
      return beyond(at);
    }
    case PartialFold::kInteger:
      return beyond(FirstBeyond<__int128>(block.rows.accs, (static_cast<unsigned __int128>(1) << 63) * n,
                                          static_cast<unsigned __int128>(std::numeric_limits<int64_t>::max()) * n));
    case PartialFold::kMinFloat:
    case PartialFold::kMaxFloat: {
      const bool may_be_infinite = spec.dtype == DType::kFloat64;  // a submission's own sum of rows of one key
      auto* values = reinterpret_cast<double*>(block.rows.accs.data());
      for (uint64_t i = 0; i < num; ++i) {
        values[i] += 0.0;  // terms are never −0.0
        if (a.on_nonfinite == NonfinitePolicy::kPropagate || std::isfinite(values[i])) continue;
        if (may_be_infinite && !std::isnan(values[i])) continue;
        return place.Invalid(absl::StrCat("value ", i % spec.row_width, " of row ", i / spec.row_width, " is ",
                                          values[i], ", which the tensor refuses"));
      }
      return absl::OkStatus();
    }
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckContributors(const BlockPlace& place, const PartialBlock& block) {
  const uint64_t n = block.totals.num_submissions;
  const auto* counts = reinterpret_cast<const uint32_t*>(block.rows.counts.data());
  for (uint64_t row = 0; row < block.rows.counts.size() / sizeof(uint32_t); ++row) {
    if (counts[row] >= 1 && counts[row] <= n) continue;
    return place.Invalid(absl::StrCat("the count of row ", row, " is ", counts[row], ", of ", n, " submissions"));
  }
  const auto* weights = reinterpret_cast<const BinnedWeights*>(block.rows.weights.data());
  for (uint64_t row = 0; row < block.rows.weights.size() / sizeof(BinnedWeights); ++row) {
    if (IsSumOfWeights(weights[row], n)) continue;
    return place.Invalid(
        absl::StrCat("the weight of row ", row, ", ", TextOf(weights[row]), ", is not one of ", n, " submissions"));
  }
  return absl::OkStatus();
}

absl::Status CheckTotals(const BlockPlace& place, const TensorSpec& spec, const PartialTotals& totals) {
  const uint64_t n = totals.num_submissions;
  const uint64_t most = std::min<uint64_t>(MaxBinnedSubmissions(spec), std::numeric_limits<uint32_t>::max());
  if (n > most) {
    return place.Invalid(absl::StrCat("its number of submissions is ", n, ", beyond ", most));
  }
  const int64_t most_weight = NeedsWeightSum(spec) && !IsBinned(spec) ? kMaxIntegerWeights : 0;
  if (totals.weight_sum >= 0 && totals.weight_sum <= most_weight) return absl::OkStatus();
  return place.Invalid(absl::StrCat("its sum of weights is ", totals.weight_sum, ", of ", n, " submissions"));
}

absl::Status CheckHead(const BlockPlace& place, const TensorSpec& spec, const Head& head) {
  const Head expected = HeadOf(spec);
  RETURN_IF_ERROR(place.Expect("the fold", int{head.fold}, int{expected.fold}));
  RETURN_IF_ERROR(place.Expect("bytes of a key", int{head.key_bytes}, int{expected.key_bytes}));
  RETURN_IF_ERROR(place.Expect("the dtype", int{head.dtype}, int{expected.dtype}));
  RETURN_IF_ERROR(place.Expect("values a row", head.columns, expected.columns));
  RETURN_IF_ERROR(place.Expect("num_rows of the tensor", head.tensor_rows, expected.tensor_rows));
  RETURN_IF_ERROR(place.Expect("columns", head.flags & ~int{kHasZeroWeight}, int{expected.flags}));
  return place.Expect("the reserved field", head.zero, uint64_t{0});
}

}  // namespace

uint64_t UnfinishedRowBytes(const TensorSpec& spec) { return WidthsOf(spec).Sum(); }

uint64_t PartialBlockBytes(const TensorSpec& spec, uint64_t num_rows) {
  const Widths widths = WidthsOf(spec);
  uint64_t bytes = sizeof(Head) + Padded(spec.name.size()) + (IsBinned(spec) ? sizeof(BinnedWeights) : 0);
  for (const size_t width : {widths.keys, widths.accs, widths.counts, widths.weights, widths.tops}) {
    bytes = SaturatingAdd(bytes, Padded(SaturatingMultiply(num_rows, width)));
  }
  return bytes;
}

void AppendPartialBlock(const TensorSpec& spec, const PartialBlock& block, std::string& out) {
  Head head = HeadOf(spec);
  head.block_bytes = PartialBlockBytes(spec, block.rows.num_rows);
  if (block.totals.has_zero_weight) head.flags |= kHasZeroWeight;
  head.num_submissions = block.totals.num_submissions;
  head.weight_sum = block.totals.weight_sum;
  head.num_rows = block.rows.num_rows;
  head.first = block.first;
  head.last = block.last;
  out.reserve(out.size() + head.block_bytes);
  const auto append = [&out](const void* data, size_t bytes) {
    if (bytes > 0) out.append(static_cast<const char*>(data), bytes);
    out.append(Padded(bytes) - bytes, '\0');
  };
  append(&head, sizeof(head));
  append(spec.name.data(), spec.name.size());
  if (IsBinned(spec)) {
    const BinnedWeights weights = BinnedWeights::Of(block.totals.binned_weights);
    append(&weights, sizeof(weights));
  }
  for (const Column<std::byte>* column :
       {&block.rows.keys, &block.rows.accs, &block.rows.counts, &block.rows.weights, &block.rows.tops}) {
    append(column->data(), column->size());
  }
}

absl::StatusOr<PartialBlock> TakePartialBlock(absl::Span<const TensorSpec> tensors, uint64_t offset,
                                              absl::string_view& bytes) {
  BlockPlace place(offset);
  Head head;
  if (bytes.size() < sizeof(head)) {
    return place.Invalid(absl::StrCat("it is cut off: ", bytes.size(), " bytes, where a head has ", sizeof(head)));
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) return place.Invalid("it does not begin with SAPR");
  if (head.version != kVersion) {
    return place.Invalid(absl::StrCat("its version is ", head.version, "; version ", kVersion, " is known"));
  }
  if (head.block_bytes > bytes.size()) {
    return place.Invalid(absl::StrCat("it is cut off: ", bytes.size(), " bytes of ", head.block_bytes));
  }
  const uint64_t name_end = sizeof(head) + Padded(head.name_bytes);
  if (head.block_bytes < name_end) return place.Invalid("it is shorter than its head and name");
  const absl::string_view name = bytes.substr(sizeof(head), head.name_bytes);
  const auto spec = std::find_if(tensors.begin(), tensors.end(), [&](const TensorSpec& s) { return s.name == name; });
  if (spec == tensors.end()) {
    return place.Invalid(absl::StrCat("the aggregation has no tensor '", name.substr(0, 64), "'"));
  }
  place.SetTensor(*spec);
  RETURN_IF_ERROR(CheckHasPartials(*spec));
  RETURN_IF_ERROR(CheckHead(place, *spec, head));
  if (head.block_bytes != PartialBlockBytes(*spec, head.num_rows)) {
    return place.Invalid(absl::StrCat("it has ", head.block_bytes, " bytes, where ", head.num_rows, " rows take ",
                                      PartialBlockBytes(*spec, head.num_rows)));
  }
  if (head.first > head.last) return place.Invalid("its interval of keys ends before it begins");
  PartialBlock block;
  block.tensor = static_cast<size_t>(spec - tensors.begin());
  block.totals.num_submissions = head.num_submissions;
  block.totals.weight_sum = head.weight_sum;
  block.totals.has_zero_weight = (head.flags & kHasZeroWeight) != 0;
  uint64_t at = name_end;
  if (IsBinned(*spec)) {
    BinnedWeights weights;
    std::memcpy(&weights, bytes.data() + at, sizeof(weights));
    at += sizeof(weights);
    const uint64_t n = spec->aggregation.weighting == Weighting::kByWeight ? head.num_submissions : 0;
    if (!IsSumOfWeights(weights, n)) {
      return place.Invalid(absl::StrCat("its sum of weights, ", TextOf(weights), ", is not one of ", n, " weights"));
    }
    block.totals.binned_weights = weights.Sum();
  }
  block.first = head.first;
  block.last = head.last;
  RETURN_IF_ERROR(CheckTotals(place, *spec, block.totals));
  if (head.num_rows > 0 && head.num_submissions == 0) return place.Invalid("it has rows of no submission");
  block.rows.num_rows = head.num_rows;
  const Widths widths = WidthsOf(*spec);
  const auto take = [&](size_t width, Column<std::byte>& column) {
    const uint64_t size = head.num_rows * width;
    column.Append(reinterpret_cast<const std::byte*>(bytes.data() + at), size);
    at += Padded(size);
  };
  take(widths.keys, block.rows.keys);
  take(widths.accs, block.rows.accs);
  take(widths.counts, block.rows.counts);
  take(widths.weights, block.rows.weights);
  take(widths.tops, block.rows.tops);
  RETURN_IF_ERROR(HasNarrowKeys(*spec) ? CheckKeys<uint32_t>(place, *spec, block)
                                       : CheckKeys<uint64_t>(place, *spec, block));
  RETURN_IF_ERROR(CheckAccs(place, *spec, block));
  RETURN_IF_ERROR(CheckContributors(place, block));
  bytes.remove_prefix(head.block_bytes);
  return block;
}

PartialBuilder::PartialBuilder(absl::Span<const TensorSpec> tensors, uint64_t first, uint64_t last)
    : tensors_(tensors), first_(first), last_(last), parts_(tensors.size()) {}

absl::Status PartialBuilder::Append(absl::string_view blocks) {
  while (!blocks.empty()) {
    const uint64_t at = offset_;
    const size_t before = blocks.size();
    ASSIGN_OR_RETURN(PartialBlock block, TakePartialBlock(tensors_, offset_, blocks));
    offset_ += before - blocks.size();
    BlockPlace place(at);
    place.SetTensor(tensors_[block.tensor]);
    if (num_submissions_.value_or(block.totals.num_submissions) != block.totals.num_submissions) {
      return place.Invalid(absl::StrCat("it is of ", block.totals.num_submissions,
                                        " submissions, the blocks before of ", *num_submissions_));
    }
    num_submissions_ = block.totals.num_submissions;
    num_rows_ += block.rows.num_rows;
    std::optional<PartialBlock>& part = parts_[block.tensor];
    const uint64_t expected = part.has_value() ? part->last + 1 : first_;
    if (block.first != expected || (part.has_value() && part->last >= last_)) {
      return place.Invalid(absl::StrCat("its keys begin at ", block.first, ", where ", expected, " is expected"));
    }
    if (!part.has_value()) {
      part = std::move(block);
      memory_bytes_ += part->rows.memory_bytes();
      continue;
    }
    if (!(part->totals == block.totals)) {
      return place.Invalid("its sum of weights is another one than that of the tensor's blocks before");
    }
    part->last = block.last;
    part->rows.num_rows += block.rows.num_rows;
    memory_bytes_ += block.rows.memory_bytes();
    part->rows.keys.Append(block.rows.keys.data(), block.rows.keys.size());
    part->rows.accs.Append(block.rows.accs.data(), block.rows.accs.size());
    part->rows.counts.Append(block.rows.counts.data(), block.rows.counts.size());
    part->rows.weights.Append(block.rows.weights.data(), block.rows.weights.size());
    part->rows.tops.Append(block.rows.tops.data(), block.rows.tops.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PartialBlock>> PartialBuilder::Finish() && {
  std::vector<PartialBlock> partial;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const TensorSpec& spec = tensors_[t];
    if (!parts_[t].has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the partial has no block of ", Quoted(spec)));
    }
    PartialBlock& part = *parts_[t];
    if (part.last != last_) {
      return absl::InvalidArgumentError(absl::StrCat("the partial is cut off: its blocks of ", Quoted(spec),
                                                     " end at key ", part.last, ", where ", last_, " is expected"));
    }
    if (spec.layout == Layout::kDense && first_ == 0 && last_ == std::numeric_limits<uint64_t>::max() &&
        part.rows.num_rows != spec.num_rows) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), " is dense, and the partial has ",
                                                     part.rows.num_rows, " of its ", spec.num_rows, " rows"));
    }
    partial.push_back(std::move(part));
  }
  if (num_submissions() == 0) return absl::InvalidArgumentError("the partial is of no submissions");
  return partial;
}

}  // namespace sparseagg
