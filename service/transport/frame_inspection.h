// Shows a FrameLimiter the bytes that gRPC receives.
#ifndef SPARSEAGG_SERVICE_TRANSPORT_FRAME_INSPECTION_H_
#define SPARSEAGG_SERVICE_TRANSPORT_FRAME_INSPECTION_H_

#include <functional>

#include "absl/time/time.h"

namespace sparseagg::service {

// gRPC 1.51 has no limits on frames and no place for one between the socket and its HTTP/2 parser. So
// frame_inspection.cc defines recvmsg() and SSL_read(), by which gRPC receives, and which a definition in the program
// overrides: they call the system's, and then let a FrameLimiter of the connection read what came. The bytes are not
// copied. A connection that exceeds a limit fails as if its peer had reset it, before gRPC sees the bytes that exceed
// it.
//
// Workaround. Remove with: a version of gRPC that limits resets, header blocks and control frames.

// Called on a thread of gRPC when a limit has ended a connection; must not block. `what`: FrameLimiter::Read.
using OnFrameLimit = std::function<void(const char* what)>;

// Sets what is called from now on; an empty function: nothing. Returns after calls under way. Thread-safe.
void SetOnFrameLimit(OnFrameLimit on_limit);

// From now on the bytes that recvmsg() receives on the socket `fd` are read, or, with `tls`, only their number. To be
// called before gRPC gets the socket. Returns: false if no memory or number is left for it.
bool InspectFrames(int fd, bool tls);

// Returns: when more than a ping came on the inspected socket `fd`, of Clock::Monotonic. Thread-safe.
absl::Duration LastReceived(int fd);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_TRANSPORT_FRAME_INSPECTION_H_
