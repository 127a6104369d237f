// Checks of an update's terms.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_TERM_CHECKS_H_
#define SPARSEAGG_HOST_CPU_PREPARE_TERM_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Returns: the name of a value for errors: tensor, key and, where rows have several, column.
std::string RowName(const TensorSpec& spec, uint64_t key, uint64_t column);

// Checks the terms (weight × row) that the merge will add, after repeated keys were folded. Terms that cannot fail are
// not read: most sums have no others.
// `as_sent`: the update's values are those that a client has sent, and ValidatedUpdate has checked.
// Errors: INVALID_ARGUMENT for a fixed-point term beyond value_bound, or NaN; OUT_OF_RANGE for a weighted integer that
// does not fit int64.
absl::Status CheckTerms(const TensorSpec& spec, const CpuUpdate& update, bool as_sent);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_TERM_CHECKS_H_
