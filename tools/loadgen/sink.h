// The sink: a bare gRPC server with the settings of sparseagg-server, which drops the bytes of the submissions that it
// receives.
#ifndef SPARSEAGG_TOOLS_LOADGEN_SINK_H_
#define SPARSEAGG_TOOLS_LOADGEN_SINK_H_

namespace sparseagg::bench {

// Serves on a free port of the loopback interface, prints "listening grpc=ADDRESS", and returns when standard input
// ends.
int ServeSink();

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_SINK_H_
