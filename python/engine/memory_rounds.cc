#include "python/engine/memory_rounds.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "host/base/to_status.h"
#include "host/spec/ids.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_runtime.h"
#include "python/engine/outputs.h"
#include "python/engine/round_host.h"
#include "python/engine/specs.h"
#include "service/rounds/round_name.h"
#include "service/rounds/sealed_reader.h"
#include "service/rounds/submission_batch.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;
using namespace py::literals;  // NOLINT(google-build-using-namespace): for "name"_a
using service::kDefaultTenant;
using service::RoundConfig;

constexpr size_t kAll = std::numeric_limits<int>::max();  // entries of a list
constexpr uint64_t kInspectedBytes = uint64_t{1} << 24;   // of a page of Inspect

// WithoutGil for a function that returns a Status or StatusOr. Throws: StatusException.
template <typename Function>
auto Call(const Function& function) {
  const auto answer = WithoutGil([&] { return ToStatus(function); });
  if constexpr (std::is_same_v<decltype(function()), absl::Status>) {
    ThrowIfError(answer);
  } else {
    return ValueOrThrow(answer);
  }
}

// Fields: of the messages of the proto, by name.

py::dict Fields(absl::Duration duration) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  return py::dict("seconds"_a = seconds, "nanos"_a = absl::ToInt64Nanoseconds(duration));
}

py::dict Fields(absl::Time time) { return Fields(time - absl::UnixEpoch()); }

py::dict Fields(const service::Receipt& receipt) {
  py::dict fields("client_id"_a = receipt.client_id, "submission_id"_a = receipt.submission_id,
                  "num_tuples"_a = receipt.num_tuples, "num_bytes"_a = receipt.num_bytes);
  if (!receipt.stream.has_value()) return fields;
  const service::StreamPlace& place = *receipt.stream;
  fields["stream_commit"] =
      py::dict("version"_a = place.version, "position"_a = place.position, "base_version"_a = place.base_version,
               "staleness"_a = place.staleness(), "staleness_weight"_a = place.weight);
  return fields;
}

py::dict Fields(const service::ListedSubmission& submission) {
  py::dict fields = Fields(static_cast<const service::Receipt&>(submission));
  fields["content_hash"] = py::bytes(HashBytes(submission.hash));
  if (submission.weight.has_value()) fields["weight"] = *submission.weight;
  if (submission.client_weight.has_value()) fields["client_weight"] = *submission.client_weight;
  return fields;
}

py::dict Fields(const service::Refusal& refusal) {
  return py::dict("client_id"_a = refusal.client_id, "code"_a = absl::StatusCodeToString(refusal.code),
                  "reason"_a = refusal.reason, "time"_a = Fields(refusal.time));
}

py::dict Fields(const service::RoundTimeline& timeline) {
  py::list stages;
  for (const service::RoundStage stage : service::kAllStages) {
    const service::StageTime& time = timeline.stages[static_cast<size_t>(stage)];
    stages.append(py::dict("stage"_a = std::string(Name(stage)), "busy"_a = Fields(time.busy),
                           "wait"_a = Fields(time.wait), "bytes"_a = time.bytes));
  }
  return py::dict("finish"_a = Fields(timeline.finish), "open"_a = Fields(timeline.open), "stages"_a = stages,
                  "longest"_a = std::string(Name(LongestStage(timeline.stages))));
}

py::dict Fields(const TensorSpec& spec, const Result& result) {
  py::dict summary("name"_a = spec.name, "num_keys"_a = result.num_keys,
                   "layout"_a = result.layout == Layout::kDense ? "TENSOR_LAYOUT_DENSE" : "TENSOR_LAYOUT_SPARSE",
                   "dtype"_a = absl::StrCat("DTYPE_", absl::AsciiStrToUpper(Name(result.dtype))),
                   "row_width"_a = result.row_width, "num_rows"_a = result.num_rows, "has_values"_a = result.has_values,
                   "has_counts"_a = ReturnsCounts(spec), "has_weights"_a = spec.aggregation.return_weights,
                   "plan"_a = result.plan, "num_cut_keys"_a = result.num_cut_keys,
                   "has_moments"_a = spec.aggregation.return_moments);
  if (result.fixed_point_shift.has_value()) summary["fixed_point_shift"] = *result.fixed_point_shift;
  return summary;
}

