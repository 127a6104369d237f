// Threads without which the server still works.
#ifndef SPARSEAGG_SERVICE_BASE_TRY_THREAD_H_
#define SPARSEAGG_SERVICE_BASE_TRY_THREAD_H_

#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "service/base/log.h"

namespace sparseagg::service {

// Returns: a thread that runs `task`; one that is not joinable, with a line in the log, if the system starts no more.
inline std::thread TryThread(std::function<void()> task) {
  try {
    return std::thread(std::move(task));
  } catch (const std::system_error& error) {
    Log(LogLevel::kWarning, "no_thread", {{"reason", error.what()}});
    return {};
  }
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_TRY_THREAD_H_
