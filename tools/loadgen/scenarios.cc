#include "tools/loadgen/scenarios.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "bench/common/machine.h"

namespace sparseagg::bench {
namespace {

size_t NumPasses(const Plan& plan, const Pacing& pacing, double duration_s) {
  if (pacing.per_second <= 0) return 1;
  const size_t clients = plan.traffic().submissions.size();
  size_t passes = 1;
  while (DueTime(pacing, passes * clients) < duration_s) ++passes;
  return passes;
}

void CheckCounts(const std::vector<v1::Round>& rounds, const Outcome& outcome) {
  uint64_t submissions = 0;
  uint64_t tuples = 0;
  for (const v1::Round& round : rounds) {
    submissions += round.num_submissions();
    tuples += round.num_tuples();
  }
  if (submissions == outcome.latency_s.size() && tuples == outcome.tuples) return;
  throw std::runtime_error(absl::StrCat("the rounds counted ", submissions, " submissions of ", tuples, " tuples, but ",
                                        outcome.latency_s.size(), " of ", outcome.tuples, " were acknowledged"));
}

void Verify(Rounds& rounds, Plan& plan, size_t number, const std::string& name) {
  const std::string difference = plan.FindDifference(number, rounds.Read(name));
  if (!difference.empty()) throw std::runtime_error(absl::StrCat("wrong result of ", name, ": ", difference));
}

}  // namespace

Plan::Plan(const Workload& workload, uint64_t chunk_bytes, int num_rounds, const WireForm& form)
    : workload_(workload),
      traffic_(MakeTraffic(workload, chunk_bytes, form)),
      num_rounds_(std::max<size_t>(1, std::min(static_cast<size_t>(num_rounds), workload.clients.size()))) {}

std::vector<Job> Plan::Jobs(const std::vector<std::string>& names, size_t passes) const {
  std::vector<Job> jobs;
  jobs.reserve(passes * traffic_.submissions.size());
  for (size_t pass = 0; pass < passes; ++pass) {
    for (size_t k = 0; k < traffic_.submissions.size(); ++k) {
      jobs.push_back({&traffic_.submissions[k], names[pass * num_rounds_ + k % num_rounds_]});
    }
  }
  return jobs;
}

std::vector<Job> Plan::SinkJobs() const {
  std::vector<Job> jobs;
  for (const Submission& submission : traffic_.submissions) jobs.push_back({&submission, "rounds/none", false});
  return jobs;
}

std::string Plan::FindDifference(size_t round, const std::vector<v1::ResultPage>& pages) {
  while (expected_.size() < num_rounds_) expected_.push_back(MergeHere(workload_, expected_.size(), num_rounds_));
  return bench::FindDifference(expected_[round % num_rounds_], pages);
}

IngestRun MeasureIngest(Connections& connections, Plan& plan, const Pacing& pacing, double duration_s, bool verify) {
  Rounds rounds(connections, plan.workload().spec);
  const size_t passes = NumPasses(plan, pacing, duration_s);
  std::vector<std::string> names;
  for (size_t i = 0; i < passes * plan.num_rounds(); ++i) names.push_back(rounds.Create());
  const std::vector<Job> jobs = plan.Jobs(names, passes);

  IngestRun run;
  const double begin = Now();
  run.outcome = Run(connections, jobs, pacing);
  const double closing = Now();
  for (const std::string& name : names) rounds.Close(name);
  std::vector<v1::Round> ended;
  for (const std::string& name : names) ended.push_back(rounds.AwaitDone(name));
  const double end = Now();
  run.tail_s = end - closing;
  run.total_s = end - begin;

  CheckCounts(ended, run.outcome);
  run.verified = verify && run.outcome.refused.empty();
  for (size_t i = 0; run.verified && i < names.size(); ++i) Verify(rounds, plan, i, names[i]);
  for (const std::string& name : names) rounds.Delete(name);
  return run;
}

std::vector<double> MeasureRounds(Connections& connections, Plan& plan, int count) {
  Rounds rounds(connections, plan.workload().spec);
  Pacing all_at_once;
  all_at_once.streams = static_cast<int>(plan.traffic().submissions.size());
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const double begin = Now();
    const std::string name = rounds.Create();
    const std::vector<Job> jobs = plan.Jobs({name});
    const Outcome outcome = Run(connections, jobs, all_at_once);
    rounds.Close(name);
    const v1::Round ended = rounds.AwaitDone(name);
    const std::vector<v1::ResultPage> pages = rounds.Read(name);
    seconds.push_back(Now() - begin);
    if (!outcome.refused.empty()) throw std::runtime_error("refused: " + outcome.refused.begin()->second.first_message);
    CheckCounts({ended}, outcome);
    const std::string difference = plan.FindDifference(0, pages);
    if (!difference.empty()) throw std::runtime_error(absl::StrCat("wrong result of ", name, ": ", difference));
    rounds.Delete(name);
  }
  return seconds;
}

}  // namespace sparseagg::bench
