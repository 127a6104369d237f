// Keys and streams of noise: SHA-256, HKDF-SHA256 and ChaCha20, all by libsodium, so that the Python extension needs no
// OpenSSL.
#ifndef SPARSEAGG_HOST_PRIVACY_NOISE_H_
#define SPARSEAGG_HOST_PRIVACY_NOISE_H_

#include <sodium/crypto_hash_sha256.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "host/privacy/lattice.h"

namespace sparseagg::privacy {

using Bytes32 = std::array<uint8_t, 32>;

// A running SHA-256 (FIPS 180-4), by libsodium. Not thread-safe.
class Sha256 {
 public:
  Sha256();

  void Add(const void* bytes, size_t size);
  // Adds eight bytes, little-endian.
  void AddNumber(uint64_t number);
  // Adds the length of the text and the text, so that no two sequences of texts add the same bytes.
  void AddText(absl::string_view text);
  // The hash is spent.
  Bytes32 Finish();

 private:
  crypto_hash_sha256_state state_;
};

// HKDF-SHA256 (RFC 5869). Requires: 1 ≤ size ≤ 4064.
std::string Hkdf(absl::string_view key, absl::string_view salt, absl::string_view info, size_t size);

// What the noise of a round is derived from. Whoever knows `key` can subtract the noise.
struct NoiseSource {
  static constexpr size_t kMinKeyBytes = 32;

  static constexpr size_t kReleaseIdBytes = 16;

  std::string key;  // secret; empty: there is none
  std::string tenant;
  std::string round;
  // Of DrawReleaseId, one for each release of results. Without it, two releases of the same submissions would have
  // equal noise, and two that differ in one client would not: readers would see whether that client is in one of them.
  std::string release_id = {};  // NOLINT(readability-redundant-member-init)
};

// Returns: kReleaseIdBytes random bytes of the operating system.
std::string DrawReleaseId();

// Returns: the round key: HKDF-SHA256 of the noise key, with the names, the release id, the digest of the spec and the
// root of the submissions as info. Equal inputs give equal noise, so that a restart publishes no second sample.
Bytes32 DeriveRoundKey(const NoiseSource& source, const Bytes32& spec_digest, const Bytes32& root);

// Returns: 16 bytes by which two noise keys can be told apart, and which tell nothing else of the key.
std::string NoiseKeyId(absl::string_view key);

// What a stream of noise is for.
enum class NoisePurpose : uint8_t { kValues = 1, kKeys = 2 };

// Returns: the key of all streams of a purpose and a tensor.
Bytes32 DeriveStreamKey(const Bytes32& round_key, NoisePurpose purpose, absl::string_view tensor);

// The ChaCha20 key stream (RFC 8439, by libsodium) of one row: the stream key, the row's key as the first eight bytes
// of the nonce, little-endian, then four zero bytes, and a block counter from 0. A stream depends on nothing else, so
// that threads and shards agree on the noise of a row. Not thread-safe. Deterministic.
class NoiseStream {
 public:
  NoiseStream(const Bytes32& stream_key, uint64_t row);

  uint64_t Next64();
  uint8_t Next8();
  // Returns: a uniform integer in [0, bound), without bias. Requires: 1 ≤ bound ≤ 2^127.
  Uint128 Below(Uint128 bound);

 private:
  static constexpr size_t kBufferBytes = 256;

  void Refill();

  const Bytes32& key_;
  std::array<uint8_t, 12> nonce_{};
  uint32_t next_block_ = 0;
  size_t used_ = kBufferBytes;
  std::array<uint8_t, kBufferBytes> buffer_;
};

// Writes `size` bytes of the ChaCha20 key stream of RFC 8439, from block `counter` on.
void ChaCha20(const Bytes32& key, const std::array<uint8_t, 12>& nonce, uint32_t counter, uint8_t* out, size_t size);

// N_ℤ(0, σ²): the integer x has a probability in proportion to exp(−x²/(2σ²)). Sampled as in Canonne, Kamath, Steinke,
// "The Discrete Gaussian for Differential Privacy" (arXiv 2004.00010), algorithms 1 to 3, in integers only: discrete
// Laplace samples of scale t = ⌊σ⌋ + 1 are accepted with probability exp(−(|y| − σ²/t)²/(2σ²)). Samples beyond 4096·t,
// whose probability is below e^-4000, do not occur. The time of a sample depends on the sample.
class DiscreteGaussian {
 public:
  static constexpr uint64_t kMaxTerm = (uint64_t{1} << 26) - 1;

  // σ = numerator / denominator. Requires: both are 1 to kMaxTerm.
  explicit DiscreteGaussian(uint64_t numerator, uint64_t denominator = 1);

  // Returns: a sample. Takes as many bits of the stream as it needs: about 150 bytes.
  int64_t Sample(NoiseStream& stream) const;

 private:
  uint64_t scale_;           // t
  Uint128 square_;           // σ² = square_ / divisor_
  Uint128 divisor_;          //
  Uint128 acceptance_unit_;  // 2·square_·divisor_·t²
};

// Returns: true with probability exp(−numerator / denominator). Requires: 1 ≤ denominator < 2^108.
bool BernoulliExp(Uint128 numerator, Uint128 denominator, NoiseStream& stream);

}  // namespace sparseagg::privacy

#endif  // SPARSEAGG_HOST_PRIVACY_NOISE_H_
