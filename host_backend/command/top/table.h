// SPDX-License-Identifier: Apache-2.0
// The table of `causeway top` as text and as JSON. One thread uses all this.
#pragma once
#include <string>
#include <vector>

#include "host_backend/command/top/figures.h"

namespace causeway::command {

struct View {
  size_t sort_column = 0;  // of Columns()
  bool reversed = false;
  bool scopes = false;  // one row for each VM, user or peer instead of each session
  bool shares = false;  // one row for each of them and each GPU: what it had of its time
};

struct Column {
  const char* name;  // as --sort takes it
  const char* head;
  int width;  // negative: text, which begins at the left
};
const std::vector<Column>& Columns();
// The place of the column of that name.
size_t ColumnNamed(const std::string& name);

void SortRows(const View& view, std::vector<Row>* rows);
// The line of the heads, then a line for each row. No line has an end of line.
std::vector<std::string> TableLines(const View& view, const std::vector<Row>& rows);
// Two lines on the daemon and its sums.
std::vector<std::string> HeadLines(const StatusFigures& figures, const std::vector<Row>& sessions);
// Daemon, scopes and sessions on one line; what is not known is null.
std::string TopJson(const StatusFigures& figures, double seconds, const std::vector<Row>& sessions,
                    const std::vector<ShareRow>& shares);

}  // namespace causeway::command
