// sparseagg-server: the one place where engines, service and transport are put together.
#include <malloc.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cuda/cuda_engine.h"
#include "host/base/column.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"
#include "service/admission/heap_trimmer.h"
#include "service/base/log.h"
#include "service/options.h"
#include "service/rpc/grpc_options.h"
#include "service/server.h"

namespace sparseagg::service {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> UsableCudaEngine(int num_threads) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      cuda::CreateCudaEngine({num_threads}, [](const absl::Status& reason) {
        Log(LogLevel::kWarning, "gpu_fallback", {{"reason", reason.ToString()}});
      });
  if (!engine.ok()) return engine;
  if (const absl::Status probe = (*engine)->Probe(); !probe.ok()) return probe;
  return engine;
}

absl::StatusOr<std::unique_ptr<Engine>> ChooseEngine(Backend backend, int num_threads) {
  if (backend != Backend::kCpu) {
    absl::StatusOr<std::unique_ptr<Engine>> cuda = UsableCudaEngine(num_threads);
    if (cuda.ok()) {
      Log(LogLevel::kInfo, "engine", {{"name", (*cuda)->name()}, {"description", (*cuda)->description()}});
      return cuda;
    }
    if (backend == Backend::kCuda) {
      return absl::Status(cuda.status().code(), absl::StrCat("--backend cuda was asked for, but is not available: ",
                                                             cuda.status().message()));
    }
    Log(LogLevel::kInfo, "no_gpu", {{"reason", cuda.status().message()}});
  }
  std::unique_ptr<Engine> cpu = CreateCpuEngine({num_threads});
  Log(LogLevel::kInfo, "engine", {{"name", cpu->name()}, {"description", cpu->description()}});
  return cpu;
}

constexpr uint64_t kMostKeptBytes = uint64_t{64} << 20;

// Messages and columns come and go by the megabyte. Left to itself, the C library gives such memory back to the system
// and asks for it again, and the system clears every page of it anew, which takes a fifth of the speed at which updates
// can be received. Larger blocks are columns that keep their memory themselves (host/base/column.h).
// What is kept comes out of the process's share of the memory limit, half of it for columns and a quarter for the
// C library.
void KeepFreedMemory(const Limits& limits) {
  const uint64_t share = DivideMemory(limits).process;
  const uint64_t kept = share == 0 ? kMostKeptBytes : std::min(kMostKeptBytes, share / 4);
  KeepFreedColumns(2 * kept);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kept));
  mallopt(M_TOP_PAD, 1 << 20);
}

// As long as the last lines of the log may take; who stops a server does not wait for who reads its log.
constexpr absl::Duration kPatienceWithLog = absl::Seconds(1);
constexpr absl::Duration kPatienceWhenKilled = absl::Milliseconds(100);

// Whoever reads the log may go away: that is an error of a write, and not the end of the server.
void IgnoreBrokenPipes() { std::signal(SIGPIPE, SIG_IGN); }

// After the deadline calls get a second to end, and then the metrics port two. A merge or a driver may take any time.
constexpr absl::Duration kMostOverdue = absl::Seconds(5);

// Blocked in every thread, so that only WaitForSignal takes them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // A terminal that closes, unless nohup or the like has it ignored.
  struct sigaction hangup;
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int WaitForSignal(const sigset_t& signals) {
  int number = 0;
  sigwait(&signals, &number);
  return number;
}

int Run(const Options& options) {
  const sigset_t signals = BlockSignals();  // before anything starts a thread, as the log does
  IgnoreBrokenPipes();
  DisableMutexDeadlockDetection();
  KeepFreedMemory(options.server.limits);
  ConfigureLog(options.log_level, options.log_format);
  const HeapTrimmer trimmer(options.server.limits.memory_limit_bytes);
  if (const absl::Status status = cpu::ForceSimdTarget(options.simd); !status.ok()) {
    Log(LogLevel::kError, "no_simd_target", {{"reason", status.message()}});
    return 1;
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = ChooseEngine(options.backend, options.num_threads);
  if (!engine.ok()) {
    Log(LogLevel::kError, "no_engine", {{"reason", engine.status().message()}});
    return 1;
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options.server, *std::move(engine));
  if (!server.ok()) {
    Log(LogLevel::kError, "no_server", {{"reason", server.status().message()}});
    return 1;
  }
  Log(LogLevel::kInfo, "listening",
      {{"grpc", (*server)->grpc_address()},
       {"metrics", (*server)->metrics_address()},
       {"threads", options.num_threads},
       {"memory_limit", options.server.limits.memory_limit_bytes}});
  if (options.server.insecure)
    Log(LogLevel::kWarning, "insecure", {{"clients", "believed, whoever they say they are"}});
  const std::string metrics = (*server)->metrics_address();
  FlushLog(kPatienceWithLog);  // so that who waits for the line finds in the log what was before
  std::printf("listening grpc=%s%s%s\n", (*server)->grpc_address().c_str(),
              metrics.empty() ? "" : " metrics=", metrics.c_str());
  std::fflush(stdout);

  const int first = WaitForSignal(signals);
  // A second signal ends the process wherever it is. Of SIGHUP a terminal that closes may send two.
  sigset_t impatience = signals;
  sigdelset(&impatience, SIGHUP);
  std::thread([impatience] {
    const int second = WaitForSignal(impatience);
    Log(LogLevel::kWarning, "killed", {{"signal", second}});
    FlushLog(kPatienceWhenKilled);
    std::_Exit(128 + second);
  }).detach();
  (*server)->StopServing();
  Log(LogLevel::kInfo, "draining", {{"signal", first}, {"delay_ms", options.drain_delay}});
  absl::SleepFor(options.drain_delay);
  (*server)->Drain();
  absl::Notification stopped;
  std::thread watchdog([&stopped, latest = options.shutdown_deadline + kMostOverdue] {
    if (stopped.WaitForNotificationWithTimeout(latest)) return;
    Log(LogLevel::kError, "overdue", {{"reason", "what is under way does not end"}});
    std::_Exit(1);
  });
  (*server)->Shutdown(options.shutdown_deadline);
  server->reset();
  stopped.Notify();
  watchdog.join();
  Log(LogLevel::kInfo, "stopped");
  FlushLog(kPatienceWithLog);
  return 0;
}

}  // namespace
}  // namespace sparseagg::service

int main(int argc, char** argv) {
  auto parsed = sparseagg::service::ParseOptions(argc, argv);
  if (const auto* leave = std::get_if<sparseagg::service::ExitWith>(&parsed)) {
    std::fputs(leave->text.c_str(), leave->code == 0 ? stdout : stderr);
    return leave->code;
  }
  return sparseagg::service::Run(std::get<sparseagg::service::Options>(parsed));
}
