// Limits on the HTTP/2 frames that a client may send.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_FRAME_LIMITER_H_
#define SPARSEAGG_SERVICE_TRANSPORT_FRAME_LIMITER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace sparseagg::service {

// Reads the headers of the frames that one client sends on one connection, and finds the client that sends more of
// those that cost the server memory or time, and carry no message, than an honest one would: resets (CVE-2023-44487),
// header blocks (CVE-2023-33953, CVE-2024-27316), settings, pings and the like. Each kind has a budget that refills
// with time; connections of real clients stay far below it. Data is not limited here: flow control does that.
//
// Frames are those of RFC 9113, section 4.1. Their contents are not read. Not thread-safe.
class FrameLimiter {
 public:
  // Budgets of a connection: full at its start, and refilled to that.
  struct Budget {
    double most;
    double per_second;
  };
  // Streams that the client resets. A client that cancels all its waiting calls at once stays below.
  static constexpr Budget kResets{1000, 100};
  // SETTINGS frames, but acknowledgements.
  static constexpr Budget kSettings{100, 10};
  // Streams that the client opens.
  static constexpr Budget kStreams{10'000, 5000};
  // Bytes of header blocks. A call has about 50, or the length of its token in the first call of a connection.
  static constexpr Budget kHeaderBytes{1 << 20, 1 << 20};
  // PING and PRIORITY frames, unknown frames, DATA frames without data, acknowledgements, and window updates that grant
  // less than kMinWindowUpdate bytes.
  static constexpr Budget kControl{10'000, 5000};
  static constexpr uint32_t kMinWindowUpdate = 1024;
  // One header block: bytes, and frames that it is divided into. gRPC takes 8 KiB of headers.
  static constexpr uint64_t kMaxBlockBytes = 16 << 10;
  static constexpr int kMaxBlockFrames = 8;

  explicit FrameLimiter(absl::Duration now) : refilled_(now) {}

  // Reads the next bytes that the client has sent, from the first of the connection on. `now` never falls.
  // Returns: null, or what the client has sent too much of, in words that live for ever; the connection should then be
  // closed without handing these bytes on.
  const char* Read(const uint8_t* bytes, size_t size, absl::Duration now);

 private:
  struct Meter {
    Budget budget;
    double left = budget.most;
  };

  const char* BeginFrame(absl::Duration now);
  const char* CountHeaderBlock(uint64_t size, bool opens, absl::Duration now);
  // Takes `amount` from what is left of a budget. Returns: false if there is not enough.
  bool Take(Meter& meter, double amount, absl::Duration now);
  void Refill(absl::Duration now);

  uint64_t skip_ = 24;                // bytes to pass over: the client preface, then payloads
  std::array<uint8_t, 13> header_{};  // of the frame that begins, with the payload of a WINDOW_UPDATE
  size_t header_size_ = 0;
  uint64_t block_bytes_ = 0;  // of the header block under way
  int block_frames_ = 0;
  absl::Duration refilled_;
  Meter resets_{kResets};
  Meter settings_{kSettings};
  Meter streams_{kStreams};
  Meter header_bytes_{kHeaderBytes};
  Meter control_{kControl};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_FRAME_LIMITER_H_
