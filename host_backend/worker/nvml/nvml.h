// SPDX-License-Identifier: Apache-2.0
// The host's management library, and one guest process's session with it. What a guest may ask are the rows
// of ivshmem_ring/nvml_calls.def: nothing in them changes a GPU, and no answer tells of other tenants.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/worker/start/confinement.h"
#include "ivshmem_ring/protocol/nvml_call.h"

namespace causeway::host {

struct NvmlLibrary {
  // Functions that the worker itself calls beside the rows it serves.
  uint32_t (*init)() = nullptr;
  uint32_t (*device_count)(uint32_t*) = nullptr;
  uint32_t (*device_by_index)(uint32_t, nvml::DeviceHandle*) = nullptr;
  uint32_t (*memory)(nvml::DeviceHandle, nvml::Memory*) = nullptr;
  uint32_t (*memory_v2)(nvml::DeviceHandle, nvml::MemoryV2*) = nullptr;
  uint32_t (*cuda_version)(int*) = nullptr;
  // One for each ProcessMode.
  uint32_t (*processes[3])(nvml::DeviceHandle, uint32_t*, nvml::ProcessV2*) = {};
  uint32_t (*utilization)(nvml::DeviceHandle, nvml::ProcessSample*, uint32_t*, unsigned long long) = nullptr;
  // The private table of NVIDIA's tools, and how many slots it has: 0 where its layout is not known.
  void (*const* private_table)() = nullptr;
  uint32_t private_slots = 0;
  // The functions of the rows; null where the library lacks the name.
#define NVML_CALL(fn, ...) nvml::RowShape<nvml::Op::fn>::Function fn = nullptr;
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"

  // Opens and initialises it. "" or one sentence.
  std::string Open(const std::string& path);
  // "GPU-..."; empty where it cannot be had.
  std::string UuidOf(nvml::DeviceHandle device) const;
  // All of the host; empty where they cannot be had.
  std::vector<nvml::ProcessV2> ProcessesOf(nvml::DeviceHandle device, nvml::ProcessMode mode) const;

 private:
  void FindPrivateTable(void* library);
};

class NvmlHost {
 public:
  // `peers` asks the daemon for the sessions of the same tenant.
  NvmlHost(const NvmlLibrary& library, std::function<std::vector<WorkerPeer>()> peers);

  // What the tenant's sessions hold, and its limit.
  void SetAccount(AccountPage* page) { account_ = page; }
  // The guest process runs on this host itself: processors and memory nodes have the same numbers there.
  void SetLocal(bool local) { local_ = local; }
  // Finds the devices that sessions may use; `visible` as CUDA_VISIBLE_DEVICES, or null. "" or one sentence.
  std::string FindDevices(const char* visible);
  size_t device_count() const { return devices_.size(); }

  // What Shape::Serve needs: nothing is done before a call, and unknown devices are null.
  static nvml::Return Prepare() { return nvml::Return::kSuccess; }
  nvml::DeviceHandle DeviceAt(uint32_t index) const {
    return index < devices_.size() ? devices_[index] : nullptr;
  }

  // One request; `known` is false for an opcode that no guest library sends.
  nvml::Return Serve(uint16_t op, Reader& in, Writer& out, bool* known);

 private:
  // host_backend/worker/nvml/nvml_memory.cc
  void LimitMemory(nvml::DeviceHandle device, nvml::MemoryV2* memory);
  nvml::Return ServeMemory(Reader& in, Writer& out);
  nvml::Return ServeProcesses(Reader& in, Writer& out);
  nvml::Return ServeUtilization(Reader& in, Writer& out);
  nvml::Return ServePrivate(Reader& in, Writer& out);
  std::vector<nvml::ProcessV1> TenantsProcesses(nvml::DeviceHandle device, nvml::ProcessMode mode);

  const NvmlLibrary& library_;
  const std::function<std::vector<WorkerPeer>()> peers_;
  std::vector<nvml::DeviceHandle> devices_;
  bool local_ = false;
  AccountPage* account_ = nullptr;
};

// Which of `uuids` a value of CUDA_VISIBLE_DEVICES leaves, as positions in their order; null leaves all.
std::vector<size_t> VisibleDevices(const char* value, const std::vector<std::string>& uuids);

// The whole life of the worker that watches memory for the daemon (WorkerMemoryUse); it has no session.
int RunMemoryWatch(int control, const std::string& library);

// The worker's whole life where its session is one of management.
int RunManagementWorker(int control, const std::string& library, bool all_devices,
                        const ConfinementOptions& options);

}  // namespace causeway::host
