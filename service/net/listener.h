// The listener for connections.
#ifndef SPARSEAGG_SERVICE_NET_LISTENER_H_
#define SPARSEAGG_SERVICE_NET_LISTENER_H_

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "service/base/limits.h"
#include "service/net/address.h"
#include "service/net/connection_table.h"

namespace sparseagg::service {

// Returns: `limits`, with max_connections lowered to what the process's limit on open files allows. Raises that limit
// as far as the system permits. `http_connections` is lowered to a quarter of these connections, which are then not
// part of max_connections.
Limits FitToFiles(Limits limits, uint64_t& http_connections);
Limits FitToFiles(Limits limits);

// Connections open at once; 0: no limit.
struct ConnectionLimits {
  uint64_t all = 0;       // open files are a limit in any case
  uint64_t per_host = 0;  // HostOfPeer
};

// A listening address with a thread that accepts connections and passes them on. A connection beyond the limit on all
// takes the place of another (ConnectionTable::EndIdlest), or else is reset at once. A connection beyond the limit of
// its host or on open files is reset before any other is ended for it, and so is one that its host's bar stops
// (ConnectionTable::PassesBar). A client of gRPC sees a reset as UNAVAILABLE.
//
// Life cycle: Open listens; Start accepts; Stop, or the destructor, ends both. Owned by Server. Not thread-safe.
//
// Workaround: gRPC 1.51 stops accepting for ever once accept() has run out of file descriptors (grpc#20418), which any
// client can bring about. Remove with: a version that mends grpc#20418 and limits the number of connections.
class Listener {
 public:
  // Listens on HOST:PORT (all addresses of the host; port 0: a free one) or unix:PATH. Replaces a socket that a dead
  // server has left at PATH.
  // Errors: INVALID_ARGUMENT for a malformed or unknown address; UNAVAILABLE if the address is in use or not permitted.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);
  ~Listener();

  // The address with the port in use.
  const std::string& address() const { return address_; }

  // For connections that do not carry gRPC: their bytes are not read as frames of HTTP/2. Call it before Start.
  void LeaveUninspected() { inspects_ = false; }

  // Starts the thread, which maintains `connections` (borrowed until Stop) and calls, from no other thread:
  //   on_accepted(fd, peer)  with a non-blocking socket that the callee owns from then on, and PeerName
  //   on_refused(reason)     after it has reset a connection, with a text for the log
  // tls: as ConnectionTable::Add.
  void Start(ConnectionLimits limits, bool tls, ConnectionTable* connections,
             std::function<void(int fd, const std::string& peer)> on_accepted,
             std::function<void(const char* reason)> on_refused);
  // Stops accepting and closes the listening sockets. Accepted connections stay open. May be called again.
  void Stop();

 private:
  Listener() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenHost(const std::string& host, const std::string& port);
  void AcceptAll();
  void AcceptOne(int listener);
  // Adds an accepted connection to the table. Returns: null, or why it is refused.
  const char* Admit(int fd, const std::string& peer);
  // Makes room for a connection from `host`. Returns: false if no other gives way.
  bool MakeRoom(const std::string& host);

  std::string address_;
  std::string path_;           // of a Unix socket, to remove at the end
  struct stat own_socket_ {};  // at path_: another server may have replaced the socket
  std::vector<OwnedFd> sockets_;
  OwnedFd stop_;   // an eventfd, readable when the thread must end
  OwnedFd spare_;  // closed for a moment, to accept and refuse a connection when no descriptor is left
  ConnectionLimits limits_;
  uint64_t first_file_fd_ = 0;  // this number and higher ones are left to files
  bool inspects_ = true;
  bool tls_ = false;
  ConnectionTable* connections_ = nullptr;
  std::function<void(int fd, const std::string& peer)> on_accepted_;
  std::function<void(const char* reason)> on_refused_;
  std::thread thread_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_LISTENER_H_
