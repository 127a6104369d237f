#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "service/gateway/http_message.h"
#include "service/gateway/router.h"
#include "service/gateway/static_files.h"
#include "service/version.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kDescriptorSet = "/sparseagg.binpb";

template <typename Element>
std::string CommentOf(const Element* element) {
  google::protobuf::SourceLocation place;
  if (element == nullptr || !element->GetSourceLocation(&place)) return "";
  std::string text = absl::StrCat(place.leading_comments, place.trailing_comments);
  absl::RemoveExtraAsciiWhitespace(&text);
  return text;
}

// Reads the descriptor set that the build puts into the program: protoc leaves comments out of generated code. `Of`
// returns the comment before an element, or behind it on its line, as one line of text; empty if there is none.
class ProtoComments {
 public:
  ProtoComments();

  std::string Of(const google::protobuf::Descriptor* message) const;
  std::string Of(const google::protobuf::FieldDescriptor* field) const;
  std::string Of(const google::protobuf::MethodDescriptor* method) const;

 private:
  google::protobuf::DescriptorPool pool_;
};

ProtoComments::ProtoComments() {
  google::protobuf::FileDescriptorSet set;
  for (const StaticFile& file : StaticFiles()) {
    if (file.path == kDescriptorSet) set.ParseFromArray(file.content.data(), static_cast<int>(file.content.size()));
  }
  for (const google::protobuf::FileDescriptorProto& file : set.file()) pool_.BuildFile(file);
}

std::string ProtoComments::Of(const google::protobuf::Descriptor* message) const {
  return CommentOf(pool_.FindMessageTypeByName(message->full_name()));
}

std::string ProtoComments::Of(const google::protobuf::FieldDescriptor* field) const {
  return CommentOf(pool_.FindFieldByName(field->full_name()));
}

std::string ProtoComments::Of(const google::protobuf::MethodDescriptor* method) const {
  return CommentOf(pool_.FindMethodByName(method->full_name()));
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr char kErrorResponse[] =
    R"("default":{"description":"An error, with the code and the text of gRPC","content":{"application/problem+json":)"
    R"({"schema":{"$ref":"#/components/schemas/Problem"}}}})";
constexpr char kProblemSchema[] =
    R"("Problem":{"type":"object","required":["title","status","code","detail"],"properties":{"type":{"type":"string"},)"
    R"("title":{"type":"string"},"status":{"type":"integer"},"code":{"type":"string"},"detail":{"type":"string"},)"
    R"("reason":{"type":"string"},"metadata":{"type":"object","additionalProperties":{"type":"string"}},)"
    R"("retryDelayMs":{"type":"integer"}}})";
// The sizes that a description of a bulk body needs besides the fields of TensorSlice.
constexpr char kKeyBytes[] =
    R"({"name":"key_bytes","in":"query","description":"application/octet-stream: bytes of keys at the start of the )"
    R"(body; the values follow","schema":{"type":"integer","minimum":0}})";

constexpr char kNumbers[] =
    R"({"name":"numbers","in":"query","description":"application/json: keys, values, counts, weights and moments are )"
    R"(lists of numbers in place of base64; the encoding of values is a dtype","schema":{"type":"boolean"}})";

// Of ids in paths; see CheckName.
constexpr char kNameSchema[] = R"({"type":"string","pattern":"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"})";

// Returns: the member "description" and a comma, or nothing if there is no text.
std::string Description(const std::string& text) {
  return text.empty() ? "" : absl::StrCat(R"("description":)", JsonQuote(text), ",");
}

// Returns: `schema` with a description. Beside a reference OpenAPI 3.0 ignores all else, so that such a one is wrapped.
std::string Described(const std::string& schema, const std::string& text) {
  if (text.empty()) return schema;
  if (absl::StartsWith(schema, "{\"$ref\"")) return absl::StrCat("{", Description(text), R"("allOf":[)", schema, "]}");
  return absl::StrCat("{", Description(text), schema.substr(1));
}

