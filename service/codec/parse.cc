#include "service/codec/parse.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <climits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/codec/cluster_codec.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/tasks.pb.h"

namespace sparseagg::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Reads a cord, which must outlive it. Remove with: protobuf 22, whose io::CordInputStream does this.
class CordReader final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit CordReader(const absl::Cord& cord) : chunks_(cord.Chunks()), next_(chunks_.begin()) {}

  bool Next(const void** data, int* size) override {
    if (left_.empty()) {
      if (next_ == chunks_.end()) return false;
      left_ = *next_++;
    }
    last_ = left_.substr(0, INT_MAX);
    left_.remove_prefix(last_.size());
    *data = last_.data();
    *size = static_cast<int>(last_.size());
    count_ += *size;
    return true;
  }
  void BackUp(int count) override {
    left_ = {last_.data() + last_.size() - count, left_.size() + static_cast<size_t>(count)};
    count_ -= count;
  }
  bool Skip(int count) override {
    const void* data;
    int size = 0;
    for (; count > 0; count -= size) {
      if (!Next(&data, &size)) return false;
    }
    BackUp(-count);
    return true;
  }
  int64_t ByteCount() const override { return count_; }

 private:
  const absl::Cord::ChunkRange chunks_;
  absl::Cord::ChunkIterator next_;
  absl::string_view last_;  // of Next
  absl::string_view left_;  // of its chunk, behind last_
  int64_t count_ = 0;
};

// Of a list of tasks: 30 for each, with all its labels, of up to 1000, and some of the list.
constexpr uint64_t kMaxTaskListFields = 32'000;

// Sizes that bound the memory of a parsed message, in addition to its bytes. A tensor of two bytes on the wire takes
// two hundred bytes once parsed, and an unknown field takes sixty.
struct Counts {
  uint64_t fields = 0;
  uint64_t listed = 0;   // tensors, or names of tensors
  uint64_t servers = 0;  // of a cluster
};

// Returns: false if the bytes are not a message. Only unknown fields can be groups; fields in a group count, too.
bool Count(const Descriptor* message, CodedInputStream& in, Counts* counts) {
  int groups = 0;  // depth of the current group
  while (const uint32_t tag = in.ReadTag()) {
    ++counts->fields;
    const WireFormatLite::WireType type = WireFormatLite::GetTagWireType(tag);
    if (type == WireFormatLite::WIRETYPE_START_GROUP) ++groups;
    if (type == WireFormatLite::WIRETYPE_END_GROUP) --groups;
    if (type == WireFormatLite::WIRETYPE_START_GROUP || type == WireFormatLite::WIRETYPE_END_GROUP) continue;
    const FieldDescriptor* const field = groups > 0 || type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED
                                             ? nullptr
                                             : message->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int size;
    if (!in.ReadVarintSizeAsInt(&size)) return false;
    if (field->is_packable()) counts->fields += static_cast<uint64_t>(size);  // each takes at least a byte
    const bool is_server = field->message_type() == v1::HomeServer::descriptor();
    if (field->is_repeated() && !field->is_packable()) ++(is_server ? counts->servers : counts->listed);
    if (field->message_type() == nullptr) {
      if (!in.Skip(size)) return false;
      continue;
    }
    const CodedInputStream::Limit limit = in.PushLimit(size);
    if (!Count(field->message_type(), in, counts)) return false;
    if (!in.CheckEntireMessageConsumedAndPopLimit(limit)) return false;
  }
  return true;
}

// Returns: whether unknown fields of the message are harmless: the message only asks for what the answer describes by
// itself, or says what its reader can read.
bool IsTolerant(const Descriptor* message) {
  // Never freed, as the descriptors.
  static const auto& tolerant = *new std::set<const Descriptor*>{v1::GetServerInfoRequest::descriptor(),
                                                                 v1::GetRoundRequest::descriptor(),
                                                                 v1::ListRoundsRequest::descriptor(),
                                                                 v1::WaitRoundRequest::descriptor(),
                                                                 v1::GetUploadStatusRequest::descriptor(),
                                                                 v1::ListSubmissionsRequest::descriptor(),
                                                                 v1::GetTaskRequest::descriptor(),
                                                                 v1::ListTasksRequest::descriptor(),
                                                                 v1::ResultFormat::descriptor()};
  return tolerant.count(message) > 0;
}

// Finds the first message with unknown fields in `message`.
// Returns: the numbers of those fields, none without such a message; and adds its place in `message` to `path`.
std::set<int> FindUnknown(const Message& message, std::string* path) {
  const Descriptor* const type = message.GetDescriptor();
  if (IsTolerant(type)) return {};
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  std::set<int> numbers;
  for (int i = 0; i < unknown.field_count(); ++i) numbers.insert(unknown.field(i).number());
  for (int i = 0; numbers.empty() && i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool is_list = field->is_repeated();
    const int count = is_list ? reflection.FieldSize(message, field) : reflection.HasField(message, field) ? 1 : 0;
    for (int k = 0; numbers.empty() && k < count; ++k) {
      numbers = FindUnknown(
          is_list ? reflection.GetRepeatedMessage(message, field, k) : reflection.GetMessage(message, field), path);
      if (numbers.empty()) continue;
      *path = absl::StrCat(field->name(), is_list ? absl::StrCat("[", k, "]") : "", path->empty() ? "" : ".", *path);
    }
  }
  return numbers;
}

}  // namespace

