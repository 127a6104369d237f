#include "python/engine/memory_rounds.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "host/base/status_macros.h"
#include "host/spec/ids.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_runtime.h"
#include "python/engine/memory_round.h"
#include "python/engine/round_fields.h"
#include "python/engine/round_host.h"
#include "python/engine/specs.h"
#include "service/rounds/round_name.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;
using service::kDefaultTenant;
using service::RoundConfig;

constexpr size_t kAllRounds = std::numeric_limits<int>::max();  // of a list

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
    return Wrap(CallWithoutGil([&]() -> absl::StatusOr<std::shared_ptr<Round>> {
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
    return CallWithoutGil([&]() -> absl::StatusOr<std::string> {
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
        CallWithoutGil([&]() -> absl::StatusOr<service::StreamSnapshot> { return stream->Snapshot(); });
    return Fields(*stream, snapshot);
  }
  void CutStream(const std::string& name, uint64_t version) {
    const auto stream = FindStream(name);
    CallWithoutGil([&] { return stream->Cut(version, service::CutCause::kCall); });
  }
  void DeleteStream(const std::string& name) {
    CallWithoutGil([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::string id, service::ParseStreamName(name));
      return host_->streams().Delete(kDefaultTenant, id).status();
    });
  }
  // Returns: the version whose end ends a wait for versions after `after`.
  std::unique_ptr<MemoryRound> FirstAfter(const std::string& name, uint64_t after) const {
    const auto stream = FindStream(name);
    return Wrap(CallWithoutGil([&] { return stream->FirstAfter(after); }));
  }
  py::list EndedAfter(const std::string& name, uint64_t after) const {
    constexpr size_t kMost = 100;
    py::list ended;
    for (const service::StreamVersion& version : FindStream(name)->EndedAfter(after, kMost)) {
      ended.append(Fields(version));
    }
    return ended;
  }

  std::vector<std::unique_ptr<MemoryRound>> All() const {
    std::vector<std::unique_ptr<MemoryRound>> rounds;
    for (const auto& entry : ListEntries()) rounds.push_back(Wrap(entry.round));
    return rounds;
  }

  void Delete(const std::string& name) {
    CallWithoutGil([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const std::string id, service::ParseRoundName(name));
      return host_->registry().Delete(kDefaultTenant, id).status();
    });
  }

  // Cancels and forgets all rounds, takes no more, and ends all waits.
  void Close() {
    CallWithoutGil([&]() -> absl::Status {
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
    return host_->registry().List(kDefaultTenant, kAllRounds, "")->entries;
  }

  const std::shared_ptr<RoundHost> host_;
};
}  // namespace

void DefineMemoryRounds(py::module_& module) {
  DefineMemoryRound(module);
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
