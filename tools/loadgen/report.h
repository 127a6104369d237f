// Percentiles and JSON.
#ifndef SPARSEAGG_TOOLS_LOADGEN_REPORT_H_
#define SPARSEAGG_TOOLS_LOADGEN_REPORT_H_

#include <string>
#include <vector>

#include "tools/loadgen/load.h"

namespace sparseagg::bench {

// Returns: the smallest of `values` that is at least as large as `fraction` of them; 0 if there are none.
double Percentile(std::vector<double> values, double fraction);
inline double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

// Return JSON: an array of numbers; percentiles in milliseconds; an array of refusals by code; a quoted string.
std::string NumbersJson(const std::vector<double>& values);
std::string LatencyJson(const std::vector<double>& seconds);
std::string RefusedJson(const std::map<int, Refusals>& refused);
std::string StringJson(const std::string& text);

}  // namespace sparseagg::bench

#endif  // SPARSEAGG_TOOLS_LOADGEN_REPORT_H_
