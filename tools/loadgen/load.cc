#include "tools/loadgen/load.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench/common/machine.h"

namespace sparseagg::bench {
namespace {

void SleepUntil(double time) {
  const double left = time - Now();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

// One run. Outlives its calls: Wait returns after the last one.
class Load {
 public:
  Load(Connections& connections, const std::vector<Job>& jobs) : connections_(connections), jobs_(jobs), begin_(Now()) {
    outcome_.latency_s.reserve(jobs.size());
  }

  double begin() const { return begin_; }

  // Sends the jobs that are left, one after the other.
  void StartLane(size_t lane) {
    size_t job;
    {
      std::lock_guard lock(mu_);
      if (next_ == jobs_.size()) return;
      job = next_++;
    }
    Start(job, lane, Now(), /*then_next=*/true);
  }

  void Start(size_t job, size_t lane, double due, bool then_next) {
    Submit(connections_.stub(lane), jobs_[job], [this, job, lane, due, then_next](const grpc::Status& status) {
      const double now = Now();
      // Before Record: after the last job is recorded, Wait returns and this object may be destroyed.
      if (then_next) StartLane(lane);
      Record(job, now - due, now, status);
    });
  }

  Outcome Wait() {
    std::unique_lock lock(mu_);
    while (num_done_ < jobs_.size()) changed_.wait(lock);
    return outcome_;
  }

 private:
  void Record(size_t job, double latency_s, double now, const grpc::Status& status) {
    std::lock_guard lock(mu_);
    if (status.ok()) {
      outcome_.bytes += jobs_[job].submission->bytes;
      outcome_.tuples += jobs_[job].submission->tuples;
      outcome_.latency_s.push_back(latency_s);
    } else {
      Refusals& refusals = outcome_.refused[status.error_code()];
      if (++refusals.count == 1) refusals.first_message = status.error_message();
    }
    outcome_.seconds = std::max(outcome_.seconds, now - begin_);
    if (++num_done_ == jobs_.size()) changed_.notify_all();
  }

  Connections& connections_;
  const std::vector<Job>& jobs_;
  const double begin_;
  std::mutex mu_;
  std::condition_variable changed_;
  size_t next_ = 0;
  size_t num_done_ = 0;
  Outcome outcome_;
};

}  // namespace

double DueTime(const Pacing& pacing, size_t i) {
  const auto number = static_cast<double>(i);
  if (pacing.per_second <= 0) return std::min(number / pacing.streams, 1.0) * pacing.ramp_s;
  // The rate grows evenly to per_second: after t seconds of the ramp, per_second · t² / (2 · ramp_s) were due.
  const double in_ramp = pacing.per_second * pacing.ramp_s / 2;
  if (number < in_ramp) return std::sqrt(2 * pacing.ramp_s * number / pacing.per_second);
  return pacing.ramp_s + (number - in_ramp) / pacing.per_second;
}

Outcome Run(Connections& connections, const std::vector<Job>& jobs, const Pacing& pacing) {
  Load load(connections, jobs);
  const bool open_loop = pacing.per_second > 0;
  const size_t starts = open_loop ? jobs.size() : std::min<size_t>(jobs.size(), static_cast<size_t>(pacing.streams));
  for (size_t i = 0; i < starts; ++i) {
    const double due = load.begin() + DueTime(pacing, i);
    SleepUntil(due);
    open_loop ? load.Start(i, i, due, /*then_next=*/false) : load.StartLane(i);
  }
  return load.Wait();
}

}  // namespace sparseagg::bench
