// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/nvml/nvml.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace causeway::host {

using nvml::Op;
using nvml::Return;

namespace {

template <class Function>
void Resolve(void* library, const char* name, Function** function) {
  if (*function == nullptr) *function = reinterpret_cast<Function*>(dlsym(library, name));
}

using Handler = Return (*)(NvmlHost&, const NvmlLibrary&, Reader&, Writer&);

template <Op op, auto entry>
Return ServeRow(NvmlHost& host, const NvmlLibrary& library, Reader& in, Writer& out) {
  if (library.*entry == nullptr) return Return::kFunctionNotFound;
  return nvml::RowShape<op>::Serve(host, library.*entry, in, out);
}

// By opcode minus Op::kFirstRow.
constexpr Handler kHandlers[] = {
#define NVML_CALL(fn, ...) &ServeRow<Op::fn, &NvmlLibrary::fn>,
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
};
static_assert(std::size(kHandlers) == nvml::kRows);

}  // namespace

std::string NvmlLibrary::Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return "cannot open the management library '" + path + "' (" + dlerror() +
           "): install NVIDIA's driver or set nvml_library in the configuration";
  }
  Resolve(library, "nvmlInit_v2", &init);
  Resolve(library, "nvmlDeviceGetCount_v2", &device_count);
  Resolve(library, "nvmlDeviceGetHandleByIndex_v2", &device_by_index);
  Resolve(library, "nvmlDeviceGetMemoryInfo", &memory);
  Resolve(library, "nvmlDeviceGetMemoryInfo_v2", &memory_v2);
  Resolve(library, "nvmlSystemGetCudaDriverVersion_v2", &cuda_version);
  Resolve(library, "nvmlDeviceGetProcessUtilization", &utilization);
  // The forms _v2 and _v3 have the same struct.
  for (const char* version : {"_v3", "_v2"}) {
    const std::string suffix = std::string("RunningProcesses") + version;
    Resolve(library, ("nvmlDeviceGetCompute" + suffix).c_str(), &processes[0]);
    Resolve(library, ("nvmlDeviceGetGraphics" + suffix).c_str(), &processes[1]);
    Resolve(library, ("nvmlDeviceGetMPSCompute" + suffix).c_str(), &processes[2]);
  }
#define NVML_CALL(fn, ...) Resolve(library, #fn, &fn);
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
  if (init == nullptr || device_count == nullptr || device_by_index == nullptr || memory == nullptr)
    return "the management library '" + path + "' lacks basic functions: it is no NVML";
  if (const uint32_t result = init(); result != 0) {
    return "the management library '" + path + "' cannot be used (NVML error " + std::to_string(result) +
           "): check nvidia-smi on this host";
  }
  FindPrivateTable(library);
  return {};
}

