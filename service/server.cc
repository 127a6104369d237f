#include "service/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/admission/activity.h"
#include "service/admission/process_memory.h"
#include "service/base/log.h"
#include "service/base/read_file.h"
#include "service/grpc/grpc_options.h"
#include "service/grpc/grpc_service.h"
#include "service/net/address.h"
#include "service/net/frame_inspection.h"
#include "service/restore.h"

namespace sparseagg::service {
namespace {

// Time for cancelled calls to end by themselves, before the server ends their connections.
constexpr absl::Duration kCancelTime = absl::Seconds(1);

// Time for a client to close a connection without calls that it was told to leave, before the server ends it; and the
// interval between looks.
constexpr absl::Duration kLeaveTime = absl::Milliseconds(500);
constexpr absl::Duration kLeaveInterval = absl::Milliseconds(50);

// Interval between looks at the files of credentials.
constexpr absl::Duration kReloadInterval = absl::Seconds(1);

// Interval between writes of the time of day.
constexpr absl::Duration kTimeInterval = absl::Minutes(1);

// Calls that clients may begin in a second, for each core: more than gRPC can answer.
constexpr size_t kMaxStreamsPerCore = 8000;

// Logs complaints of Protocol Buffers about messages at debug level: their senders get an error anyway, and a client
// could fill the log.
void LogProtobuf(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  Log(level == google::protobuf::LOGLEVEL_FATAL ? LogLevel::kError : LogLevel::kDebug, "protobuf",
      {{"file", file}, {"line", line}, {"message", message}});
}

// Logs gRPC's messages as events. After a failed assertion gRPC aborts the process, so that message is flushed.
void LogGrpc(gpr_log_func_args* message) {
  const LogLevel level = message->severity != GPR_LOG_SEVERITY_ERROR              ? LogLevel::kDebug
                         : absl::StartsWith(message->message, "assertion failed") ? LogLevel::kError
                                                                                  : LogLevel::kWarning;
  Log(level, "grpc", {{"file", message->file}, {"line", message->line}, {"message", message->message}});
}

// Registers reflection, channelz and health, once per process, before the first server is built.
void InitPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Workaround: gRPC 1.51 takes up to ten seconds to shut down its library after a connection has closed, so
    // grpc_shutdown() is never called. Remove with: a version whose grpc_shutdown() does not wait.
    grpc_init();
    google::protobuf::SetLogHandler(&LogProtobuf);
    gpr_set_log_function(&LogGrpc);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::channelz::experimental::InitChannelzService();
  });
}

Limits LimitsOf(const ServerOptions& options) {
  Limits limits = options.limits;
  if (options.tls.IsEnabled()) limits.connection_bytes = kTlsConnectionBytes;
  return limits;
}

AuthOptions AuthOf(const ServerOptions& options) {
  return {options.tokens_file, !options.tls.client_ca.empty(), options.jwt};
}

// Begins a warning that is no fault, such as what is usual on the loopback.
constexpr char kNote[] = "note: ";

// Returns: what the server lacks to serve other machines; empty: nothing.
std::string Lacks(const ServerOptions& options) {
  std::vector<absl::string_view> lacks;
  if (!options.tls.IsEnabled()) lacks.push_back("TLS (--tls-certificate)");
  if (!AuthOf(options).IsRequired()) {
    lacks.push_back("authentication (--tokens-file, --jwt-key or --tls-client-ca)");
  }
  return absl::StrJoin(lacks, " and no ");
}

// Returns: the connections of the gateway that memory has room for; 0: no gateway.
uint64_t MaxHttpConnections(const ServerOptions& options) {
  if (options.http.address.empty()) return 0;
  return FitHttpConnections(LimitsOf(options), options.http.max_connections);
}

// Connections to the port of metrics and probes, of two descriptors each (kReservedFds in net/listener.cc).
constexpr uint64_t kMaxMetricsConnections = 32;

// Leaves out the plugins of gRPC that serve everybody: reflection and channelz. Health stays.
class NoInspection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override { plugins->clear(); }
};

