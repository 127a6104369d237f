#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "host/base/utf8.h"
#include "service/gateway/http_message.h"
#include "service/gateway/json.h"

namespace sparseagg::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// From here on, float64 does not have every integer.
constexpr double kMaxExactInteger = 0x1p53;
constexpr size_t kMaxShownNameBytes = 64;

// What the JSON of a field, or of an element of its list, is.
enum class Kind { kString, kBool, kInteger, kFloat, kEnum, kObject };

Kind KindOf(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return Kind::kInteger;
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Kind::kFloat;
    case FieldDescriptor::CPPTYPE_BOOL:
      return Kind::kBool;
    case FieldDescriptor::CPPTYPE_ENUM:
      return Kind::kEnum;
    case FieldDescriptor::CPPTYPE_STRING:
      return Kind::kString;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  // Durations and times are strings in JSON.
  return field.message_type()->file()->package() == "google.protobuf" ? Kind::kString : Kind::kObject;
}

absl::string_view Name(Kind kind) {
  constexpr absl::string_view kNames[] = {"a string", "true or false",       "a number",
                                          "a number", "the name of a value", "an object"};
  return kNames[static_cast<size_t>(kind)];
}

// Most bytes of strings: ASCII that stands for itself.
bool IsPlain(char byte) {
  return absl::ascii_isascii(static_cast<unsigned char>(byte)) && byte >= 0x20 && byte != '"' && byte != '\\';
}

// Reads the body once, from the beginning to the end.
class JsonChecker {
 public:
  JsonChecker(const Descriptor* type, absl::string_view json, bool takes_numbers)
      : type_(*type), json_(json), takes_numbers_(takes_numbers) {}

  absl::StatusOr<std::string> Check() {
    if (Next() != '{') return Malformed("an object is expected");
    RETURN_IF_ERROR(Object(type_));
    if (Next() != '\0' || at_ != json_.size()) return Malformed("the object has ended");
    absl::StrAppend(&full_, json_.substr(copied_));
    return std::move(full_);
  }

