// Addresses to listen on, as flags give them.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_ADDRESS_H_
#define SPARSEAGG_SERVICE_TRANSPORT_ADDRESS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// INVALID_ARGUMENT: `address` does not end in a colon and a port's number. What is before it can be anything.
absl::Status CheckPort(absl::string_view address);

// INVALID_ARGUMENT unless only this machine can reach `address`: 127.0.0.0/8, [::1] or localhost with a port, or
// unix:PATH.
absl::Status CheckLoopback(absl::string_view address);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_ADDRESS_H_
