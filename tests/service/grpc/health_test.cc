// The standard services of gRPC: health, reflection, channelz. The test encodes their messages by hand, so that it
// needs no .proto files of other packages.
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include "tests/service/support/server_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;

// Makes a call by its name, with serialized request and response.
absl::StatusOr<std::string> CallRaw(Client& client, const std::string& method, const std::string& request) {
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(client.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice(request);
  const grpc::ByteBuffer buffer(&slice, 1);
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok);
  };
  call->StartCall(nullptr);
  await();
  // On the wire, a unary call is a stream with one message in each direction.
  call->Write(buffer, nullptr);
  await();
  call->WritesDone(nullptr);
  await();
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  await();
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  while (await()) {
  }
  if (!status.ok()) return FromGrpc(status);
  std::vector<grpc::Slice> slices;
  response.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes;
}

class HealthTest : public ServerFixture {
 protected:
  // HealthCheckRequest{string service = 1} → HealthCheckResponse{ServingStatus status = 1}: SERVING 1, NOT_SERVING 2.
  absl::StatusOr<std::string> Check(const std::string& service) {
    std::string request;
    if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    return CallRaw(client(), "/grpc.health.v1.Health/Check", request);
  }
};

TEST_F(HealthTest, Health_ServingThenDraining_SaysSoWhileCallsGoOn) {
  for (const char* service : {"", "sparseagg.v1.Aggregation"}) {
    const auto serving = Check(service);
    ASSERT_THAT(serving, IsOk());
    EXPECT_EQ(*serving, "\x08\x01") << service;
  }
  EXPECT_THAT(Check("nobody.Knows"), HasCode(absl::StatusCode::kNotFound));
  server().StopServing();
  for (const char* service : {"", "sparseagg.v1.Aggregation"}) {
    const auto draining = Check(service);
    ASSERT_THAT(draining, IsOk());
    EXPECT_EQ(*draining, "\x08\x02") << service;
  }
  EXPECT_THAT(client().Create(SumSpec(), "r"), IsOk());
}

TEST_F(HealthTest, Reflection_ListServices_NamesOurs) {
  // ServerReflectionRequest{string list_services = 7}
  const auto services =
      CallRaw(client(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x01*"));
  ASSERT_THAT(services, IsOk());
  EXPECT_THAT(*services, HasSubstr("sparseagg.v1.Aggregation"));
  EXPECT_THAT(*services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(HealthTest, Channelz_GetServers_Answers) {
  const auto servers = CallRaw(client(), "/grpc.channelz.v1.Channelz/GetServers", "");
  ASSERT_THAT(servers, IsOk());
  EXPECT_FALSE(servers->empty());
}

}  // namespace
}  // namespace sparseagg::service
