#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/base/refusals.h"
#include "service/codec/cluster_codec.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {
namespace {

TEST(HomeServersTest, HomesAreSharedEvenlyAndStayWhenAServerIsAdded) {
  constexpr int kClients = 4000;
  std::array<int, 4> shares = {};
  for (int i = 0; i < kClients; ++i) {
    const std::string client = absl::StrCat("client-", i);
    const size_t before = HomeOf(client, 4);
    const size_t after = HomeOf(client, 5);
    EXPECT_TRUE(after == before || after == 4) << client;
    ++shares[before];
  }
  for (const int share : shares) EXPECT_GT(share, kClients / 4 * 9 / 10);
}

// The same numbers as in tests/python/cluster/test_cluster.py and js/sparseagg.test.js.
TEST(HomeServersTest, AgreesWithOtherLanguages) {
  EXPECT_EQ(HomeOf("", 4), 1);
  EXPECT_EQ(HomeOf("a", 4), 3);
  EXPECT_EQ(HomeOf("client-7", 4), 0);
  EXPECT_EQ(HomeOf("\xC3\xBC", 4), 1);
}

TEST(HomeServersTest, OtherServersNameTheHome) {
  HomeServers homes{{{"a:1", "http://a:2"}, {"b:1", ""}, {"c:1", ""}, {"d:1", "https://d:2"}}, 0};
  EXPECT_TRUE(homes.CheckHome("client-7").ok());
  EXPECT_TRUE(HomeServers().CheckHome("a").ok());
  const absl::Status with_url = homes.CheckHome("a");
  EXPECT_EQ(with_url.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(HomeAddress(with_url), "d:1");
  EXPECT_EQ(HomeUrl(with_url), "https://d:2");
  EXPECT_EQ(HomeAddress(homes.CheckHome("\xC3\xBC")), "b:1");
  EXPECT_EQ(HomeUrl(homes.CheckHome("\xC3\xBC")), "");
  EXPECT_EQ(HomeAddress(absl::FailedPreconditionError("the round is DONE")), "");
}

v1::ClusterSpec SpecOf(const std::vector<std::pair<std::string, std::string>>& servers, uint32_t index = 0) {
  v1::ClusterSpec spec;
  for (const auto& [address, url] : servers) {
    spec.add_servers()->set_address(address);
    spec.mutable_servers()->rbegin()->set_http_url(url);
  }
  spec.set_index(index);
  return spec;
}

TEST(ClusterCodecTest, RefusesWhatIsNoAddress) {
  for (const char* address : {"", "a", "a:", ":1", "a:0", "a:65536", "a:1/x", "u@a:1", "a b:1", "a:1\r\nX: y", "a:+1",
                              "[a:1", "::1:1", "unix:/tmp/x", "a%0d:1", "\xC3\xBC:1"}) {
    EXPECT_EQ(DecodeCluster(SpecOf({{address, ""}})).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  for (const char* url : {"a:1", "ftp://a:1", "javascript://a:1", "http://a", "http://a:1/", "http://a:1?q",
                          "http://a:1#f", "http://u:p@a:1", "http://a:1\r\nSet-Cookie: x", "//a:1"}) {
    EXPECT_EQ(DecodeCluster(SpecOf({{"a:1", url}})).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  EXPECT_FALSE(DecodeCluster(SpecOf({})).ok());
  EXPECT_FALSE(DecodeCluster(SpecOf({{"a:1", ""}, {"a:1", ""}})).ok());
  EXPECT_FALSE(DecodeCluster(SpecOf({{"a:1", "http://a:2"}, {"b:1", "http://a:2"}})).ok());
  EXPECT_FALSE(DecodeCluster(SpecOf({{"a:1", ""}}, 1)).ok());
  v1::ClusterSpec many;
  for (int i = 0; i < 1025; ++i) many.add_servers()->set_address(absl::StrCat("a:", i + 1));
  EXPECT_FALSE(DecodeCluster(many).ok());
  many.mutable_servers()->RemoveLast();
  EXPECT_TRUE(DecodeCluster(many).ok());
}

}  // namespace
}  // namespace sparseagg::service
