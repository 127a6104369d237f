#include "python/engine/memory_round.h"

#include <pybind11/stl.h>

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

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): for "name"_a

// What Python lends; its arrays stay as they are meanwhile.
using Borrowed = std::vector<py::buffer_info>;

absl::string_view Borrow(const py::buffer& buffer, Borrowed& borrowed) {
  const py::buffer_info& info = borrowed.emplace_back(buffer.request());
  return {static_cast<const char*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

service::BatchSlice ToSlice(const MemoryRound::Part& part, Borrowed& borrowed) {
  const auto& [tensor, keys, key_bytes, num_keys, values, encoding] = part;
  service::BatchSlice out;
  out.slice.tensor = tensor;
  SliceView& view = out.slice.view;
  view.key_type = !keys.has_value() ? SliceView::Keys::kImplicit
                  : key_bytes == 4  ? SliceView::Keys::kU32
                                    : SliceView::Keys::kU64;
  if (keys.has_value()) out.keys = Borrow(*keys, borrowed);
  view.has_values = values.has_value();
  if (!values.has_value()) return out;
  out.values = Borrow(*values, borrowed);
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

py::bytes MemoryRound::Describe() const {
  v1::Round message;
  service::EncodeRound(round_->config(), round_->Snapshot(), host_->engine_name(), &message);
  return ToBytes(message);
}

py::bytes MemoryRound::Submit(const std::string& client_id, const std::string& submission_id,
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
  std::vector<Lent> lent;
  lent.reserve(device_parts.size());
  for (const DevicePart& part : device_parts) lent.push_back(Lend(part));
  const service::Receipt receipt = CallWithoutGil([&]() -> absl::StatusOr<service::Receipt> {
    RETURN_IF_ERROR(CheckId(client_id, "client_id"));
    RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
    for (Lent& tensor : lent) {
      service::ChunkSlice& slice = chunk.slices.emplace_back();
      const TensorSpec& spec = intake_->config().tensors[tensor.input.tensor];
      slice.tensor = spec.name;
      ASSIGN_OR_RETURN(ValidatedUpdate imported,
                       host_->runtime().engine.Import(spec, tensor.input.keys, tensor.input.values,
                                                      std::move(tensor.value_owner), weight.value_or(1.0)));
      slice.imported = std::make_shared<const ValidatedUpdate>(std::move(imported));
    }
    return intake_->Submit(client_id, submission_id, chunk);
  });
  Released::OfProcess().Drop();
  v1::CommitSubmissionResponse message;
  service::EncodeCommit(name_, receipt, &message);
  return ToBytes(message);
}

py::dict MemoryRound::SubmitBatch(const std::string& client_ids, const std::string& submission_id,
                                  const py::bytes& weights, const py::bytes& num_keys, const std::vector<Part>& parts,
                                  std::optional<uint64_t> base_version) {
  std::vector<service::BatchSlice> slices;
  Borrowed borrowed;
  slices.reserve(parts.size());
  for (const Part& part : parts) slices.push_back(ToSlice(part, borrowed));
  const auto weight_bytes = static_cast<std::string_view>(weights);
  const auto num_keys_bytes = static_cast<std::string_view>(num_keys);
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
  py::list refusals;
  for (const auto& refused : outcome.refused) {
    refusals.append(
        py::dict("index"_a = refused.index, "client_id"_a = refused.client_id, "reason"_a = refused.reason));
  }
  return py::dict("codes"_a = py::bytes(outcome.codes), "num_duplicates"_a = outcome.num_duplicates,
                  "num_tuples"_a = outcome.num_tuples, "num_bytes"_a = outcome.num_bytes, "refusals"_a = refusals);
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

py::list MemoryRound::Read(const std::vector<std::string>& names) const {
  std::vector<size_t> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back(ValueOrThrow(round_->config().FindTensor(name)));
  for (size_t t = 0; names.empty() && t < round_->config().tensors.size(); ++t) tensors.push_back(t);
  const service::Results results = ValueOrThrow(round_->GetResults());
  py::list out;
  for (const size_t t : tensors) out.append(ToPython({results, &(*results)[t]}));
  Released::OfProcess().Drop();
  return out;
}

void MemoryRound::RaiseFailure() const { ThrowIfError(round_->Snapshot().failure); }

MemoryRound::Lent MemoryRound::Lend(const DevicePart& part) const {
  const auto& [name, keys, num_keys, values] = part;
  const size_t tensor = ValueOrThrow(intake_->config().FindTensor(name));
  Lent lent{ReadDeviceTensor(intake_->config().tensors[tensor], tensor, keys, values, num_keys), nullptr};
  if (values.is_none()) return lent;
  values.inc_ref();
  lent.value_owner = OwnReferences({values.ptr()});
  return lent;
}

void DefineMemoryRound(py::module_& module) {
  py::class_<MemoryRound>(module, "MemoryRound")
      .def("describe", &MemoryRound::Describe)
      .def("submit", &MemoryRound::Submit, py::arg("client_id"), py::arg("submission_id"), py::arg("weight"),
           py::arg("parts"), py::arg("base_version") = py::none(),
           py::arg("device_parts") = std::vector<MemoryRound::DevicePart>())
      .def("submit_batch", &MemoryRound::SubmitBatch, py::arg("client_ids"), py::arg("submission_id"),
           py::arg("weights"), py::arg("num_keys"), py::arg("parts"), py::arg("base_version") = py::none())
      .def("close", &MemoryRound::Close)
      .def("cancel", &MemoryRound::Cancel, py::arg("reason"))
      .def("await_end", &MemoryRound::AwaitEnd, py::arg("seconds"), py::arg("number"))
      .def("read", &MemoryRound::Read, py::arg("tensors"))
      .def("raise_failure", &MemoryRound::RaiseFailure);
}

}  // namespace sparseagg::python
