// SPDX-License-Identifier: Apache-2.0
// Which process runs the VM of a region: ivshmem-plain tells nobody when its VM is powered off, the kernel
// does. Users of the host choose names of files and folders, and so most of what the kernel's texts say.
#pragma once
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

namespace causeway::launcher {

// Whether the text, as of /proc/PID/maps, has a line of a mapping of that file. A file's name, which a user may
// make longer than any buffer, never counts as a line.
bool MapsFile(FILE* maps, dev_t device, ino_t inode);

// Whether the process of that text, as of /proc/PID/status, may open the file for reading and writing.
bool MayOpen(FILE* status, const struct stat& file);

// The parent of the process of that text, as of /proc/PID/status; 0: it names none.
pid_t ParentIn(FILE* status);

// Which process maps the file, may open it, and is none of those, nor a child of the launcher; 0: none.
pid_t FindMapper(const struct stat& file, pid_t launcher, pid_t daemon);

}  // namespace causeway::launcher
