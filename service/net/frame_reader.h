// The headers of HTTP/2 frames in a stream of bytes.
#ifndef SPARSEAGG_SERVICE_NET_FRAME_READER_H_
#define SPARSEAGG_SERVICE_NET_FRAME_READER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_NET_FRAME_READER_H_
