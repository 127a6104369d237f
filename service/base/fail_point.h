// Places at which a test may kill the server.
#ifndef SPARSEAGG_SERVICE_BASE_FAIL_POINT_H_
#define SPARSEAGG_SERVICE_BASE_FAIL_POINT_H_

namespace sparseagg::service {

// Ends the process by SIGKILL, if the environment's SPARSEAGG_FAIL_POINT is "NAME:N" with this name, and this is the
// N-th call with it. Packages have no such places (CMake's SPARSEAGG_FAIL_POINTS): there the call is empty.
// `name`: a literal, unique in the server; tests/system/crash finds the names in the sources.
#ifdef SPARSEAGG_FAIL_POINTS
void FailPoint(const char* name);
#else
inline void FailPoint(const char*) {}
#endif

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_BASE_FAIL_POINT_H_
