// Copies that bypass the caches, for bytes that are not read again soon.
#ifndef SPARSEAGG_HOST_BASE_STREAM_COPY_H_
#define SPARSEAGG_HOST_BASE_STREAM_COPY_H_

#include <cstddef>

namespace sparseagg::internal {

// Copies as std::memcpy does, with non-temporal stores: the target is not read before it is written, and the caches
// keep what they hold. Other threads may see the bytes only after this thread has called EndStreaming.
void StreamCopy(void* to, const void* from, size_t bytes);
// Makes all earlier StreamCopy calls of this thread visible to other threads.
void EndStreaming();

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_BASE_STREAM_COPY_H_
