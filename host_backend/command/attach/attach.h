// SPDX-License-Identifier: Apache-2.0
// `causeway attach`, `detach`, `list` and `xml`: regions for VMs of libvirt. Each step is undone if a later one fails. The
// Run functions print and return the command's exit status: 0 done, 1 refused or failed.
#pragma once
#include "host_backend/command/attach/host_options.h"
#include "host_backend/command/libvirt/snippets.h"

namespace causeway::command {

int RunAttach(const AttachOptions& options);
int RunDetach(const DetachOptions& options);
int RunList(const ListOptions& options);
int RunXml(const XmlOptions& options);

}  // namespace causeway::command