 private:
  // Returns: the next byte that is not white space; '\0' at the end.
  char Next() {
    while (at_ < json_.size() && absl::string_view(" \t\r\n").find(json_[at_]) != absl::string_view::npos) ++at_;
    return at_ < json_.size() ? json_[at_] : '\0';
  }
  bool Take(char byte) {
    if (Next() != byte || at_ == json_.size()) return false;
    ++at_;
    return true;
  }
  bool TakeWord(absl::string_view word) {
    if (json_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  size_t TakeDigits() {
    const size_t begin = at_;
    while (at_ < json_.size() && absl::ascii_isdigit(static_cast<unsigned char>(json_[at_]))) ++at_;
    return at_ - begin;
  }

  absl::Status Invalid(absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat("not the JSON of a ", type_.name(), ": ", problem));
  }
  absl::Status Malformed(absl::string_view problem) const { return Invalid(absl::StrCat(problem, ", at byte ", at_)); }
  absl::Status InField(absl::string_view problem) const { return Invalid(absl::StrCat(path_, " ", problem)); }

  absl::Status CountValue() {
    if (++values_ <= kMaxJsonValues) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the JSON of a ", type_.name(), " has more than ", kMaxJsonValues, " values"));
  }

  absl::Status Object(const Descriptor& type) {
    RETURN_IF_ERROR(CountValue());
    ++at_;
    if (Take('}')) return absl::OkStatus();
    std::set<const FieldDescriptor*> given;
    lists_ = {};  // a slice has no objects
    const size_t path_size = path_.size();
    do {
      if (Next() != '"') return Malformed("the name of a field in double quotes is expected");
      absl::string_view name;
      RETURN_IF_ERROR(String(&name));
      const FieldDescriptor* const field = FindField(&type, name);  // no encoder escapes characters of our names
      if (field == nullptr) {
        return Invalid(absl::StrCat("unknown field ", JsonQuote(name.substr(0, kMaxShownNameBytes)),
                                    path_.empty() ? "" : " in ", path_, "; known are ", FieldNames(&type),
                                    "; if it is a field of a newer version, this server is older than the client"));
      }
      absl::StrAppend(&path_, path_.empty() ? "" : ".", field->name());
      if (!given.insert(field).second) return InField("is given twice");
      if (!Take(':')) return Malformed("a colon is expected");
      RETURN_IF_ERROR(FieldValue(*field));
      path_.resize(path_size);
    } while (Take(','));
    if (Next() != '}') return Malformed("a comma or the end of the object is expected");
    if (lists_.keys.has_value() || lists_.values.has_value()) {
      const absl::StatusOr<std::string> packed = PackNumbers(lists_);
      if (!packed.ok()) return Invalid(absl::StrCat(path_, path_.empty() ? "" : ".", packed.status().message()));
      CopyUntil(at_, *packed);
      lists_ = {};
    }
    ++at_;
    return absl::OkStatus();
  }

  // Reads a list of numbers, in whose place the converter gets null; PackNumbers has them at the end of the slice.
  absl::Status Numbers(std::optional<absl::string_view>* list) {
    const size_t begin = at_++;
    bool is_exact = true;
    if (!Take(']')) {
      do {
        Next();
        RETURN_IF_ERROR(Number(&is_exact));
      } while (Take(','));
      if (!Take(']')) return Malformed("a comma or the end of the list is expected");
    }
    *list = json_.substr(begin + 1, at_ - begin - 2);
    CopyUntil(begin, "null");
    copied_ = at_;
    return absl::OkStatus();
  }

  absl::Status FieldValue(const FieldDescriptor& field) {
    const Kind kind = KindOf(field);
    if (Next() == 'n' && TakeWord("null")) return CountValue();
    if (takes_numbers_ && Next() == '[' && IsInBulkBody(&field)) {
      return Numbers(field.number() == v1::TensorSlice::kKeysFieldNumber ? &lists_.keys : &lists_.values);
    }
    if (!field.is_repeated()) return Value(field, kind);
    if (Next() != '[') return InField("must be a list");
    RETURN_IF_ERROR(CountValue());
    ++at_;
    if (Take(']')) return absl::OkStatus();
    const size_t path_size = path_.size();
    size_t index = 0;
    do {
      // Of full names, a long list of short ones would take three times its memory.
      if (kind == Kind::kEnum && index == static_cast<size_t>(field.enum_type()->value_count())) {
        return InField(absl::StrCat("has more than ", index, " elements, and there are no more values"));
      }
      absl::StrAppend(&path_, "[", index++, "]");
      RETURN_IF_ERROR(Value(field, kind));
      path_.resize(path_size);
    } while (Take(','));
    return Take(']') ? absl::OkStatus() : Malformed("a comma or the end of the list is expected");
  }

  absl::Status Value(const FieldDescriptor& field, Kind kind) {
    const char first = Next();
    if (first == '{' && kind == Kind::kObject) return Object(*field.message_type());
    RETURN_IF_ERROR(CountValue());
    bool fits = false;
    absl::Status read;
    if (first == '"') {
      absl::string_view text;
      read = String(&text);
      if (read.ok() && kind == Kind::kEnum) TakeEnumName(*field.enum_type(), text);
      fits = kind != Kind::kBool && kind != Kind::kObject;
    } else if (first == '-' || absl::ascii_isdigit(static_cast<unsigned char>(first))) {
      bool is_exact = true;
      read = Number(&is_exact);
      fits = kind == Kind::kInteger || kind == Kind::kFloat || kind == Kind::kEnum;
      if (read.ok() && kind == Kind::kInteger && !is_exact) {
        return InField("is too large an integer for a fraction or an exponent");
      }
    } else if (TakeWord("true") || TakeWord("false")) {
      fits = kind == Kind::kBool;
    } else if (first != '{' && first != '[' && !TakeWord("null")) {
      read = Malformed("a value is expected");
    }
    RETURN_IF_ERROR(read);
    return fits ? absl::OkStatus() : InField(absl::StrCat("must be ", Name(kind)));
  }

  // Writes what was not copied yet, and then `text`.
  void CopyUntil(size_t end, absl::string_view text) {
    absl::StrAppend(&full_, json_.substr(copied_, end - copied_), text);
    copied_ = end;
  }

  // Writes the full name of a value.
  void TakeEnumName(const google::protobuf::EnumDescriptor& type, absl::string_view name) {
    const auto* value = FindShortName(&type, name);
    if (value != nullptr) {
      CopyUntil(name.data() - json_.data(), value->name());
      copied_ += name.size();
    } else {
      value = type.FindValueByName(std::string(name));
    }
    if (&type == v1::KeyEncoding_descriptor()) lists_.has_key_encoding = true;
    if (&type == v1::ValueEncoding_descriptor() && value != nullptr) {
      lists_.value_encoding = static_cast<v1::ValueEncoding>(value->number());
    }
  }

  // Reads a string. `raw`: the text between the quotes, without decoding; may be null.
  absl::Status String(absl::string_view* raw) {
    const size_t begin = ++at_;
    for (;;) {
      while (at_ < json_.size() && IsPlain(json_[at_])) ++at_;
      if (at_ == json_.size()) return Malformed("a string does not end");
      if (json_[at_] == '"') break;
      if (json_[at_] == '\\') {
        RETURN_IF_ERROR(Escape());
        continue;
      }
      const Utf8Character next = FirstUtf8Character(json_.substr(at_));
      if (next.num_bytes == 0) return Malformed("a string is not UTF-8");
      if (next.code_point < 0x20) return Malformed("a control character in a string must be escaped");
      at_ += next.num_bytes;
    }
    if (raw != nullptr) *raw = json_.substr(begin, at_ - begin);
    ++at_;
    return absl::OkStatus();
  }

  absl::Status Escape() {
    constexpr uint32_t kHighSurrogate = 0xD800;
    constexpr uint32_t kLowSurrogate = 0xDC00;
    constexpr uint32_t kNoSurrogate = 0xE000;
    if (at_ + 1 < json_.size() && absl::string_view("\"\\/bfnrt").find(json_[at_ + 1]) != absl::string_view::npos) {
      at_ += 2;
      return absl::OkStatus();
    }
    uint32_t code_unit = 0;
    if (!TakeCodeUnit(&code_unit)) return Malformed("an unknown escape in a string");
    if (code_unit < kHighSurrogate || code_unit >= kNoSurrogate) return absl::OkStatus();
    uint32_t low = 0;
    const bool is_pair = code_unit < kLowSurrogate && TakeCodeUnit(&low) && low >= kLowSurrogate && low < kNoSurrogate;
    return is_pair ? absl::OkStatus() : Malformed("a string has half a surrogate pair");
  }

  // Reads \uXXXX.
  bool TakeCodeUnit(uint32_t* code_unit) {
    constexpr size_t kDigits = 4;
    if (!TakeWord("\\u") || !absl::SimpleHexAtoi(json_.substr(at_, kDigits), code_unit)) return false;
    const size_t begin = at_;
    while (at_ < json_.size() && at_ < begin + kDigits &&
           absl::ascii_isxdigit(static_cast<unsigned char>(json_[at_]))) {
      ++at_;
    }
    return at_ == begin + kDigits;
  }

  // Reads a number. `is_exact`: false if it is written with a fraction or an exponent, and float64 may round it.
  absl::Status Number(bool* is_exact) {
    const size_t begin = at_;
    TakeWord("-");
    const bool begins_with_zero = json_.substr(at_, 1) == "0";
    const size_t digits = TakeDigits();
    bool is_well_formed = digits == 1 || (digits > 1 && !begins_with_zero);
    const size_t whole_end = at_;
    if (TakeWord(".")) is_well_formed = TakeDigits() > 0 && is_well_formed;
    if (TakeWord("e") || TakeWord("E")) {
      if (!TakeWord("+")) TakeWord("-");
      is_well_formed = TakeDigits() > 0 && is_well_formed;
    }
    if (!is_well_formed) return Malformed("a number is malformed");
    double rounded = 0;
    *is_exact = at_ == whole_end ||
                (absl::SimpleAtod(json_.substr(begin, at_ - begin), &rounded) && std::fabs(rounded) < kMaxExactInteger);
    return absl::OkStatus();
  }

  const Descriptor& type_;
  const absl::string_view json_;
  const bool takes_numbers_;
  size_t at_ = 0;
  size_t values_ = 0;
  std::string path_;   // of the current field, such as "spec.tensors[0].name"
  std::string full_;   // the body with full names of enum values, as far as it was copied
  size_t copied_ = 0;  // bytes of the body
  NumberLists lists_;  // of the current slice
};

}  // namespace

const FieldDescriptor* FindField(const Descriptor* type, absl::string_view name) {
  const FieldDescriptor* const field = type->FindFieldByName(std::string(name));
  return field != nullptr ? field : type->FindFieldByCamelcaseName(std::string(name));
}

std::string FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  names.reserve(type->field_count());
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<std::string> CheckJson(const Descriptor* type, absl::string_view json, bool takes_numbers) {
  return JsonChecker(type, json, takes_numbers).Check();
}

const google::protobuf::EnumValueDescriptor* FindShortName(const google::protobuf::EnumDescriptor* type,
                                                           absl::string_view name) {
  // KEY_ENCODING_UNSPECIFIED gives the prefix KEY_ENCODING_.
  absl::string_view prefix = type->value(0)->name();
  absl::ConsumeSuffix(&prefix, "UNSPECIFIED");
  if (name.size() > kMaxShownNameBytes) return nullptr;
  return type->FindValueByName(absl::StrCat(prefix, absl::AsciiStrToUpper(name)));
}

}  // namespace sparseagg::service
