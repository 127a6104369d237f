// How much memory this process may use.
#ifndef SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
#define SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

namespace sparseagg::service {

// Bytes: the machine's, or less where its control group has a limit, or one of those above it. `root` is the file
// system's, for tests.
uint64_t ProcessMemory(const std::string& root = "");

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
