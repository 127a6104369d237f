// The checks that benchmarks hold the engine and its peers to.
#include "bench/common/reference_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "host/base/column.h"
#include "host/result.h"

namespace sparseagg::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Key 2 has 0.1 + 0.2, key 5 has 4 − 1, key 7 has 2.
template <typename Key>
Workload ThreeKeys() {
  Workload workload;
  workload.clients.resize(2);
  const auto keys = [](ClientArrays & client) -> auto& {
    if constexpr (sizeof(Key) == 4) {
      return client.narrow_keys;
    } else {
      return client.wide_keys;
    }
  };
  keys(workload.clients[0]) = {5, 2};
  workload.clients[0].values = {4.0f, 0.1f};
  keys(workload.clients[1]) = {2, 5, 7};
  workload.clients[1].values = {0.2f, -1.0f, 2.0f};
  workload.num_tuples = 5;
  return workload;
}

template <typename Key>
class PlainSumsTest : public ::testing::Test {
 protected:
  std::string Difference(const std::vector<Key>& keys, const std::vector<float>& sums) const {
    return PlainSums(ThreeKeys<Key>()).FindDifference(keys, sums);
  }
};

using KeyTypes = ::testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(PlainSumsTest, KeyTypes);

TYPED_TEST(PlainSumsTest, Float32Sums_AreRight) {
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.1f + 0.2f, 3.0f, 2.0f}), IsEmpty());
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.30001f, 3.0001f, 2.0f}), IsEmpty()) << "of magnitudes 0.3 and 5";
}

TYPED_TEST(PlainSumsTest, WrongSums_AreFound) {
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.3f, 2.0f, 3.0f}), HasSubstr("key 5: 2, not 3")) << "the total is right";
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.3f, 3.0f, 2.001f}), HasSubstr("key 7"));
  EXPECT_THAT(this->Difference({2, 5, 7}, {std::numeric_limits<float>::quiet_NaN(), 3.0f, 2.0f}), HasSubstr("key 2"));
}

TYPED_TEST(PlainSumsTest, WrongKeys_AreFound) {
  EXPECT_THAT(this->Difference({2, 6, 7}, {0.3f, 3.0f, 2.0f}), HasSubstr("row 1 is key 6, not 5"));
  EXPECT_THAT(this->Difference({2, 5}, {0.3f, 3.0f}), HasSubstr("2 rows, not 3"));
  EXPECT_THAT(this->Difference({2, 5, 7, 7}, {0.3f, 3.0f, 2.0f, 0.0f}), HasSubstr("4 rows, not 3"));
  EXPECT_THAT(this->Difference({}, {}), HasSubstr("0 rows"));
}

// Of ThreeKeys, with weights 3 and 1.
class CanonicalSumsTest : public ::testing::Test {
 protected:
  CanonicalSumsTest() : workload_(ThreeKeys<uint32_t>()) { workload_.clients[0].weight = 3.0; }

  std::string Difference(Op op, Weighting weighting, const std::vector<float>& values) const {
    AggregationSpec aggregation;
    aggregation.op = op;
    aggregation.weighting = weighting;
    Result result;
    result.keys = Column<uint32_t>{};
    for (const uint32_t key : {2, 5, 7}) std::get<Column<uint32_t>>(result.keys).push_back(key);
    result.num_keys = 3;
    for (const float value : values) {
      result.values.Append(reinterpret_cast<const std::byte*>(&value), sizeof(value));
    }
    return CanonicalSums(workload_).FindDifference(aggregation, result);
  }

  Workload workload_;
};

TEST_F(CanonicalSumsTest, MeansAreDividedByWhatWeighs) {
  const auto key2 = [](double weight0, double weight1, double divisor) {
    return static_cast<float>((weight0 * 0.1f + weight1 * 0.2f) / divisor);
  };
  using enum Weighting;
  EXPECT_THAT(Difference(Op::kSum, kUniform, {key2(1, 1, 1), 3.0f, 2.0f}), IsEmpty());
  EXPECT_THAT(Difference(Op::kSum, kByWeight, {key2(3, 1, 1), 11.0f, 2.0f}), IsEmpty());
  EXPECT_THAT(Difference(Op::kMean, kUniform, {key2(1, 1, 2), 1.5f, 1.0f}), IsEmpty());
  EXPECT_THAT(Difference(Op::kMean, kByWeight, {key2(3, 1, 4), 2.75f, 0.5f}), IsEmpty());
  EXPECT_THAT(Difference(Op::kCoordinateMean, kUniform, {key2(1, 1, 2), 1.5f, 2.0f}), IsEmpty());
  EXPECT_THAT(Difference(Op::kCoordinateMean, kByWeight, {key2(3, 1, 4), 2.75f, 2.0f}), IsEmpty());
}

TEST_F(CanonicalSumsTest, DenseResults_HoldZerosBetween) {
  const auto key2 = static_cast<float>(double{0.1f} + 0.2f);
  const auto difference = [&](std::vector<float> values) {
    Result result;
    result.layout = Layout::kDense;
    result.num_keys = values.size();
    for (const float value : values) result.values.Append(reinterpret_cast<const std::byte*>(&value), sizeof(value));
    return CanonicalSums(workload_).FindDifference({}, result);
  };
  EXPECT_THAT(difference({0, 0, key2, 0, 0, 3, 0, 2, 0}), IsEmpty());
  EXPECT_THAT(difference({0, 0, key2, 0, 1, 3, 0, 2, 0}), HasSubstr("key 4"));
  EXPECT_THAT(difference({0, 0, key2, 0, 0, 3, 0, 2, -0.0f}), HasSubstr("key 8"));
  EXPECT_THAT(difference({0, 0, key2, 0, 0, 3, 0}), HasSubstr("key 7"));
}

TEST_F(CanonicalSumsTest, AnotherBit_IsFound) {
  const float mean = std::nextafter(2.75f, 3.0f);
  const auto key2 = static_cast<float>((3.0 * 0.1f + 0.2f) / 4.0);
  EXPECT_THAT(Difference(Op::kCoordinateMean, Weighting::kByWeight, {key2, mean, 2.0f}), HasSubstr("key 5, column 0"));
  EXPECT_THAT(Difference(Op::kMean, Weighting::kByWeight, {key2, 2.75f, 2.0f}),
              HasSubstr("key 7, column 0: 2, not 0.5"));
}

}  // namespace
}  // namespace sparseagg::bench
