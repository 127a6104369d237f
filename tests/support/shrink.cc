#include "tests/support/shrink.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sparseagg::testing {
namespace {

void EraseTensor(Case& c, size_t t) {
  c.specs.erase(c.specs.begin() + static_cast<std::ptrdiff_t>(t));
  for (RawSubmission& submission : c.submissions) {
    submission.tensors.erase(submission.tensors.begin() + static_cast<std::ptrdiff_t>(t));
  }
}

void EraseTuples(const TensorSpec& spec, RawTensor& raw, size_t begin, size_t count) {
  const size_t row_bytes = spec.row_width * SizeOf(spec.dtype);
  const size_t end = std::min(begin + count, raw.keys.size());
  raw.keys.erase(raw.keys.begin() + static_cast<std::ptrdiff_t>(begin),
                 raw.keys.begin() + static_cast<std::ptrdiff_t>(end));
  if (begin * row_bytes < raw.values.size()) raw.values.erase(begin * row_bytes, (end - begin) * row_bytes);
}

class Shrinker {
 public:
  Shrinker(Case c, const std::function<bool(const Case&)>& fails, int max_attempts)
      : best_(std::move(c)), fails_(fails), attempts_left_(max_attempts) {}

  Case Run() {
    bool progress = true;
    while (progress && attempts_left_ > 0) {
      progress = DropTensors();
      progress |= DropSubmissions();
      progress |= DropTuples();
    }
    return std::move(best_);
  }

 private:
  bool Try(Case candidate) {
    if (attempts_left_-- <= 0 || !fails_(candidate)) return false;
    best_ = std::move(candidate);
    return true;
  }

  bool DropTensors() {
    bool progress = false;
    for (size_t t = best_.specs.size(); t-- > 0 && best_.specs.size() > 1;) {
      Case candidate = best_;
      EraseTensor(candidate, t);
      progress |= Try(std::move(candidate));
    }
    return progress;
  }

  // Halves first, then ever smaller groups.
  bool DropSubmissions() {
    bool progress = false;
    for (size_t group = std::max<size_t>(best_.submissions.size() / 2, 1); group > 0; group /= 2) {
      for (size_t begin = 0; begin < best_.submissions.size();) {
        Case candidate = best_;
        const size_t end = std::min(begin + group, candidate.submissions.size());
        candidate.submissions.erase(candidate.submissions.begin() + static_cast<std::ptrdiff_t>(begin),
                                    candidate.submissions.begin() + static_cast<std::ptrdiff_t>(end));
        if (Try(std::move(candidate))) {
          progress = true;
        } else {
          begin += group;
        }
      }
    }
    return progress;
  }

  bool DropTuples() {
    bool progress = false;
    for (size_t i = 0; i < best_.submissions.size(); ++i) {
      for (size_t t = 0; t < best_.specs.size(); ++t) {
        const auto size = [&] { return best_.submissions[i].tensors[t].keys.size(); };
        for (size_t group = std::max<size_t>(size() / 2, 1); group > 0; group /= 2) {
          for (size_t begin = 0; begin < size();) {
            Case candidate = best_;
            EraseTuples(candidate.specs[t], candidate.submissions[i].tensors[t], begin, group);
            if (Try(std::move(candidate))) {
              progress = true;
            } else {
              begin += group;
            }
          }
        }
      }
    }
    return progress;
  }

  Case best_;
  const std::function<bool(const Case&)>& fails_;
  int attempts_left_;
};

}  // namespace

Case Shrink(Case c, const std::function<bool(const Case&)>& fails, int max_attempts) {
  return Shrinker(std::move(c), fails, max_attempts).Run();
}

}  // namespace sparseagg::testing
