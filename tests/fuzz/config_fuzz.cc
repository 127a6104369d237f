// Config files of any bytes: settings, or an order to exit with a text.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "service/options.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  const int file = memfd_create("config", 0);
  Require(write(file, data, size) == static_cast<ssize_t>(size), "the file is written");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const char* const argv[] = {"sparseagg-server", "--config", path.c_str()};
  const auto parsed = ParseOptions(3, argv);
  close(file);
  if (const auto* exit = std::get_if<ExitWith>(&parsed)) {
    Require(!exit->text.empty(), "an exit says why");
  } else {
    const Limits& limits = std::get<Options>(parsed).server.limits;
    Require(limits.memory_limit_bytes == 0 || limits.memory_limit_bytes >= (uint64_t{256} << 20), "a sensible limit");
    Require(limits.upload_timeout > absl::ZeroDuration(), "a sensible timeout");
  }
  return 0;
}
