#include "service/gateway/proto_comments.h"

#include <google/protobuf/descriptor.pb.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/gateway/static_files.h"

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

}  // namespace

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

}  // namespace sparseagg::service
