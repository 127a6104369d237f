#include "python/engine/memory_round.h"

#include <deque>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/messages.h"
#include "python/engine/outputs.h"
#include "service/codec/round_codec.h"
#include "service/rounds/round_config.h"
#include "service/rounds/submission_batch.h"

namespace sparseagg::python {
namespace {

// What Python lends; its arrays stay as they are meanwhile.
using Borrowed = std::deque<LentBytes>;

service::BatchSlice ToSlice(const MemoryRound::Part& part, Borrowed& borrowed) {
  const auto& [tensor, keys, key_bytes, num_keys, values, encoding] = part;
  service::BatchSlice out;
  out.slice.tensor = tensor;
  SliceView& view = out.slice.view;
  view.key_type = keys.is_none()   ? SliceView::Keys::kImplicit
                  : key_bytes == 4 ? SliceView::Keys::kU32
                                   : SliceView::Keys::kU64;
  if (!keys.is_none()) out.keys = borrowed.emplace_back(keys).bytes();
  view.has_values = !values.is_none();
  if (values.is_none()) return out;
  out.values = borrowed.emplace_back(values).bytes();
  if (encoding == "int8_scaled") {
    view.value_packing = wire::ValuePacking::kInt8Scaled;
  } else {
    for (int i = 0; i <= static_cast<int>(DType::kUInt64); ++i) {
      if (Name(static_cast<DType>(i)) == encoding) out.slice.dtype = static_cast<DType>(i);
    }
  }
  return out;
}

}  // namespace

nb::bytes MemoryRound::Describe() const {
  v1::Round message;
  service::EncodeRound(round_->config(), round_->Snapshot(), host_->engine_name(), &message);
  return ToBytes(message);
}

nb::bytes MemoryRound::Submit(const std::string& client_id, const std::string& submission_id,
                              std::optional<double> weight, const std::vector<Part>& parts,
                              std::optional<uint64_t> base_version, const std::vector<DevicePart>& device_parts) {
  service::Chunk chunk;
  chunk.last = true;
  chunk.weight = weight;
  chunk.base_version = base_version;
  Borrowed borrowed;
  for (const Part& part : parts) {
    const service::BatchSlice bytes = ToSlice(part, borrowed);
    service::ChunkSlice& slice = chunk.slices.emplace_back(bytes.slice);
    slice.view.num_keys = std::get<3>(part);
    slice.view.keys = bytes.keys;
    slice.view.values = bytes.values;
  }
  std::vector<DeviceUpdate> lent;
  lent.reserve(device_parts.size());
  for (const DevicePart& part : device_parts) lent.push_back(Lend(part, weight.value_or(1.0)));
  const service::Receipt receipt = CallWithoutGil([&]() -> absl::StatusOr<service::Receipt> {
    RETURN_IF_ERROR(CheckId(client_id, "client_id"));
    RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
    std::vector<ValidatedUpdate> imported;
    if (!lent.empty()) RETURN_IF_ERROR(host_->runtime().engine.Import(absl::MakeSpan(lent), imported));
    for (size_t i = 0; i < lent.size(); ++i) {
      service::ChunkSlice& slice = chunk.slices.emplace_back();
      slice.tensor = lent[i].spec->name;
      slice.imported = std::make_shared<const ValidatedUpdate>(std::move(imported[i]));
    }
    return intake_->Submit(client_id, submission_id, chunk);
  });
  Released::OfProcess().Drop();
  v1::CommitSubmissionResponse message;
  service::EncodeCommit(name_, receipt, &message);
  return ToBytes(message);
}

nb::dict MemoryRound::SubmitBatch(const std::string& client_ids, const std::string& submission_id,
                                  const nb::bytes& weights, const nb::bytes& num_keys, const std::vector<Part>& parts,
                                  std::optional<uint64_t> base_version) {
  std::vector<service::BatchSlice> slices;
  Borrowed borrowed;
  slices.reserve(parts.size());
  for (const Part& part : parts) slices.push_back(ToSlice(part, borrowed));
  const std::string_view weight_bytes = ViewOf(weights);
  const std::string_view num_keys_bytes = ViewOf(num_keys);
  const auto outcome = CallWithoutGil([&]() -> absl::StatusOr<service::BatchOutcome> {
    RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
    service::SubmissionBatch batch;
    RETURN_IF_ERROR(batch.Split(client_ids, {weight_bytes.data(), weight_bytes.size()},
                                {num_keys_bytes.data(), num_keys_bytes.size()}, slices));
    RETURN_IF_ERROR(batch.CheckSize(intake_->config()));
    const std::vector<std::string> ids(batch.client_ids().begin(), batch.client_ids().end());
    for (const std::string& client_id : ids) RETURN_IF_ERROR(CheckId(client_id, "client_id"));
    const auto next = [&]() -> const service::Chunk& {
      service::Chunk& chunk = batch.Next();
      chunk.base_version = base_version;
      return chunk;
    };
    service::BatchOutcome batch_outcome;
    service::SubmitBatch(
        *intake_, ids, submission_id, next, [] { return false; }, batch_outcome);
    return batch_outcome;
  });
  nb::list refusals;
  for (const auto& refused : outcome.refused) {
    nb::dict refusal;
    refusal["index"] = refused.index;
    refusal["client_id"] = refused.client_id;
    refusal["reason"] = refused.reason;
    refusal["error_reason"] = refused.info.reason;
    refusal["error_metadata"] = ToDict(refused.info.metadata);
    refusals.append(refusal);
  }
  nb::dict out;
  out["codes"] = ToBytes(outcome.codes);
  out["num_duplicates"] = outcome.num_duplicates;
  out["num_tuples"] = outcome.num_tuples;
  out["num_bytes"] = outcome.num_bytes;
  out["refusals"] = refusals;
  return out;
}

void MemoryRound::Close() {
  CallWithoutGil([&] { return round_->Close(); });
}

void MemoryRound::Cancel(const std::string& reason) {
  CallWithoutGil([&] { return round_->Cancel(reason); });
}

void MemoryRound::AwaitEnd(std::optional<double> seconds, uint64_t number) {
  host_->AwaitEnd(*round_, seconds.has_value() ? absl::Seconds(*seconds) : absl::InfiniteDuration(), number);
}

nb::list MemoryRound::Read(const std::vector<std::string>& names) const {
  std::vector<size_t> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(ValueOrThrow(round_->config().FindTensor(name)));
  for (size_t t = 0; names.empty() && t < round_->config().tensors.size(); ++t) tensors.push_back(t);
  const service::Results results = ValueOrThrow(round_->GetResults());
  nb::list out;
  for (const size_t t : tensors) out.append(ToPython({results, &(*results)[t]}));
  Released::OfProcess().Drop();
  return out;
}

void MemoryRound::RaiseFailure() const { ThrowIfError(round_->Snapshot().failure); }

DeviceUpdate MemoryRound::Lend(const DevicePart& part, double weight) const {
  const auto& [name, keys, num_keys, values] = part;
  const size_t tensor = ValueOrThrow(intake_->config().FindTensor(name));
  const TensorSpec& spec = intake_->config().tensors[tensor];
  const std::optional<InputTensor> input = ReadDeviceTensor(spec, tensor, keys, values, num_keys);
  if (!input.has_value()) throw nb::type_error("not arrays of a device in the engine's form");
  DeviceUpdate update{&spec, input->keys, input->values, nullptr, weight, input->streams};
  if (values.is_none()) return update;
  values.inc_ref();
  update.owner = OwnReferences({values.ptr()});
  return update;
}

void DefineMemoryRound(nb::module_& module) {
  nb::class_<MemoryRound>(module, "MemoryRound")
      .def("describe", &MemoryRound::Describe)
      .def("submit", &MemoryRound::Submit, nb::arg("client_id"), nb::arg("submission_id"), nb::arg("weight"),
           nb::arg("parts"), nb::arg("base_version") = nb::none(), nb::arg("device_parts") = nb::make_tuple())
      .def("submit_batch", &MemoryRound::SubmitBatch, nb::arg("client_ids"), nb::arg("submission_id"),
           nb::arg("weights"), nb::arg("num_keys"), nb::arg("parts"), nb::arg("base_version") = nb::none())
      .def("close", &MemoryRound::Close)
      .def("cancel", &MemoryRound::Cancel, nb::arg("reason"))
      .def("await_end", &MemoryRound::AwaitEnd, nb::arg("seconds"), nb::arg("number"))
      .def("read", &MemoryRound::Read, nb::arg("tensors"))
      .def("raise_failure", &MemoryRound::RaiseFailure);
}

}  // namespace sparseagg::python
