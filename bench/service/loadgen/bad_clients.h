// Clients that stall, in uploads and in one-shot calls, that vanish in the middle of a stream, and that send garbage.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_BAD_CLIENTS_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_BAD_CLIENTS_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/service/loadgen/traffic.h"

namespace sparseagg::bench {

enum class Misdeed { kStall, kVanish, kGarbage };

inline constexpr int kNumMisdeeds = 3;

// Threads that go on until Stop, each with a connection of its own, a third of them for each misdeed. What they do is
// drawn with a seed. Thread-safe.
class BadClients {
 public:
  // They take `traffic`, which must outlive them, for what they send before they fail. `pause_s`: between two attempts
  // of each, about.
  BadClients(std::string target, const Traffic& traffic, int count, double pause_s, uint64_t seed);
  ~BadClients();

  // The round that they go for from here on.
  void SetRound(const std::string& name);
  void Stop();

  // Attempts, by misdeed.
  std::vector<uint64_t> attempts() const;
  // How the server answered those that waited for an answer, by code.
  std::map<int, uint64_t> answers() const;

 private:
  class Client;

  void Run(int number, uint64_t seed);
  bool Pause(double seconds);  // false: it is time to stop
  std::string round() const;
  void Count(Misdeed misdeed, int code);

  const std::string target_;
  const Traffic& traffic_;
  const double pause_s_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // All guarded by mu_.
  bool stopped_ = false;
  std::string round_;
  std::vector<uint64_t> attempts_ = std::vector<uint64_t>(kNumMisdeeds);
  std::map<int, uint64_t> answers_;
  std::vector<std::thread> threads_;
};

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_BAD_CLIENTS_H_
