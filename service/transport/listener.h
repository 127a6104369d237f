// Accepts connections, up to a number, and hands them over.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_LISTENER_H_
#define SPARSEAGG_SERVICE_TRANSPORT_LISTENER_H_

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "service/base/limits.h"
#include "service/transport/connection_table.h"
#include "service/transport/owned_fd.h"

namespace sparseagg::service {

// `limits`, with max_connections lowered to what the process may open beside the files that it has by now. Raises the
// process's limit of files to what it may be.
Limits FitToFiles(Limits limits);

// gRPC 1.51's own listener stops for ever once accept() has run out of file descriptors (grpc#20418), which any client
// can bring about; so it is given connections that this one has accepted. Those beyond `max_connections`, or beyond
// what the process may open, are reset at once, which a client sees as UNAVAILABLE.
class Listener {
 public:
  // Listens on HOST:PORT (all addresses of the host; port 0: a free one) or unix:PATH or unix-abstract:NAME. A socket
  // that was left at the path is replaced, unless somebody answers there. INVALID_ARGUMENT: no such address;
  // UNAVAILABLE: cannot listen there.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);
  ~Listener();

  // Where it listens, with the true port.
  const std::string& address() const { return address_; }

  // From now on calls take(fd), which owns it, for each connection: a stream socket that does not block. Calls
  // refused() for each that is not wanted. Both from one thread, which also keeps `connections`, borrowed until Stop.
  // max_connections 0: no limit but that of files.
  void Start(uint64_t max_connections, ConnectionTable* connections, std::function<void(int fd)> take,
             std::function<void()> refused);
  // Accepts no more, and closes its sockets. Connections stay. May be called again.
  void Stop();

 private:
  Listener() = default;
  absl::Status OpenUnix(const std::string& path, bool abstract);
  absl::Status OpenHost(const std::string& host, const std::string& port);
  void AcceptAll();
  void AcceptOne(int listener);

  std::string address_;
  std::string path_;        // to unlink, if what is there still is
  struct stat at_path_ {};  // this one
  std::vector<OwnedFd> sockets_;
  OwnedFd wake_;   // readable once the thread should end
  OwnedFd spare_;  // given up for a moment to accept and refuse when there is no other left
  uint64_t max_connections_ = 0;
  ConnectionTable* connections_ = nullptr;
  std::function<void(int fd)> take_;
  std::function<void()> refused_;
  std::thread thread_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_LISTENER_H_
