#include "tools/loadgen/soak.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/common/machine.h"
#include "tools/loadgen/bad_clients.h"
#include "tools/loadgen/report.h"

namespace sparseagg::bench {
namespace {

constexpr int kMaxSamples = 600;
constexpr double kFirstRetrySeconds = 0.1;
constexpr double kLongestRetrySeconds = 2;

// Returns: a field of /proc/PID/status in bytes; 0 if it is missing.
uint64_t StatusBytes(int pid, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == field && status >> kib) return kib * 1024;
  }
  return 0;
}

bool MayRetry(int code) {
  return code == grpc::StatusCode::RESOURCE_EXHAUSTED || code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// Samples the memory of the server at intervals, until it is stopped.
class Sampler {
 public:
  Sampler(int pid, double every_s) : pid_(pid), every_s_(every_s), begin_(Now()) {
    if (pid_ != 0) thread_ = std::thread([this] { Run(); });
  }
  ~Sampler() { Stop(); }

  std::vector<MemorySample> Stop() {
    {
      std::lock_guard lock(mu_);
      stopped_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    return samples_;
  }

 private:
  void Run() {
    std::unique_lock lock(mu_);
    while (!stopped_) {
      samples_.push_back({Now() - begin_, StatusBytes(pid_, "VmRSS:")});
      changed_.wait_for(lock, std::chrono::duration<double>(every_s_));
    }
  }

  const int pid_;
  const double every_s_;
  const double begin_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::vector<MemorySample> samples_;
  std::thread thread_;
};

// The good clients: one thread per connection; each takes the next job from a shared queue.
class GoodClients {
 public:
  GoodClients(const SoakFlags& flags, int count)
      : flags_(flags), connections_(flags.target, count, flags.silence_s), due_(Now()) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { Work(static_cast<size_t>(i)); });
  }
  ~GoodClients() {
    {
      std::lock_guard lock(mu_);
      stopped_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  Connections& connections() { return connections_; }

  // Blocks: until all jobs are acknowledged.
  void Submit(const std::vector<Job>& jobs) {
    std::unique_lock lock(mu_);
    jobs_.assign(jobs.begin(), jobs.end());
    pending_ = jobs.size();
    changed_.notify_all();
    while (pending_ > 0 && failure_.empty()) changed_.wait(lock);
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  // Adds the measurements to `run`. Requires: no submission is running.
  void Report(SoakRun& run) const {
    std::lock_guard lock(mu_);
    run.submissions = latency_s_.size();
    run.latency_s = latency_s_;
    run.refused = refused_;
  }

 private:
  void Work(size_t number) {
    while (const std::optional<Job> job = Next()) {
      const double begin = Now();
      double wait = kFirstRetrySeconds;
      grpc::Status status = Once(number, *job);
      while (!status.ok() && MayRetry(status.error_code()) && Now() - begin < flags_.patience_s) {
        CountRefused(status);
        if (!Sleep(wait)) return;
        wait = std::min(2 * wait, kLongestRetrySeconds);
        status = Once(number, *job);
      }
      std::lock_guard lock(mu_);
      if (status.ok()) {
        latency_s_.push_back(Now() - begin);
        --pending_;
      } else {
        failure_ = absl::StrCat("a good submission failed with code ", status.error_code(), " after ", Now() - begin,
                                " s: ", status.error_message());
      }
      changed_.notify_all();
    }
  }

  // Blocks: until the next job is due. Returns: the job, or nothing after the destructor was called.
  std::optional<Job> Next() {
    std::unique_lock lock(mu_);
    while (!stopped_ && (jobs_.empty() || !failure_.empty())) changed_.wait(lock);
    if (stopped_) return std::nullopt;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    due_ = std::max(due_ + 1 / flags_.per_second, Now() - 1 / flags_.per_second);
    const double due = due_;
    lock.unlock();
    return Sleep(due - Now()) ? std::optional(std::move(job)) : std::nullopt;
  }

  bool Sleep(double seconds) {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
    std::unique_lock lock(mu_);
    while (!stopped_ && changed_.wait_until(lock, end) != std::cv_status::timeout) {
    }
    return !stopped_;
  }

  grpc::Status Once(size_t number, const Job& job) {
    std::promise<grpc::Status> ended;
    bench::Submit(connections_.stub(number), job, [&ended](const grpc::Status& status) { ended.set_value(status); });
    return ended.get_future().get();
  }

  void CountRefused(const grpc::Status& status) {
    std::lock_guard lock(mu_);
    Refusals& refusals = refused_[status.error_code()];
    if (++refusals.count == 1) refusals.first_message = status.error_message();
  }

  const SoakFlags& flags_;
  Connections connections_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // All guarded by mu_.
  bool stopped_ = false;
  std::deque<Job> jobs_;
  size_t pending_ = 0;
  double due_;  // time of the latest started job
  std::string failure_;
  std::vector<double> latency_s_;
  std::map<int, Refusals> refused_;
  std::vector<std::thread> threads_;
};

// Runs all rounds of the plan at the same time.
void RunGeneration(Plan& plan, Rounds& rounds, GoodClients& good, BadClients& bad) {
  std::vector<std::string> names;
  for (size_t i = 0; i < plan.num_rounds(); ++i) names.push_back(rounds.Create());
  bad.SetRound(names[0]);
  const std::vector<Job> jobs = plan.Jobs(names);
  good.Submit(jobs);
  uint64_t submissions = 0;
  uint64_t tuples = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    rounds.Close(names[i]);
    const v1::Round ended = rounds.AwaitDone(names[i]);
    submissions += ended.num_submissions();
    tuples += ended.num_tuples();
    const std::string difference = plan.FindDifference(i, rounds.Read(names[i]));
    if (!difference.empty()) throw std::runtime_error(absl::StrCat("wrong result of ", names[i], ": ", difference));
    rounds.Delete(names[i]);
  }
  if (submissions != jobs.size() || tuples != plan.traffic().tuples) {
    throw std::runtime_error(absl::StrCat("the rounds counted ", submissions, " submissions of ", tuples,
                                          " tuples, but ", jobs.size(), " of ", plan.traffic().tuples,
                                          " were acknowledged"));
  }
}

}  // namespace

SoakRun Soak(Plan& plan, const SoakFlags& flags) {
  const int bad_count = flags.connections / 4 * kNumFaults;
  GoodClients good(flags, flags.connections - bad_count);
  Rounds rounds(good.connections(), plan.workload().spec);
  BadClients bad(flags.target, plan.traffic(), bad_count, flags.pause_s, flags.seed);
  Sampler sampler(flags.server_pid, std::max(0.1, flags.seconds / kMaxSamples));
  SoakRun run;
  const double begin = Now();
  do {
    RunGeneration(plan, rounds, good, bad);
    run.rounds += plan.num_rounds();
  } while (Now() - begin < flags.seconds);
  run.seconds = Now() - begin;
  run.resident = sampler.Stop();
  run.peak_bytes = StatusBytes(flags.server_pid, "VmHWM:");
  bad.Stop();
  run.faults = bad.attempts();
  run.answers = bad.answers();
  good.Report(run);
  if (run.answers.contains(grpc::StatusCode::OK)) throw std::runtime_error("the server took a bad submission");
  return run;
}

std::string SoakJson(const SoakRun& run, const SoakFlags& flags) {
  const auto point = [](std::string* out, const MemorySample& sample) {
    absl::StrAppendFormat(out, "[%.2f, %d]", sample.seconds, sample.bytes);
  };
  const auto answer = [](std::string* out, const std::pair<const int, uint64_t>& entry) {
    absl::StrAppendFormat(out, R"("%d": %d)", entry.first, entry.second);
  };
  return absl::StrFormat(
      R"("mode": "soak", "verified": true, "soak_seed": %d, "seconds": %.1f, "clients_at_once": %d, )"
      R"("rounds": %d, "submissions": %d, "latency": %s, "retried": %s, "stalled": %d, "vanished": %d, "garbage": %d, )"
      R"("answers_to_bad": {%s}, "peak_bytes": %s, "resident": [%s])",
      flags.seed, run.seconds, flags.connections, run.rounds, run.submissions, LatencyJson(run.latency_s),
      RefusedJson(run.refused), run.faults[0], run.faults[1], run.faults[2], absl::StrJoin(run.answers, ", ", answer),
      run.peak_bytes == 0 ? "null" : absl::StrCat(run.peak_bytes), absl::StrJoin(run.resident, ", ", point));
}

}  // namespace sparseagg::bench
