// The soak test: good clients for a long time, among clients that stall, disappear or send garbage.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SOAK_H_
#define SPARSEAGG_TOOLS_LOADGEN_SOAK_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/loadgen/rounds.h"
#include "tools/loadgen/submissions.h"

namespace sparseagg::bench {

// What a bad client does wrong: it stops sending, disappears in the middle of a stream, or sends wrong bytes.
enum class Fault { kStall, kVanish, kGarbage };

inline constexpr int kNumFaults = 3;

// Threads that make one faulty call after the other until Stop, each on its own connection, a third of them for each
// fault. The seed determines what they do. Thread-safe.
class BadClients {
 public:
  // The clients send parts of `traffic`, which must outlive them, before they fail. `pause_s`: the mean pause between
  // two calls of a client.
  BadClients(std::string target, const Traffic& traffic, int count, double pause_s, uint64_t seed);
  ~BadClients();

  // Sets the round of all further calls.
  void SetRound(const std::string& name);
  void Stop();

  // Returns: the number of calls, by fault.
  std::vector<uint64_t> attempts() const;
  // Returns: the number of calls that waited for their status, by code.
  std::map<int, uint64_t> answers() const;

 private:
  class Client;

  void Run(int number, uint64_t seed);
  bool Pause(double seconds);  // false: Stop was called
  std::string round() const;
  void Count(Fault fault, int code);

  const std::string target_;
  const Traffic& traffic_;
  const double pause_s_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // All guarded by mu_.
  bool stopped_ = false;
  std::string round_;
  std::vector<uint64_t> attempts_ = std::vector<uint64_t>(kNumFaults);
  std::map<int, uint64_t> answers_;
  std::vector<std::thread> threads_;
};

// What Soak does.
struct SoakFlags {
  std::string target;
  int connections = 200;    // a quarter each of good clients and of bad clients for each Fault
  double seconds = 600;     // at least; the last generation of rounds is completed
  double per_second = 20;   // the most good submissions per second
  double pause_s = 2;       // mean pause between two calls of a bad client
  double patience_s = 120;  // the soak fails if a good submission takes longer, retries included
  int silence_s = Connections::kSilence;
  int server_pid = 0;  // of the server on this machine, to sample its memory; 0: none
  uint64_t seed = 1;
};

// Resident memory of the server at a time.
struct MemorySample {
  double seconds = 0;
  uint64_t bytes = 0;
};

// The measurements of a soak.
struct SoakRun {
  double seconds = 0;
  uint64_t rounds = 0;
  uint64_t submissions = 0;         // acknowledged
  std::vector<double> latency_s;    // of those, from the first attempt
  std::map<int, Refusals> refused;  // refused attempts of good clients, which were retried; by code
  std::vector<uint64_t> faults;     // calls of bad clients, by Fault
  std::map<int, uint64_t> answers;  // to bad clients, by code
  std::vector<MemorySample> resident;
  uint64_t peak_bytes = 0;  // largest resident memory in the life of the server; 0: not sampled
};

// Runs generations of rounds of the plan. In each, every client submits until its submission is acknowledged.
// Errors: std::runtime_error if the counts or results of the rounds are not exactly those of the acknowledged
// submissions, bit for bit, or if the server acknowledged a submission of a bad client.
SoakRun Soak(Plan& plan, const SoakFlags& flags);

std::string SoakJson(const SoakRun& run, const SoakFlags& flags);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SOAK_H_
