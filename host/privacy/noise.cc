#include "host/privacy/noise.h"

#include <sodium/core.h>
#include <sodium/crypto_auth_hmacsha256.h>
#include <sodium/crypto_stream_chacha20.h>
#include <sodium/randombytes.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparseagg::privacy {
namespace {

const unsigned char* Octets(absl::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Bytes32 Hmac(absl::string_view key, absl::string_view message) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, Octets(key), key.size());
  crypto_auth_hmacsha256_update(&state, Octets(message), message.size());
  Bytes32 tag;
  crypto_auth_hmacsha256_final(&state, tag.data());
  return tag;
}

void AppendNumber(uint64_t number, std::string& out) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(number >> (8 * i)));
}

void AppendText(absl::string_view text, std::string& out) {
  AppendNumber(text.size(), out);
  absl::StrAppend(&out, text);
}

absl::string_view View(const Bytes32& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

Bytes32 HkdfBytes(absl::string_view key, absl::string_view info) {
  const std::string derived = Hkdf(key, "", info, sizeof(Bytes32));
  Bytes32 bytes;
  std::memcpy(bytes.data(), derived.data(), bytes.size());
  return bytes;
}

// Before libsodium is used by several threads; chooses the fastest ChaCha20 of the machine.
void InitSodium() {
  static const int chosen = sodium_init();
  static_cast<void>(chosen);
}

}  // namespace

Sha256::Sha256() { crypto_hash_sha256_init(&state_); }

void Sha256::Add(const void* bytes, size_t size) {
  crypto_hash_sha256_update(&state_, static_cast<const unsigned char*>(bytes), size);
}

void Sha256::AddNumber(uint64_t number) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  Add(bytes, sizeof(bytes));
}

void Sha256::AddText(absl::string_view text) {
  AddNumber(text.size());
  Add(text.data(), text.size());
}

Bytes32 Sha256::Finish() {
  Bytes32 digest;
  crypto_hash_sha256_final(&state_, digest.data());
  return digest;
}

std::string Hkdf(absl::string_view key, absl::string_view salt, absl::string_view info, size_t size) {
  const Bytes32 zeros{};
  const Bytes32 extracted = Hmac(salt.empty() ? View(zeros) : salt, key);
  std::string derived;
  std::string block;
  for (char counter = 1; derived.size() < size; ++counter) {
    block = absl::StrCat(block, info, absl::string_view(&counter, 1));
    block = std::string(View(Hmac(View(extracted), block)));
    derived += block;
  }
  derived.resize(size);
  return derived;
}

std::string DrawReleaseId() {
  InitSodium();
  std::string id(NoiseSource::kReleaseIdBytes, '\0');
  randombytes_buf(id.data(), id.size());
  return id;
}

Bytes32 DeriveRoundKey(const NoiseSource& source, const Bytes32& spec_digest, const Bytes32& root) {
  InitSodium();
  std::string info = "sparseagg round noise 2";
  AppendText(source.tenant, info);
  AppendText(source.round, info);
  AppendText(source.release_id, info);
  absl::StrAppend(&info, View(spec_digest), View(root));
  return HkdfBytes(source.key, info);
}

std::string NoiseKeyId(absl::string_view key) { return Hkdf(key, "", "sparseagg noise key id 1", 16); }

Bytes32 DeriveStreamKey(const Bytes32& round_key, NoisePurpose purpose, absl::string_view tensor) {
  std::string info = "sparseagg stream 1";
  info.push_back(static_cast<char>(purpose));
  AppendText(tensor, info);
  return HkdfBytes(View(round_key), info);
}

void ChaCha20(const Bytes32& key, const std::array<uint8_t, 12>& nonce, uint32_t counter, uint8_t* out, size_t size) {
  std::memset(out, 0, size);
  crypto_stream_chacha20_ietf_xor_ic(out, out, size, nonce.data(), counter, key.data());
}

NoiseStream::NoiseStream(const Bytes32& stream_key, uint64_t row) : key_(stream_key) {
  for (size_t i = 0; i < 8; ++i) nonce_[i] = static_cast<uint8_t>(row >> (8 * i));
}

