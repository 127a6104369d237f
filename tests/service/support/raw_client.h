// A client that speaks HTTP/2 by hand.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "service/net/address.h"

namespace sparseagg::service {

// One connection that does what a gRPC client cannot: not read. Its requests are small, so that it never has to read.
// Not thread-safe.
class RawClient {
 public:
  // The bytes that the server may send: on each stream, and for kWideWindow also on the whole connection.
  static constexpr uint32_t kNoWindow = 0;
  static constexpr uint32_t kWideWindow = 0x7fff0000;

  // `address`: HOST:PORT with a numeric host, or unix:PATH.
  RawClient(const std::string& address, uint32_t window);

  // Whether the connection was made, and everything was sent.
  bool ok() const { return ok_; }

  // Sends a whole call of the method of sparseagg.v1.Aggregation. Requires: the request fits one frame, of 16 KiB.
  void Call(absl::string_view method, const google::protobuf::MessageLite& request);
  // Lets the server send as with kWideWindow.
  void OpenWindow();
  // Reads and drops bytes until the server closes the connection.
  void Drain();

 private:
  void SendBytes(absl::string_view bytes);

  OwnedFd fd_;
  const uint32_t window_;
  bool ok_ = true;
  uint32_t stream_ = 0;  // of the last opened call; 0: HTTP/2 has not begun
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
