// SPDX-License-Identifier: Apache-2.0
// The curve of the copies as SVG: one panel a direction, both axes logarithmic.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "tools/bench/report.h"

namespace causeway::bench {
namespace {

constexpr double kPanelWidth = 430, kPanelHeight = 330, kLeft = 58, kTop = 46, kGap = 70;
constexpr double kLeastBytes = 4, kMostBytes = 1u << 30;

struct Line {
  Side side;
  bool pinned;
  const char* colour;
  const char* dash;
};
constexpr Line kLines[] = {{kNative, true, "#888888", ""},
                           {kNative, false, "#888888", "5 4"},
                           {kGuest, true, "#c2410c", ""},
                           {kGuest, false, "#c2410c", "5 4"}};

class Plot {
 public:
  explicit Plot(const Report& report) : report_(report) {
    for (const Row& row : report.rows) {
      if (!row.figure.id.starts_with("copy:")) continue;
      for (const Side side : {kNative, kGuest}) {
        const auto rate = MedianOf(row, side);
        if (!rate || *rate <= 0) continue;
        least_ = std::min(least_, std::floor(std::log10(*rate)));
        most_ = std::max(most_, std::ceil(std::log10(*rate)));
      }
    }
    if (least_ >= most_) least_ = most_ - 1;
  }

  std::string Text() {
    const double width = 2 * kPanelWidth + kLeft + kGap + 20, height = kPanelHeight + kTop + 70;
    Add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
        "fill=\"white\"/>\n",
        width, height, width, height);
    Panel(true, kLeft);
    Panel(false, kLeft + kPanelWidth + kGap);
    Legend(kLeft, kTop + kPanelHeight + 50);
    Add("</svg>\n");
    return text_;
  }

 private:
  void Add(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    text_ += line;
  }
  static double X(double bytes) {
    return std::log2(bytes / kLeastBytes) / std::log2(kMostBytes / kLeastBytes) * kPanelWidth;
  }
  double Y(double log_rate) const { return kTop + (most_ - log_rate) / (most_ - least_) * kPanelHeight; }

  void Panel(bool to_device, double left) {
    Add("<text x=\"%.1f\" y=\"%.1f\" font-size=\"14\">%s, GB/s over bytes of one copy</text>\n", left,
        kTop - 14, to_device ? "host to device" : "device to host");
    for (double decade = least_; decade <= most_; ++decade) {
      Add("<path d=\"M%.1f %.1fh%.1f\" stroke=\"#e5e5e5\"/><text x=\"%.1f\" y=\"%.1f\" "
          "text-anchor=\"end\">%g</text>\n",
          left, Y(decade), kPanelWidth, left - 6, Y(decade) + 4, std::pow(10, decade));
    }
    for (const uint64_t bytes : CurveSizes(false)) {
      const double x = left + X(double(bytes));
      const bool labelled = int(std::log2(bytes)) % 4 == 2;  // every other one
      Add("<path d=\"M%.1f %.1fv%.1f\" stroke=\"#e5e5e5\"/>\n", x, kTop, kPanelHeight);
      if (labelled)
        Add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x, kTop + kPanelHeight + 18,
            SizeName(bytes).c_str());
    }
    Add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#444444\"/>\n",
        left, kTop, kPanelWidth, kPanelHeight);
    for (const Line& line : kLines) Curve(to_device, line, left);
  }

  void Curve(bool to_device, const Line& line, double left) {
    std::string path, dots;
    for (const uint64_t bytes : CurveSizes(false)) {
      const std::string id = CopyId(to_device, line.pinned, bytes);
      const auto row = std::find_if(report_.rows.begin(), report_.rows.end(),
                                    [&](const Row& entry) { return entry.figure.id == id; });
      const auto rate = row != report_.rows.end() ? MedianOf(*row, line.side) : std::nullopt;
      if (!rate || *rate <= 0) continue;
      char point[64];
      std::snprintf(point, sizeof(point), "%.1f %.1f", left + X(double(bytes)), Y(std::log10(*rate)));
      path += (path.empty() ? "M" : "L") + std::string(point);
    }
    if (path.empty()) return;
    text_ += "<path d=\"" + path + "\"";
    Add(" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s%s%s/>\n", line.colour,
        *line.dash != '\0' ? " stroke-dasharray=\"" : "", line.dash, *line.dash != '\0' ? "\"" : "");
  }

  void Legend(double left, double y) {
    for (const Line& line : kLines) {
      Add("<path d=\"M%.1f %.1fh34\" stroke=\"%s\" stroke-width=\"2\"%s%s%s/>\n", left, y - 4, line.colour,
          *line.dash != '\0' ? " stroke-dasharray=\"" : "", line.dash, *line.dash != '\0' ? "\"" : "");
      Add("<text x=\"%.1f\" y=\"%.1f\">%s, %s</text>\n", left + 42, y, kSideNames[line.side],
          line.pinned ? "pinned" : "pageable");
      left += 190;
    }
    Add("<text x=\"%.1f\" y=\"%.1f\" fill=\"#666666\">causeway bench: %s</text>\n", kLeft, y + 20,
        report_.test_only ? "a test of the benchmark itself, no measurement" : Device().c_str());
  }
  // What the driver calls the device; it goes into XML.
  std::string Device() const {
    std::string device = report_.about[report_.about[kNative].empty() ? kGuest : kNative];
    std::erase_if(device, [](char c) { return c == '<' || c == '>' || c == '&'; });
    return "driver " + device.substr(0, 200);
  }

  const Report& report_;
  double least_ = 1;  // decades of GB/s
  double most_ = -3;
  std::string text_;
};

}  // namespace

std::string PlotOf(const Report& report) {
  return Plot(report).Text();
}

}  // namespace causeway::bench