void NoiseStream::Refill() {
  ChaCha20(key_, nonce_, next_block_, buffer_.data(), kBufferBytes);
  next_block_ += kBufferBytes / 64;
  used_ = 0;
}

uint8_t NoiseStream::Next8() {
  if (used_ == kBufferBytes) Refill();
  return buffer_[used_++];
}

uint64_t NoiseStream::Next64() {
  uint64_t value = 0;
  if (used_ + 8 <= kBufferBytes) {
    std::memcpy(&value, buffer_.data() + used_, 8);  // little-endian, as the machines that this builds for
    used_ += 8;
    return value;
  }
  for (int i = 0; i < 8; ++i) value |= uint64_t{Next8()} << (8 * i);
  return value;
}

Uint128 NoiseStream::Below(Uint128 bound) {
  const Uint128 most = bound - 1;
  const auto high = static_cast<uint64_t>(most >> 64);
  if (high == 0) {
    const auto low = static_cast<uint64_t>(most);
    if (low == 0) return 0;
    const int unused = std::countl_zero(low);
    while (true) {
      const uint64_t value = (unused >= 56 ? uint64_t{Next8()} << 56 : Next64()) >> unused;
      if (value <= low) return value;
    }
  }
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(high);
  while (true) {
    // The upper half alone mostly decides.
    const uint64_t upper = Next64() & mask;
    if (upper > high) continue;
    const Uint128 value = (Uint128{upper} << 64) | Next64();
    if (value <= most) return value;
  }
}

namespace {

// The largest v of DiscreteGaussian::Sample: it cuts off the geometric part of a Laplace sample.
constexpr uint64_t kMostScales = 4096;

// Returns: true with probability exp(−numerator / denominator). Requires: numerator ≤ denominator.
bool BernoulliExpUpToOne(Uint128 numerator, Uint128 denominator, NoiseStream& stream) {
  uint64_t k = 1;
  while (stream.Below(denominator * k) < numerator) ++k;
  return k % 2 == 1;
}

}  // namespace

bool BernoulliExp(Uint128 numerator, Uint128 denominator, NoiseStream& stream) {
  for (; numerator > denominator; numerator -= denominator) {
    if (!BernoulliExpUpToOne(1, 1, stream)) return false;
  }
  return BernoulliExpUpToOne(numerator, denominator, stream);
}

DiscreteGaussian::DiscreteGaussian(uint64_t numerator, uint64_t denominator)
    : scale_(numerator / denominator + 1),
      square_(Uint128{numerator} * numerator),
      divisor_(Uint128{denominator} * denominator),
      acceptance_unit_(2 * square_ * divisor_ * scale_ * scale_) {}

int64_t DiscreteGaussian::Sample(NoiseStream& stream) const {
  while (true) {
    // |y| = u + t·v of a discrete Laplace distribution of scale t, with a sign.
    const auto u = static_cast<uint64_t>(stream.Below(scale_));
    if (!BernoulliExp(u, scale_, stream)) continue;
    uint64_t v = 0;
    while (v < kMostScales && BernoulliExp(1, 1, stream)) ++v;
    const uint64_t magnitude = u + scale_ * v;
    const bool negative = (stream.Next8() & 1) != 0;
    if (negative && magnitude == 0) continue;
    // (|y| − σ²/t)²/(2σ²) = (|y|·t·d − s)²/(2·s·d·t²), with σ² = s/d.
    const Uint128 scaled = Uint128{magnitude} * scale_ * divisor_;
    const Uint128 distance = scaled > square_ ? scaled - square_ : square_ - scaled;
    if (distance >> 63 != 0) continue;  // its probability is below e^-100000, and its square may not fit
    if (!BernoulliExp(distance * distance, acceptance_unit_, stream)) continue;
    const auto sample = static_cast<int64_t>(magnitude);
    return negative ? -sample : sample;
  }
}

}  // namespace sparseagg::privacy
