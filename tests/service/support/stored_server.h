// A server with a data directory, which tests stop and start again.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/server.h"
#include "tests/service/support/client.h"
#include "tests/service/support/hooked_engine.h"
#include "tests/service/support/manual_clock.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {

// A second base of test fixtures.
class StoredServer {
 protected:
  explicit StoredServer(Durability durability) {
    options_.grpc_address = "127.0.0.1:0";
    options_.num_threads = 2;
    options_.data_dir = folder_ / "data";
    options_.durability = durability;
    MustStart();
  }

  absl::Status Start() {
    auto started = Server::Start(options_, std::make_unique<HookedEngine>(&hooks_), clock_);
    if (!started.ok()) return started.status();
    server_ = *std::move(started);
    client_ = std::make_unique<Client>(server_->grpc_address());
    return absl::OkStatus();
  }
  // Without a server, no test can go on. Throws: std::runtime_error.
  void MustStart() {
    if (const absl::Status status = Start(); !status.ok()) throw std::runtime_error(status.ToString());
  }
  // The end of a process that is killed: a copy of what the files have now, in which the server then stops in order.
  // The next start uses the copy.
  void Kill() {
    const std::string copy = absl::StrCat(folder_.path(), "/killed-", ++num_kills_);
    std::error_code error;
    do {  // again if a file went meanwhile
      std::filesystem::remove_all(copy);
      std::filesystem::copy(options_.data_dir, copy, std::filesystem::copy_options::recursive, error);
    } while (error);
    Stop();
    options_.data_dir = copy;
  }
  // A stop in order, unlike that of a process that is killed.
  void Stop() {
    client_.reset();
    server_.reset();
  }
  void Restart() {
    Stop();
    MustStart();
  }

  Client& client() { return *client_; }
  void Advance(absl::Duration duration) { clock_.Advance(duration, server_->context().timer); }

  const TemporaryDirectory folder_;
  int num_kills_ = 0;
  ServerOptions options_;
  ManualClock clock_;
  EngineHooks hooks_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_
