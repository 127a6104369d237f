// The floating-point environment in which results are defined.
#ifndef SPARSEAGG_HOST_BASE_FLOAT_ENVIRONMENT_H_
#define SPARSEAGG_HOST_BASE_FLOAT_ENVIRONMENT_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace sparseagg {

// Scope in which the thread rounds to nearest, keeps denormals and traps nothing. The destructor restores the caller's
// environment and flags. Callers may have changed theirs: torch.set_flush_denormal, or -ffast-math in any library,
// flushes denormals. Belongs at the entries of the library and of worker threads. Cost: a few nanoseconds; keep it out
// of inner loops.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() { SetDefault(); }
  ~DefaultFloatEnvironment() { Set(before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  // The control register of SSE and AVX alone. Nothing here computes on the x87, and setting its state too took a tenth
  // of a merge of ten thousand small updates.
  using Environment = unsigned int;
  static Environment Get() { return _mm_getcsr(); }
  static void Set(Environment environment) { _mm_setcsr(environment); }
  static void SetDefault() { Set(0x1f80); }  // all exceptions masked, none flagged
#else
  using Environment = std::fenv_t;
  static Environment Get() {
    Environment environment;
    std::fegetenv(&environment);
    return environment;
  }
  static void Set(const Environment& environment) { std::fesetenv(&environment); }
  static void SetDefault() { std::fesetenv(FE_DFL_ENV); }
#endif

  const Environment before_ = Get();
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_FLOAT_ENVIRONMENT_H_
