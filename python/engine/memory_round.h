// MemoryRound: one round of ":memory:".
#ifndef SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUND_H_
#define SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/engine/local_round.h"
#include "python/engine/nb.h"
#include "python/engine/round_host.h"
#include "service/codec/round_codec.h"
#include "service/rounds/round.h"

namespace sparseagg::python {

// The Python class _engine.MemoryRound: a round of a RoundHost, for what the methods do not do: arrays that stay where
// they are, and private rounds. All members are called with the GIL held, and throw StatusException for the errors of
// service::Round.
class MemoryRound {
 public:
  // One tensor's part of a submission: its name, keys (none: 0, 1, …), bytes of a key, number of keys, values (none:
  // for a union), and the encoding of the values.
  using Part = std::tuple<std::string, nb::object, size_t, uint64_t, nb::object, std::string>;
  // The same of a tensor in the memory of the engine's device: its name, keys, number of keys and values, of which the
  // arrays are DeviceArrays or None.
  using DevicePart = std::tuple<std::string, nb::object, uint64_t, nb::object>;

  MemoryRound(std::shared_ptr<RoundHost> host, std::shared_ptr<Round> round)
      : host_(std::move(host)),
        name_(service::RoundName(round->config())),
        intake_(round, &round->intake()),
        round_(std::move(round)) {}
  // Only takes submissions, for the round or stream `name`.
  MemoryRound(std::shared_ptr<RoundHost> host, std::string name, std::shared_ptr<service::Intake> intake)
      : host_(std::move(host)), name_(std::move(name)), intake_(std::move(intake)) {}
  MemoryRound(const MemoryRound&) = delete;
  MemoryRound& operator=(const MemoryRound&) = delete;
  ~MemoryRound() {
    if (host_->IsOfParent()) {
      (void)new (std::nothrow) auto(std::pair(std::move(intake_), std::move(round_)));  // for ever
    }
  }

  // Adds one client's update. Returns: a v1::CommitSubmissionResponse. `device_parts`: the round borrows their values
  // until it has merged them. GIL: released while the round copies, sorts and merges it.
  nb::bytes Submit(const std::string& client_id, const std::string& submission_id, std::optional<double> weight,
                   const std::vector<Part>& parts, std::optional<uint64_t> base_version,
                   const std::vector<DevicePart>& device_parts);
  // Adds the updates of many clients. GIL: as Submit.
  nb::dict SubmitBatch(const std::string& client_ids, const std::string& submission_id, const nb::bytes& weights,
                       const nb::bytes& num_keys, const std::vector<Part>& parts, std::optional<uint64_t> base_version);
  // For a private round, which the methods do not find.
  nb::bytes Describe() const;  // a v1::Round
  void Close();                // GIL: released while commits add their submissions
  void Cancel(const std::string& reason);
  void AwaitEnd(std::optional<double> seconds, uint64_t number);  // RoundHost::AwaitEnd
  // Returns: the results of these tensors, or of all if there are no names. Their arrays are views of the round's.
  nb::list Read(const std::vector<std::string>& names) const;
  void RaiseFailure() const;

 private:
  DeviceUpdate Lend(const DevicePart& part, double weight) const;

  const std::shared_ptr<RoundHost> host_;  // outlives the round
  const std::string name_;
  std::shared_ptr<service::Intake> intake_;
  std::shared_ptr<Round> round_;  // null: only the intake was asked for
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_MEMORY_ROUND_H_
