// HTTP/2 by hand, for what a gRPC client cannot do: to stop, or to be gone, in the middle of a message.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_RAW_CLIENT_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_RAW_CLIENT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sparseagg::bench {

// One TCP connection to HOST:PORT with an IPv4 address. Sends only as much as a server takes without being asked for
// more, so that it never has to read.
class RawClient {
 public:
  // The most bytes of messages, with 5 more for each, that one connection may send: HTTP/2's first window.
  static constexpr uint64_t kMostBytes = 65535;

  explicit RawClient(const std::string& target);  // connected() says whether it worked
  ~RawClient();                                   // closes in order
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return socket_ >= 0; }
  // Opens the call SubmitUpdate.
  void OpenSubmit();
  // The head of a message of `length` bytes, and the first of them, `begun`. `last`: the client has closed its side.
  void SendMessage(uint32_t length, absl::string_view begun, bool last = false);
  void SendBytes(absl::string_view bytes);
  // Reads what comes until the server closes or `seconds` are over.
  void Drain(double seconds);
  // Gone without a word: the server's side is reset.
  void Vanish();

 private:
  int socket_ = -1;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_RAW_CLIENT_H_