std::string FindUnknownFields(const Message& message) {
  std::string path;
  const std::set<int> numbers = FindUnknown(message, &path);
  if (numbers.empty()) return "";
  return absl::StrCat("unknown field", numbers.size() > 1 ? "s " : " ", absl::StrJoin(numbers, ", "), " in ", path,
                      path.empty() ? "" : " of ", message.GetDescriptor()->name());
}

absl::Status OlderThanTheClient(absl::string_view unknown_fields) {
  return absl::InvalidArgumentError(absl::StrCat(unknown_fields, ": this server is older than the client"));
}

absl::Status Malformed(const Descriptor* message) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a valid ", message->name(), ": malformed, or with a string that is not UTF-8"));
}

absl::Status Parse(const absl::Cord& bytes, google::protobuf::Message* message) {
  CordReader reader(bytes);
  if (!message->ParseFromZeroCopyStream(&reader)) return Malformed(message->GetDescriptor());
  const std::string unknown = FindUnknownFields(*message);
  return unknown.empty() ? absl::OkStatus() : OlderThanTheClient(unknown);
}

absl::Status ParseNames(const absl::Cord& bytes, google::protobuf::Message* message) {
  return ParseUpTo(bytes, kMaxNamesBytes, message);
}

absl::Status ParseUpTo(const absl::Cord& bytes, uint64_t max_bytes, google::protobuf::Message* message) {
  if (bytes.size() <= max_bytes) return Parse(bytes, message);
  return absl::ResourceExhaustedError(absl::StrCat("a ", message->GetDescriptor()->name(), " of ", bytes.size(),
                                                   " bytes is beyond the limit of ", max_bytes, " bytes"));
}

absl::Status ParseTaskList(const absl::Cord& bytes, google::protobuf::Message* message) {
  CordReader reader(bytes);
  CodedInputStream in(&reader);
  Counts counts;
  if (!Count(message->GetDescriptor(), in, &counts) || !in.ConsumedEntireMessage()) {
    return Malformed(message->GetDescriptor());
  }
  if (counts.fields <= kMaxTaskListFields) return Parse(bytes, message);
  return absl::ResourceExhaustedError(absl::StrCat("a ", message->GetDescriptor()->name(), " of ", counts.fields,
                                                   " fields is beyond the limit of ", kMaxTaskListFields, " fields"));
}

absl::Status ParseIdList(const absl::Cord& bytes, const Limits& limits, google::protobuf::Message* message) {
  if (bytes.size() <= kMaxNamesBytes) return Parse(bytes, message);
  const absl::string_view name = message->GetDescriptor()->name();
  if (limits.max_message_bytes != 0 && bytes.size() > limits.max_message_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a ", name, " of ", bytes.size(), " bytes exceeds the server's max_message_bytes ", limits.max_message_bytes));
  }
  CordReader reader(bytes);
  CodedInputStream in(&reader);
  Counts counts;
  if (!Count(message->GetDescriptor(), in, &counts) || !in.ConsumedEntireMessage()) {
    return Malformed(message->GetDescriptor());
  }
  // Unknown fields take as much memory as ids.
  const uint64_t most = MaxListedIds(limits);
  if (most == 0 || counts.fields <= most) return Parse(bytes, message);
  return absl::ResourceExhaustedError(absl::StrCat("a ", name, " of ", counts.fields, " ids is beyond the limit of ",
                                                   most, " that the server's memory limit sets"));
}

absl::Status ParseSpec(const absl::Cord& bytes, const Limits& limits, google::protobuf::Message* message) {
  CordReader reader(bytes);
  RETURN_IF_ERROR(CheckSpec(message->GetDescriptor(), bytes.size(), &reader, limits));
  return Parse(bytes, message);
}

absl::Status CheckSpec(const Descriptor* message, uint64_t size, google::protobuf::io::ZeroCopyInputStream* bytes,
                       const Limits& limits) {
  if (limits.max_tensors == 0) return absl::OkStatus();
  const auto beyond = [&](uint64_t number, uint64_t most, absl::string_view of) {
    return absl::ResourceExhaustedError(absl::StrCat("a ", message->name(), " of ", number, " ", of, " is beyond the ",
                                                     most, " ", of, " that max_tensors ", limits.max_tensors,
                                                     " tensors may take"));
  };
  if (size > MaxSpecBytes(limits)) return beyond(size, MaxSpecBytes(limits), "bytes");
  Counts counts;
  CodedInputStream in(bytes);
  if (!Count(message, in, &counts) || !in.ConsumedEntireMessage()) return Malformed(message);
  if (counts.listed > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat(counts.listed, " tensors are beyond the server's max_tensors ", limits.max_tensors));
  }
  if (counts.servers > kMaxServers) return ServersError(counts.servers);
  // Each server has itself and three fields.
  counts.fields -= std::min(counts.fields, 4 * counts.servers);
  if (counts.fields > MaxSpecFields(limits)) return beyond(counts.fields, MaxSpecFields(limits), "fields");
  return absl::OkStatus();
}

absl::Status Serialize(const google::protobuf::Message& message, std::string* bytes) {
  return message.SerializeToString(bytes) ? absl::OkStatus()
                                          : absl::InternalError("the response could not be serialized");
}

}  // namespace sparseagg::service
