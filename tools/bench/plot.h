// SPDX-License-Identifier: Apache-2.0
// The pictures of a report. plot.py draws it with matplotlib, and lies as causeway-bench-plot beside
// this program; both functions run that script, and wait for its end. Where one returns false, one sentence on
// standard error has said why, with the package that is missing.
#pragma once
#include <string>

namespace causeway::bench {

// Whether a picture could be drawn here, asked before a measurement that takes minutes.
bool CanPlot();
// Draws `json`, a report as JsonOf() writes it, into the file `picture`, whose ending says in which format. `kind` is the
// script's option: which of the pictures that it can draw.
bool Plot(const std::string& json, const std::string& picture, const std::string& kind = "--copies");

}  // namespace causeway::bench
