#include "bench/service/loadgen/raw_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/common/machine.h"

namespace sparseagg::bench {
namespace {

// Types and flags of RFC 9113.
constexpr char kData = 0;
constexpr char kHeaders = 1;
constexpr char kSettings = 4;
constexpr char kEndStream = 1;
constexpr char kEndHeaders = 4;
constexpr size_t kMostFrameBytes = 16384;

std::string Frame(char type, char flags, char stream, absl::string_view payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame.append({type, flags, 0, 0, 0, stream});
  return frame.append(payload.data(), payload.size());
}

// HPACK: a literal that is not indexed, not compressed; both below 127 bytes.
std::string Header(absl::string_view name, absl::string_view value) {
  std::string header(1, '\0');
  for (const absl::string_view part : {name, value}) {
    header += static_cast<char>(part.size());
    header.append(part.data(), part.size());
  }
  return header;
}

}  // namespace

RawClient::RawClient(const std::string& target) {
  const size_t colon = target.rfind(':');
  uint32_t port = 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (colon == std::string::npos || !absl::SimpleAtoi(target.substr(colon + 1), &port) ||
      inet_pton(AF_INET, target.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    return;
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(std::exchange(socket_, -1));
  }
}

RawClient::~RawClient() {
  if (socket_ >= 0) close(socket_);
}

void RawClient::OpenSubmit() {
  const std::string headers = absl::StrCat(
      Header(":method", "POST"), Header(":scheme", "http"), Header(":path", "/sparseagg.v1.Aggregation/SubmitUpdate"),
      Header(":authority", "localhost"), Header("content-type", "application/grpc"), Header("te", "trailers"));
  SendBytes(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, ""),
                         Frame(kHeaders, kEndHeaders, 1, headers)));
}

void RawClient::SendMessage(uint32_t length, absl::string_view begun, bool last) {
  std::string bytes(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(length >> shift);
  bytes.append(begun.data(), begun.size());
  for (size_t begin = 0; begin < bytes.size(); begin += kMostFrameBytes) {
    const absl::string_view part = absl::string_view(bytes).substr(begin, kMostFrameBytes);
    const bool end = last && begin + part.size() == bytes.size();
    SendBytes(Frame(kData, end ? kEndStream : 0, 1, part));
  }
}

void RawClient::SendBytes(absl::string_view bytes) {
  while (socket_ >= 0 && !bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void RawClient::Drain(double seconds) {
  const double end = Now() + seconds;
  std::array<char, 4096> dropped;
  while (socket_ >= 0) {
    const double left = end - Now();
    if (left <= 0) return;
    pollfd waiting = {socket_, POLLIN, 0};
    if (poll(&waiting, 1, std::max(1, static_cast<int>(1e3 * left))) <= 0) continue;
    if (recv(socket_, dropped.data(), dropped.size(), 0) <= 0) return;
  }
}

void RawClient::Vanish() {
  if (socket_ < 0) return;
  const linger at_once = {1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(std::exchange(socket_, -1));
}

}  // namespace sparseagg::bench
