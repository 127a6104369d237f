// The parts of the gateway that need no socket: bulk bodies, gRPC-Web, routes and the policy on web pages.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "service/base/refusals.h"
#include "service/gateway/browser_policy.h"
#include "service/gateway/http_message.h"
#include "service/gateway/router.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

TEST(BulkBody, KeyBytesBeyondTheBody_IsRefused) {
  EXPECT_TRUE(BulkToChunk({{"tensor", "w"}, {"key_bytes", "3"}}, absl::Cord("abc")).ok());
  for (const char* bytes : {"4", "-1", "x", "99999999999999999999"}) {
    const absl::Status error = BulkToChunk({{"key_bytes", bytes}}, absl::Cord("abc")).status();
    EXPECT_THAT(std::string(error.message()), HasSubstr("up to the 3 bytes")) << bytes;
  }
}

TEST(BulkBody, WhatTheBodyHas_IsNotForTheQuery) {
  for (const HttpFields& twice :
       {HttpFields{{"key_bytes", "1"}, {"key_bytes", "2"}}, HttpFields{{"key_bytes", "1"}, {"keyBytes", "1"}},
        HttpFields{{"keys", "a"}}, HttpFields{{"values", ""}}, HttpFields{{"tensor", "v"}, {"tensor", "w"}}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(BulkToChunk(twice, absl::Cord("abc")).status())) << twice[0].first;
  }
}

TEST(GrpcWeb, Frame_OfAnotherSize_IsRefused) {
  const auto unframed = [](const std::string& body) { return UnframeGrpcWeb(absl::Cord(body)); };
  const std::string good("\0\0\0\0\3abc", 8);
  ASSERT_TRUE(unframed(good).ok());
  EXPECT_EQ(*unframed(good), "abc");
  EXPECT_TRUE(unframed(std::string(5, '\0')).ok());
  EXPECT_FALSE(unframed(good + "x").ok());
  EXPECT_FALSE(unframed(good.substr(0, 7)).ok());
  EXPECT_FALSE(unframed(good.substr(0, 4)).ok());
  EXPECT_TRUE(absl::IsUnimplemented(unframed("\1" + good.substr(1)).status()));
}

TEST(GrpcWeb, Timeout_IsDigitsAndAUnit) {
  EXPECT_EQ(ParseGrpcTimeout("10S").value(), absl::Seconds(10));
  EXPECT_EQ(ParseGrpcTimeout("99999999H").value(), absl::Hours(99'999'999));
  EXPECT_EQ(ParseGrpcTimeout("1M").value(), absl::Minutes(1));
  EXPECT_EQ(ParseGrpcTimeout("500m").value(), absl::Milliseconds(500));
  EXPECT_EQ(ParseGrpcTimeout("7u").value(), absl::Microseconds(7));
  EXPECT_EQ(ParseGrpcTimeout("0n").value(), absl::ZeroDuration());
  for (const char* text : {"", "S", "10", "10s", "10 S", " 10S", "+10S", "-1S", "1.5S", "100000000S", "10SS", "1O0S"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGrpcTimeout(text).status())) << text;
  }
}

TEST(HttpMessage, Problem_HasTheRetryDelay) {
  const HttpResponse response = MakeProblem(RetryLater("busy"));
  EXPECT_EQ(response.status, 429);
  EXPECT_THAT(response.body[0], HasSubstr(R"("code":"RESOURCE_EXHAUSTED")"));
  EXPECT_THAT(response.body[0], HasSubstr(R"("retryDelayMs":500)"));
  EXPECT_THAT(response.headers, testing::Contains(std::pair<std::string, std::string>("Retry-After", "1")));
}

TEST(Routes, EveryUnaryMethod_HasOne) {
  for (size_t i = 0; i < kNumMethods; ++i) {
    const auto method = static_cast<Method>(i);
    const auto* const descriptor = DescriptorOf(method);
    ASSERT_NE(descriptor, nullptr);
    int routes = 0;
    for (const Route& route : Routes()) routes += route.method == method ? 1 : 0;
    EXPECT_EQ(routes, descriptor->client_streaming() || descriptor->server_streaming() ? 0 : 1) << Name(method);
    EXPECT_EQ(FindGrpcMethod(std::string("/") + std::string(ServiceName(method)) + "/" + std::string(Name(method))),
              method);
  }
  EXPECT_EQ(FindGrpcMethod("/sparseagg.v1.Tasks/GetRound"), std::nullopt);
}

