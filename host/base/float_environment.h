// Floating-point arithmetic as the results are defined by, whatever the caller's thread is set to.
#ifndef SPARSEAGG_HOST_BASE_FLOAT_ENVIRONMENT_H_
#define SPARSEAGG_HOST_BASE_FLOAT_ENVIRONMENT_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace sparseagg {

// While it lives, the thread rounds to the nearest, keeps denormals and traps nothing; then what was set before is
// back, and no exception of ours is flagged. In the way of a caller that has denormals flushed
// (torch.set_flush_denormal, -ffast-math in any library) or rounds otherwise. For entries and workers, not for loops.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() { SetDefault(); }
  ~DefaultFloatEnvironment() { Set(before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  // Of SSE and AVX alone: nothing here is reckoned by the x87, whose state takes so long to set that it was a tenth of
  // a merge of ten thousand small updates.
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
