// The comments of proto/, for descriptions of the API.
#ifndef SPARSEAGG_SERVICE_GATEWAY_PROTO_COMMENTS_H_
#define SPARSEAGG_SERVICE_GATEWAY_PROTO_COMMENTS_H_

#include <google/protobuf/descriptor.h>

#include <string>

namespace sparseagg::service {

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

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_PROTO_COMMENTS_H_
