#include "host/cpu/order/sorting_network.h"

#include <array>

namespace sparseagg::cpu {
namespace {

std::vector<Comparator> MakeNetwork(size_t n) {
  std::vector<Comparator> network;
  for (size_t p = 1; p < n; p *= 2) {
    for (size_t k = p; k >= 1; k /= 2) {
      for (size_t j = k % p; j + k < n; j += 2 * k) {
        for (size_t i = j; i < j + k && i + k < n; ++i) {
          if (i / (2 * p) == (i + k) / (2 * p))
            network.push_back({static_cast<uint8_t>(i), static_cast<uint8_t>(i + k)});
        }
      }
    }
  }
  return network;
}

}  // namespace

const std::vector<Comparator>& SortingNetwork(size_t count) {
  static const auto networks = [] {
    std::array<std::vector<Comparator>, kMaxNetwork + 1> made;
    for (size_t n = 0; n < made.size(); ++n) made[n] = MakeNetwork(n);
    return made;
  }();
  return networks[count];
}

}  // namespace sparseagg::cpu
