// Keys and values as lists of numbers, where JSON otherwise has their bytes.
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/half.h"
#include "host/base/status_macros.h"
#include "service/gateway/json.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::service {
namespace {

static_assert(std::endian::native == std::endian::little);

// Most readers of JSON, such as jq and JavaScript, have float64 alone: beyond this it does not have every integer.
constexpr int64_t kMaxInteger = int64_t{1} << 53;

template <typename T>
bool IsInJson(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value);
  } else if constexpr (std::is_signed_v<T>) {
    return value >= -kMaxInteger && value <= kMaxInteger;
  } else {
    return value <= static_cast<uint64_t>(kMaxInteger);
  }
}

// The elements of a column: how they are stored, shown, read and kept.
template <typename T>
struct Plain {
  using Stored = T;
  using Read = T;
  static T Show(T stored) { return stored; }
  static T Keep(T read) { return read; }
};
struct Float16 {
  using Stored = uint16_t;
  using Read = double;
  static float Show(uint16_t stored) { return WidenFloat16(stored); }
  static uint16_t Keep(double read) { return RoundToFloat16(read); }
};
struct BFloat16 {
  using Stored = uint16_t;
  using Read = double;
  static float Show(uint16_t stored) { return WidenBFloat16(stored); }
  static uint16_t Keep(double read) { return RoundToBFloat16(read); }
};

// Returns: `convert` for elements of the encoding. Errors: INVALID_ARGUMENT: it has no plain numbers.
template <typename Convert>
absl::StatusOr<std::string> ForEncoding(v1::ValueEncoding encoding, Convert convert) {
  switch (encoding) {
    case v1::VALUE_ENCODING_FLOAT32:
      return convert(Plain<float>());
    case v1::VALUE_ENCODING_FLOAT16:
      return convert(Float16());
    case v1::VALUE_ENCODING_BFLOAT16:
      return convert(BFloat16());
    case v1::VALUE_ENCODING_FLOAT64:
      return convert(Plain<double>());
    case v1::VALUE_ENCODING_INT32:
      return convert(Plain<int32_t>());
    case v1::VALUE_ENCODING_INT64:
      return convert(Plain<int64_t>());
    case v1::VALUE_ENCODING_UINT32:
      return convert(Plain<uint32_t>());
    case v1::VALUE_ENCODING_UINT64:
      return convert(Plain<uint64_t>());
    default:
      return absl::InvalidArgumentError("values as numbers need a valueEncoding that is a dtype, such as float32");
  }
}

// Returns: the elements as a list. Floats have the fewest digits that give them back.
template <typename Element>
absl::StatusOr<std::string> WriteList(absl::string_view bytes) {
  using Stored = typename Element::Stored;
  std::string list = "[";
  for (size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    const auto value = Element::Show(stored);
    char text[32];
    const absl::string_view number(text, std::to_chars(std::begin(text), std::end(text), value).ptr - text);
    if (!IsInJson(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("number ", i, " of a column is ", number, ", which JSON does not hold; ask without 'numbers'"));
    }
    absl::StrAppend(&list, i == 0 ? "" : ",", number);
  }
  return list + "]";
}

absl::StatusOr<std::string> WriteKeys(v1::KeyEncoding encoding, absl::string_view bytes) {
  if (bytes.empty()) return "[]";  // of IMPLICIT
  if (encoding == v1::KEY_ENCODING_U32) return WriteList<Plain<uint32_t>>(bytes);
  if (encoding == v1::KEY_ENCODING_U64) return WriteList<Plain<uint64_t>>(bytes);
  return absl::InvalidArgumentError("with 'numbers', format.key_encodings is left out: keys are not packed");
}

absl::StatusOr<std::string> WriteValues(v1::ValueEncoding encoding, absl::string_view bytes) {
  if (bytes.empty()) return "[]";  // of NONE
  return ForEncoding(encoding, [bytes](auto element) { return WriteList<decltype(element)>(bytes); });
}

// The columns of a page: their names, and the lists in place of their bytes.
using Columns = std::vector<std::pair<absl::string_view, std::string>>;

absl::Status TakeSlice(v1::TensorSlice& slice, Columns* columns) {
  ASSIGN_OR_RETURN(std::string keys, WriteKeys(slice.key_encoding(), slice.keys()));
  ASSIGN_OR_RETURN(std::string values, WriteValues(slice.value_encoding(), slice.values()));
  *columns = {{"keys", std::move(keys)}, {"values", std::move(values)}};
  slice.clear_keys();
  slice.clear_values();
  return absl::OkStatus();
}

