// Limits on the HTTP/2 frames that a client may send.
#ifndef SPARSEAGG_SERVICE_NET_FRAME_LIMITER_H_
#define SPARSEAGG_SERVICE_NET_FRAME_LIMITER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"

namespace sparseagg::service {

// RFC 9113, section 6. Other types pass, too.
enum FrameType : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kResetFrame = 3,
  kSettingsFrame = 4,
  kPingFrame = 6,
  kWindowUpdateFrame = 8,
  kContinuationFrame = 9,
};

struct FrameHeader {
  static constexpr uint8_t kEndStream = 1;  // of DATA and HEADERS
  static constexpr uint8_t kAck = 1;        // of SETTINGS and PING

  uint32_t size;  // bytes of the payload
  uint8_t type;
  uint8_t flags;
  uint32_t stream;
  uint32_t increment;  // of a WINDOW_UPDATE
};

// Finds the frames in the bytes of one direction of a connection, which come in pieces of any size. Payloads are passed
// over. Not thread-safe.
class FrameReader {
 public:
  static constexpr uint64_t kClientPreface = 24;  // bytes that a client sends before its first frame

  explicit FrameReader(uint64_t skip) : skip_(skip) {}

  // Reads the next `size` bytes and calls on_frame(FrameHeader) for each frame that begins in them, until it returns
  // false. Returns: what it returned last, or true.
  template <class OnFrame>
  bool Read(const uint8_t* bytes, size_t size, const OnFrame& on_frame) {
    const uint8_t* const end = bytes + size;
    while (true) {
      const uint64_t skipped = std::min<uint64_t>(skip_, end - bytes);
      skip_ -= skipped;
      bytes += skipped;
      if (bytes == end) return true;
      // A WINDOW_UPDATE is read with its payload.
      const size_t wanted = read_ < kHeaderBytes ? kHeaderBytes : header_.size();
      const size_t copied = std::min<size_t>(wanted - read_, end - bytes);
      std::copy_n(bytes, copied, header_.begin() + read_);
      read_ += copied;
      bytes += copied;
      if (read_ < wanted) return true;
      FrameHeader frame{Number(0, 3), header_[3], header_[4], Number(5, 4) & 0x7fff'ffff, 0};
      if (frame.type == kWindowUpdateFrame && frame.size == kIncrementBytes) {
        if (read_ == kHeaderBytes) continue;
        frame.increment = Number(kHeaderBytes, kIncrementBytes);
      } else {
        skip_ = frame.size;
      }
      read_ = 0;
      if (!on_frame(frame)) return false;
    }
  }

 private:
  static constexpr size_t kHeaderBytes = 9;
  static constexpr size_t kIncrementBytes = 4;

  // Returns: the big-endian number in `size` bytes of header_.
  uint32_t Number(size_t begin, size_t size) const {
    uint32_t number = 0;
    for (size_t i = begin; i < begin + size; ++i) number = number << 8 | header_[i];
    return number;
  }

  uint64_t skip_;  // bytes to pass over
  std::array<uint8_t, kHeaderBytes + kIncrementBytes> header_{};
  size_t read_ = 0;  // bytes of header_
};

// Reads the frame headers of one connection. It counts the streams that are open, and finds the client that sends more
// than an honest one would of those frames that cost the server memory or time, and carry no message: resets
// (CVE-2023-44487), header blocks (CVE-2023-33953, CVE-2024-27316), settings, pings and the like. Each kind has a
// budget that refills with time; real clients stay far below it. Data is not limited here: flow control does that.
//
// Not thread-safe.
class FrameLimiter {
 public:
  // Budgets of a connection: full at its start, and refilled to that.
  struct Budget {
    double most;
    double per_second;
  };
  // Streams that the client resets. A client that cancels all its waiting calls at once stays below.
  static constexpr Budget kResets{400, 100};
  // SETTINGS frames, but acknowledgements.
  static constexpr Budget kSettings{50, 5};
  // Streams that the client opens. At most 2048 are open at once (service/grpc/grpc_options.cc).
  static constexpr Budget kStreams{4096, 5000};
  // Bytes of header blocks. A call has about 50, or the length of its token in the first call of a connection.
  static constexpr Budget kHeaderBytes{1 << 20, 1 << 20};
  // PING frames: a client that measures its bandwidth sends one each round trip.
  static constexpr Budget kPings{2000, 1000};
  // PRIORITY frames, unknown frames, DATA frames without data, acknowledgements, and window updates that grant
  // less than kMinWindowUpdate bytes.
  static constexpr Budget kControl{20'000, 20'000};
  static constexpr uint32_t kMinWindowUpdate = 1024;
  // One header block: bytes, and frames that it is divided into. gRPC takes 8 KiB of headers, before compression.
  static constexpr uint64_t kMaxBlockBytes = 8 << 10;
  static constexpr int kMaxBlockFrames = 8;

  explicit FrameLimiter(absl::Duration now) : refilled_(now) {}

  // Reads the next bytes that the client has sent, from the first of the connection on. `now` never falls.
  // Returns: null, or a static string that names the exceeded limit; the connection should then be closed without
  // handing these bytes on.
  const char* ReadReceived(const uint8_t* bytes, size_t size, absl::Duration now);
  // Reads the next bytes that the server has sent, which end streams.
  void ReadSent(const uint8_t* bytes, size_t size);

  // Streams that the client has opened and nobody has ended.
  size_t open_streams() const { return open_.size(); }
  // All that the client has opened.
  size_t opened_streams() const { return opened_; }

 private:
  struct Meter {
    Budget budget;
    double left = budget.most;
  };

  const char* Count(const FrameHeader& frame, absl::Duration now);
  const char* CountHeaderBlock(const FrameHeader& frame, absl::Duration now);
  // Takes `amount` from what is left of a budget. Returns: false if there is not enough.
  bool Take(Meter& meter, double amount, absl::Duration now);

  FrameReader received_{FrameReader::kClientPreface};
  FrameReader sent_{0};
  absl::flat_hash_set<uint32_t> open_;  // numbers of streams
  size_t opened_ = 0;
  uint32_t last_stream_ = 0;  // the highest number that the client has used
  uint64_t block_bytes_ = 0;  // of the header block under way
  int block_frames_ = 0;
  absl::Duration refilled_;
  Meter resets_{kResets};
  Meter settings_{kSettings};
  Meter streams_{kStreams};
  Meter header_bytes_{kHeaderBytes};
  Meter pings_{kPings};
  Meter control_{kControl};
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_FRAME_LIMITER_H_