// Appends what `devices` do, one gauge after the other. They may be none.
void AddGpus(const std::vector<DeviceState>& devices, std::vector<GaugeValue>& gauges) {
  const auto add = [&](const char* name, const char* help, auto value_of) {
    for (const DeviceState& device : devices) {
      gauges.push_back({name, help, value_of(device), absl::StrCat(device.device), "device"});
    }
  };
  add("sparseagg_gpu_usable", "1 if the engine uses the GPU, 0 after an error of it.",
      [](const DeviceState& device) { return uint64_t{device.status.ok()}; });
  add("sparseagg_gpu_operations", "Operations that have ended well on the GPU since the start.",
      [](const DeviceState& device) { return device.num_operations; });
  add("sparseagg_gpu_sent_bytes", "Keys and values that the GPU was sent since the start.",
      [](const DeviceState& device) { return device.sent_bytes; });
}

// Appends how the files of credentials are doing. `tls`, `certifier`: may be null.
void AddCredentials(const Authenticator& authenticator, const TlsCredentials* tls, const OpenSslCertifier* certifier,
                    std::vector<GaugeValue>& gauges) {
  const std::pair<const char*, const ReloadState*> files[] = {
      {"tokens-file", &authenticator.tokens_state()},
      {"jwt-key", &authenticator.jwt_state()},
      {"tls-certificate", tls == nullptr ? nullptr : &tls->state()},
      {"certificate-key", certifier == nullptr ? nullptr : &certifier->state()}};
  const auto add = [&](const char* name, const char* help, const std::atomic<uint64_t> ReloadState::*value) {
    for (const auto& [flag, state] : files) {
      if (state != nullptr && state->read_at > 0) gauges.push_back({name, help, state->*value, flag, "flag"});
    }
  };
  add("sparseagg_credentials_reloads_failed",
      "Changed files of a flag that were refused since the latest one that was taken; 0: the file's content is in use.",
      &ReloadState::num_failed);
  add("sparseagg_credentials_read_timestamp_seconds", "When the content in use was read, as Unix time.",
      &ReloadState::read_at);
  if (tls == nullptr) return;
  const std::shared_ptr<const TlsPem> pem = tls->pem();
  const auto add_end = [&](const char* flag, absl::Time end) {
    gauges.push_back({"sparseagg_certificate_end_timestamp_seconds",
                      "When the first certificate of the flag's file ends, as Unix time.",
                      static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixSeconds(end))), flag, "flag"});
  };
  add_end("tls-certificate", pem->certificate_end);
  if (!pem->client_ca.empty()) add_end("tls-client-ca", pem->client_ca_end);
}

}  // namespace

struct Server::Grpc {
  AggregationService aggregation;
  RpcService tasks;
  RpcService models;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::once_flag shutdown;
};

Server::Server(const ServerOptions& options, std::unique_ptr<Engine> engine, const Clock& clock,
               std::unique_ptr<Store> store, std::unique_ptr<OpenSslCertifier> certifier)
    : engine_(std::move(engine)),
      store_(std::move(store)),
      max_http_connections_(MaxHttpConnections(options)),
      certifier_(certifier.get()),
      server_(engine_.get(), &clock, FitToFiles(LimitsOf(options), max_http_connections_), options.num_threads,
              store_.get(), std::move(certifier)),
      registry_(server_.ForRounds()),
      streams_(&registry_, server_.ForRounds()),
      tasks_(std::make_shared<TaskRegistry>(server_.ForTasks(&registry_))),
      models_(&registry_, &streams_, server_.ForRounds()),
      api_(&server_, &registry_, &streams_, tasks_.get(), &models_) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, std::unique_ptr<Engine> engine,
                                                      const Clock& clock) {
  return ToStatus([&] { return StartOrThrow(options, std::move(engine), clock); });
}

