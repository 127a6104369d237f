// Copying what is not needed again soon.
#ifndef SPARSEAGG_HOST_BASE_STREAM_COPY_H_
#define SPARSEAGG_HOST_BASE_STREAM_COPY_H_

#include <cstddef>

namespace sparseagg::internal {

// As std::memcpy, but past the caches: memory is not read in order to be written, and what the caches hold stays there.
// Other threads may see the bytes late, until this one has called EndStreaming.
void StreamCopy(void* to, const void* from, size_t bytes);
void EndStreaming();

}  // namespace sparseagg::internal

#endif  // SPARSEAGG_HOST_BASE_STREAM_COPY_H_
