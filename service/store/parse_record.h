// The parser of all records.
#ifndef SPARSEAGG_SERVICE_STORE_PARSE_RECORD_H_
#define SPARSEAGG_SERVICE_STORE_PARSE_RECORD_H_

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Errors: DATA_LOSS: the bytes are not a `Message`.
template <typename Message>
absl::StatusOr<Message> ParseRecord(absl::string_view bytes) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return message;
  return absl::DataLossError(
      absl::StrCat("a record of ", bytes.size(), " bytes is not a ", Message::descriptor()->full_name()));
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_PARSE_RECORD_H_
