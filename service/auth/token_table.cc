#include "service/auth/token_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/base/read_file.h"

namespace sparseagg::service {
namespace {

uint64_t KeyOf(const TokenHash& hash) {
  uint64_t key;
  std::memcpy(&key, hash.data(), sizeof(key));
  return key;
}

}  // namespace

TokenHash HashToken(absl::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

absl::StatusOr<TokenTable::Entry> TokenTable::ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (fields.size() != 4 && fields.size() != 5) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(), " words; a line is HASH ROLE TENANT NAME [END OF VALIDITY]"));
  }
  Entry entry;
  const absl::string_view hex = fields[0];
  const auto is_hex = [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); };
  if (hex.size() != 2 * entry.hash.size() || !std::all_of(hex.begin(), hex.end(), is_hex)) {
    return absl::InvalidArgumentError("the first word is not a SHA-256 of 64 hex digits");
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), entry.hash.begin());
  const std::optional<absl::string_view> name = fields[3] == "-" ? std::nullopt : std::optional(fields[3]);
  ASSIGN_OR_RETURN(entry.identity, ParseIdentity(fields[2], fields[1], name));
  std::string problem;
  if (fields.size() == 5 && !absl::ParseTime(absl::RFC3339_full, fields[4], &entry.expires, &problem)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(fields[4].substr(0, 64)), "' is not a time such as 2027-01-31T00:00:00Z"));
  }
  return entry;
}

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    absl::StatusOr<Entry> entry = ParseLine(line);
    if (entry.ok() && !table.entries_.emplace(KeyOf(entry->hash), *entry).second) {
      entry = absl::InvalidArgumentError("the hash of an earlier line");
    }
    if (!entry.ok()) {
      return absl::Status(entry.status().code(), absl::StrCat("line ", number, ": ", entry.status().message()));
    }
  }
  return table;
}

absl::StatusOr<TokenTable> TokenTable::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<TokenTable> table = Parse(text);
  if (!table.ok()) return absl::Status(table.status().code(), absl::StrCat(path, ", ", table.status().message()));
  return table;
}

absl::StatusOr<Identity> TokenTable::Find(absl::string_view token, absl::Time now) const {
  const TokenHash hash = HashToken(token);
  const auto found = entries_.find(KeyOf(hash));
  if (found == entries_.end() || CRYPTO_memcmp(found->second.hash.data(), hash.data(), hash.size()) != 0) {
    return absl::UnauthenticatedError("the server does not know this token");
  }
  const Entry& entry = found->second;
  if (now >= entry.expires) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token expired at ", absl::FormatTime(absl::RFC3339_sec, entry.expires, absl::UTCTimeZone())));
  }
  return entry.identity;
}

}  // namespace sparseagg::service
