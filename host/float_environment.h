// Floating-point arithmetic as the results are defined by, whatever the caller's thread is set to.
#ifndef SPARSEAGG_HOST_FLOAT_ENVIRONMENT_H_
#define SPARSEAGG_HOST_FLOAT_ENVIRONMENT_H_

#include <cfenv>

namespace sparseagg {

// While it lives, the thread rounds to the nearest, keeps denormals and traps nothing; then what was set before is
// back, and no exception of ours is flagged. In the way of a caller that has denormals flushed
// (torch.set_flush_denormal, -ffast-math in any library) or rounds otherwise. Takes about as long as a lock: for
// entries and workers, not for loops.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_FLOAT_ENVIRONMENT_H_
