// The program sparseagg-server: puts engine, service and transport together, and handles signals.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
#include "cuda/plugin/load.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/simd/kernels.h"
#include "service/admission/process_memory.h"
#include "service/base/log.h"
#include "service/grpc/grpc_options.h"
#include "service/net/tls.h"
#include "service/options.h"
#include "service/server.h"

namespace sparseagg::service {
namespace {

// Sends `signal` to this process as soon as no other process holds a lock on the file `path`. Each owner holds a shared
// POSIX record lock (fcntl) on it. The system removes such a lock with its process, also after SIGKILL, and a forked
// child does not inherit it. So the server ends with its last owner, and nobody polls.
// The wait takes an exclusive lock, which the process keeps until it ends: a new owner that waits for its lock knows
// then that the old server is gone.
// Requires: called once; `signal` is blocked in all threads.
// Errors: the code for errno of opening the file for reading and writing.
// Never blocks: a thread of its own waits, for as long as the process lives.
absl::Status SignalWithoutOwners(const std::string& path, int signal) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("--owners-file ", path));
  const auto watch = [file, path, signal] {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    int failed;
    do {
      failed = fcntl(file, F_SETLKW, &whole) == 0 ? 0 : errno;
    } while (failed == EINTR);
    // Without the lock, nobody would ever stop the server.
    if (failed != 0) Log(LogLevel::kError, "no_owners_lock", {{"path", path}, {"reason", std::strerror(failed)}});
    Log(LogLevel::kInfo, "no_owners", {{"path", path}});
    kill(getpid(), signal);
  };
  return ToStatus([&] {
    std::thread(watch).detach();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<Engine>> UsableCudaEngine(const Options& options, cuda::DeviceWork work) {
  cuda::CudaEngineOptions gpus;
  gpus.cpu = {options.num_threads};
  gpus.on_fallback = [](const absl::Status& reason) {
    Log(LogLevel::kWarning, "gpu_fallback", {{"reason", reason.ToString()}});
  };
  gpus.work = work;
  gpus.num_devices = options.gpu_devices;
  gpus.memory_bytes = options.gpu_memory_bytes;
  // With what is kept of freed memory (KeepFreedMemory), no more than the process's share.
  if (const uint64_t share = DivideMemory(options.server.limits).process; share != 0) {
    gpus.pinned_bytes = std::min(gpus.pinned_bytes, share / 4);
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = options.cuda_plugin.empty() && cuda::HasCudaEngine()
                                                       ? cuda::CreateCudaEngine(gpus)
                                                       : cuda::LoadCudaEngine(options.cuda_plugin, gpus);
  if (!engine.ok()) return engine;
  if (absl::Status probe = (*engine)->Probe(); !probe.ok()) return probe;
  return engine;
}

absl::StatusOr<std::unique_ptr<Engine>> ChooseEngine(const Options& options) {
  const Backend backend = options.backend;
  if (backend != Backend::kCpu) {
    absl::StatusOr<std::unique_ptr<Engine>> cuda =
        UsableCudaEngine(options, backend == Backend::kCuda ? cuda::DeviceWork::kAll : cuda::DeviceWork::kLarge);
    if (cuda.ok()) {
      Log(LogLevel::kInfo, "engine", {{"name", (*cuda)->name()}, {"description", (*cuda)->description()}});
      return cuda;
    }
    if (backend == Backend::kCuda) {
      return absl::Status(cuda.status().code(),
                          absl::StrCat("--backend cuda is not available: ", cuda.status().message()));
    }
    Log(cuda::HasNvidiaDriver() ? LogLevel::kWarning : LogLevel::kInfo, "no_gpu",
        {{"reason", cuda.status().message()}});
  }
  std::unique_ptr<Engine> cpu = CreateCpuEngine({options.num_threads});
  Log(LogLevel::kInfo, "engine", {{"name", cpu->name()}, {"description", cpu->description()}});
  return cpu;
}

constexpr uint64_t kMaxFreedBytes = uint64_t{64} << 20;

// Makes the C library and the column store keep freed memory for reuse. Messages and columns are allocated by the
// megabyte. By default, the C library returns such memory to the system at once, and the system clears every page
// again, which costs a fifth of the speed of ingest. Blocks above the mmap threshold are columns, whose memory the
// column store keeps (host/base/column.h). The kept memory is part of the process's share of the memory limit: half of
// it for columns and a quarter for the C library.
void KeepFreedMemory(const Limits& limits) {
  const uint64_t share = DivideMemory(limits).process;
  const uint64_t freed = share == 0 ? kMaxFreedBytes : std::min(kMaxFreedBytes, share / 4);
  KeepFreedColumns(2 * freed);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(freed));
  mallopt(M_TOP_PAD, 1 << 20);
}

// Time for the last lines of the log to be written. A stop does not wait longer for a slow reader of the log.
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);
constexpr absl::Duration kFlushTimeoutWhenKilled = absl::Milliseconds(100);

// Makes a write to a pipe without a reader an error, in place of the end of the process; and a write beyond the largest
// size of a file, which is a full disk for the store.
void IgnoreFailedWrites() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Time after the shutdown deadline before the process exits by force: a second for cancelled calls, one for the metrics
// server, and a margin. A merge or a GPU driver may take any time.
constexpr absl::Duration kForcedExitDelay = absl::Seconds(5);

// Sent when the last owner of --owners-file has ended.
constexpr int kNoOwnersSignal = SIGUSR1;

// Blocks the signals that stop the server in this thread and all threads it starts. WaitForSignal receives them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, kNoOwnersSignal);
  // SIGHUP is a terminal that closes, unless nohup or the like ignores it.
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
  const sigset_t signals = BlockSignals();  // before the log or anything else starts a thread
  IgnoreFailedWrites();
  DisableMutexDeadlockDetection();
  KeepFreedMemory(options.server.limits);
  ConfigureLog(options.log_level, options.log_format);
  const HeapTrimmer trimmer(options.server.limits.memory_limit_bytes);
  if (const absl::Status status = cpu::ForceSimdTarget(options.simd); !status.ok()) {
    Log(LogLevel::kError, "no_simd_target", {{"reason", status.message()}});
    return 1;
  }
  if (!options.owners_file.empty()) {
    if (const absl::Status status = SignalWithoutOwners(options.owners_file, kNoOwnersSignal); !status.ok()) {
      Log(LogLevel::kError, "no_owners_file", {{"reason", status.message()}});
      return 1;
    }
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = ChooseEngine(options);
  if (!engine.ok()) {
    Log(LogLevel::kError, "no_engine", {{"reason", engine.status().message()}});
    return 1;
  }
  if (!options.dev_tls.empty()) {
    if (const absl::Status status = MakeDevCertificates(options.dev_tls, options.server.grpc_address); !status.ok()) {
      Log(LogLevel::kError, "no_dev_certificates", {{"reason", status.message()}});
      return 1;
    }
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options.server, *std::move(engine));
  if (!server.ok()) {
    Log(LogLevel::kError, "no_server", {{"reason", server.status().message()}});
    return 1;
  }
  Log(LogLevel::kInfo, "listening",
      {{"grpc", (*server)->grpc_address()},
       {"http", (*server)->http_address()},
       {"metrics", (*server)->metrics_address()},
       {"threads", options.num_threads},
       {"memory_limit", options.server.limits.memory_limit_bytes}});
  const std::string http = (*server)->http_address();
  const std::string metrics = (*server)->metrics_address();
  FlushLog(kFlushTimeout);  // the log is complete when a reader sees the line on standard output
  std::printf("listening grpc=%s%s%s%s%s\n", (*server)->grpc_address().c_str(),
              http.empty() ? "" : " http=", http.c_str(), metrics.empty() ? "" : " metrics=", metrics.c_str());
  std::fflush(stdout);

  const int first = WaitForSignal(signals);
  // A second signal ends the process at once. SIGHUP does not count, because a terminal that closes may send two; nor
  // does the end of an owner that has asked for the stop.
  sigset_t killing_signals = signals;
  sigdelset(&killing_signals, SIGHUP);
  sigdelset(&killing_signals, kNoOwnersSignal);
  std::thread killer = TryThread([killing_signals] {
    const int second = WaitForSignal(killing_signals);
    Log(LogLevel::kWarning, "killed", {{"signal", second}});
    FlushLog(kFlushTimeoutWhenKilled);
    std::_Exit(128 + second);
  });
  if (killer.joinable()) killer.detach();
  (*server)->StopServing();
  Log(LogLevel::kInfo, "draining", {{"signal", first}, {"delay_ms", options.drain_delay}});
  absl::SleepFor(options.drain_delay);
  (*server)->Drain();
  absl::Notification stopped;
  std::thread watchdog = TryThread([&stopped, latest = options.shutdown_deadline + kForcedExitDelay] {
    if (stopped.WaitForNotificationWithTimeout(latest)) return;
    Log(LogLevel::kError, "overdue", {{"reason", "calls in progress do not end"}});
    std::_Exit(1);
  });
  (*server)->Shutdown(options.shutdown_deadline);
  server->reset();
  stopped.Notify();
  if (watchdog.joinable()) watchdog.join();
  Log(LogLevel::kInfo, "stopped");
  FlushLog(kFlushTimeout);
  return 0;
}

}  // namespace
}  // namespace sparseagg::service

int main(int argc, char** argv) {
  // A library that was loaded may have changed it. Threads inherit it, so that numbers are read in it, too.
  std::fesetenv(FE_DFL_ENV);
  auto parsed = sparseagg::service::ParseOptions(argc, argv);
  if (const auto* leave = std::get_if<sparseagg::service::ExitWith>(&parsed)) {
    std::fputs(leave->text.c_str(), leave->code == 0 ? stdout : stderr);
    return leave->code;
  }
  int code = 1;
  const absl::Status status = sparseagg::ToStatus([&] {
    code = sparseagg::service::Run(std::get<sparseagg::service::Options>(parsed));
    return absl::OkStatus();
  });
  // Not to the log, which may be what had no memory for a thread.
  if (!status.ok()) std::fprintf(stderr, "sparseagg-server: %s\n", status.ToString().c_str());
  return code;
}
