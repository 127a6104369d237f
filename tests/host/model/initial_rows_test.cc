#include "host/model/initial_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "host/base/half.h"

namespace sparseagg::testing {
namespace {

// Of Random123's kat_vectors.
TEST(Philox4x32_KnownAnswers, AreThose) {
  using Words = std::array<uint32_t, 4>;
  constexpr uint32_t kOnes = ~uint32_t{0};
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The words of a row, as models.proto has them.
std::vector<uint32_t> WordsOf(uint64_t key, uint64_t seed, uint32_t position, size_t count) {
  std::vector<uint32_t> words;
  for (uint32_t b = 0; words.size() < count; ++b) {
    const auto block =
        Philox4x32({uint32_t(key), uint32_t(key >> 32), b, position}, {uint32_t(seed), uint32_t(seed >> 32)});
    words.insert(words.end(), block.begin(), block.end());
  }
  return words;
}

constexpr uint64_t kKeys[] = {0, 1, 7, (uint64_t{1} << 32) + 1, ~uint64_t{0}};

TEST(WriteInitialRows_Uniform, EqualsTheText) {
  for (const uint32_t width : {1, 3, 4, 5, 33}) {
    ModelTensorSpec tensor;
    tensor.row_width = width;
    tensor.init = {InitKind::kUniform, 0.05, 0x123456789abcdef0};
    std::vector<float> rows(std::size(kKeys) * width);
    WriteInitialRows(tensor, 2, kKeys, reinterpret_cast<std::byte*>(rows.data()));
    for (size_t r = 0; r < std::size(kKeys); ++r) {
      const auto words = WordsOf(kKeys[r], tensor.init.seed, 2, width);
      for (uint32_t c = 0; c < width; ++c) {
        const auto odd = static_cast<double>(2 * int64_t(words[c]) + 1 - (int64_t(1) << 32));
        ASSERT_EQ(rows[r * width + c], static_cast<float>(0.05 * (odd / 4294967296.0)));
      }
    }
  }
}

TEST(WriteInitialRows_Normal, EqualsTheTextInEachDtype) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    ModelTensorSpec tensor;
    tensor.dtype = dtype;
    tensor.row_width = 5;
    tensor.init = {InitKind::kNormal, 1.5, 42};
    std::vector<std::byte> rows(std::size(kKeys) * tensor.row_bytes());
    WriteInitialRows(tensor, 0, kKeys, rows.data());
    const std::byte* at = rows.data();
    for (const uint64_t key : kKeys) {
      const auto words = WordsOf(key, 42, 0, 30);
      for (size_t c = 0; c < 5; ++c, at += SizeOf(dtype)) {
        int64_t sum = 0;
        for (size_t w = 6 * c; w < 6 * c + 6; ++w) sum += (words[w] & 0xffff) + (words[w] >> 16);
        const double want = 1.5 * (static_cast<double>(sum - 393210) / 65536.0);
        ASSERT_LT(std::abs(want), 9.0);
        const auto is = [&](auto rounded) { return std::memcmp(at, &rounded, sizeof(rounded)) == 0; };
        ASSERT_TRUE(dtype == DType::kFloat32   ? is(static_cast<float>(want))
                    : dtype == DType::kFloat64 ? is(want)
                    : dtype == DType::kFloat16 ? is(RoundToFloat16(want))
                                               : is(RoundToBFloat16(want)))
            << Name(dtype) << " key " << key << " column " << c;
      }
    }
  }
}

}  // namespace
}  // namespace sparseagg::testing
