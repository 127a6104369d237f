// Whether the build has a sanitizer, which takes memory of its own.
#ifndef SPARSEAGG_TESTS_SUPPORT_SANITIZED_H_
#define SPARSEAGG_TESTS_SUPPORT_SANITIZED_H_

namespace sparseagg::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_SANITIZED_H_
