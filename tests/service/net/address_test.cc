#include "service/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

TEST(CheckLoopbackTest, Address_OffThisMachine_IsRefused) {
  for (const char* address : {"127.0.0.1:8001", "127.1.2.3:0", "localhost:1", "[::1]:1", "unix:/tmp/x", "unix:x"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), IsOk()) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.example.com:1", "example.com:1", ":1",
                              "dns:///127.0.0.1:1", "128.0.0.1:1"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("--insecure")))
        << address;
  }
  for (const char* address : {"", "8001", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "[::1]:x"}) {
    EXPECT_THAT(CheckLoopback(address, "TLS"), Fails(absl::StatusCode::kInvalidArgument, HasSubstr("is not HOST:PORT")))
        << address;
  }
}

}  // namespace
}  // namespace sparseagg::service