absl::StatusOr<std::unique_ptr<Server>> Server::StartOrThrow(const ServerOptions& options,
                                                             std::unique_ptr<Engine> engine, const Clock& clock) {
  if (const std::string lacks = Lacks(options); !options.insecure && !lacks.empty()) {
    RETURN_IF_ERROR(CheckLoopback(options.grpc_address, lacks));
  }
  std::unique_ptr<Store> store;
  if (options.durability != Durability::kMemory) {
    ASSIGN_OR_RETURN(store, Store::Open({options.data_dir, options.durability, LimitsOf(options).memory_limit_bytes}));
  }
  std::unique_ptr<OpenSslCertifier> certifier;
  if (!options.certificate_key.empty()) {
    absl::StatusOr<std::unique_ptr<OpenSslCertifier>> loaded = OpenSslCertifier::Load(options.certificate_key);
    if (!loaded.ok()) {
      return absl::Status(loaded.status().code(), absl::StrCat("--certificate-key: ", loaded.status().message()));
    }
    certifier = *std::move(loaded);
    Log(LogLevel::kInfo, "certificate_key", {{"key_id", certifier->key_id()}});
  }
  auto server =
      std::unique_ptr<Server>(new Server(options, std::move(engine), clock, std::move(store), std::move(certifier)));
  RETURN_IF_ERROR(server->ReadNoiseKey(options));
  if (server->store_ != nullptr && !options.backup_dir.empty()) {
    if (const absl::Status made = MakeDirectory(options.backup_dir); !made.ok()) {
      return absl::Status(made.code(), absl::StrCat("--backup-dir: ", made.message()));
    }
    server->server_.backup_dir = options.backup_dir;
  }
  if (Store* const opened = server->store_.get(); opened != nullptr) {
    server->server_.budget.Reserve(opened->memory_bytes());
    RETURN_IF_ERROR(
        RestoreRounds(*opened, server->registry_, server->streams_, server->models_, server->server_.limits));
    RETURN_IF_ERROR(server->tasks_->Restore());
  }
  const uint64_t wanted = FitToMemory(LimitsOf(options)).max_connections;
  if (const uint64_t most = server->server_.limits.max_connections; most < wanted) {
    Log(LogLevel::kWarning, "few_files", {{"max_connections", wanted}, {"connections", most}});
    server->server_.warnings.Add(absl::StrCat(kNote, "at most ", most, " connections of max_connections ", wanted,
                                              ": the process may open no more files (ulimit -n)"));
  }
  const uint64_t kept = DivideMemory(server->server_.limits).kept;
  if (const uint64_t each = options.limits.max_memory_per_tenant; kept != 0 && each >= kept) {
    Log(LogLevel::kWarning, "much_memory_per_tenant", {{"max_memory_per_tenant", each}, {"memory_of_rounds", kept}});
  }
  const uint64_t memory = ProcessMemory();
  if (const uint64_t limit = server->server_.limits.memory_limit_bytes; SaturatingAdd(limit, limit / 10) > memory) {
    Log(LogLevel::kWarning, "little_memory", {{"memory_limit", limit}, {"memory", memory}});
    server->server_.warnings.Add(absl::StrCat("--memory-limit ", limit >> 20, " MiB and a tenth more exceed the ",
                                              memory >> 20,
                                              " MiB of the machine or container: the kernel may kill the "
                                              "server"));
  }
  RETURN_IF_ERROR(server->server_.authenticator.Configure(AuthOf(options)));
  if (!server->server_.authenticator.IsRequired()) {
    Log(LogLevel::kWarning, "no_authentication", {{"authentication", "none"}});
    server->server_.warnings.Add(
        absl::StrCat(options.insecure ? "" : kNote,
                     "no authentication: whoever reaches the server may do everything, under any client's name"));
  }
  if (options.insecure && !options.tls.IsEnabled()) {
    Log(LogLevel::kWarning, "no_encryption", {{"tokens_and_updates", "readable on the network"}});
    server->server_.warnings.Add("no encryption: tokens and updates are readable on the network");
  }
  if (options.tls.IsEnabled()) {
    ASSIGN_OR_RETURN(server->tls_, TlsCredentials::Load(options.tls, &server->server_.clock));
  }
  if (server->tls_ != nullptr || server->certifier_ != nullptr || server->server_.authenticator.IsRequired()) {
    server->KeepCredentialsFresh();
  }
  if (server->store_ != nullptr) server->KeepTime();
  server->KeepHistory();
  RETURN_IF_ERROR(server->Listen(options));
  RETURN_IF_ERROR(server->ServeGateway(options));
  RETURN_IF_ERROR(server->ServeMetrics(options));
  return server;
}

