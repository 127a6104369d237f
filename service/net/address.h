// Addresses of sockets, and file descriptors with an owner.
#ifndef SPARSEAGG_SERVICE_NET_ADDRESS_H_
#define SPARSEAGG_SERVICE_NET_ADDRESS_H_

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Checks that `address` ends in a colon and a port number. Does not check the host.
// Errors: INVALID_ARGUMENT.
absl::Status CheckPort(absl::string_view address);

// Returns: "HOST" of "HOST:PORT", without the brackets of IPv6. Requires: CheckPort.
std::string HostOf(absl::string_view address);

// Checks that only this machine can reach `address`: 127.0.0.0/8, [::1] or localhost with a port, or unix:PATH.
// Errors: INVALID_ARGUMENT; the message names what the server lacks (`lack`, "TLS") for an address beyond.
absl::Status CheckLoopback(absl::string_view address, absl::string_view lack);

// A file descriptor, or none (-1). The destructor closes it. Not thread-safe.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~OwnedFd() { Reset(); }

  int get() const { return fd_; }  // -1: none
  // Gives up ownership. Returns: the descriptor, which the caller must close.
  int Release() { return std::exchange(fd_, -1); }
  // Closes the descriptor and takes ownership of `fd`.
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_ADDRESS_H_
