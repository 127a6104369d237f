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
#include "host/spec/spec.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_runtime.h"
#include "python/engine/memory_round.h"
#include "python/engine/messages.h"
#include "python/engine/round_host.h"
#include "service/codec/round_codec.h"
#include "service/rounds/round_config.h"

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

  // Opens a round. `round_id`: None for one that cannot be found. `spec`: a serialised v1::RoundSpec.
  std::unique_ptr<MemoryRound> Create(std::optional<std::string> round_id, const py::bytes& spec) {
    RoundConfig config = ParseRoundSpec(spec);
    config.id = round_id.value_or("");
    return Wrap(CallWithoutGil([&]() -> absl::StatusOr<std::shared_ptr<Round>> {
      if (!round_id.has_value()) return host_->registry().CreatePrivate(std::move(config));
      RETURN_IF_ERROR(CheckName(*round_id, "round_id"));
      return host_->registry().Create(std::move(config));
    }));
  }

  std::unique_ptr<MemoryRound> Find(const std::string& name) const {
    const std::string id = ValueOrThrow(service::ParseRoundName(name));
    return Wrap(ValueOrThrow(host_->registry().Find(kDefaultTenant, id)));
  }

  // Returns: where submissions to `name` go, a round or a stream.
  std::unique_ptr<MemoryRound> FindTarget(const std::string& name) const {
    return std::make_unique<MemoryRound>(host_, ValueOrThrow(host_->streams().FindIntake(kDefaultTenant, name)));
  }

  // ---- streams ----

  // Opens a stream. Returns: its name. `spec`: a serialised v1::StreamSpec.
  std::string CreateStream(const std::string& stream_id, const py::bytes& spec) {
    auto config = ValueOrThrow(service::DecodeStreamSpec(ParseMessage<v1::StreamSpec>(spec), NoLimits()));
    config.round.id = stream_id;
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
  py::bytes DescribeStream(const std::string& name) const {
    const auto stream = FindStream(name);
    v1::Stream message;
    WithoutGil([&] {
      service::EncodeStream(*stream, &message);
      return 0;
    });
    return ToBytes(message);
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
  py::bytes EndedAfter(const std::string& name, uint64_t after) const {
    constexpr size_t kMost = 100;
    v1::WatchVersionsResponse message;
    for (const service::StreamVersion& version : FindStream(name)->EndedAfter(after, kMost)) {
      service::EncodeVersion(version, message.add_versions());
    }
    return ToBytes(message);
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
      .def("create", &MemoryRounds::Create, py::arg("round_id"), py::arg("spec"))
      .def("find", &MemoryRounds::Find, py::arg("name"))
      .def("find_target", &MemoryRounds::FindTarget, py::arg("name"))
      .def("create_stream", &MemoryRounds::CreateStream, py::arg("stream_id"), py::arg("spec"))
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