absl::Status Server::ReadNoiseKey(const ServerOptions& options) {
  if (options.noise_key_file.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> key = ReadSecretFile(options.noise_key_file, privacy::NoiseSource::kMinKeyBytes);
  if (!key.ok()) {
    return absl::Status(key.status().code(), absl::StrCat("--noise-key-file: ", key.status().message()));
  }
  server_.noise_key = *std::move(key);
  return absl::OkStatus();
}

absl::Status Server::Listen(const ServerOptions& options) {
  InitPlugins();
  absl::StatusOr<std::unique_ptr<Listener>> listener = Listener::Open(options.grpc_address);
  if (!listener.ok()) {
    return absl::Status(listener.status().code(),
                        absl::StrCat("cannot listen on ", options.grpc_address, ": ", listener.status().message()));
  }
  listener_ = *std::move(listener);
  grpc_ = std::unique_ptr<Grpc>(new Grpc{{&server_, &registry_, &api_.aggregation},
                                         {&server_, api_.tasks.Entries()},
                                         {&server_, api_.models.Entries()},
                                         nullptr,
                                         nullptr,
                                         {}});
  grpc::ServerBuilder builder;
  ConfigureTransport(server_.limits, builder);
  grpc_->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      tls_ == nullptr ? grpc::InsecureServerCredentials() : tls_);
  if (server_.authenticator.IsRequired()) builder.SetOption(std::make_unique<NoInspection>());
  builder.SetContextAllocator(std::make_unique<CallContexts>());
  builder.RegisterService(&grpc_->aggregation);
  builder.RegisterService(&grpc_->tasks);
  builder.RegisterService(&grpc_->models);
  grpc_->server = builder.BuildAndStart();
  if (grpc_->server == nullptr) return absl::InternalError("gRPC did not start");
  for (const char* service : {"sparseagg.v1.Aggregation", "sparseagg.v1.Models", "sparseagg.v1.Tasks"}) {
    grpc_->server->GetHealthCheckService()->SetServingStatus(service, true);
  }
  const auto take = [acceptor = grpc_->acceptor.get()](int fd, const std::string&) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  SetFrameEvents({[this](const char* excess, int fd) {
                    if (fd >= 0) server_.connections.Bar(fd);
                    CountEndedConnection(excess);
                  },
                  [this] {
                    server_.connections.EndBusiest();
                    CountEndedConnection("calls at once");
                  },
                  MaxOpenStreams(server_.limits), kMaxStreamsPerCore * std::thread::hardware_concurrency()});
  listener_->Start({.all = server_.limits.max_connections}, tls_ != nullptr, &server_.connections, take,
                   [this](const char* reason) { RefuseConnection(reason); });
  return absl::OkStatus();
}

void Server::KeepHistory() {
  server_.tenants.SampleActivity();
  server_.resident_bytes.Add(ResidentBytes());
  server_.timer.Schedule(server_.clock.Monotonic() + History::kInterval, [this] { KeepHistory(); });
}

absl::Time Server::TimeSeen() const { return started_.wall + (server_.clock.Monotonic() - started_.monotonic); }

void Server::KeepTime() {
  // Without effect if the disk is full: what is to expire after a restart is then kept for longer.
  store_->PutSeen(TimeSeen()).IgnoreError();
  server_.timer.Schedule(server_.clock.Monotonic() + kTimeInterval,
                         [this] { server_.pool.Post([this] { KeepTime(); }); });
}

void Server::KeepCredentialsFresh() {
  server_.timer.Schedule(server_.clock.Monotonic() + kReloadInterval, [this] {
    server_.pool.Post([this] {
      server_.authenticator.Reload();
      if (tls_ != nullptr) tls_->Reload();
      if (certifier_ != nullptr) certifier_->Reload();
      KeepCredentialsFresh();
    });
  });
}

void Server::RefuseConnection(const char* reason) {
  server_.metrics.CountRefusedConnection();
  LogConnection("connection_refused", reason);
}

void Server::CountEndedConnection(const char* what) {
  server_.metrics.CountEndedConnections(1);
  LogConnection("connection_ended", absl::StrCat("its client sent too many ", what));
}

void Server::LogConnection(const char* event, absl::string_view reason) {
  const std::optional<uint64_t> omitted = connection_lines_.TryTake();
  if (omitted.has_value()) Log(LogLevel::kWarning, event, {{"reason", reason}, {"omitted", *omitted}});
}

