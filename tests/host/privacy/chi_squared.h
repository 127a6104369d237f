// A test of samples of integers against their exact probabilities.
#ifndef SPARSEAGG_TESTS_HOST_PRIVACY_CHI_SQUARED_H_
#define SPARSEAGG_TESTS_HOST_PRIVACY_CHI_SQUARED_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace sparseagg::testing {

// χ² of counts against probabilities of a sum of 1; cells with fewer than 20 expected are taken together. Returns: how
// many deviations of a normal distribution the statistic is above its mean (Wilson and Hilferty's approximation). Above
// 6.0 has a probability below 1e-9.
inline double ChiSquaredDeviations(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities,
                                   double num_samples) {
  double statistic = 0.0;
  double rest_expected = 0.0;
  double rest_count = 0.0;
  int num_cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * num_samples;
    if (expected < 20.0) {
      rest_expected += expected;
      rest_count += static_cast<double>(counts[i]);
    } else {
      add(static_cast<double>(counts[i]), expected);
    }
  }
  if (rest_expected >= 1.0 || rest_count > rest_expected + 40.0) add(rest_count, rest_expected);
  const double freedom = num_cells - 1;
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(statistic / freedom) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_PRIVACY_CHI_SQUARED_H_