TEST(Routes, Variable_IsOneSegment) {
  HttpRequest request;
  request.method = "GET";
  request.path = "/v1/rounds/a%2Db:wait";
  const auto match = FindRoute(request);
  ASSERT_TRUE(match.ok());
  ASSERT_NE(match->route, nullptr);
  EXPECT_EQ(match->route->method, Method::kWaitRound);
  EXPECT_EQ(match->variable, "a-b");
  for (const char* path : {"/v1/rounds/", "/v1/rounds/a/b", "/v1/rounds/a/", "/v1/rounds/a:b:wait", "/v2/rounds"}) {
    request.path = path;
    EXPECT_EQ(FindRoute(request)->route, nullptr) << path;
    EXPECT_EQ(FindRoute(request)->other_verbs, "") << path;
  }
  request.method = "PUT";
  request.path = "/v1/rounds/a";
  EXPECT_EQ(FindRoute(request)->other_verbs, "GET, DELETE");
}

HttpRequest From(const std::string& host, const std::string& origin) {
  HttpRequest request;
  request.headers = {{"host", host}};
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return request;
}

TEST(BrowserPolicy, PagesOfOtherOrigins_AreRefused) {
  const auto policy = BrowserPolicy::Create("https://app.example.org", HostRule::kAny);
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->Check(From("merge:8003", "")).ok());
  EXPECT_TRUE(policy->Check(From("merge:8003", "http://merge:8003")).ok());
  EXPECT_TRUE(policy->Check(From("merge:8003", "https://APP.example.org")).ok());
  for (const char* origin : {"http://merge:8004", "http://merge", "null", "https://app.example.org.evil", "merge:8003",
                             "http://app.example.org", "http://x@merge:8003"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(policy->Check(From("merge:8003", origin)))) << origin;
  }
  EXPECT_FALSE(BrowserPolicy::Create("example.org", HostRule::kAny).ok());
  EXPECT_FALSE(BrowserPolicy::Create("https://example.org/path", HostRule::kAny).ok());
}

TEST(BrowserPolicy, OriginThatNoBrowserSends_IsRefused) {
  for (const char* origin : {"https://app.example.org", "http://app:8080", "HTTPS://App.Example.org",
                             "http://[::1]:3000", "https://[2001:db8::1]", "*", "http://a_b-c.d, https://e"}) {
    EXPECT_TRUE(BrowserPolicy::Create(origin, HostRule::kAny).ok()) << origin;
  }
  const std::pair<const char*, const char*> cases[] = {
      {"https://*.example.org", "a pattern, which matches nothing"},
      {"http://*", "a pattern"},
      {"https://app.example.org:443", "the port that browsers leave out"},
      {"http://app.example.org:80", "the port that browsers leave out"},
      {"https://app:", "no port from 1 to 65535"},
      {"https://app:0", "no port from 1 to 65535"},
      {"https://app:08080", "no port from 1 to 65535"},
      {"https://app:65536", "no port from 1 to 65535"},
      {"https://app:http", "no port from 1 to 65535"},
      {"https://[::1", "no IPv6 address"},
      {"https://[127.0.0.1]", "no IPv6 address"},
      {"https://[0:0:0:0:0:0:0:1]", "browsers send as [::1]"},
      {"https://b\xC3\xBC"
       "cher.example",
       "browsers send names in Punycode"},
      {"https://:8080", "a host of other characters"},
      {"https://", "is not an origin such as"},
      {"null", "is not an origin such as"},
  };
  for (const auto& [origin, problem] : cases) {
    const absl::Status status = BrowserPolicy::Create(std::string("http://good,") + origin, HostRule::kAny).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << origin;
    EXPECT_THAT(std::string(status.message()), HasSubstr(problem)) << origin;
  }
}

TEST(BrowserPolicy, LocalServer_TakesOnlyLocalHosts) {
  const auto policy = BrowserPolicy::Create("", HostRule::kLocal);
  ASSERT_TRUE(policy.ok());
  for (const char* host : {"localhost:8003", "127.0.0.1:8003", "[::1]:8003", "localhost", "127.0.0.1", "[::1]"}) {
    EXPECT_TRUE(policy->Check(From(host, "")).ok()) << host;
  }
  for (const char* host : {"evil.example:8003", "", "127.0.0.1.evil.example", "localhost.evil:8003"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(policy->Check(From(host, "")))) << host;
  }
}

TEST(BrowserPolicy, OpenServer_TakesNoPublicHost) {
  const auto policy = BrowserPolicy::Create("http://merge.example.org:8003", HostRule::kPrivate);
  ASSERT_TRUE(policy.ok());
  for (const char* host : {"localhost:8003", "127.0.0.1:8003", "[::1]:8003", "10.1.2.3:8003", "[fd00::1]:8003",
                           "192.168.1.2", "server:8003", "merge.default.svc:8003", "merge.default.svc.cluster.local",
                           "box.local:8003", "box.INTERNAL.:80", "", "merge.example.org:8003"}) {
    EXPECT_TRUE(policy->Check(From(host, "")).ok()) << host;
  }
  for (const char* host : {"evil.example:8003", "127.0.0.1.evil.example", "merge.example.org:8004",
                           "evil.example.:8003", "local.evil.example", "10.1.2.3.4:8003"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(policy->Check(From(host, "")))) << host;
  }
}

}  // namespace
}  // namespace sparseagg::service
