// How much memory this process may use, and how much it uses.
#ifndef SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
#define SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

namespace sparseagg::service {

// Returns: the bytes of memory of the machine or container: the least of the machine's memory and the limits of the
// process's control group and its ancestors. `root`: prefix of /proc and /sys, for tests.
uint64_t ProcessMemory(const std::string& root = "");

// Returns: the bytes of this process that are in RAM now; 0 if the system does not say.
uint64_t ResidentBytes();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ADMISSION_PROCESS_MEMORY_H_
