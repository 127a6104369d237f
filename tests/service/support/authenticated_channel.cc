#include "tests/service/support/authenticated_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_interceptor.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "service/auth/token_table.h"
#include "tests/service/support/client.h"

namespace sparseagg::service {
namespace {

using Headers = std::map<std::string, std::string>;

class AddHeaders final : public grpc::experimental::Interceptor {
 public:
  explicit AddHeaders(const Headers* headers) : headers_(*headers) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      for (const auto& [name, value] : headers_) call->GetSendInitialMetadata()->emplace(name, value);
    }
    call->Proceed();
  }

 private:
  const Headers& headers_;
};

class AddHeadersFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AddHeadersFactory(Headers headers) : headers_(std::move(headers)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new AddHeaders(&headers_);
  }

 private:
  const Headers headers_;
};

}  // namespace

std::shared_ptr<grpc::Channel> ConnectWith(const std::string& address, const Headers& headers,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<AddHeadersFactory>(headers));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments, std::move(factories));
}

Headers Bearer(const std::string& token) { return {{"authorization", "Bearer " + token}}; }

std::string TokenLine(const std::string& token, const std::string& rest) {
  const TokenHash hash = HashToken(token);
  return absl::StrCat(absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), hash.size()}), " ", rest,
                      "\n");
}

void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
}

absl::Status CallMethod(const std::shared_ptr<grpc::Channel>& channel, Method method, const std::string& message) {
  return CallPath(channel, absl::StrCat("/", ServiceName(method), "/", Name(method)), message);
}

absl::Status CallPath(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                      const std::string& message) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto await = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, path, &queue);
  call->StartCall(nullptr);
  bool ok = await();
  const grpc::Slice slice(message);
  if (ok) {
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    await();
  }
  while (ok) {
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    ok = await();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  while (await()) {
  }
  return FromGrpc(status);
}

}  // namespace sparseagg::service
