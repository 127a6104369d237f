// Medians, percentiles and JSON.
#ifndef SPARSEAGG_BENCH_SERVICE_LOADGEN_REPORT_H_
#define SPARSEAGG_BENCH_SERVICE_LOADGEN_REPORT_H_

#include <string>
#include <vector>

#include "bench/service/loadgen/load.h"

namespace sparseagg::bench {

// The smallest of `values` that `fraction` of them do not pass; 0 of none.
double Percentile(std::vector<double> values, double fraction);
inline double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

// JSON of numbers, of milliseconds {"p50", "p90", "p99", "max"}, of refusals by code.
std::string NumbersJson(const std::vector<double>& values);
std::string LatencyJson(const std::vector<double>& seconds);
std::string RefusedJson(const std::map<int, Refusals>& refused);

// With quotes.
std::string StringJson(const std::string& text);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_BENCH_SERVICE_LOADGEN_REPORT_H_
