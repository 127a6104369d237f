// A library to preload that changes the floating-point environment of a program before its main, as a library that is
// compiled with -ffast-math does. SPARSEAGG_ODD_FLOATS: upward, downward, toward_zero or flush_denormals.
#include <cfenv>
#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace {

__attribute__((constructor)) void ChangeEnvironment() {
  const char* const name = std::getenv("SPARSEAGG_ODD_FLOATS");
  if (name == nullptr) return;
  if (std::strcmp(name, "upward") == 0) std::fesetround(FE_UPWARD);
  if (std::strcmp(name, "downward") == 0) std::fesetround(FE_DOWNWARD);
  if (std::strcmp(name, "toward_zero") == 0) std::fesetround(FE_TOWARDZERO);
#if defined(__SSE2__)
  if (std::strcmp(name, "flush_denormals") == 0) _mm_setcsr(_mm_getcsr() | 0x8040);  // results and operands
#endif
}

}  // namespace
