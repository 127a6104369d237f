#include "service/certificates/cbor.h"

#include <bit>
#include <optional>

namespace sparseagg::service::cbor {
namespace {

enum class Major : uint8_t { kUint = 0, kBytes = 2, kText = 3, kArray = 4 };

void AppendBigEndian(uint64_t value, int num_bytes, std::string* out) {
  for (int shift = 8 * (num_bytes - 1); shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendHead(Major major, uint64_t argument, std::string* out) {
  const auto type = static_cast<uint8_t>(static_cast<uint8_t>(major) << 5);
  if (argument < 24) {
    out->push_back(static_cast<char>(type | argument));
    return;
  }
  const int log_bytes = argument >> 8 == 0 ? 0 : argument >> 16 == 0 ? 1 : argument >> 32 == 0 ? 2 : 3;
  out->push_back(static_cast<char>(type | (24 + log_bytes)));
  AppendBigEndian(argument, 1 << log_bytes, out);
}

// Returns: the float16 that equals `value`; nullopt if none does.
std::optional<uint16_t> ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  const uint32_t fraction = bits & 0x7fffff;
  if ((bits & 0x7fffffff) == 0) return sign;
  if (exponent >= -14 && exponent <= 15) {
    if ((fraction & 0x1fff) != 0) return std::nullopt;
    return static_cast<uint16_t>(sign | (exponent + 15) << 10 | fraction >> 13);
  }
  if (exponent < -24 || exponent > 15) return std::nullopt;
  const uint32_t significand = fraction | 0x800000;  // of a subnormal float16
  const int shift = -1 - exponent;
  if ((significand & ((1U << shift) - 1)) != 0) return std::nullopt;
  return static_cast<uint16_t>(sign | significand >> shift);
}

}  // namespace

void AppendUint(uint64_t value, std::string* out) { AppendHead(Major::kUint, value, out); }

void AppendBytes(absl::string_view bytes, std::string* out) {
  AppendHead(Major::kBytes, bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

void AppendText(absl::string_view utf8, std::string* out) {
  AppendHead(Major::kText, utf8.size(), out);
  out->append(utf8.data(), utf8.size());
}

void AppendArray(uint64_t num_items, std::string* out) { AppendHead(Major::kArray, num_items, out); }

void AppendBool(bool value, std::string* out) { out->push_back(static_cast<char>(value ? 0xf5 : 0xf4)); }

void AppendNull(std::string* out) { out->push_back(static_cast<char>(0xf6)); }

void AppendFloat(double value, std::string* out) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) {
    out->push_back(static_cast<char>(0xfb));
    return AppendBigEndian(std::bit_cast<uint64_t>(value), 8, out);
  }
  if (const auto half = ToHalf(narrow); half.has_value()) {
    out->push_back(static_cast<char>(0xf9));
    return AppendBigEndian(*half, 2, out);
  }
  out->push_back(static_cast<char>(0xfa));
  AppendBigEndian(std::bit_cast<uint32_t>(narrow), 4, out);
}

}  // namespace sparseagg::service::cbor
