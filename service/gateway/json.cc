#include "service/gateway/json.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <map>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "host/base/utf8.h"

namespace sparseagg::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
namespace util = google::protobuf::util;

constexpr char kTypes[] = "type.googleapis.com";
constexpr size_t kMaxParameters = 64;

// Never freed: static destructors run while calls may still be under way.
util::TypeResolver& Resolver() {
  static util::TypeResolver& resolver =
      *util::NewTypeResolverForDescriptorPool(kTypes, google::protobuf::DescriptorPool::generated_pool());
  return resolver;
}

std::string UrlOf(const Descriptor* type) { return absl::StrCat(kTypes, "/", type->full_name()); }

absl::StatusOr<std::string> Convert(const Descriptor* type, const std::string& json) {
  std::string message;
  const auto converted = util::JsonToBinaryString(&Resolver(), UrlOf(type), json, &message);
  if (converted.ok()) return message;
  const auto& problem = converted.message();
  return absl::InvalidArgumentError(
      absl::StrCat("not the JSON of a ", type->name(), ": ", absl::string_view(problem.data(), problem.size())));
}

// Returns: the value as JSON. Bytes are base64 here, too, so that one text of an upload_tag is the same in a query and
// in a body. Errors: INVALID_ARGUMENT: not UTF-8, which JSON could only carry as another text; not base64.
absl::StatusOr<std::string> ValueToJson(const FieldDescriptor* field, const std::string& value) {
  if (field->type() == FieldDescriptor::TYPE_BYTES) {
    std::string bytes;
    const bool has_space = value.find(' ') != std::string::npos;  // which was a "+"; the decoders ignore spaces
    if (!has_space && (absl::Base64Unescape(value, &bytes) || absl::WebSafeBase64Unescape(value, &bytes))) {
      return JsonQuote(absl::Base64Escape(bytes));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("'", field->name(), "' is not base64, of which a query must write + as %2B"));
  }
  if (!IsUtf8(value)) return absl::InvalidArgumentError(absl::StrCat("'", field->name(), "' is not UTF-8"));
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    if (const auto* found = FindShortName(field->enum_type(), value); found != nullptr) return JsonQuote(found->name());
  }
  return JsonQuote(value);
}

absl::StatusOr<std::string> ObjectOf(const Descriptor* type, const HttpFields& parameters);

// Returns: the JSON of one field, from its parameters with the rest of their paths.
absl::StatusOr<std::string> FieldToJson(const FieldDescriptor* field, const HttpFields& parameters) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !parameters.front().first.empty()) {
    if (field->is_repeated()) {
      return absl::InvalidArgumentError(absl::StrCat("'", field->name(), "' is a list of messages, not for a query"));
    }
    return ObjectOf(field->message_type(), parameters);
  }
  std::vector<std::string> values;
  for (const auto& [path, value] : parameters) {
    if (!path.empty()) return absl::InvalidArgumentError(absl::StrCat("'", field->name(), "' has no parts"));
    const std::vector<std::string> parts =
        field->is_repeated() ? absl::StrSplit(value, ',') : std::vector<std::string>{value};
    for (const std::string& part : parts) {
      ASSIGN_OR_RETURN(values.emplace_back(), ValueToJson(field, part));
    }
  }
  if (field->is_repeated()) return absl::StrCat("[", absl::StrJoin(values, ","), "]");
  if (values.size() == 1) return values.front();
  return absl::InvalidArgumentError(absl::StrCat("'", field->name(), "' occurs ", values.size(), " times"));
}

absl::StatusOr<std::string> ObjectOf(const Descriptor* type, const HttpFields& parameters) {
  std::map<const FieldDescriptor*, HttpFields> by_field;
  for (const auto& [path, value] : parameters) {
    const std::vector<absl::string_view> parts = absl::StrSplit(path, absl::MaxSplits('.', 1));
    const FieldDescriptor* const field = FindField(type, parts[0]);
    if (field == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown parameter ", JsonQuote(parts[0].substr(0, 64)), "; known are ", FieldNames(type)));
    }
    by_field[field].emplace_back(parts.size() == 2 ? parts[1] : "", value);
  }
  std::vector<std::string> members;
  for (const auto& [field, values] : by_field) {
    ASSIGN_OR_RETURN(const std::string json, FieldToJson(field, values));
    members.push_back(absl::StrCat("\"", field->name(), "\":", json));
  }
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}

}  // namespace

absl::StatusOr<std::string> JsonToMessage(const Descriptor* type, absl::string_view json, bool takes_numbers) {
  ASSIGN_OR_RETURN(const std::string full, CheckJson(type, json, takes_numbers));
  return Convert(type, full);
}

absl::StatusOr<std::string> MessageToJson(const Descriptor* type, const std::string& message) {
  util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!util::BinaryToJsonString(&Resolver(), UrlOf(type), message, &json, options).ok()) {
    return absl::InternalError(absl::StrCat("a ", type->name(), " has no JSON"));
  }
  return json;
}

absl::StatusOr<HttpFields> ParseQuery(absl::string_view query) {
  HttpFields parameters;
  for (const absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    if (parameters.size() == kMaxParameters) {
      return absl::InvalidArgumentError(absl::StrCat("the query has more than ", kMaxParameters, " parameters"));
    }
    const std::vector<absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    auto& [name, value] = parameters.emplace_back();
    if (!PercentDecode(sides[0], true, &name) || (sides.size() == 2 && !PercentDecode(sides[1], true, &value))) {
      return absl::InvalidArgumentError("the query has a malformed %-escape");
    }
  }
  return parameters;
}

absl::StatusOr<std::string> QueryToMessage(const Descriptor* type, const HttpFields& parameters) {
  if (parameters.empty()) return "";
  ASSIGN_OR_RETURN(const std::string json, ObjectOf(type, parameters));
  return Convert(type, json);
}

}  // namespace sparseagg::service
