// RoundHost: what rounds need around them, in a process that is no server.
#ifndef SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_
#define SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/base/mutex.h"
#include "python/engine/local_runtime.h"
#include "service/rounds/registry.h"
#include "service/rounds/round.h"
#include "service/rounds/round_services.h"
#include "service/streams/stream_registry.h"

namespace sparseagg::python {

using service::Round;

// What a ServerContext is to the rounds of a server. None of its threads uses Python, so that whoever holds the GIL may
// wait for them. Thread-safe.
class RoundHost {
 public:
  // `merges`: how many rounds merge at once; each merge uses all cores. 0: none ever does, for tests. `noise_key`: of
  // private rounds. `runtime`: whose engine merges; it is never destroyed.
  RoundHost(int merges, std::string noise_key, const LocalRuntime& runtime)
      : runtime_(runtime),
        noise_key_(std::move(noise_key)),
        pool_(merges),
        registry_(services()),
        streams_(&registry_, services()) {}
  RoundHost(const RoundHost&) = delete;
  RoundHost& operator=(const RoundHost&) = delete;
  ~RoundHost() {
    timer_.Stop();
    pool_.Stop();
  }

  service::Registry& registry() { return registry_; }
  service::StreamRegistry& streams() { return streams_; }
  const LocalRuntime& runtime() const { return runtime_; }
  absl::string_view engine_name() const { return runtime_.engine.name(); }
  uint64_t memory_bytes() const { return budget_.reserved(); }
  // A forked child has the memory of its parent's rounds but none of their threads, and leaves both alone.
  bool IsOfParent() const { return getpid() != pid_; }

  // Has NextEnded return `wait` when the round has ended, or after `timeout`.
  void AwaitEnd(Round& round, absl::Duration timeout, uint64_t wait) {
    round.Wait(timeout, [this, wait] {
      MutexLock lock(&mu_);
      ended_.push_back(wait);
      changed_.Signal();
    });
  }
  // Returns: waits that are over; none after EndWaits. Blocks: until there is one.
  std::vector<uint64_t> NextEnded() {
    MutexLock lock(&mu_);
    while (ended_.empty() && !ends_waits_) changed_.Wait(&mu_);
    return ends_waits_ ? std::vector<uint64_t>() : std::exchange(ended_, {});
  }
  void EndWaits() {
    MutexLock lock(&mu_);
    ends_waits_ = true;
    changed_.SignalAll();
  }

 private:
  service::RoundServices services() {
    return {runtime_.engine, clock_, limits_, tenants_, timer_, pool_, metrics_, /*store=*/nullptr, &noise_key_};
  }

  const pid_t pid_ = getpid();
  const service::Clock& clock_ = service::SystemClock();
  const service::Limits limits_;  // of which rounds read only upload_timeout, for uploads of several calls
  const LocalRuntime& runtime_;
  const std::string noise_key_;
  service::MemoryBudget budget_{0};
  service::CountLimit open_rounds_{0};
  service::CountLimit uploads_{0};
  service::Tenants tenants_{limits_, &budget_, &open_rounds_, &uploads_, &clock_};
  service::Metrics metrics_;
  Mutex mu_;
  CondVar changed_;
  std::vector<uint64_t> ended_ ABSL_GUARDED_BY(mu_);
  bool ends_waits_ ABSL_GUARDED_BY(mu_) = false;
  service::Timer timer_{&clock_};
  service::WorkerPool pool_;
  service::Registry registry_;
  service::StreamRegistry streams_;
};

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_ROUND_HOST_H_