// One tensor's part of a submission: its name, keys (none: 0, 1, …), bytes of a key, number of keys, values (none: for
// a union), and the encoding of the values.
using Part =
    std::tuple<std::string, std::optional<py::buffer>, size_t, uint64_t, std::optional<py::buffer>, std::string>;
// The same of a tensor in the memory of the engine's device: its name, keys, number of keys and values, of which the
// arrays are DeviceArrays or None.
using DevicePart = std::tuple<std::string, py::object, uint64_t, py::object>;

// What Python lends; its arrays stay as they are meanwhile.
using Borrowed = std::vector<py::buffer_info>;

absl::string_view Borrow(const py::buffer& buffer, Borrowed& borrowed) {
  const py::buffer_info& info = borrowed.emplace_back(buffer.request());
  return {static_cast<const char*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

service::BatchSlice ToSlice(const Part& part, Borrowed& borrowed) {
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
    out.slice.dtype = ParseDType(encoding);
  }
  return out;
}

// The Python class _engine.MemoryRound: a round of a RoundHost. All members are called with the GIL held.
class MemoryRound {
 public:
  MemoryRound(std::shared_ptr<RoundHost> host, std::shared_ptr<Round> round)
      : host_(std::move(host)), round_(std::move(round)) {}
  MemoryRound(const MemoryRound&) = delete;
  MemoryRound& operator=(const MemoryRound&) = delete;
  ~MemoryRound() {
    if (host_->IsOfParent()) {
      (void)new (std::nothrow) std::shared_ptr<Round>(std::move(round_));  // for ever
    }
  }

  py::dict Describe() const {
    const service::RoundSnapshot snapshot = round_->Snapshot();
    const RoundConfig& config = round_->config();
    py::list refusals;
    py::list results;
    for (const service::Refusal& refusal : snapshot.recent_refusals) refusals.append(Fields(refusal));
    for (size_t t = 0; snapshot.results != nullptr && t < config.tensors.size(); ++t) {
      results.append(Fields(config.tensors[t], (*snapshot.results)[t]));
    }
    py::dict round(
        "name"_a = config.id.empty() ? "" : service::RoundName(config.id), "spec"_a = py::bytes(config.wire_spec),
        "state"_a = absl::StrCat("ROUND_STATE_", service::Name(snapshot.state)), "state_reason"_a = snapshot.reason,
        "num_submissions"_a = snapshot.num_submissions, "num_tuples"_a = snapshot.num_tuples,
        "num_bytes"_a = snapshot.num_bytes, "num_refused"_a = snapshot.num_refused,
        "num_uploads"_a = snapshot.num_uploads, "recent_refusals"_a = refusals,
        "create_time"_a = Fields(snapshot.create_time), "timeline"_a = Fields(snapshot.timeline),
        "engine"_a = std::string(host_->engine_name()), "results"_a = results);
    if (config.HasClip()) round["clip"] = ToPython(snapshot.clip);
    if (IsClosed(snapshot.state)) round["close_time"] = Fields(snapshot.close_time);
    if (!HasEnded(snapshot.state)) return round;
    round["end_time"] = Fields(snapshot.end_time);
    if (snapshot.expire_time != absl::InfiniteFuture()) round["expire_time"] = Fields(snapshot.expire_time);
    return round;
  }

  // Adds one client's update. `device_parts`: the round borrows their values until it has merged them. GIL: released
  // while the round copies, sorts and merges it.
  py::dict Submit(const std::string& client_id, const std::string& submission_id, std::optional<double> weight,
                  const std::vector<Part>& parts, std::optional<uint64_t> base_version,
                  const std::vector<DevicePart>& device_parts) {
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
    const service::Receipt receipt = Call([&]() -> absl::StatusOr<service::Receipt> {
      RETURN_IF_ERROR(CheckId(client_id, "client_id"));
      RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
      for (Lent& tensor : lent) {
        service::ChunkSlice& slice = chunk.slices.emplace_back();
        const TensorSpec& spec = round_->config().tensors[tensor.input.tensor];
        slice.tensor = spec.name;
        ASSIGN_OR_RETURN(ValidatedUpdate imported,
                         host_->runtime().engine.Import(spec, tensor.input.keys, tensor.input.values,
                                                        std::move(tensor.value_owner), weight.value_or(1.0)));
        slice.imported = std::make_shared<const ValidatedUpdate>(std::move(imported));
      }
      return service::SubmitWhole(*round_, client_id, submission_id, chunk);
    });
    Released::OfProcess().Drop();
    py::dict answer = Fields(receipt);
    answer["duplicate"] = receipt.duplicate;
    return answer;
  }

  // Adds the updates of many clients. GIL: as Submit.
  py::dict SubmitBatch(const std::string& client_ids, const std::string& submission_id, const py::bytes& weights,
                       const py::bytes& num_keys, const std::vector<Part>& parts,
                       std::optional<uint64_t> base_version) {
    std::vector<service::BatchSlice> slices;
    Borrowed borrowed;
    slices.reserve(parts.size());
    for (const Part& part : parts) slices.push_back(ToSlice(part, borrowed));
    const auto weight_bytes = static_cast<std::string_view>(weights);
    const auto num_keys_bytes = static_cast<std::string_view>(num_keys);
    const auto outcome = Call([&]() -> absl::StatusOr<service::BatchOutcome> {
      RETURN_IF_ERROR(CheckId(submission_id, "submission_id"));
      service::SubmissionBatch batch;
      RETURN_IF_ERROR(batch.Split(client_ids, {weight_bytes.data(), weight_bytes.size()},
                                  {num_keys_bytes.data(), num_keys_bytes.size()}, slices));
      const std::vector<std::string> ids(batch.client_ids().begin(), batch.client_ids().end());
      for (const std::string& client_id : ids) RETURN_IF_ERROR(CheckId(client_id, "client_id"));
      return service::SubmitBatch(*round_, ids, submission_id, [&]() -> const service::Chunk& {
        service::Chunk& chunk = batch.Next();
        chunk.base_version = base_version;
        return chunk;
      });
    });
    py::list refusals;
    for (const auto& refused : outcome.refused) {
      refusals.append(
          py::dict("index"_a = refused.index, "client_id"_a = refused.client_id, "reason"_a = refused.reason));
    }
    return py::dict("codes"_a = py::bytes(outcome.codes), "num_duplicates"_a = outcome.num_duplicates,
                    "num_tuples"_a = outcome.num_tuples, "num_bytes"_a = outcome.num_bytes, "refusals"_a = refusals);
  }

  py::list ListSubmissions() const {
    py::list out;
    const auto page = ValueOrThrow(round_->ListSubmissions(kAll, ""));
    for (const service::ListedSubmission& submission : page.submissions) out.append(Fields(submission));
    return out;
  }

  // Withdraw, Seal and Close release the GIL while commits add their submissions.
  bool Withdraw(const std::string& client_id, const std::string& submission_id) {
    return Call([&]() -> absl::StatusOr<bool> {
      RETURN_IF_ERROR(CheckId(client_id, "client_id"));
      if (!round_->config().IsIntake()) return round_->Withdraw(client_id, submission_id);
      ASSIGN_OR_RETURN(const auto stream, host_->streams().Find(kDefaultTenant, round_->config().id));
      return stream->Withdraw(client_id, submission_id);
    });
  }
  void Seal() {
    CheckNotOfStream();
    Call([&] { return round_->Seal(); });
  }
  void Close(const std::vector<std::string>& only, const std::vector<Round::ClientWeight>& weights) {
    CheckNotOfStream();
    Call([&]() -> absl::Status {
      for (const std::string& client_id : only) RETURN_IF_ERROR(CheckId(client_id, "only_client_ids"));
      for (const auto& [client_id, weight] : weights) RETURN_IF_ERROR(CheckId(client_id, "client_weights"));
      if (!weights.empty()) return round_->CloseWithWeights(weights);
      return only.empty() ? round_->Close() : round_->CloseWithOnly(only);
    });
  }
  // Returns: the clients, and the lower triangles of the two matrices as bytes of float64 and uint64. GIL: released
  // while the rows are computed.
  py::tuple Inspect(const std::vector<std::string>& names) const {
    std::vector<size_t> tensors;
    tensors.reserve(names.size());
    for (const std::string& name : names) tensors.push_back(ValueOrThrow(round_->config().FindTensor(name)));
    std::sort(tensors.begin(), tensors.end());
    service::InspectionPage all;
    do {
      const auto page =
          Call([&] { return service::SealedReader(*round_).Inspect(tensors, kInspectedBytes, all.next_page_token); });
      all.client_ids.insert(all.client_ids.end(), page.client_ids.begin(), page.client_ids.end());
      all.gram.insert(all.gram.end(), page.gram.begin(), page.gram.end());
      all.overlap.insert(all.overlap.end(), page.overlap.begin(), page.overlap.end());
      all.next_page_token = page.next_page_token;
    } while (!all.next_page_token.empty());
    const auto bytes_of = [](const auto& column) {
      return py::bytes(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(column[0]));
    };
    return py::make_tuple(all.client_ids, bytes_of(all.gram), bytes_of(all.overlap));
  }
  void Cancel(const std::string& reason) {
    CheckNotOfStream();
    Call([&]() -> absl::Status {
      RETURN_IF_ERROR(service::CheckReason(reason));
      return round_->Cancel(reason.empty() ? "no reason given" : reason);
    });
  }
  // Throws: StatusException: FAILED_PRECONDITION: this is a version of a stream.
  void CheckTakesSubmissions() const {
    if (!round_->config().IsVersion()) return;
    ThrowIfError(absl::FailedPreconditionError(absl::StrCat(service::RoundName(round_->config().id),
                                                            " is a version of a stream; submissions go to ",
                                                            service::StreamName(round_->config().stream->id))));
  }
  void AwaitEnd(std::optional<double> seconds, uint64_t wait) {
    host_->AwaitEnd(*round_, seconds.has_value() ? absl::Seconds(*seconds) : absl::InfiniteDuration(), wait);
  }

  // Returns: the results of these tensors, or of all if there are no names. Their arrays are views of the round's.
  py::list Read(const std::vector<std::string>& names) const {
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
  void RaiseFailure() const { ThrowIfError(round_->Snapshot().failure); }

 private:
  void CheckNotOfStream() const {
    if (!round_->config().IsVersion()) return;
    ThrowIfError(absl::FailedPreconditionError(absl::StrCat("a version of the stream '", round_->config().stream->id,
                                                            "' ends when the stream cuts it, and not by itself")));
  }

  // Arrays of a device, as an engine imports them.
  struct Lent {
    InputTensor input;
    std::shared_ptr<const void> value_owner;
  };
  Lent Lend(const DevicePart& part) const {
    const auto& [name, keys, num_keys, values] = part;
    const size_t tensor = ValueOrThrow(round_->config().FindTensor(name));
    Lent lent{ReadDeviceTensor(round_->config().tensors[tensor], tensor, keys, values, num_keys), nullptr};
    if (values.is_none()) return lent;
    values.inc_ref();
    lent.value_owner = OwnReferences({values.ptr()});
    return lent;
  }

  const std::shared_ptr<RoundHost> host_;  // outlives the round
  std::shared_ptr<Round> round_;
};

// The Python class _engine.MemoryRounds: the rounds of one client. All members are called with the GIL held.
class MemoryRounds {
 public:
  MemoryRounds(int merges, std::string noise_key, bool device)
      : host_(new RoundHost(merges, std::move(noise_key), *ValueOrThrow(LocalRuntimeOf(/*threads=*/0, device))),
              [](RoundHost* host) {
                if (!host->IsOfParent()) delete host;
              }) {}

  // Opens a round. `round_id`: None for one that cannot be found. `spec`: of the proto; one round has one.
  std::unique_ptr<MemoryRound> Create(std::optional<std::string> round_id, const py::bytes& spec,
                                      const py::list& tensors, uint64_t min_submissions, uint64_t max_submissions,
                                      uint64_t max_tuples, uint64_t max_bytes, std::optional<double> deadline,
                                      std::optional<double> result_ttl, bool keep_submissions) {
    RoundConfig config = ToConfig(spec, tensors, min_submissions, max_submissions, max_tuples, max_bytes, deadline,
                                  result_ttl, keep_submissions);
    config.id = round_id.value_or("");
    return Wrap(Call([&]() -> absl::StatusOr<std::shared_ptr<Round>> {
      if (!round_id.has_value()) return host_->registry().CreatePrivate(std::move(config));
      RETURN_IF_ERROR(CheckName(*round_id, "round_id"));
      return host_->registry().Create(std::move(config));
    }));
  }

  std::unique_ptr<MemoryRound> Find(const std::string& name) const {
    const std::string id = ValueOrThrow(service::ParseRoundName(name));
    std::shared_ptr<Round> round = ValueOrThrow(host_->registry().Find(kDefaultTenant, id));
    if (round->config().IsIntake()) {
      ThrowIfError(absl::NotFoundError(
          absl::StrCat("no round '", id, "'; there is a stream of this id, ", service::StreamName(id))));
    }
    return Wrap(std::move(round));
  }

  // Returns: where submissions to `name` go, a round or a stream.
  std::unique_ptr<MemoryRound> FindTarget(const std::string& name) const {
    if (name.rfind(service::kStreamPrefix, 0) == 0) return Wrap(FindStream(name)->intake().shared_from_this());
    std::unique_ptr<MemoryRound> found = Find(name);
    found->CheckTakesSubmissions();
    return found;
  }

  // ---- streams ----

  // Opens a stream. Returns: its name. `stream_spec`: of the proto. All others: as of Create, or fields of it.
  std::string CreateStream(const std::string& stream_id, const py::bytes& spec, const py::bytes& stream_spec,
                           const py::list& tensors, uint64_t min_submissions, uint64_t max_submissions,
                           uint64_t max_tuples, uint64_t max_bytes, std::optional<double> deadline,
                           std::optional<double> result_ttl, bool keep_submissions, uint64_t buffer,
                           const std::vector<double>& staleness_weights, std::optional<double> max_interval,
                           bool one_per_client) {
    service::StreamConfig config;
    config.round = ToConfig(spec, tensors, min_submissions, max_submissions, max_tuples, max_bytes, deadline,
                            result_ttl, keep_submissions);
    config.round.id = stream_id;
    config.buffer = buffer;
    config.staleness_weights = staleness_weights;
    config.max_interval = ToDuration(max_interval, "max_interval");
    config.one_per_client = one_per_client;
    config.wire_spec = stream_spec;
    return Call([&]() -> absl::StatusOr<std::string> {
      if (!stream_id.empty()) RETURN_IF_ERROR(CheckName(stream_id, "stream_id"));
      ASSIGN_OR_RETURN(const auto stream, host_->streams().Create(std::move(config)));
      return service::StreamName(stream->config().round.id);
    });
  }
  std::vector<std::string> Streams() const {
    std::vector<std::string> names;
    for (const auto& stream : host_->streams().All()) names.push_back(service::StreamName(stream->config().round.id));
    return names;
  }
  py::dict DescribeStream(const std::string& name) const {
    const auto stream = FindStream(name);
    const service::StreamSnapshot snapshot =
        Call([&]() -> absl::StatusOr<service::StreamSnapshot> { return stream->Snapshot(); });
    const service::RoundSnapshot intake = stream->intake().Snapshot();
    py::list refusals;
    for (const service::Refusal& refusal : intake.recent_refusals) refusals.append(Fields(refusal));
    return py::dict("name"_a = service::StreamName(stream->config().round.id),
                    "spec"_a = py::bytes(stream->config().wire_spec), "version"_a = snapshot.version,
                    "num_buffered"_a = snapshot.num_buffered, "num_commits"_a = snapshot.num_commits,
                    "num_refused"_a = intake.num_refused, "num_uploads"_a = intake.num_uploads,
                    "oldest_version"_a = snapshot.oldest_version, "staleness_counts"_a = snapshot.staleness_counts,
                    "create_time"_a = Fields(intake.create_time), "recent_refusals"_a = refusals);
  }
  void CutStream(const std::string& name, uint64_t version) {
    const auto stream = FindStream(name);
    Call([&] { return stream->Cut(version, service::CutCause::kCall); });
  }
  void DeleteStream(const std::string& name) {
    Call([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::string id, service::ParseStreamName(name));
      return host_->streams().Delete(kDefaultTenant, id).status();
    });
  }
  // Returns: the version whose end ends a wait for versions after `after`.
  std::unique_ptr<MemoryRound> FirstAfter(const std::string& name, uint64_t after) const {
    const auto stream = FindStream(name);
    return Wrap(Call([&] { return stream->FirstAfter(after); }));
  }
  py::list EndedAfter(const std::string& name, uint64_t after) const {
    constexpr size_t kMost = 100;
    py::list ended;
    for (const service::StreamVersion& version : FindStream(name)->EndedAfter(after, kMost)) {
      const service::RoundSnapshot snapshot = version.round->Snapshot();
      ended.append(py::dict("version"_a = version.version, "round"_a = service::RoundName(version.round->config().id),
                            "state"_a = absl::StrCat("ROUND_STATE_", service::Name(snapshot.state)),
                            "state_reason"_a = snapshot.reason, "num_submissions"_a = snapshot.num_submissions,
                            "cause"_a = static_cast<int>(version.cause), "cut_time"_a = Fields(version.cut_time)));
    }
    return ended;
  }

  std::vector<std::unique_ptr<MemoryRound>> All() const {
    std::vector<std::unique_ptr<MemoryRound>> rounds;
    for (const auto& entry : ListEntries()) rounds.push_back(Wrap(entry.round));
    return rounds;
  }

  void Delete(const std::string& name) {
    Call([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::string id, service::ParseRoundName(name));
      return host_->registry().Delete(kDefaultTenant, id).status();
    });
  }

  // Cancels and forgets all rounds, takes no more, and ends all waits.
  void Close() {
    Call([&]() -> absl::Status {
      host_->registry().Drain();
      for (const auto& stream : host_->streams().All()) {
        host_->streams().Delete(kDefaultTenant, stream->config().round.id).IgnoreError();
      }
      for (const auto& entry : ListEntries()) {
        entry.round->Cancel("the client was closed").IgnoreError();  // of one that has ended
        host_->registry().Delete(kDefaultTenant, entry.round->config().id).IgnoreError();
      }
      host_->EndWaits();
      return absl::OkStatus();
    });
    Released::OfProcess().Drop();
  }

  std::vector<uint64_t> NextEnded() const {
    return WithoutGil([host = host_] { return host->NextEnded(); });
  }

  // Borrows an array in the device's memory. GIL: as of DeviceArray::Borrow.
  std::unique_ptr<DeviceArray> Borrow(const py::object& array) const {
    return DeviceArray::Borrow(array, host_->runtime());
  }
  const LocalRuntime& runtime() const { return host_->runtime(); }
  uint64_t memory_bytes() const { return host_->memory_bytes(); }

 private:
  static absl::Duration ToDuration(std::optional<double> seconds, const char* name) {
    if (!seconds.has_value()) return absl::InfiniteDuration();
    if (*seconds <= 0) ThrowIfError(absl::InvalidArgumentError(absl::StrCat(name, " is not positive")));
    return absl::Seconds(*seconds);
  }
  static RoundConfig ToConfig(const py::bytes& spec, const py::list& tensors, uint64_t min_submissions,
                              uint64_t max_submissions, uint64_t max_tuples, uint64_t max_bytes,
                              std::optional<double> deadline, std::optional<double> result_ttl, bool keep_submissions) {
    RoundConfig config;
    config.tensors = ToTensorSpecs(tensors);
    for (const TensorSpec& tensor : config.tensors)
      config.tensor_index.emplace(tensor.name, config.tensor_index.size());
    config.min_submissions = min_submissions;
    config.max_submissions = max_submissions;
    config.max_tuples_per_submission = max_tuples;
    config.max_bytes_per_submission = max_bytes;
    config.deadline = ToDuration(deadline, "deadline");
    config.result_ttl = ToDuration(result_ttl, "result_ttl");
    config.keep_submissions = keep_submissions;
    config.wire_spec = spec;
    return config;
  }
  std::shared_ptr<service::Stream> FindStream(const std::string& name) const {
    return ValueOrThrow(host_->streams().Find(kDefaultTenant, ValueOrThrow(service::ParseStreamName(name))));
  }
  std::unique_ptr<MemoryRound> Wrap(std::shared_ptr<Round> round) const {
    return std::make_unique<MemoryRound>(host_, std::move(round));
  }
  std::vector<service::Registry::Entry> ListEntries() const {
    return host_->registry().List(kDefaultTenant, kAll, "")->entries;
  }

  const std::shared_ptr<RoundHost> host_;
};

}  // namespace

