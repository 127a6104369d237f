// What a server does without, for its operator.
#ifndef SPARSEAGG_SERVICE_BASE_WARNINGS_H_
#define SPARSEAGG_SERVICE_BASE_WARNINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "host/base/mutex.h"

namespace sparseagg::service {

// The texts of ServerInfo.warnings, which a start collects. Thread-safe.
class Warnings {
 public:
  void Add(std::string text) {
    MutexLock lock(&mu_);
    texts_.push_back(std::move(text));
  }
  std::vector<std::string> List() const {
    MutexLock lock(&mu_);
    return texts_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_WARNINGS_H_
