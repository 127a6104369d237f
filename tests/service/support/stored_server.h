// A server with a data directory, which tests stop and start again.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/service/support/server_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {

class StoredServer : public ServerFixture {
 protected:
  explicit StoredServer(Durability durability) {
    manual_time_ = true;
    options_.data_dir = folder_ / "data";
    options_.durability = durability;
    MustStart();
  }
  ~StoredServer() override { Stop(); }

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
  void Restart() {
    Stop();
    MustStart();
  }

  const TemporaryDirectory folder_;
  int num_kills_ = 0;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_STORED_SERVER_H_