// The table begins with its size in bytes; its layout was read in drivers 535 to 580.
void NvmlLibrary::FindPrivateTable(void* library) {
  constexpr unsigned long kFirstDriver = 535, kLastDriver = 589;
  constexpr unsigned char kTools[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  uint32_t (*find)(const void**, const void*) = nullptr;
  Resolve(library, "nvmlInternalGetExportTable", &find);
  char version[96] = "";
  const void* table = nullptr;
  if (find == nullptr || nvmlSystemGetDriverVersion == nullptr ||
      nvmlSystemGetDriverVersion(version, sizeof version) != Return::kSuccess)
    return;
  const unsigned long major = std::strtoul(version, nullptr, 10);
  if (major < kFirstDriver || major > kLastDriver || find(&table, kTools) != 0 || table == nullptr) return;
  private_table = static_cast<void (*const*)()>(table);
  private_slots = static_cast<uint32_t>(*static_cast<const uint64_t*>(table) / sizeof(void*));
}

Return NvmlHost::ServePrivate(Reader& in, Writer& out) {
  const auto body = in.Get<nvml::PrivateBody>();
  const nvml::DeviceHandle device = DeviceAt(body.device);
  if (!in.ok() || device == nullptr) return Return::kInvalidArgument;
  const bool number = nvml::IsPrivateNumber(body.slot);
  if (!number && !nvml::IsPrivateText(body.slot)) return Return::kNotSupported;
  void (*const function)() = body.slot < library_.private_slots ? library_.private_table[body.slot] : nullptr;
  if (function == nullptr) return Return::kNotSupported;
  if (number) {
    uint32_t value[32] = {};
    const uint32_t result =
        reinterpret_cast<uint32_t (*)(nvml::DeviceHandle, uint32_t*)>(function)(device, value);
    if (result == 0) out.Put(value[0]);
    return static_cast<Return>(result);
  }
  constexpr uint32_t kTextBytes = 20;  // as nvidia-smi asks at least
  char text[256] = "";
  const uint32_t result = reinterpret_cast<uint32_t (*)(nvml::DeviceHandle, char*, uint32_t)>(function)(
      device, text, body.slot == 237 ? kTextBytes : 80);
  text[sizeof text - 1] = '\0';
  if (result == 0) {
    out.Put(static_cast<uint32_t>(std::strlen(text) + 1));
    out.PutBytes(text, std::strlen(text) + 1);
  }
  return static_cast<Return>(result);
}

NvmlHost::NvmlHost(const NvmlLibrary& library, std::function<std::vector<WorkerPeer>()> peers)
    : library_(library), peers_(std::move(peers)) {}

std::string NvmlHost::FindDevices(const char* visible) {
  uint32_t count = 0;
  if (library_.device_count(&count) != 0) count = 0;
  std::vector<nvml::DeviceHandle> all;
  std::vector<std::string> uuids;
  for (uint32_t i = 0; i < count && i < nvml::kMaxDevices; ++i) {
    nvml::DeviceHandle device = nullptr;
    if (library_.device_by_index(i, &device) != 0) continue;
    all.push_back(device);
    uuids.push_back(library_.UuidOf(device));
  }
  for (const size_t index : VisibleDevices(visible, uuids)) devices_.push_back(all[index]);
  return devices_.empty() ? "the management library finds no GPU that sessions may use" : "";
}

std::vector<size_t> VisibleDevices(const char* value, const std::vector<std::string>& uuids) {
  std::vector<size_t> visible;
  if (value == nullptr) {
    for (size_t i = 0; i < uuids.size(); ++i) visible.push_back(i);
    return visible;
  }
  // As CUDA reads it: numbers or beginnings of UUIDs, up to the first that names no device.
  const std::string text = value;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    at = comma + 1;
    size_t found = uuids.size();
    if (!word.empty() && word.size() < 4 && word.find_first_not_of("0123456789") == std::string::npos) {
      found = std::stoul(word);
    } else if (word.rfind("GPU-", 0) == 0) {
      for (found = 0; found < uuids.size() && uuids[found].rfind(word, 0) != 0;) ++found;
    }
    if (found >= uuids.size()) break;
    visible.push_back(found);
  }
  std::sort(visible.begin(), visible.end());  // NVML's order is that of the PCI bus
  visible.erase(std::unique(visible.begin(), visible.end()), visible.end());
  return visible;
}

Return NvmlHost::Serve(uint16_t op, Reader& in, Writer& out, bool* known) {
  *known = true;
  switch (static_cast<Op>(op)) {
    case Op::kDescribe:
      out.Put(nvml::DescribeReply{static_cast<uint32_t>(devices_.size()), 0});
      return Return::kSuccess;
    case Op::kMemory:
      return ServeMemory(in, out);
    case Op::kProcesses:
      return ServeProcesses(in, out);
    case Op::kPrivate:
      return ServePrivate(in, out);
    case Op::kUtilization:
      return ServeUtilization(in, out);
    case Op::nvmlDeviceGetCpuAffinity:
    case Op::nvmlDeviceGetCpuAffinityWithinScope:
    case Op::nvmlDeviceGetMemoryAffinity:
      if (!local_) return Return::kNotSupported;
      break;
    default:
      break;
  }
  if (op >= static_cast<uint16_t>(Op::kFirstRow) && op < static_cast<uint16_t>(Op::kEnd))
    return kHandlers[op - static_cast<size_t>(Op::kFirstRow)](*this, library_, in, out);
  *known = false;
  return Return::kNotSupported;
}

}  // namespace causeway::host
