#include "service/admission/host_limit.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/admission/memory_shares.h"

namespace sparseagg::service {

HostLimit::HostLimit(uint64_t limit) : all_(limit), host_limit_(HostShare(limit)) {}

std::shared_ptr<const void> HostLimit::TryAcquire(absl::string_view peer) {
  const bool has_host = host_limit_ != 0 && !absl::StartsWith(peer, "unix");
  const std::string host(has_host ? peer.substr(0, peer.rfind(':')) : "");
  if (has_host) {
    MutexLock lock(&mu_);
    uint64_t& units = by_host_[host];
    if (units >= host_limit_) return nullptr;
    ++units;
  }
  const auto release_host = [this, has_host, host] {
    if (!has_host) return;
    MutexLock lock(&mu_);
    const auto found = by_host_.find(host);
    if (--found->second == 0) by_host_.erase(found);
  };
  if (!all_.TryAcquire()) {
    release_host();
    return nullptr;
  }
  return {this, [release_host](HostLimit* self) {
            self->all_.Release();
            release_host();
          }};
}

std::string HostLimit::DescribeFull() const {
  if (all_.IsFull()) return absl::StrCat(limit(), " calls");
  return absl::StrCat(host_limit_, " calls of one host");
}

}  // namespace sparseagg::service
