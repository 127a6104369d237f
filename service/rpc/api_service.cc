#include "service/rpc/api_service.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/rpc/answer_reactor.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;

// Memory of a call that waits for a reservation: gRPC's call and the reactor.
constexpr uint64_t kCallBytes = uint64_t{16} << 10;

std::shared_ptr<AnswerReactor> MakeReactor(ServerContext* server, CallContext* context) {
  auto reactor = std::make_shared<AnswerReactor>(server, context);
  reactor->KeepAlive(reactor);
  return reactor;
}

}  // namespace

const char* ApiService::PathOf(Method method) {
  static const std::array<std::string, kNumMethods>& paths = *[] {
    auto* made = new std::array<std::string, kNumMethods>;
    for (size_t i = 0; i < kNumMethods; ++i) {
      const auto each = static_cast<Method>(i);
      (*made)[i] = absl::StrCat("/", ServiceName(each), "/", Name(each));
    }
    return made;
  }();
  return paths[static_cast<size_t>(method)].c_str();
}

absl::Status ApiService::CheckMessageSize(uint64_t bytes) const {
  const uint64_t limit = server_.limits.max_message_bytes;
  if (limit == 0 || bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a message of ", bytes, " bytes exceeds the server's max_message_bytes ", limit, "; send smaller chunks"));
}

uint64_t ApiService::PageBytes(uint64_t asked) const {
  const uint64_t limit = server_.limits.max_page_bytes;
  const uint64_t bytes = asked == 0 ? kDefaultPageBytes : asked;
  return limit == 0 ? bytes : std::min(bytes, limit);
}

ApiService::Unary* ApiService::OnPool(Context* context, std::function<absl::Status()> work) {
  Unary* reactor = context->DefaultReactor();
  server_.pool.Post([reactor, work = std::move(work)] { reactor->Finish(ToGrpc(ToStatus(work))); });
  return reactor;
}

ApiService::Unary* ApiService::AtOnce(Context* context, const std::function<absl::Status()>& work) {
  Unary* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(ToStatus(work)));
  return reactor;
}

ApiService::Unary* ApiService::OnPoolIfStored(Context* context, std::function<absl::Status()> work) {
  return server_.store == nullptr ? AtOnce(context, work) : OnPool(context, std::move(work));
}

ApiService::Unary* ApiService::AnswerOnPool(Context* context, const grpc::ByteBuffer* message,
                                            std::function<absl::StatusOr<PlannedAnswer>()> plan) {
  auto reactor = MakeReactor(&server_, context);
  Unary* const started = reactor.get();
  server_.pool.Post([reactor = std::move(reactor), message, plan = std::move(plan)] {
    RunPlanned(*reactor, message->Length(), ToStatus(plan));
  });
  return started;
}

ApiService::Unary* ApiService::AnswerAtOnce(Context* context,
                                            const std::function<absl::StatusOr<PlannedAnswer>()>& plan) {
  const auto reactor = MakeReactor(&server_, context);
  RunPlanned(*reactor, 0, ToStatus(plan));
  return reactor.get();
}

void ApiService::RunPlanned(AnswerReactor& reactor, uint64_t held_bytes, absl::StatusOr<PlannedAnswer> planned) {
  if (!planned.ok()) return reactor.Finish(ToGrpc(planned.status()));
  if (!AnswerReactor::IsSmall(planned->max_bytes) && !reactor.ReserveForCall(kCallBytes + held_bytes)) return;
  reactor.ReserveAndAnswer(planned->max_bytes, AnswerReactor::Wait::kBounded, std::move(planned->answer));
}

}  // namespace sparseagg::service