// Schemas of messages, by name, as they are needed.
class Schemas {
 public:
  const ProtoComments& comments() const { return comments_; }

  // Returns: a reference to the schema of a message, and adds that to the list.
  std::string Reference(const Descriptor* type) {
    if (schemas_.count(type->name()) == 0) {
      schemas_[type->name()];  // a message may contain itself
      schemas_[type->name()] = ObjectSchema(type);
    }
    return absl::StrCat("{\"$ref\":\"#/components/schemas/", type->name(), "\"}");
  }

  // Returns: the schema of a field.
  std::string Field(const FieldDescriptor* field) {
    if (field->is_map()) {
      return absl::StrCat(R"({"type":"object","additionalProperties":)", Element(field->message_type()->map_value()),
                          "}");
    }
    const std::string element = Element(field);
    return field->is_repeated() ? absl::StrCat(R"({"type":"array","items":)", element, "}") : element;
  }

  // Returns: the schema of a field's values, or of one element of a list.
  std::string Element(const FieldDescriptor* field) {
    switch (field->type()) {
      case FieldDescriptor::TYPE_BOOL:
        return R"({"type":"boolean"})";
      case FieldDescriptor::TYPE_INT32:
        return R"({"type":"integer","format":"int32"})";
      case FieldDescriptor::TYPE_UINT32:
        return R"({"type":"integer","format":"int64","minimum":0})";
      case FieldDescriptor::TYPE_INT64:
        return R"({"type":"string","format":"int64"})";
      case FieldDescriptor::TYPE_UINT64:
        return R"({"type":"string","format":"uint64"})";
      case FieldDescriptor::TYPE_DOUBLE:
        return R"({"type":"number","format":"double"})";
      case FieldDescriptor::TYPE_BYTES:
        return R"({"type":"string","format":"byte"})";
      case FieldDescriptor::TYPE_ENUM: {
        std::vector<std::string> names;
        names.reserve(field->enum_type()->value_count());
        for (int i = 0; i < field->enum_type()->value_count(); ++i) {
          names.push_back(JsonQuote(field->enum_type()->value(i)->name()));
        }
        return absl::StrCat(R"({"type":"string","enum":[)", absl::StrJoin(names, ","), "]}");
      }
      case FieldDescriptor::TYPE_MESSAGE: {
        const std::string& name = field->message_type()->full_name();
        if (name == "google.protobuf.Timestamp") return R"({"type":"string","format":"date-time"})";
        if (name == "google.protobuf.Duration") return R"({"type":"string","example":"1.5s"})";
        return Reference(field->message_type());
      }
      default:
        return R"({"type":"string"})";
    }
  }

  std::string ToJson() const {
    std::vector<std::string> members = {kProblemSchema};
    for (const auto& [name, schema] : schemas_) members.push_back(absl::StrCat("\"", name, "\":", schema));
    return absl::StrCat("{", absl::StrJoin(members, ","), "}");
  }

 private:
  std::string ObjectSchema(const Descriptor* type) {
    std::vector<std::string> members;
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* const field = type->field(i);
      members.push_back(absl::StrCat("\"", field->json_name(), "\":", Described(Field(field), comments_.Of(field))));
    }
    return absl::StrCat("{", Description(comments_.Of(type)), R"("type":"object","properties":{)",
                        absl::StrJoin(members, ","), "}}");
  }

  const ProtoComments comments_;
  std::map<std::string, std::string> schemas_;
};

std::string Parameter(absl::string_view name, absl::string_view in, bool required, absl::string_view schema,
                      const std::string& text = "") {
  return absl::StrCat("{", Description(text), R"("name":")", name, R"(","in":")", in, R"(","required":)",
                      required ? "true" : "false", R"(,"schema":)", schema, "}");
}

