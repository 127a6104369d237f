#include "tools/loadgen/rounds.h"

#include <grpcpp/client_context.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/common/machine.h"
#include "host/aggregation.h"
#include "host/cpu/cpu_engine.h"

namespace sparseagg::bench {
namespace {

void Check(const grpc::Status& status, const std::string& call) {
  if (status.ok()) return;
  throw std::runtime_error(
      absl::StrCat(call, " was answered with code ", status.error_code(), ": ", status.error_message()));
}

// Encodes the kinds of spec that workloads have: sums without dense layouts.
v1::RoundSpec EncodeSpec(const TensorSpec& spec) {
  v1::RoundSpec wire;
  v1::TensorSpec* tensor = wire.add_tensors();
  tensor->set_name(spec.name);
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->set_num_rows(spec.num_rows);
  tensor->set_row_width(spec.row_width);
  wire.mutable_aggregation()->set_op(v1::OP_SUM);
  return wire;
}

}  // namespace

Rounds::Rounds(Connections& connections, const TensorSpec& spec)
    : stub_(v1::Aggregation::NewStub(connections.channel())), spec_(EncodeSpec(spec)) {}

v1::ServerInfo Rounds::Info() {
  grpc::ClientContext context;
  v1::ServerInfo info;
  Check(stub_->GetServerInfo(&context, {}, &info), "GetServerInfo");
  return info;
}

std::string Rounds::Create() {
  grpc::ClientContext context;
  v1::CreateRoundRequest request;
  *request.mutable_spec() = spec_;
  v1::Round round;
  Check(stub_->CreateRound(&context, request, &round), "CreateRound");
  return round.name();
}

void Rounds::Close(const std::string& name) {
  grpc::ClientContext context;
  v1::CloseRoundRequest request;
  request.set_round(name);
  v1::Round round;
  Check(stub_->CloseRound(&context, request, &round), "CloseRound");
}

v1::Round Rounds::AwaitDone(const std::string& name) {
  v1::Round round;
  do {
    grpc::ClientContext context;
    v1::WaitRoundRequest request;
    request.set_round(name);
    Check(stub_->WaitRound(&context, request, &round), "WaitRound");
  } while (round.state() == v1::ROUND_STATE_FINALIZING);
  if (round.state() == v1::ROUND_STATE_DONE) return round;
  throw std::runtime_error(
      absl::StrCat(name, " ended as ", v1::RoundState_Name(round.state()), ": ", round.state_reason()));
}

std::vector<v1::ResultPage> Rounds::Read(const std::string& name) {
  grpc::ClientContext context;
  v1::StreamResultRequest request;
  request.set_round(name);
  const auto reader = stub_->StreamResult(&context, request);
  std::vector<v1::ResultPage> pages;
  for (v1::ResultPage page; reader->Read(&page); page.Clear()) pages.push_back(page);
  Check(reader->Finish(), "StreamResult");
  return pages;
}

void Rounds::Delete(const std::string& name) {
  grpc::ClientContext context;
  v1::DeleteRoundRequest request;
  request.set_round(name);
  google::protobuf::Empty empty;
  Check(stub_->DeleteRound(&context, request, &empty), "DeleteRound");
}

namespace {

// Merges the updates of the clients first, first + step, … with the CPU engine in this process.
Result MergeHere(const Workload& workload, size_t first, size_t step) {
  const auto engine = CreateCpuEngine();
  const auto aggregation = Must(Aggregation::Create(*engine, {workload.spec}));
  for (size_t k = first; k < workload.clients.size(); k += step) {
    ValidatedUpdate update =
        Must(ValidatedUpdate::Create(workload.spec, BorrowColumns(workload.spec, workload.clients[k]), 1.0));
    bench::Check(aggregation->Add(ClientId(k), Must(aggregation->Prepare({std::move(update)}))));
  }
  return std::move(Must(std::move(*aggregation).Finish())[0]);
}

// Returns: an empty string if the pages have exactly the bits of `expected`, otherwise the first difference.
std::string FindDifference(const Result& expected, const std::vector<v1::ResultPage>& pages) {
  uint64_t row = 0;
  const size_t row_bytes = expected.row_width * SizeOf(expected.dtype);
  for (const v1::ResultPage& page : pages) {
    const v1::TensorSlice& slice = page.slice();
    const uint64_t rows = slice.num_keys();
    if (row + rows > expected.num_keys) return absl::StrCat("more than ", expected.num_keys, " rows");
    const bool keys_agree = std::visit(
        [&](const auto& keys) {
          const size_t key_bytes = sizeof(keys[0]);
          return slice.keys().size() == rows * key_bytes &&
                 std::memcmp(slice.keys().data(), keys.data() + row, rows * key_bytes) == 0;
        },
        expected.keys);
    if (!keys_agree) return absl::StrCat("other keys in rows ", row, " to ", row + rows);
    if (slice.values().size() != rows * row_bytes ||
        std::memcmp(slice.values().data(), expected.values.data() + row * row_bytes, rows * row_bytes) != 0) {
      return absl::StrCat("other values in rows ", row, " to ", row + rows);
    }
    row += rows;
  }
  if (row == expected.num_keys) return "";
  return absl::StrCat(row, " rows instead of ", expected.num_keys);
}

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

void Plan::Verify(size_t round, const std::string& name, const std::vector<v1::ResultPage>& pages) {
  while (expected_.size() < num_rounds_) expected_.push_back(MergeHere(workload_, expected_.size(), num_rounds_));
  const std::string difference = FindDifference(expected_[round % num_rounds_], pages);
  if (!difference.empty()) throw std::runtime_error(absl::StrCat("wrong result of ", name, ": ", difference));
}

IngestRun MeasureIngest(Connections& connections, Plan& plan, const Pacing& pacing, double duration_s) {
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
  for (size_t i = 0; i < names.size(); ++i) plan.Verify(i, names[i], rounds.Read(names[i]));
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
    CheckCounts({ended}, outcome);
    plan.Verify(0, name, pages);
    rounds.Delete(name);
  }
  return seconds;
}

}  // namespace sparseagg::bench
