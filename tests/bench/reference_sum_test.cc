// The check of float32 answers that benchmarks hold peers to.
#include "bench/reference_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

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

}  // namespace
}  // namespace sparseagg::bench
