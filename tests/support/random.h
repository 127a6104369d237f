// Seeded random numbers, the same with every compiler and standard library.
#ifndef SPARSEAGG_TESTS_SUPPORT_RANDOM_H_
#define SPARSEAGG_TESTS_SUPPORT_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace sparseagg::testing {

// A counter, scrambled: every seed is a good one, neighbours included.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n); n = 0 stands for 2^64.
  uint64_t Below(uint64_t n) { return n == 0 ? Bits() : Bits() % n; }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1));
  }
  // In [0, 1), a multiple of 2^-53.
  double Unit() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  bool Coin() { return OneIn(2); }

  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Below(choices.size())];
  }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_RANDOM_H_
