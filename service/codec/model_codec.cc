#include "service/codec/model_codec.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/spec/validate.h"
#include "host/wire/delta_keys.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::service {
namespace {

// About the most bytes of the message of a model without its spec and versions, of one tensor in it, and of one
// version.
constexpr uint64_t kModelBytes = 1024;
constexpr uint64_t kTensorBytes = 256;
constexpr uint64_t kVersionBytes = 768;

static_assert(static_cast<int>(InitKind::kNormal) == v1::INIT_KIND_NORMAL - 1);
static_assert(static_cast<int>(OptimizerKind::kSgd) == v1::OPTIMIZER_KIND_SGD - 1 &&
              static_cast<int>(OptimizerKind::kFedAdam) == v1::OPTIMIZER_KIND_FEDADAM - 1 &&
              static_cast<int>(OptimizerKind::kAssign) == v1::OPTIMIZER_KIND_ASSIGN - 1);
static_assert(static_cast<int>(ReadsPolicy::kWhole) == v1::READS_POLICY_WHOLE);

absl::Status InTensor(absl::string_view tensor, const absl::Status& status) {
  if (status.ok() || tensor.empty()) return status;
  return absl::Status(status.code(), absl::StrCat("tensor '", tensor, "': ", status.message()));
}

bool IsSummed(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

absl::StatusOr<InitSpec> DecodeInit(const v1::InitSpec& wire) {
  RETURN_IF_ERROR(CheckKnown(wire.kind(), "init.kind"));
  return InitSpec{static_cast<InitKind>(std::max(0, wire.kind() - 1)), wire.scale(), wire.seed()};
}

// Decodes an optimizer. `kind`: of the message, resolved.
absl::StatusOr<OptimizerSpec> DecodeOptimizer(const v1::OptimizerSpec& wire, OptimizerKind kind,
                                              absl::string_view tensor) {
  RETURN_IF_ERROR(InTensor(tensor, CheckKnown(wire.kind(), "optimizer.kind")));
  OptimizerSpec spec = DefaultOptimizer(kind);
  const bool has_beta_2 = kind == OptimizerKind::kFedAdam || kind == OptimizerKind::kFedYogi;
  const bool assigns = kind == OptimizerKind::kAssign;
  const struct {
    const char* name;
    bool is_set;
    bool has_option;
  } options[] = {{"learning_rate", wire.has_learning_rate(), !assigns},
                 {"momentum", wire.has_momentum(), kind == OptimizerKind::kFedAvgM},
                 {"beta_1", wire.has_beta_1(), spec.IsAdaptive()},
                 {"beta_2", wire.has_beta_2(), has_beta_2},
                 {"tau", wire.has_tau(), spec.IsAdaptive()},
                 {"bias_correction", wire.has_bias_correction(), kind == OptimizerKind::kFedAdam},
                 {"gradients", wire.gradients(), !assigns}};
  for (const auto& option : options) {
    if (!option.is_set || option.has_option) continue;
    const auto number = static_cast<v1::OptimizerKind>(static_cast<int>(kind) + 1);
    return InTensor(tensor, absl::InvalidArgumentError(absl::StrCat("optimizer.", option.name, " is set, but ",
                                                                    v1::OptimizerKind_Name(number), " has none")));
  }
  if (wire.has_learning_rate()) spec.learning_rate = wire.learning_rate();
  if (wire.has_momentum()) spec.momentum = wire.momentum();
  if (wire.has_beta_1()) spec.beta_1 = wire.beta_1();
  if (wire.has_beta_2()) spec.beta_2 = wire.beta_2();
  if (wire.has_tau()) spec.tau = wire.tau();
  if (wire.has_bias_correction()) spec.bias_correction = wire.bias_correction();
  spec.gradients = wire.gradients();
  RETURN_IF_ERROR(Validate(spec, tensor));
  return spec;
}

OptimizerKind KindOf(const v1::OptimizerSpec& wire, OptimizerKind default_kind) {
  return wire.kind() == 0 ? default_kind : static_cast<OptimizerKind>(wire.kind() - 1);
}

}  // namespace

std::string ModelName(absl::string_view id) { return absl::StrCat(kModelPrefix, id); }

absl::StatusOr<std::string> ParseModelName(absl::string_view name) {
  absl::string_view id = name;
  if (!absl::ConsumePrefix(&id, kModelPrefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name ", QuotedId(name), " is not a model name; model names are models/ID"));
  }
  RETURN_IF_ERROR(CheckName(id, "model_id"));
  return std::string(id);
}

absl::StatusOr<OptimizerSpec> DecodeOptimizer(const v1::OptimizerSpec& wire, absl::string_view tensor) {
  return DecodeOptimizer(wire, KindOf(wire, OptimizerKind::kSgd), tensor);
}

absl::StatusOr<ModelTensorSpec> DecodeModelTensor(const v1::ModelTensor& wire, const OptimizerSpec* of_model) {
  ModelTensorSpec spec;
  spec.name = wire.name();
  RETURN_IF_ERROR(InTensor(wire.name(), CheckKnown(wire.dtype(), "dtype")));
  const std::optional<DType> dtype = DecodeDType(wire.dtype());
  if (!dtype.has_value()) return InTensor(wire.name(), absl::InvalidArgumentError("dtype is missing"));
  spec.dtype = *dtype;
  spec.num_rows = wire.num_rows();
  spec.row_width = wire.row_width() == 0 ? 1 : wire.row_width();
  if (wire.has_shape()) {
    TensorSpec shaped;
    shaped.name = spec.name;
    shaped.num_rows = spec.num_rows;
    shaped.row_width = spec.row_width;
    RETURN_IF_ERROR(CheckShape(
        absl::MakeConstSpan(wire.shape().sizes().data(), static_cast<size_t>(wire.shape().sizes_size())), shaped));
  }
  absl::StatusOr<InitSpec> init = DecodeInit(wire.init());
  RETURN_IF_ERROR(InTensor(wire.name(), init.status()));
  spec.init = *init;
  const OptimizerKind default_kind = IsSummed(spec.dtype) ? OptimizerKind::kSgd : OptimizerKind::kAssign;
  if (wire.has_optimizer() || of_model == nullptr) {
    ASSIGN_OR_RETURN(spec.optimizer,
                     DecodeOptimizer(wire.optimizer(), KindOf(wire.optimizer(), default_kind), wire.name()));
  } else {
    spec.optimizer = *of_model;
  }
  spec.expire_after = wire.expire_after();
  spec.max_rows = wire.max_rows();
  return spec;
}

absl::StatusOr<ModelConfig> DecodeCreateModel(const v1::CreateModelRequest& wire, const Limits& limits,
                                              SpecSource source) {
  ModelConfig config;
  const v1::ModelSpec& spec = wire.spec();
  if (!wire.model_id().empty()) RETURN_IF_ERROR(CheckName(wire.model_id(), "model_id"));
  config.id = wire.model_id();
  const bool has_limits = source == SpecSource::kClient;
  if (has_limits && limits.max_tensors != 0 && static_cast<uint64_t>(spec.tensors_size()) > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat(spec.tensors_size(), " tensors are beyond the server's max_tensors ", limits.max_tensors));
  }
  RETURN_IF_ERROR(CheckKnown(spec.reads(), "reads"));
  std::optional<OptimizerSpec> optimizer;
  if (spec.has_optimizer()) {
    ASSIGN_OR_RETURN(optimizer, DecodeOptimizer(spec.optimizer(), ""));
  }
  for (const v1::ModelTensor& tensor : spec.tensors()) {
    // An optimizer without a kind is one of sums.
    const std::optional<DType> dtype = DecodeDType(tensor.dtype());
    const bool is_taken = optimizer.has_value() && (spec.optimizer().kind() != 0 || !dtype || IsSummed(*dtype));
    ASSIGN_OR_RETURN(config.spec.tensors.emplace_back(), DecodeModelTensor(tensor, is_taken ? &*optimizer : nullptr));
    if (has_limits && limits.max_row_width != 0 && tensor.row_width() > limits.max_row_width) {
      return absl::ResourceExhaustedError(absl::StrCat("tensor '", tensor.name(), "': row_width ", tensor.row_width(),
                                                       " is beyond the server's max_row_width ", limits.max_row_width));
    }
  }
  if (!spec.stream().empty()) {
    ASSIGN_OR_RETURN(config.stream, ParseStreamName(spec.stream()));
  }
  if (!wire.initial_round().empty()) {
    ASSIGN_OR_RETURN(config.initial_round, ParseRoundName(wire.initial_round()));
  }
  config.spec.reads = static_cast<ReadsPolicy>(spec.reads());
  config.spec.keep_versions = spec.keep_versions() == 0 ? ModelSpec().keep_versions : spec.keep_versions();
  RETURN_IF_ERROR(Validate(config.spec));
  if (spec.keep_versions() == 0 && !config.stream.empty()) config.spec.keep_versions = 0;  // by the stream
  config.wire_spec = SerializeDeterministic(spec);
  return config;
}

absl::StatusOr<Column<uint64_t>> DecodeReadKeys(const v1::TensorSlice& wire) {
  const auto invalid = [](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("keys: ", problem));
  };
  const bool has_values = wire.value_encoding() != 0 && wire.value_encoding() != v1::VALUE_ENCODING_NONE;
  if (!wire.tensor().empty() || !wire.values().empty() || has_values || wire.keys_sorted() || wire.keys_unique()) {
    return invalid("a slice with more than keys; the tensor is a field of the request");
  }
  const int encoding = wire.key_encoding();
  const bool is_implicit = encoding == v1::KEY_ENCODING_IMPLICIT;
  const bool is_packed = encoding == v1::KEY_ENCODING_DELTA_BITPACKED;
  const size_t key_bytes = encoding == v1::KEY_ENCODING_U32 ? 4 : encoding == v1::KEY_ENCODING_U64 ? 8 : 0;
  if (!is_implicit && !is_packed && key_bytes == 0) {
    return invalid(
        absl::StrCat("key_encoding ", encoding, " is unknown here; known are U32, U64, IMPLICIT, DELTA_BITPACKED"));
  }
  const std::string& bytes = wire.keys();
  uint64_t num_keys = wire.num_keys();
  if (key_bytes != 0) {
    num_keys = bytes.size() / key_bytes;
    if (bytes.size() % key_bytes != 0 || (wire.num_keys() != 0 && wire.num_keys() != num_keys)) {
      return invalid(
          absl::StrCat(bytes.size(), " bytes are not num_keys ", wire.num_keys(), " keys of ", key_bytes, " bytes"));
    }
  }
  if (num_keys > kMaxReadKeys) {
    return absl::ResourceExhaustedError(absl::StrCat("a read of ", num_keys, " keys; at most ", kMaxReadKeys));
  }
  if (key_bytes != 0 && wire.first_key() != 0) return invalid("first_key is for IMPLICIT and DELTA_BITPACKED keys");
  if (is_implicit && !bytes.empty()) return invalid("IMPLICIT keys have no bytes");
  if (is_implicit && num_keys != 0 && wire.first_key() > UINT64_MAX - (num_keys - 1)) {
    return invalid(absl::StrCat(num_keys, " keys from ", wire.first_key(), " on exceed 2^64 - 1"));
  }
  Column<uint64_t> keys(num_keys);
  if (is_packed) {
    RETURN_IF_ERROR(wire::CheckDeltaKeys(bytes, num_keys));
    const auto decoded = wire::DecodeDeltaKeys(bytes, wire.first_key(), num_keys, UINT64_MAX, keys.data());
    if (decoded.count != num_keys) return invalid("a key exceeds 2^64 - 1");
  } else if (is_implicit) {
    for (uint64_t i = 0; i < num_keys; ++i) keys[i] = wire.first_key() + i;
  } else if (key_bytes == sizeof(uint64_t)) {
    std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(keys.data()));
  } else {
    std::vector<uint32_t> narrow(num_keys);
    std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(narrow.data()));
    std::copy(narrow.begin(), narrow.end(), keys.data());
  }
  return keys;
}

