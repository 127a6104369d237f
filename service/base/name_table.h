// What tenants have by id.
#ifndef SPARSEAGG_SERVICE_BASE_NAME_TABLE_H_
#define SPARSEAGG_SERVICE_BASE_NAME_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// The streams, or the models, of a server. Each tenant has ids of its own. Thread-safe.
template <typename T>
class NameTable {
 public:
  // `kind`: for errors; a literal.
  explicit NameTable(const char* kind) : kind_(kind) {}

  // Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<T>> Find(absl::string_view tenant, absl::string_view id) const {
    MutexLock lock(&mu_);
    const auto found = entries_.find({std::string(tenant), std::string(id)});
    if (found == entries_.end()) return absl::NotFoundError(absl::StrCat("no ", kind_, " '", id, "'"));
    return found->second;
  }
  struct Page {
    std::vector<std::shared_ptr<T>> entries;
    uint64_t bytes = 0;      // of `bytes_of`
    std::string next_token;  // empty on the last page
  };
  // Returns: those of the tenant after that of the token, in ascending order of ids: up to `most`, and no more than
  // have `most_bytes`, but at least one. `bytes_of` is called under the lock.
  Page List(absl::string_view tenant, const std::string& token, size_t most, uint64_t most_bytes,
            absl::FunctionRef<uint64_t(const T&)> bytes_of) const {
    Page page;
    MutexLock lock(&mu_);
    for (auto it = entries_.upper_bound({std::string(tenant), token}); it != entries_.end(); ++it) {
      if (it->first.first != tenant) break;
      const uint64_t bytes = bytes_of(*it->second);
      if (!page.entries.empty() && (page.entries.size() == most || page.bytes + bytes > most_bytes)) {
        page.next_token = std::prev(it)->first.second;
        break;
      }
      page.entries.push_back(it->second);
      page.bytes += bytes;
    }
    return page;
  }
  // Returns: all, whatever their tenants.
  std::vector<std::shared_ptr<T>> All() const {
    std::vector<std::shared_ptr<T>> all;
    MutexLock lock(&mu_);
    all.reserve(entries_.size());
    for (const auto& [name, entry] : entries_) all.push_back(entry);
    return all;
  }

 protected:
  void Add(const std::string& tenant, const std::string& id, std::shared_ptr<T> entry) {
    MutexLock lock(&mu_);
    entries_.emplace(std::make_pair(tenant, id), std::move(entry));
  }
  // Without effect if the id is another one's by now.
  void Remove(const std::string& tenant, const std::string& id, const std::shared_ptr<T>& entry) {
    MutexLock lock(&mu_);
    const auto found = entries_.find({tenant, id});
    if (found != entries_.end() && found->second == entry) entries_.erase(found);
  }

 private:
  const char* const kind_;
  mutable Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<T>> entries_ ABSL_GUARDED_BY(mu_);  // by tenant and id
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_NAME_TABLE_H_
