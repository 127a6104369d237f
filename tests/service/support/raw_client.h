// A client with its own HTTP/2, which reads nothing unless asked to.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <string>

#include "service/transport/owned_fd.h"

namespace sparseagg::service {

class RawClient {
 public:
  // Flow-control windows of each stream and of the connection.
  static constexpr uint32_t kNoWindow = 0;
  static constexpr uint32_t kWideWindow = 0x7fff0000;

  // `address`: HOST:PORT with a numeric host, or unix:PATH.
  RawClient(const std::string& address, uint32_t window);

  // Sends the whole request of a call of `method`.
  void Call(const std::string& method, const google::protobuf::MessageLite& request);
  // Enlarges all windows.
  void OpenWindow();
  // Reads until the connection ends.
  void ReadToTheEnd();

 private:
  void Send(const std::string& bytes);

  OwnedFd fd_;
  uint32_t stream_ = 1;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_RAW_CLIENT_H_