absl::Status CheckReads(ReadsPolicy policy, const ModelTensorSpec& tensor, const ReadShape& shape) {
  if (policy == ReadsPolicy::kWhole && (shape.has_keys || shape.begin != 0 || shape.end != 0)) {
    return absl::FailedPreconditionError("the model allows reads of whole tensors only");
  }
  if (policy != ReadsPolicy::kBlocks) return absl::OkStatus();
  const uint64_t block = tensor.BlockRows();
  const bool ends_whole = shape.end % block == 0 || shape.end == tensor.num_rows;  // 0: all
  const bool is_one = !shape.has_keys || (shape.is_implicit && shape.end - shape.begin <= block && shape.end != 0);
  if (shape.begin % block == 0 && ends_whole && is_one) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the model allows reads of whole blocks of ", block, " keys only"));
}

void EncodeModelVersion(const ModelVersion& version, v1::ModelVersion* wire) {
  wire->set_version(version.version);
  wire->set_round(version.source);
  wire->set_num_rows(version.num_rows);
  wire->set_empty_reason(version.empty_reason);
  wire->set_digest(version.digest);
}

void EncodeModel(const ServedModel& model, bool versions, v1::Model* wire) {
  const ModelConfig& config = model.config();
  const ModelFigures figures = model.model().Figures();
  wire->set_name(ModelName(config.id));
  wire->mutable_spec()->ParseFromString(config.wire_spec);
  wire->set_version(figures.version);
  wire->set_oldest_version(figures.oldest_version);
  for (size_t i = 0; i < figures.tensors.size(); ++i) {
    const ModelFigures::Tensor& tensor = figures.tensors[i];
    v1::ModelTensorInfo& info = *wire->add_tensors();
    info.set_name(config.spec.tensors[i].name);
    info.set_num_rows(tensor.num_rows);
    info.set_num_removed(tensor.num_removed);
    info.set_block_rows(config.spec.tensors[i].BlockRows());
    info.set_oldest_since(tensor.oldest_since);
    wire->add_learning_rates(tensor.learning_rate);
  }
  if (versions) {
    for (const ModelVersion& version : figures.versions) EncodeModelVersion(version, wire->add_versions());
  }
  wire->set_memory_bytes(model.model().memory_bytes());
  wire->set_waiting_reason(model.waiting_reason());
  EncodeTime(model.create_time(), wire->mutable_create_time());
}

