// SPDX-License-Identifier: Apache-2.0
// All VMs that the daemon serves: those of its configuration, and those that the control socket adds and removes.
// The daemon's thread calls all functions.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/common/json.h"
#include "host_backend/daemon/control/control_request.h"
#include "host_backend/daemon/control/vm_store.h"
#include "host_backend/daemon/loop/aside.h"
#include "host_backend/daemon/scopes/local_peer.h"
#include "host_backend/daemon/servers/vm_server.h"

namespace causeway::daemon {

class VmSet {
 public:
  explicit VmSet(Services& services);
  ~VmSet();

  // The groups to which regions may be given, of the configuration and of what was added before. Names that this host
  // does not know are left out.
  std::vector<gid_t> Groups();
  // Starts all of them. A configured VM that cannot be served is an error, one sentence; an added one is said in the log and
  // tried again.
  std::string Start();
  void Stop();
  // Whether no request of Handle is under way.
  bool quiet() const;
  // The configuration has changed, but for VMs: brings those of it into force. A VM that it has no more, or with another
  // region, gets no further session, and goes when it has none. The result says in sentences what does not follow at once.
  std::vector<std::string> Apply();
  // No session of that VM begins any more, or they may again. False: there is no such VM.
  bool Drain(const std::string& name, bool undo);
  uint32_t SessionsOf(const std::string& name) const;  // 0: there is no such VM
  // Whether the control socket has added it, so that what it has lies in a file of the daemon's own.
  bool IsAdded(const std::string& name) const;
  // Stores an added VM with that change of its shares, which then is in force. `done` gets "" or the sentence why nothing was
  // changed, now or later, from the event loop.
  void Persist(const std::string& name, const ShareChange& change,
               const std::function<void(const std::string&)>& done);

  // Does what a client asks; `answer` is called once, now or later, from the event loop.
  void Handle(const ControlRequest& request, const LocalPeer& peer, std::function<void(const Json&)> answer);

  void AppendStatus(std::vector<SessionStatus>& sessions, std::vector<RegionStatus>& regions) const;

 private:
  using Answer = std::function<void(const Json&)>;
  struct Vm {
    std::unique_ptr<VmServer> server;
    bool added = false;    // by the control socket, so that it may be removed
    bool busy = false;     // its file is being written or deleted, or its sessions end
    bool leaving = false;  // the configuration has it no more: it goes with its last session
  };
  void Add(const ControlRequest& request, const LocalPeer& peer, const Answer& answer);
  void Remove(const ControlRequest& request, const LocalPeer& peer, const Answer& answer);
  void TakeBack(const std::string& name, const std::string& why, const Answer& answer);
  void Drop(const std::string& name, const std::function<void(bool file_left)>& done);
  void AddConfigured(const VmConfig& vm, std::vector<std::string>* told);
  std::string Leave(const std::string& name, const std::string& why);
  void OnIdle(const std::string& name);
  void ShareOutToAdded();
  Json List() const;
  std::string WhyNot(const VmConfig& vm, const LocalPeer& peer) const;
  std::vector<VmConfig> Configs() const;

  Services& services_;
  const VmStore store_;
  std::vector<VmConfig> added_before_;
  std::vector<gid_t> groups_;  // that the launcher gives regions to
  std::map<std::string, Vm> vms_;
  std::unique_ptr<Aside> aside_;  // waits for the disk; ended before anything that its work names
};

}  // namespace causeway::daemon