void DefineMemoryRounds(py::module_& module) {
  py::class_<MemoryRound>(module, "MemoryRound")
      .def("describe", &MemoryRound::Describe)
      .def("submit", &MemoryRound::Submit, py::arg("client_id"), py::arg("submission_id"), py::arg("weight"),
           py::arg("parts"), py::arg("base_version") = py::none(), py::arg("device_parts") = std::vector<DevicePart>())
      .def("submit_batch", &MemoryRound::SubmitBatch, py::arg("client_ids"), py::arg("submission_id"),
           py::arg("weights"), py::arg("num_keys"), py::arg("parts"), py::arg("base_version") = py::none())
      .def("submissions", &MemoryRound::ListSubmissions)
      .def("withdraw", &MemoryRound::Withdraw, py::arg("client_id"), py::arg("submission_id"))
      .def("seal", &MemoryRound::Seal)
      .def("inspect", &MemoryRound::Inspect, py::arg("tensors"))
      .def("close", &MemoryRound::Close, py::arg("only"), py::arg("weights"))
      .def("cancel", &MemoryRound::Cancel, py::arg("reason"))
      .def("await_end", &MemoryRound::AwaitEnd, py::arg("seconds"), py::arg("wait"))
      .def("read", &MemoryRound::Read, py::arg("tensors"))
      .def("raise_failure", &MemoryRound::RaiseFailure);
  py::class_<MemoryRounds>(module, "MemoryRounds")
      .def(py::init<int, std::string, bool>(), py::arg("merges"), py::arg("noise_key") = py::bytes(""),
           py::arg("device") = false)
      .def("borrow", &MemoryRounds::Borrow, py::arg("array"))
      .def_property_readonly("engine", [](const MemoryRounds& rounds) { return rounds.runtime().Describe(); })
      .def_property_readonly("device_stream", [](const MemoryRounds& rounds) { return StreamOf(rounds.runtime()); })
      .def("create", &MemoryRounds::Create, py::arg("round_id"), py::arg("spec"), py::arg("tensors"),
           py::arg("min_submissions"), py::arg("max_submissions"), py::arg("max_tuples_per_submission"),
           py::arg("max_bytes_per_submission"), py::arg("deadline"), py::arg("result_ttl"), py::arg("keep_submissions"))
      .def("find", &MemoryRounds::Find, py::arg("name"))
      .def("find_target", &MemoryRounds::FindTarget, py::arg("name"))
      .def("create_stream", &MemoryRounds::CreateStream, py::arg("stream_id"), py::arg("spec"), py::arg("stream_spec"),
           py::arg("tensors"), py::arg("min_submissions"), py::arg("max_submissions"),
           py::arg("max_tuples_per_submission"), py::arg("max_bytes_per_submission"), py::arg("deadline"),
           py::arg("result_ttl"), py::arg("keep_submissions"), py::arg("buffer"), py::arg("staleness_weights"),
           py::arg("max_interval"), py::arg("one_per_client"))
      .def("streams", &MemoryRounds::Streams)
      .def("describe_stream", &MemoryRounds::DescribeStream, py::arg("name"))
      .def("cut_stream", &MemoryRounds::CutStream, py::arg("name"), py::arg("version"))
      .def("delete_stream", &MemoryRounds::DeleteStream, py::arg("name"))
      .def("first_after", &MemoryRounds::FirstAfter, py::arg("name"), py::arg("after"))
      .def("ended_after", &MemoryRounds::EndedAfter, py::arg("name"), py::arg("after"))
      .def("all", &MemoryRounds::All)
      .def("delete", &MemoryRounds::Delete, py::arg("name"))
      .def("close", &MemoryRounds::Close)
      .def("next_ended", &MemoryRounds::NextEnded)
      .def_property_readonly("memory_bytes", &MemoryRounds::memory_bytes);
}

}  // namespace sparseagg::python
