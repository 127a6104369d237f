#include "host/model/initial_rows.h"

#include <cstring>

#include "host/base/half.h"

namespace sparseagg {
namespace {

// The sequence of uint32 words of one row.
class RowWords {
 public:
  RowWords(uint64_t seed, uint64_t row, uint32_t position)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        counter_{static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32), 0, position} {}

  uint32_t Next() {
    if (used_ == block_.size()) {
      block_ = Philox4x32(counter_, key_);
      ++counter_[2];
      used_ = 0;
    }
    return block_[used_++];
  }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  size_t used_ = block_.size();
};

double UniformValue(RowWords& words) {
  return static_cast<double>(2 * int64_t{words.Next()} + 1 - (int64_t{1} << 32)) * 0x1p-32;
}

double NormalValue(RowWords& words) {
  int64_t sum = 0;
  for (int i = 0; i < 6; ++i) {
    const uint32_t word = words.Next();
    sum += (word & 0xffffu) + (word >> 16);
  }
  return static_cast<double>(sum - 393210) * 0x1p-16;
}

void Store(double value, DType dtype, std::byte* out) {
  const auto put = [out](auto rounded) { std::memcpy(out, &rounded, sizeof(rounded)); };
  switch (dtype) {
    case DType::kFloat64:
      return put(value);
    case DType::kFloat16:
      return put(RoundToFloat16(value));
    case DType::kBFloat16:
      return put(RoundToBFloat16(value));
    default:
      return put(static_cast<float>(value));
  }
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

void WriteInitialRows(const ModelTensorSpec& tensor, uint32_t position, absl::Span<const uint64_t> keys,
                      std::byte* out) {
  if (tensor.init.kind == InitKind::kZeros) {
    if (!keys.empty()) std::memset(out, 0, keys.size() * tensor.row_bytes());
    return;
  }
  const size_t size = SizeOf(tensor.dtype);
  for (const uint64_t key : keys) {
    RowWords words(tensor.init.seed, key, position);
    for (uint32_t c = 0; c < tensor.row_width; ++c, out += size) {
      const double value = tensor.init.kind == InitKind::kUniform ? UniformValue(words) : NormalValue(words);
      Store(tensor.init.scale * value, tensor.dtype, out);
    }
  }
}

}  // namespace sparseagg
