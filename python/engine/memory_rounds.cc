#include "python/engine/memory_rounds.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "host/base/status_macros.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_runtime.h"
#include "python/engine/memory_round.h"
#include "python/engine/messages.h"
#include "python/engine/round_host.h"
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

  // Opens a round that cannot be found. `spec`: a serialised v1::RoundSpec.
  std::unique_ptr<MemoryRound> CreatePrivate(const py::bytes& spec) {
    RoundConfig config = ParseRoundSpec(spec);
    return Wrap(CallWithoutGil([&] { return host_->registry().CreatePrivate(std::move(config)); }));
  }

  // RoundHost::Call. GIL: released meanwhile.
  py::bytes Call(const std::string& method, const std::string& request) {
    return CallWithoutGil([&] { return host_->Call(method, request); });
  }
  void Start(const std::string& method, const std::string& request, uint64_t number) {
    host_->Start(method, request, number);
  }

  std::unique_ptr<MemoryRound> Find(const std::string& name) const {
    const std::string id = ValueOrThrow(service::ParseRoundName(name));
    return Wrap(ValueOrThrow(host_->registry().Find(kDefaultTenant, id)));
  }

  // Returns: where submissions to `name` go, a round or a stream.
  std::unique_ptr<MemoryRound> FindTarget(const std::string& name) const {
    return std::make_unique<MemoryRound>(host_, name, ValueOrThrow(host_->streams().FindIntake(kDefaultTenant, name)));
  }

  // Cancels and forgets all rounds, takes no more, and ends all waits.
  void Close() {
    CallWithoutGil([&]() -> absl::Status {
      host_->EndWaits();  // first: the errors of a drain are nobody's answers
      host_->registry().Drain();
      for (const auto& stream : host_->streams().All()) {
        host_->streams().Delete(kDefaultTenant, stream->config().round.id).IgnoreError();
      }
      ASSIGN_OR_RETURN(const auto rounds, host_->registry().List(kDefaultTenant, kAllRounds, ""));
      for (const auto& entry : rounds.entries) {
        entry.round->Cancel("the client was closed").IgnoreError();  // of one that has ended
        host_->registry().Delete(kDefaultTenant, entry.round->config().id).IgnoreError();
      }
      return absl::OkStatus();
    });
    Released::OfProcess().Drop();
  }

  // Returns: tuples of a number, a code, a message and a response.
  py::list NextEnded() const {
    const auto ended = WithoutGil([host = host_] { return host->NextEnded(); });
    py::list out;
    for (const RoundHost::Ended& each : ended) {
      out.append(py::make_tuple(each.number, each.status.raw_code(), std::string(each.status.message()),
                                py::bytes(each.response)));
    }
    return out;
  }

  // Borrows an array in the device's memory. GIL: as of DeviceArray::Borrow.
  std::unique_ptr<DeviceArray> Borrow(const py::object& array) const {
    return DeviceArray::Borrow(array, host_->runtime());
  }
  const LocalRuntime& runtime() const { return host_->runtime(); }
  uint64_t memory_bytes() const { return host_->memory_bytes(); }

 private:
  std::unique_ptr<MemoryRound> Wrap(std::shared_ptr<Round> round) const {
    return std::make_unique<MemoryRound>(host_, std::move(round));
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
      .def("create_private", &MemoryRounds::CreatePrivate, py::arg("spec"))
      .def("call", &MemoryRounds::Call, py::arg("method"), py::arg("request"))
      .def("start", &MemoryRounds::Start, py::arg("method"), py::arg("request"), py::arg("number"))
      .def("find", &MemoryRounds::Find, py::arg("name"))
      .def("find_target", &MemoryRounds::FindTarget, py::arg("name"))
      .def("close", &MemoryRounds::Close)
      .def("next_ended", &MemoryRounds::NextEnded)
      .def_property_readonly("memory_bytes", &MemoryRounds::memory_bytes);
}

}  // namespace sparseagg::python