std::vector<GaugeValue> Server::CountNow() const {
  std::vector<GaugeValue> gauges;
  const auto add = [&gauges](const char* name, const char* help, uint64_t value, absl::string_view state = "") {
    gauges.push_back({name, help, value, absl::AsciiStrToLower(state)});
  };
  const auto rounds = registry_.CountByState();
  for (size_t i = 0; i < rounds.size(); ++i) {
    add("sparseagg_rounds", "Rounds in the server by state.", rounds[i], Name(static_cast<RoundState>(i)));
  }
  uint64_t num_buffered = 0;
  const std::vector<std::shared_ptr<Stream>> streams = streams_.All();
  for (const auto& stream : streams) num_buffered += stream->Snapshot().num_buffered;
  add("sparseagg_streams", "Streams in the server.", streams.size());
  add("sparseagg_stream_buffered_commits", "Commits to streams whose versions were not cut yet.", num_buffered);
  uint64_t model_bytes = 0;
  const std::vector<std::shared_ptr<ServedModel>> models = models_.All();
  for (const auto& model : models) model_bytes += model->model().memory_bytes();
  add("sparseagg_models", "Models in the server.", models.size());
  add("sparseagg_model_bytes", "Memory that models take; part of sparseagg_kept_bytes.", model_bytes);
  const TaskRegistry::Counts tasks = tasks_->Count();
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    add("sparseagg_tasks", "Tasks in the server by state.", tasks.tasks[i], Name(static_cast<TaskState>(i)));
  }
  add("sparseagg_waiting_leases", "LeaseTask calls that wait for a task.", tasks.waiting);
  add("sparseagg_task_bytes", "Memory that tasks take; part of sparseagg_kept_bytes.", tasks.bytes);
  add("sparseagg_uploads", "Uploads begun but not committed.", server_.uploads.taken());
  const uint64_t http_connections = gateway_ == nullptr ? 0 : gateway_->num_connections();
  add("sparseagg_connections", "Open connections.", server_.connections.num_open() + http_connections);
  add("sparseagg_http_connections", "Open connections of the HTTP gateway; part of sparseagg_connections.",
      http_connections);
  add("sparseagg_in_flight_bytes", "In-flight memory: messages and pages between the wire and rounds.",
      server_.in_flight.reserved());
  add("sparseagg_in_flight_limit_bytes", "Limit of sparseagg_in_flight_bytes; 0: no limit.", server_.in_flight.limit());
  add("sparseagg_in_flight_waiting", "Calls that wait for in-flight memory.", server_.in_flight.num_waiting());
  add("sparseagg_kept_bytes", "Memory that rounds keep or have reserved: uploads, submissions and results.",
      server_.budget.reserved());
  add("sparseagg_memory_limit_bytes", "Limit of sparseagg_kept_bytes; 0: no limit.", server_.budget.limit());
  // The standard name of Prometheus's client libraries.
  add("process_resident_memory_bytes", "Resident memory size in bytes.", ResidentBytes());
  add("sparseagg_process_memory_limit_bytes",
      "Limit of process_resident_memory_bytes, the flag --memory-limit; 0: no limit.",
      server_.limits.memory_limit_bytes);
  add("sparseagg_log_lines_dropped", "Log lines dropped since the start because standard error was not read in time.",
      DroppedLogLines());
  AddGpus(engine_->devices(), gauges);
  AddCredentials(server_.authenticator, tls_.get(), certifier_, gauges);
  if (store_ == nullptr) return gauges;
  const DiskSpace disk = store_->MeasureDisk();
  add("sparseagg_data_bytes", "Disk space of all files in the data directory.", disk.used_bytes);
  add("sparseagg_data_available_bytes", "Free space of the data directory's file system.", disk.available_bytes);
  add("sparseagg_data_writes_refused", "Writes refused since the start because the disk was full.",
      store_->num_refused_writes());
  return gauges;
}

Pages Server::Probes(const char* live, const char* ready) const {
  return {{live, [] { return MakeResponse(200, "text/plain", "ok\n"); }},
          {ready, [this] {
             return ready_ ? MakeResponse(200, "text/plain", "ready\n") : MakeResponse(503, "text/plain", "draining\n");
           }}};
}

