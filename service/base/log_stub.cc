// The log of a process that is no server: nothing is written.
#include "service/base/log.h"

namespace sparseagg::service {

void Log(LogLevel, absl::string_view, std::initializer_list<LogField>) {}

}  // namespace sparseagg::service