// Adds the parameters for the fields of `type` that a query can have. `text`: in front of their descriptions.
void AddQuery(const Descriptor* type, const Route& route, absl::string_view prefix, Schemas& schemas,
              std::vector<std::string>* parameters, absl::string_view text = "") {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (prefix.empty() && (field->name() == VariableOf(route) || IsInBulkBody(field))) continue;
    const bool is_plain =
        field->type() != FieldDescriptor::TYPE_MESSAGE || field->message_type()->file()->package() == "google.protobuf";
    if (is_plain) {
      parameters->push_back(Parameter(absl::StrCat(prefix, field->name()), "query", false, schemas.Field(field),
                                      absl::StrCat(text, schemas.comments().Of(field))));
    } else if (!field->is_repeated()) {
      AddQuery(field->message_type(), route, absl::StrCat(prefix, field->name(), "."), schemas, parameters);
    }
  }
}

std::string Content(absl::string_view schema, bool has_bulk) {
  return absl::StrCat(R"({"application/json":{"schema":)", schema,
                      R"(},"application/x-protobuf":{"schema":{"type":"string","format":"binary"}})",
                      has_bulk ? R"(,"application/octet-stream":{"schema":{"type":"string","format":"binary"}})" : "",
                      "}");
}

std::string Operation(const Route& route, Schemas& schemas) {
  const google::protobuf::MethodDescriptor* const method = DescriptorOf(route.method);
  const bool has_body = route.verb == "POST";
  std::vector<std::string> parameters;
  if (const absl::string_view name = VariableOf(route); !name.empty()) {
    parameters.push_back(Parameter(name, "path", true, kNameSchema));
  }
  const bool has_bulk = route.method == Method::kPutChunk;
  const bool has_page = route.method == Method::kGetResult || route.method == Method::kReadRows;
  if (!has_body || has_bulk) AddQuery(method->input_type(), route, "", schemas, &parameters);
  if (has_bulk) {
    AddQuery(v1::TensorSlice::descriptor(), route, "", schemas, &parameters, "application/octet-stream: ");
    parameters.emplace_back(kKeyBytes);
  }
  if (HasColumns(route.method)) parameters.emplace_back(kNumbers);
  std::string body;
  if (has_body) {
    body = absl::StrCat(R"(,"requestBody":{"required":)", route.is_body_optional ? "false" : "true", R"(,"content":)",
                        Content(schemas.Reference(method->input_type()), has_bulk), "}");
  }
  return absl::StrCat("\"", absl::AsciiStrToLower(route.verb), R"(":{"operationId":")", method->name(),
                      R"(","summary":)", JsonQuote(route.summary), ",", Description(schemas.comments().Of(method)),
                      R"("parameters":[)", absl::StrJoin(parameters, ","), "]", body,
                      R"(,"responses":{"200":{"description":"OK","content":)",
                      Content(schemas.Reference(method->output_type()), has_page), "},", kErrorResponse, "}}");
}

}  // namespace

const std::string& OpenApiDescription() {
  static const std::string& description = *[] {
    Schemas schemas;
    std::map<absl::string_view, std::vector<std::string>> paths;
    for (const Route& route : Routes()) paths[route.path].push_back(Operation(route, schemas));
    std::vector<std::string> members;
    members.reserve(paths.size());
    for (const auto& [path, operations] : paths) {
      members.push_back(absl::StrCat("\"", path, "\":{", absl::StrJoin(operations, ","), "}"));
    }
    return new std::string(absl::StrCat(
        R"({"openapi":"3.0.3","info":{"title":"sparseagg","version":")", kVersion,
        R"(","description":"The unary API of sparseagg over HTTP. The messages are those of proto/sparseagg/v1."},)",
        R"("security":[{},{"bearer":[]}],"paths":{)", absl::StrJoin(members, ","),
        R"(},"components":{"securitySchemes":{"bearer":{"type":"http","scheme":"bearer"}},"schemas":)",
        schemas.ToJson(), "}}\n"));
  }();
  return description;
}

}  // namespace sparseagg::service