absl::StatusOr<std::string> JoinColumns(const google::protobuf::Message& rest, const Columns& columns) {
  ASSIGN_OR_RETURN(const std::string json, MessageToJson(rest.GetDescriptor(), rest.SerializeAsString()));
  std::string joined;
  size_t copied = 0;
  for (const auto& [name, list] : columns) {
    // No text has this: quotes in texts are escaped.
    const std::string empty = absl::StrCat("\"", name, "\":\"\"");
    const size_t found = json.find(empty, copied);
    if (found == std::string::npos) continue;  // a page without a slice
    absl::StrAppend(&joined, absl::string_view(json).substr(copied, found - copied), "\"", name, "\":", list);
    copied = found + empty.size();
  }
  return joined.append(json, copied);
}

// Numbers that are out of range become infinite.
bool ToNumber(absl::string_view text, float* number) { return absl::SimpleAtof(text, number); }
bool ToNumber(absl::string_view text, double* number) { return absl::SimpleAtod(text, number); }
template <typename Integer>
bool ToNumber(absl::string_view text, Integer* number) {
  return absl::SimpleAtoi(text, number);
}

// Returns: the bytes of a list, of which this is the text between the brackets.
template <typename Element>
absl::StatusOr<std::string> ReadList(absl::string_view column, absl::string_view list) {
  std::string bytes;
  size_t index = 0;
  for (absl::string_view number : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    number = absl::StripAsciiWhitespace(number);
    typename Element::Read value{};
    const bool is_read = ToNumber(number, &value);
    const auto stored = Element::Keep(value);
    if (!is_read || !IsInJson(Element::Show(stored))) {
      return absl::InvalidArgumentError(absl::StrCat(column, "[", index, "] is ", number.substr(0, 32),
                                                     ", which its encoding or a number of JSON does not hold"));
    }
    bytes.append(reinterpret_cast<const char*>(&stored), sizeof(stored));
    ++index;
  }
  return bytes;
}

void AppendMember(absl::string_view name, absl::string_view value, std::string* members) {
  absl::StrAppend(members, ",\"", name, "\":\"", value, "\"");
}

}  // namespace

absl::StatusOr<std::string> PageToNumbers(const google::protobuf::Descriptor* type, const std::string& page) {
  Columns columns;
  if (type == v1::RowsPage::descriptor()) {
    v1::RowsPage rows;
    if (!rows.ParseFromString(page)) return absl::InternalError("a page of rows cannot be parsed");
    RETURN_IF_ERROR(TakeSlice(*rows.mutable_slice(), &columns));
    return JoinColumns(rows, columns);
  }
  v1::ResultPage parsed;
  if (!parsed.ParseFromString(page)) return absl::InternalError("a result page cannot be parsed");
  if (parsed.has_slice()) RETURN_IF_ERROR(TakeSlice(*parsed.mutable_slice(), &columns));
  ASSIGN_OR_RETURN(columns.emplace_back("counts", "").second, WriteList<Plain<uint32_t>>(parsed.counts()));
  ASSIGN_OR_RETURN(columns.emplace_back("weights", "").second, WriteList<Plain<double>>(parsed.weights()));
  ASSIGN_OR_RETURN(columns.emplace_back("moments", "").second, WriteList<Plain<double>>(parsed.moments()));
  parsed.clear_counts();
  parsed.clear_weights();
  parsed.clear_moments();
  return JoinColumns(parsed, columns);
}

absl::StatusOr<std::string> PackNumbers(const NumberLists& lists) {
  std::string members;
  if (lists.keys.has_value()) {
    if (lists.has_key_encoding) return absl::InvalidArgumentError("keys as numbers take no keyEncoding");
    absl::StatusOr<std::string> keys = ReadList<Plain<uint32_t>>("keys", *lists.keys);
    const bool is_short = keys.ok();
    if (!is_short) keys = ReadList<Plain<uint64_t>>("keys", *lists.keys);
    RETURN_IF_ERROR(keys.status());
    AppendMember("keys", absl::Base64Escape(*keys), &members);
    AppendMember("keyEncoding", is_short ? "KEY_ENCODING_U32" : "KEY_ENCODING_U64", &members);
  }
  if (lists.values.has_value()) {
    ASSIGN_OR_RETURN(const std::string values, ForEncoding(lists.value_encoding, [&](auto element) {
                       return ReadList<decltype(element)>("values", *lists.values);
                     }));
    AppendMember("values", absl::Base64Escape(values), &members);
  }
  return members;
}

}  // namespace sparseagg::service