uint64_t MostModelBytes(const ServedModel& model, bool versions) {
  const ModelConfig& config = model.config();
  const uint64_t num_versions = versions ? config.spec.keep_versions + 1 : 0;
  return kModelBytes + config.wire_spec.size() + kTensorBytes * config.spec.tensors.size() +
         kVersionBytes * num_versions;
}

void EncodeRows(const ModelRows& rows, const PageFormat& format, v1::RowsPage* wire) {
  v1::TensorSlice& slice = *wire->mutable_slice();
  slice.set_num_keys(rows.num_keys);
  const bool has_keys = std::visit([](const auto& keys) { return !keys.empty(); }, rows.rows.keys);
  if (has_keys) EncodePageKeys(rows.rows, {0, rows.num_keys}, format, &slice);
  EncodePageValues(rows.rows, {0, rows.num_sent}, format, &slice);
  wire->set_version(rows.version);
  wire->set_untouched(rows.untouched);
  wire->set_unchanged(rows.unchanged);
}

uint64_t MostRowsBytes(const ModelTensorSpec& tensor, uint64_t num_keys) {
  // A key, and a bit in each bit set.
  return SaturatingAdd(1024, SaturatingMultiply(num_keys, tensor.row_bytes() + sizeof(uint64_t) + 1));
}

}  // namespace sparseagg::service
