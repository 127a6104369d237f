// Decoder of model specs, and encoders of models and of pages of rows.
#ifndef SPARSEAGG_SERVICE_CODEC_MODEL_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_MODEL_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "host/model/model.h"
#include "service/base/limits.h"
#include "service/codec/page_format.h"
#include "service/codec/spec_codec.h"
#include "service/models/served_model.h"

namespace sparseagg::v1 {
class CreateModelRequest;
class Model;
class ModelTensor;
class ModelVersion;
class OptimizerSpec;
class RowsPage;
class TensorSlice;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// Of models: "models/ID".
inline constexpr char kModelPrefix[] = "models/";
std::string ModelName(absl::string_view id);
// Errors: INVALID_ARGUMENT: not a model name.
absl::StatusOr<std::string> ParseModelName(absl::string_view name);

// Resolves defaults and checks all fields (Validate), and max_tensors and max_row_width. `source`: kStore: the limits
// of today do not apply. Errors: INVALID_ARGUMENT; RESOURCE_EXHAUSTED: a limit; both name tensor and field.
absl::StatusOr<ModelConfig> DecodeCreateModel(const v1::CreateModelRequest& wire, const Limits& limits,
                                              SpecSource source);
// The next two also for the Python extension. `tensor`: for the error; may be empty.
absl::StatusOr<ModelTensorSpec> DecodeModelTensor(const v1::ModelTensor& wire, const OptimizerSpec* of_model);
absl::StatusOr<OptimizerSpec> DecodeOptimizer(const v1::OptimizerSpec& wire, absl::string_view tensor);

// The most keys of one read.
inline constexpr uint64_t kMaxReadKeys = 16384;
// The most bytes of a ReadRowsRequest: kMaxReadKeys keys of 8 bytes, and names.
inline constexpr uint64_t kMaxReadRequestBytes = 8 * kMaxReadKeys + 4096;
// Returns: the keys of a request. Errors: INVALID_ARGUMENT: an encoding that is unknown or does not match its lengths,
// or a slice with a tensor, values or claims. RESOURCE_EXHAUSTED: more than kMaxReadKeys.
absl::StatusOr<Column<uint64_t>> DecodeReadKeys(const v1::TensorSlice& wire);
// Checks a read against the policy: kBlocks: `keys` is IMPLICIT and a whole block, or a range with bounds of blocks;
// kWhole: a range of all keys. Errors: FAILED_PRECONDITION: names policy and block_rows.
struct ReadShape {
  bool has_keys = false;
  bool is_implicit = false;
  uint64_t begin = 0;  // first key, of IMPLICIT keys or of the range
  uint64_t end = 0;    // behind the last one; 0: all
};
absl::Status CheckReads(ReadsPolicy policy, const ModelTensorSpec& tensor, const ReadShape& shape);

// `versions`: whether the versions are encoded, too.
void EncodeModel(const ServedModel& model, bool versions, v1::Model* wire);
// Returns: about the most bytes of the message that EncodeModel writes.
uint64_t MostModelBytes(const ServedModel& model, bool versions);
void EncodeModelVersion(const ModelVersion& version, v1::ModelVersion* wire);
// All but the page token.
void EncodeRows(const ModelRows& rows, const PageFormat& format, v1::RowsPage* wire);
// Returns: the most bytes of a page of so many keys. Saturates.
uint64_t MostRowsBytes(const ModelTensorSpec& tensor, uint64_t num_keys);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_MODEL_CODEC_H_
