#include "service/store/log_scan.h"

#include <array>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {
namespace {

// A record is cut into fragments, so that none crosses the end of a block: checksum (4 bytes), length (2), type (1) and
// the bytes. What is left of a block that has no room for a header is zeros.
constexpr size_t kBlockBytes = 32 * 1024;
constexpr size_t kHeaderBytes = 7;
constexpr size_t kTypeAt = 6;

enum FragmentType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// CRC-32C, as the format has it.
uint32_t MaskedChecksum(absl::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t sum = crc.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8;
}

uint32_t Number(absl::string_view bytes, size_t size) {
  uint32_t number = 0;
  for (size_t i = size; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

// Returns: the fragment that `bytes` begins with, header included; empty: none.
absl::string_view FragmentOf(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return {};
  const size_t size = kHeaderBytes + Number(bytes.substr(4), 2);
  const auto type = static_cast<uint8_t>(bytes[kTypeAt]);
  if (type < kFull || type > kLast || size > bytes.size()) return {};
  if (MaskedChecksum(bytes.substr(kTypeAt, size - kTypeAt)) != Number(bytes, 4)) return {};
  return bytes.substr(0, size);
}

class Scanner {
 public:
  // `block`: the next one of the file; shorter only if it is the last one.
  void Add(absl::string_view block) {
    size_t at = 0;
    while (at < block.size()) {
      const absl::string_view rest = block.substr(at);
      if (rest.size() < kHeaderBytes && block.size() == kBlockBytes) break;
      const absl::string_view fragment = FragmentOf(rest);
      if (fragment.empty()) {
        OnDamage();
        ++at;
      } else {
        OnFragment(static_cast<FragmentType>(fragment[kTypeAt]), scan_.num_bytes + at, fragment.size());
        at += fragment.size();
      }
    }
    scan_.num_bytes += block.size();
  }
  LogScan Finish() const { return scan_; }

 private:
  void OnDamage() {
    is_damaged_ = true;
    begin_.reset();
  }
  void OnFragment(FragmentType type, uint64_t at, size_t size) {
    const bool is_begin = type == kFull || type == kFirst;
    if (is_begin == begin_.has_value()) is_damaged_ = true;  // a part of a record is missing
    if (is_begin) begin_ = at;
    if (type == kFirst || type == kMiddle || !begin_.has_value()) return;
    if (!is_damaged_) scan_.num_valid_bytes = at + size;
    if (is_damaged_ && !scan_.valid_again_at.has_value()) scan_.valid_again_at = begin_;
    begin_.reset();
  }

  LogScan scan_;
  std::optional<uint64_t> begin_;  // of the record that the next fragment belongs to
  bool is_damaged_ = false;        // somewhere before
};

}  // namespace

absl::StatusOr<LogScan> ScanLog(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  Scanner scanner;
  std::array<char, kBlockBytes> block;
  while (const size_t size = std::fread(block.data(), 1, block.size(), file.get())) {
    scanner.Add({block.data(), size});
  }
  if (std::ferror(file.get()) != 0) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return scanner.Finish();
}

}  // namespace sparseagg::service
