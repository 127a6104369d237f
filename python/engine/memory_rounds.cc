// The rounds of ":memory:": those of the server (service/rounds), in this process and without its calls.
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

using service::kDefaultTenant;
using service::RoundConfig;

constexpr size_t kAllRounds = std::numeric_limits<int>::max();  // of a list

// The Python class _engine.MemoryRounds: the rounds of one client. All members are called with the GIL held.
class MemoryRounds {
 public:
  MemoryRounds(int merges, const nb::bytes& noise_key, bool device)
      : host_(
            new RoundHost(merges, std::string(ViewOf(noise_key)), *ValueOrThrow(LocalRuntimeOf(/*threads=*/0, device))),
            [](RoundHost* host) {
              if (!host->IsOfParent()) delete host;
            }) {}

  // Opens a round that cannot be found. `spec`: a serialised v1::RoundSpec.
  std::unique_ptr<MemoryRound> CreatePrivate(const nb::bytes& spec) {
    RoundConfig config = ParseRoundSpec(spec);
    return Wrap(CallWithoutGil([&] { return host_->registry().CreatePrivate(std::move(config)); }));
  }

  // RoundHost::Call. GIL: released meanwhile.
  nb::bytes Call(const std::string& method, const nb::bytes& request) {
    std::string bytes(ViewOf(request));
    return ToBytes(CallWithoutGil([&] { return host_->Call(method, std::move(bytes)); }));
  }
  void Start(const std::string& method, const nb::bytes& request, uint64_t number) {
    host_->Start(method, std::string(ViewOf(request)), number);
  }

  std::unique_ptr<MemoryRound> Find(const std::string& name) const {
    const std::string id = ValueOrThrow(service::ParseRoundName(name));
    return Wrap(ValueOrThrow(host_->registry().Find(kDefaultTenant, id)));
  }

  // Returns: where submissions to `name` go, a round or a stream.
  std::unique_ptr<MemoryRound> FindTarget(const std::string& name) const {
    return std::make_unique<MemoryRound>(host_, name, ValueOrThrow(host_->streams().FindIntake(kDefaultTenant, name)));
  }

  // Cancels and forgets all rounds and models, takes no more, and ends all waits.
  void Close() {
    CallWithoutGil([&]() -> absl::Status {
      host_->EndWaits();  // first: the errors of a drain are nobody's answers
      host_->registry().Drain();
      host_->models().Drain();
      for (const auto& model : host_->models().All()) {
        host_->models().Delete(kDefaultTenant, model->config().id).IgnoreError();
      }
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
  nb::list NextEnded() const {
    const auto ended = WithoutGil([host = host_] { return host->NextEnded(); });
    nb::list out;
    for (const RoundHost::Ended& each : ended) {
      out.append(nb::make_tuple(each.number, DescribeError(each.status), ToBytes(each.response)));
    }
    return out;
  }

  // Borrows an array in the device's memory. GIL: held.
  std::unique_ptr<DeviceArray> Borrow(const nb::object& array) const {
    return ArrayBorrower(host_->runtime()).Borrow(array);
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

void DefineMemoryRounds(nb::module_& module) {
  DefineMemoryRound(module);
  nb::class_<MemoryRounds>(module, "MemoryRounds")
      .def(nb::init<int, nb::bytes, bool>(), nb::arg("merges"), nb::arg("noise_key") = nb::bytes(""),
           nb::arg("device") = false)
      .def("borrow", &MemoryRounds::Borrow, nb::arg("array").none())
      .def_prop_ro("engine", [](const MemoryRounds& rounds) { return rounds.runtime().Describe(); })
      .def_prop_ro("device_stream", [](const MemoryRounds& rounds) { return StreamOf(rounds.runtime()); })
      .def("create_private", &MemoryRounds::CreatePrivate, nb::arg("spec"))
      .def("call", &MemoryRounds::Call, nb::arg("method"), nb::arg("request"))
      .def("start", &MemoryRounds::Start, nb::arg("method"), nb::arg("request"), nb::arg("number"))
      .def("find", &MemoryRounds::Find, nb::arg("name"))
      .def("find_target", &MemoryRounds::FindTarget, nb::arg("name"))
      .def("close", &MemoryRounds::Close)
      .def("next_ended", &MemoryRounds::NextEnded)
      .def_prop_ro("memory_bytes", &MemoryRounds::memory_bytes);
}

}  // namespace sparseagg::python
