// An owner of a file descriptor.
#ifndef SPARSEAGG_SERVICE_NET_OWNED_FD_H_
#define SPARSEAGG_SERVICE_NET_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace sparseagg::service {

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

#endif  // SPARSEAGG_SERVICE_NET_OWNED_FD_H_