absl::Status Server::ServeMetrics(const ServerOptions& options) {
  server_.metrics.SetEngine(std::string(engine_->name()), engine_->description());
  if (options.metrics_address.empty()) return absl::OkStatus();
  if (!options.insecure) RETURN_IF_ERROR(CheckLoopback(options.metrics_address, "TLS and no authentication"));
  Pages pages = Probes("/healthz", "/readyz");
  pages["/metrics"] = [this] {
    return MakeResponse(200, "text/plain; version=0.0.4; charset=utf-8",
                        server_.metrics.Text([this] { return CountNow(); }));
  };
  HttpOptions http;
  http.address = options.metrics_address;
  http.max_connections = kMaxMetricsConnections;
  auto started = Gateway::Start(http, &server_, /*api=*/nullptr, /*tls=*/nullptr, std::move(pages),
                                [this](const char* reason) { RefuseConnection(reason); });
  if (started.ok()) {
    metrics_ = *std::move(started);
  } else if (options.metrics_optional) {
    Log(LogLevel::kWarning, "no_metrics", {{"reason", started.status().message()}});
    server_.warnings.Add(absl::StrCat("no metrics: ", started.status().message()));
  } else {
    return absl::Status(started.status().code(), absl::StrCat("--metrics-address: cannot listen on ", http.address,
                                                              ": ", started.status().message()));
  }
  return absl::OkStatus();
}

absl::Status Server::ServeGateway(const ServerOptions& options) {
  if (options.http.address.empty()) return absl::OkStatus();
  HttpOptions http = options.http;
  http.max_connections = max_http_connections_;
  const auto start = [&]() -> absl::StatusOr<std::unique_ptr<Gateway>> {
    if (const std::string lacks = Lacks(options); !options.insecure && !lacks.empty()) {
      RETURN_IF_ERROR(CheckLoopback(http.address, lacks));
    }
    return Gateway::Start(http, &server_, &api_, tls_.get(), Probes("/health/live", "/health/ready"),
                          [this](const char* reason) { RefuseConnection(reason); });
  };
  auto started = start();
  if (started.ok()) {
    gateway_ = *std::move(started);
  } else if (options.http_optional && absl::IsUnavailable(started.status())) {
    Log(LogLevel::kWarning, "no_http", {{"reason", started.status().message()}});
    server_.warnings.Add(absl::StrCat("no HTTP gateway: ", started.status().message()));
  } else {
    return absl::Status(started.status().code(), absl::StrCat("--http-address: ", started.status().message()));
  }
  return absl::OkStatus();
}

Server::~Server() {
  SetFrameEvents({});
  Shutdown(absl::ZeroDuration());
  // All calls are answered, but the closures that have answered them may own the last references to calls and rounds,
  // which give permits and memory back. The threads that run them end while all members exist.
  server_.timer.Stop();
  server_.pool.Stop();
  if (store_ == nullptr) return;
  store_->PutSeen(TimeSeen()).IgnoreError();
  store_->Stop();
}

void Server::StopServing() {
  ready_ = false;
  grpc_->server->GetHealthCheckService()->SetServingStatus(false);
}

void Server::Shutdown(absl::Duration grace) {
  if (grpc_ == nullptr || grpc_->server == nullptr) return;
  std::call_once(grpc_->shutdown, [&] {
    listener_->Stop();
    // Workaround: gRPC 1.51 waits, as long as calls may last, for peers that do not answer its GOAWAY or have not sent
    // a whole preface; and then until the peer has read the data of a cancelled call. Remove with: a version that does
    // neither.
    absl::Notification ended;
    std::thread cutter = TryThread([&] {
      const absl::Duration latest = SystemClock().Monotonic() + grace + kCancelTime;
      absl::Duration without_calls = absl::InfiniteDuration();
      while (!ended.WaitForNotificationWithTimeout(kLeaveInterval)) {
        const absl::Duration now = SystemClock().Monotonic();
        server_.connections.EndWithoutStreams(kLeaveTime);
        // What is left are health watches and the like, which last as long as their clients.
        without_calls = server_.rpc_calls > 0 ? absl::InfiniteDuration() : std::min(without_calls, now);
        if (now - without_calls >= kLeaveTime) grpc_server_cancel_all_calls(grpc_->server->c_server());
        if (now >= latest) server_.connections.EndAll();
      }
    });
    // Both transports have the same time.
    std::thread gateway = TryThread([&] {
      if (gateway_ != nullptr) gateway_->Shutdown(grace);
    });
    grpc_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
    grpc_->server->Wait();
    ended.Notify();
    if (cutter.joinable()) cutter.join();
    if (gateway.joinable()) return gateway.join();
    if (gateway_ != nullptr) gateway_->Shutdown(absl::ZeroDuration());
  });
}

}  // namespace sparseagg::service
