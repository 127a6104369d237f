// A test fixture: a server in this process on a free port, and a client.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "service/server.h"
#include "tests/service/support/client.h"
#include "tests/service/support/hooked_engine.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/threads.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {

class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture() {
    options_.grpc_address = "127.0.0.1:0";
    options_.num_threads = 2;
  }

  // Starts a server with `options_` and `hooks_` as they are now.
  absl::Status Start() {
    auto started = Server::Start(options_, std::make_unique<HookedEngine>(&hooks_),
                                 manual_time_ ? static_cast<const Clock&>(clock_) : SystemClock());
    if (started.ok()) server_ = *std::move(started);
    return started.status();
  }
  void Stop() {
    client_.reset();
    server_.reset();
  }
  // Started at the first use.
  Server& server() {
    if (server_ == nullptr) {
      EXPECT_THAT(Start(), IsOk());
    }
    return *server_;
  }
  Client& client() {
    if (client_ == nullptr) client_ = std::make_unique<Client>(server().grpc_address());
    return *client_;
  }
  void Advance(absl::Duration duration) { clock_.Advance(duration, server().context().timer); }
  InFlightMemory& in_flight() { return server().context().in_flight; }
  // Waits until so many calls wait for in-flight memory.
  void AwaitWaiting(uint64_t count) {
    while (in_flight().num_waiting() != count) std::this_thread::yield();
  }
  // "rounds/ID"
  std::string Create(const v1::RoundSpec& spec, const std::string& id = "r") {
    const auto round = client().Create(spec, id);
    EXPECT_THAT(round, IsOk());
    return round.ok() ? round->name() : "";
  }
  // Closes the round, whose one tensor is float32. Returns: its result.
  std::map<uint64_t, float> ResultOf(const std::string& name) {
    const auto round = client().Finish(name);
    EXPECT_THAT(round, IsOk());
    v1::GetResultRequest request;
    request.set_round(name);
    const auto pages = client().Pages(request);
    EXPECT_THAT(pages, IsOk());
    return pages.ok() ? ToMap(*pages) : std::map<uint64_t, float>{};
  }

  ServerOptions options_;
  EngineHooks hooks_;
  bool manual_time_ = false;
  ManualClock clock_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_SERVER_FIXTURE_H_
