// SPDX-License-Identifier: Apache-2.0
// The daemon's control socket, by which root and the members of one group add, remove and list VMs while the
// daemon runs (`causeway attach`, `detach`, `list`). It is a UNIX socket of kind SOCK_SEQPACKET. The client
// sends one packet with one JSON object; the daemon answers with one JSON object in packets of any size,
// which end when it closes the connection.
//
//   {"do": "add", "name": "guest1", "memory_mib": 1024, "group": "libvirt-qemu", "gpus": ["GPU-..."], "doorbell": true}
//        "group" or "user" (a number): who QEMU runs as; without "gpus" the VM sees all GPUs; with "doorbell" QEMU
//        is to connect to a socket of the VM's own (docs/doorbells.md)
//     -> {"ok": true, "file": "/dev/shm/causeway-guest1", "added": true, "doorbell": "/run/causeway/doorbell-guest1"}
//        "added" is false if the VM was served already, exactly as asked; "doorbell" is empty in plain mode; with
//        "note" if one of the GPUs could not be looked up: that sentence
//   {"do": "remove", "name": "guest1", "force": false}     "force" ends its sessions; without, they refuse
//     -> {"ok": true, "file": "/dev/shm/causeway-guest1", "file_left": false}
//        "file_left": the file is another user's, who has to delete it
//   {"do": "list"}
//     -> {"ok": true, "vms": [{"name", "file", "memory_mib", "group", "user", "gpus", "sessions", "problem",
//        "added", "doorbell", "polled", "xen_domain", "granted"}]}
//        "polled": the daemon looks at the VM's rings now and then, because nothing rings for it
//        "xen_domain" is empty for a VM of QEMU; "granted": the domain runs and memory is granted to it
//   {"do": "reload"}            of root and the daemon's user: the configuration file is read again
//     -> {"ok": true, "text": "what came into force, in sentences"}
//   {"do": "drain", "name": "guest1", "undo": false}       likewise; without "name": of all, not of one VM
//     -> {"ok": true, "sessions": 2}   no session begins any more, or with "undo" they may again; so many are left
//   {"do": "upgrade"}           likewise: the daemon becomes the program that is installed now, sessions go on
//     -> {"ok": true}            it starts; a further request is answered by it
//   {"do": "set", "name": "guest1", "weight": 200, "cap": 30, "reserve": 10, "class": "latency", "persist": false}
//        likewise; of a VM, user or peer as `causeway status` names it: one of the four at least (docs/sharing.md)
//   {"do": "pause", "name": "guest1"}, {"do": "resume", "name": "guest1"}       likewise
//     -> {"ok": true, "scope": "vm:guest1", "weight", "cap", "reserve", "class", "paused", "until_reload"}   what it has now
//        "until_reload": something of it was set and is not stored
//   {"do": "set", "name": "GPU-...", "turn_ms": 4}         likewise
//     -> {"ok": true, "gpu": "GPU-...", "turn_ms": 4}
//
// What fails is answered by {"ok": false, "error": "one sentence"}.
#pragma once
#include <cstddef>
#include <string>

namespace causeway {

inline constexpr size_t kControlRequestBytes = 4096;  // at most
inline constexpr const char* kDoorbellPrefix = "doorbell-";

// Where the socket is if the configuration does not say, by the path of the tenants' socket.
inline std::string ControlSocketOf(const std::string& socket) {
  return socket + ".control";
}

// Where the launcher that holds a daemon's sessions is found by the next daemon (host_backend/launcher/protocol.h).
inline std::string LauncherSocketOf(const std::string& socket) {
  return socket + ".launcher";
}

// Where QEMU connects in doorbell mode, of a VM that was added: beside the tenants' socket.
inline std::string DoorbellSocketOf(const std::string& socket, const std::string& vm) {
  const size_t slash = socket.rfind('/');
  return (slash == std::string::npos ? "" : socket.substr(0, slash + 1)) + kDoorbellPrefix + vm;
}

// In container_folder, into which not everybody may look: the folder that is a container's /run/causeway, and its socket
// (docs/containers.md).
inline constexpr const char* kContainerRun = "/run";
inline constexpr const char* kContainerSocket = "/run/causeway.sock";

// libvirt's <shmem name='N'> is /dev/shm/N. A VM's region has this prefix before the VM's name.
inline constexpr const char* kRegionFolder = "/dev/shm/";
inline constexpr const char* kRegionPrefix = "causeway-";
// Of a VM that was added.
inline std::string RegionFileOf(const std::string& vm) {
  return std::string(kRegionFolder) + kRegionPrefix + vm;
}

}  // namespace causeway
