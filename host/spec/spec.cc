#include "host/spec/spec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/utf8.h"

namespace sparseagg {

absl::string_view Name(DType dtype) {
  constexpr absl::string_view kNames[] = {"float32", "float16", "bfloat16", "float64",
                                          "int32",   "int64",   "uint32",   "uint64"};
  return kNames[static_cast<size_t>(dtype)];
}

absl::string_view Name(Op op) {
  constexpr absl::string_view kNames[] = {"sum", "mean",   "coordinate_mean", "union",   "min",
                                          "max", "median", "trimmed_mean",    "quantile"};
  return kNames[static_cast<size_t>(op)];
}

std::string Quoted(const TensorSpec& spec) { return absl::StrCat("tensor '", spec.name, "'"); }

uint64_t TrimOf(const OrderOptions& options, uint64_t n) {
  return static_cast<uint64_t>(std::floor(options.trim_fraction.value_or(0.0) * static_cast<double>(n)));
}

uint64_t QuantileIndex(double q, uint64_t n) {
  const double rank = std::max(std::ceil(q * static_cast<double>(n)), 1.0);
  return std::min(static_cast<uint64_t>(rank), n) - 1;
}

namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxIdBytes = 256;

bool BeginsName(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool ContinuesName(char c) { return BeginsName(c) || c == '.' || c == '-'; }

// Whether a terminal or a log may take the character for a command: U+0000 to U+001F, U+007F to U+009F.
bool IsControl(uint32_t code_point) { return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0); }

// Errors: INVALID_ARGUMENT: not UTF-8, or a control character. The message begins with `field`.
absl::Status CheckCharacters(absl::string_view text, absl::string_view field) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Character next = FirstUtf8Character(text.substr(i));
    if (next.num_bytes == 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, " is not UTF-8 at byte ", i));
    }
    if (IsControl(next.code_point)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has the control character U+%04X at byte %d", field, next.code_point, i));
    }
    i += next.num_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckName(absl::string_view id, absl::string_view field) {
  if (!id.empty() && id.size() <= kMaxNameBytes && BeginsName(id[0]) &&
      std::all_of(id.begin(), id.end(), &ContinuesName)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " ", QuotedId(id), " is not 1 to ", kMaxNameBytes,
                                                 " of A-Z a-z 0-9 . _ - that begin with a letter, a digit or _"));
}

absl::Status CheckId(absl::string_view id, absl::string_view field) {
  if (id.empty() || id.size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", id.size(), " bytes; 1 to ", kMaxIdBytes, " are allowed"));
  }
  return CheckCharacters(id, field);
}

std::string QuotedId(absl::string_view text) {
  if (text.size() <= kMaxIdBytes && CheckCharacters(text, "").ok()) return absl::StrCat("'", text, "'");
  return absl::StrCat("of ", text.size(), " bytes");
}

}  // namespace sparseagg
