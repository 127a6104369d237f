#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/sliced_message.h"
#include "service/gateway/http_message.h"
#include "service/gateway/json.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::service {
namespace {

constexpr size_t kAlignment = 8;

}  // namespace

bool IsInBulkBody(const google::protobuf::FieldDescriptor* field) {
  return field->containing_type() == v1::TensorSlice::descriptor() &&
         (field->number() == v1::TensorSlice::kKeysFieldNumber ||
          field->number() == v1::TensorSlice::kValuesFieldNumber);
}

absl::StatusOr<absl::Cord> BulkToChunk(const HttpFields& parameters, const absl::Cord& body) {
  HttpFields of_chunk;
  HttpFields of_slice;
  uint64_t key_bytes = 0;
  bool has_key_bytes = false;
  for (const auto& [name, value] : parameters) {
    if (name == "key_bytes" || name == "keyBytes") {
      if (std::exchange(has_key_bytes, true)) return absl::InvalidArgumentError("'key_bytes' occurs 2 times");
      if (!absl::SimpleAtoi(value, &key_bytes) || key_bytes > body.size()) {
        return absl::InvalidArgumentError(absl::StrCat("key_bytes ", JsonQuote(value.substr(0, 32)),
                                                       " is not a number up to the ", body.size(),
                                                       " bytes of the body"));
      }
    } else if (const auto* const field = FindField(v1::TensorSlice::descriptor(), name); field != nullptr) {
      if (IsInBulkBody(field)) {
        return absl::InvalidArgumentError(absl::StrCat("'", name, "' is in the body, and not for the query"));
      }
      of_slice.emplace_back(name, value);
    } else {
      of_chunk.emplace_back(name, value);
    }
  }
  ASSIGN_OR_RETURN(std::string chunk, QueryToMessage(v1::UpdateChunk::descriptor(), of_chunk));
  if (body.empty() && of_slice.empty()) return absl::Cord(std::move(chunk));  // a last chunk without tuples
  ASSIGN_OR_RETURN(std::string slice, QueryToMessage(v1::TensorSlice::descriptor(), of_slice));
  const uint64_t value_bytes = body.size() - key_bytes;
  slice += WireFieldHead(v1::TensorSlice::kKeysFieldNumber, key_bytes);
  const std::string values_head = WireFieldHead(v1::TensorSlice::kValuesFieldNumber, value_bytes);
  chunk +=
      WireFieldHead(v1::UpdateChunk::kSlicesFieldNumber, slice.size() + key_bytes + values_head.size() + value_bytes);
  absl::Cord message(chunk + slice);
  message.Append(body.Subcord(0, key_bytes));
  message.Append(values_head);
  message.Append(body.Subcord(key_bytes, value_bytes));
  return message;
}

namespace {

// Returns: a body of the message without its sections, and these.
absl::StatusOr<std::vector<std::string>> MakeBulk(const google::protobuf::Message& page,
                                                  std::vector<std::string> sections) {
  ASSIGN_OR_RETURN(const std::string json, MessageToJson(page.GetDescriptor(), page.SerializeAsString()));
  std::string header = "{\"sections\":[";
  for (size_t i = 0; i < sections.size(); ++i) absl::StrAppend(&header, i == 0 ? "" : ",", sections[i].size());
  absl::StrAppend(&header, "],\"page\":", json, "}");
  while ((sizeof(uint32_t) + header.size()) % kAlignment != 0) header += ' ';
  const auto size = static_cast<uint32_t>(header.size());
  header.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
  sections.insert(sections.begin(), std::move(header));
  return sections;
}

std::vector<std::string> TakeSlice(v1::TensorSlice& slice) {
  std::vector<std::string> sections = {std::move(*slice.mutable_keys()), std::move(*slice.mutable_values())};
  slice.clear_keys();
  slice.clear_values();
  return sections;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PageToBulk(const google::protobuf::Descriptor* type, const std::string& page) {
  if (type == v1::RowsPage::descriptor()) {
    v1::RowsPage rows;
    if (!rows.ParseFromString(page)) return absl::InternalError("a page of rows cannot be parsed");
    std::vector<std::string> sections = TakeSlice(*rows.mutable_slice());
    return MakeBulk(rows, std::move(sections));
  }
  v1::ResultPage parsed;
  if (!parsed.ParseFromString(page)) return absl::InternalError("a result page cannot be parsed");
  std::vector<std::string> sections = TakeSlice(*parsed.mutable_slice());
  sections.push_back(std::move(*parsed.mutable_counts()));
  sections.push_back(std::move(*parsed.mutable_weights()));
  if (!parsed.moments().empty()) sections.push_back(std::move(*parsed.mutable_moments()));
  parsed.clear_counts();
  parsed.clear_weights();
  parsed.clear_moments();
  return MakeBulk(parsed, std::move(sections));
}

}  // namespace sparseagg::service
