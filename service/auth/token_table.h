// Bearer tokens, as a file lists them.
#ifndef SPARSEAGG_SERVICE_AUTH_TOKEN_TABLE_H_
#define SPARSEAGG_SERVICE_AUTH_TOKEN_TABLE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/auth/authorize.h"

namespace sparseagg::service {

// The SHA-256 of a token.
using TokenHash = std::array<uint8_t, 32>;
TokenHash HashToken(absl::string_view token);

// The tokens that a server takes. The file has one line for each, with the hash in place of the token:
//
//   # SHA-256 of the token, role, tenant, name or "-", and the end of its validity where there is one
//   0f9c…64 hex digits…e1 client      hospital-a site-7 2027-01-31T00:00:00Z
//   77a0…64 hex digits…5b coordinator hospital-a -
//
// A quick hash is enough, because tokens are 256 random bits: nobody can try them out, with whatever hash. A slow hash
// protects passwords, which people choose, and would cost every call milliseconds.
//
// Immutable, and so thread-safe.
class TokenTable {
 public:
  // Errors: INVALID_ARGUMENT: a malformed line, or two lines with one hash. The message has the number of the line and
  // no token, also not one that was put in place of a hash.
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);
  // Errors: as of Parse and of the file system. The message has the path.
  static absl::StatusOr<TokenTable> Read(const std::string& path);

  // Returns: the identity of the token's holder.
  // Errors: UNAUTHENTICATED: no such token, or expired at `now`.
  // Constant-time in the bytes of the hashes.
  absl::StatusOr<Identity> Find(absl::string_view token, absl::Time now) const;

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    TokenHash hash;
    Identity identity;
    absl::Time expires = absl::InfiniteFuture();
  };

  static absl::StatusOr<Entry> ParseLine(absl::string_view line);

  absl::flat_hash_map<uint64_t, Entry> entries_;  // by the first eight bytes of the hash
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_AUTH_TOKEN_TABLE_H_
