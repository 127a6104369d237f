// Deterministic CBOR (RFC 8949, 4.2.1) of the few types that certificates hash.
#ifndef SPARSEAGG_SERVICE_CERTIFICATES_CBOR_H_
#define SPARSEAGG_SERVICE_CERTIFICATES_CBOR_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sparseagg::service::cbor {

// Each appends one item to `*out`; AppendArray the head of an array, whose items follow.
void AppendUint(uint64_t value, std::string* out);
void AppendBytes(absl::string_view bytes, std::string* out);
void AppendText(absl::string_view utf8, std::string* out);
void AppendArray(uint64_t num_items, std::string* out);
void AppendBool(bool value, std::string* out);
void AppendNull(std::string* out);
// Uses the shortest of float16, float32 and float64 that has the value.
void AppendFloat(double value, std::string* out);

}  // namespace sparseagg::service::cbor

#endif  // SPARSEAGG_SERVICE_CERTIFICATES_CBOR_H_
