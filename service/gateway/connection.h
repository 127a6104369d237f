// One connection of HTTP/1.1.
#ifndef SPARSEAGG_SERVICE_GATEWAY_CONNECTION_H_
#define SPARSEAGG_SERVICE_GATEWAY_CONNECTION_H_

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "service/gateway/peer_stream.h"
#include "service/gateway/router.h"
#include "service/handlers/task_methods.h"
#include "service/net/connection_table.h"
#include "service/server_context.h"

namespace sparseagg::service {

// Time limits of a connection, besides that of a head (peer_stream.h).
inline constexpr absl::Duration kIdleTimeout = absl::Seconds(60);
inline constexpr absl::Duration kWriteTimeout = absl::Seconds(60);
// While the server stops, a peer that is in the middle of a request or a response may be silent for so long.
inline constexpr absl::Duration kDrainSilence = absl::Milliseconds(500);

// What the connections of a gateway share. Outlives them.
struct ConnectionServices {
  std::shared_ptr<boost::asio::io_context> io;  // run by one thread
  ServerContext* server;
  Api* api;  // null: requests are for pages alone, and are not counted
  const Router* router;
  ConnectionTable* table;                                   // has the connections
  std::function<std::shared_ptr<const void>()> begin_call;  // counts a call for as long as the value lives
};

// A connection reads a request, answers it, and reads the next one: of pipelined requests at most a header's worth is
// read ahead. A body is read when in-flight memory for it is reserved, straight into the memory that the method gets.
//
// Owned by its pending operations. All members but the destructor are for the thread of the gateway.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  virtual ~Connection() = default;

  virtual void Start() = 0;
  // Ends the connection: at once if it is idle or its peer has been silent for kDrainSilence, else after the response
  // under way. Call it again and again until the connection has ended.
  virtual void Drain() = 0;
  // Ends the connection at once, and cancels its call.
  virtual void Close() = 0;
};

// `on_end` runs when the connection is gone.
std::shared_ptr<Connection> MakeConnection(const ConnectionServices& services, std::shared_ptr<PeerStream> stream,
                                           std::string peer, std::function<void()> on_end);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_CONNECTION_H_
