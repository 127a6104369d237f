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
class FloatSumsTest : public ::testing::Test {
 protected:
  std::string Difference(const std::vector<Key>& keys, const std::vector<float>& sums) const {
    return ReferenceSums(ThreeKeys<Key>()).FindDifference(keys, sums);
  }
};

using KeyTypes = ::testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(FloatSumsTest, KeyTypes);

TYPED_TEST(FloatSumsTest, Float32Sums_AreRight) {
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.1f + 0.2f, 3.0f, 2.0f}), IsEmpty());
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.30001f, 3.0001f, 2.0f}), IsEmpty()) << "of magnitudes 0.3 and 5";
}

TYPED_TEST(FloatSumsTest, WrongSums_AreFound) {
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.3f, 2.0f, 3.0f}), HasSubstr("key 5: 2, not 3")) << "the total is right";
  EXPECT_THAT(this->Difference({2, 5, 7}, {0.3f, 3.0f, 2.001f}), HasSubstr("key 7"));
  EXPECT_THAT(this->Difference({2, 5, 7}, {std::numeric_limits<float>::quiet_NaN(), 3.0f, 2.0f}), HasSubstr("key 2"));
}

TYPED_TEST(FloatSumsTest, WrongKeys_AreFound) {
  EXPECT_THAT(this->Difference({2, 6, 7}, {0.3f, 3.0f, 2.0f}), HasSubstr("row 1 is key 6, not 5"));
  EXPECT_THAT(this->Difference({2, 5}, {0.3f, 3.0f}), HasSubstr("2 rows, not 3"));
  EXPECT_THAT(this->Difference({2, 5, 7, 7}, {0.3f, 3.0f, 2.0f, 0.0f}), HasSubstr("4 rows, not 3"));
  EXPECT_THAT(this->Difference({}, {}), HasSubstr("0 rows"));
}

TEST(ReferenceSumsTest, AnotherBitOrKey_IsFound) {
  const auto difference = [](std::vector<uint32_t> keys, std::vector<float> values) {
    Result result;
    result.num_keys = keys.size();
    result.keys = Column<uint32_t>{};
    for (const uint32_t key : keys) std::get<Column<uint32_t>>(result.keys).push_back(key);
    for (const float value : values) result.values.Append(reinterpret_cast<const std::byte*>(&value), sizeof(value));
    return ReferenceSums(ThreeKeys<uint32_t>()).FindDifference(result);
  };
  const auto key2 = static_cast<float>(double{0.1f} + 0.2f);
  EXPECT_THAT(difference({2, 5, 7}, {key2, 3.0f, 2.0f}), IsEmpty());
  EXPECT_THAT(difference({2, 5, 7}, {key2, std::nextafter(3.0f, 4.0f), 2.0f}), HasSubstr("key 5, column 0"));
  EXPECT_THAT(difference({2, 6, 7}, {key2, 3.0f, 2.0f}), HasSubstr("row 1 is not key 5"));
  EXPECT_THAT(difference({2, 5}, {key2, 3.0f}), HasSubstr("row 2 is not key 7"));
  EXPECT_THAT(difference({2, 5, 7, 8}, {key2, 3.0f, 2.0f, 1.0f}), HasSubstr("4 rows, not 3"));
}

}  // namespace
}  // namespace sparseagg::bench
