// Clients that stall, disappear or send garbage.
#ifndef SPARSEAGG_TOOLS_LOADGEN_BAD_CLIENTS_H_
#define SPARSEAGG_TOOLS_LOADGEN_BAD_CLIENTS_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/loadgen/traffic.h"

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

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_BAD_CLIENTS_H_
