// A client that speaks HTTP/2 by hand.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/net/address.h"

namespace sparseagg::service {

// One connection that does what a gRPC client cannot: not read, stop in the middle of a message, disappear.
//
// It sends no more than a server takes without being asked for more (kMaxSentBytes), so that it never has to read. For
// tests, and for the bad clients of the load generator. Not thread-safe.
class RawClient {
 public:
  // The bytes that the server may send: on each stream, and for kWideWindow also on the whole connection.
  static constexpr uint32_t kNoWindow = 0;
  static constexpr uint32_t kDefaultWindow = 65535;
  static constexpr uint32_t kWideWindow = 0x7fff0000;

  // The most bytes of messages, plus 5 for each, that one connection may send: HTTP/2's initial window.
  static constexpr uint64_t kMaxSentBytes = 65535;

  // `address`: HOST:PORT with a numeric host, or unix:PATH.
  explicit RawClient(const std::string& address, uint32_t window = kDefaultWindow);

  // Whether the connection was made, and everything was sent.
  bool ok() const { return ok_; }

  // Begins a call of the method of sparseagg.v1.Aggregation.
  void OpenCall(absl::string_view method);
  // Sends the head of a message of `length` bytes, and its first bytes, in the last opened call. `last`: then closes
  // the client's side of the call.
  void SendMessage(uint32_t length, absl::string_view first_bytes, bool last = false);
  // Sends a whole call with one message.
  void Call(absl::string_view method, const google::protobuf::MessageLite& request);
  // Sends bytes that need not be HTTP/2.
  void SendBytes(absl::string_view bytes);
  // Lets the server send as with kWideWindow.
  void OpenWindow();
  // Reads and drops bytes until the server closes the connection or `limit` has passed.
  void Drain(absl::Duration limit = absl::InfiniteDuration());
  // Resets the connection.
  void Reset();

 private:
  OwnedFd fd_;
  const uint32_t window_;
  bool ok_ = true;
  uint32_t stream_ = 0;  // of the last opened call; 0: HTTP/2 has not begun
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
