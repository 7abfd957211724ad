// SPDX-License-Identifier: Apache-2.0
// Which GPUs a worker's driver shows, as its WorkerReady names them: by UUID, behind the text's end.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "host_backend/common/worker_control.h"

namespace causeway {

using NamedDevice = std::array<uint8_t, 16>;
static_assert(kMostNamedDevices * sizeof(NamedDevice) < sizeof(WorkerReady::text));

// Where in the text they begin; a text that names devices ends before that.
inline constexpr size_t kNamedDevicesAt = sizeof(WorkerReady::text) - kMostNamedDevices * sizeof(NamedDevice);

// To be called when the text is there. Does nothing if it leaves no room, or if there are too many devices.
inline void NameDevices(std::span<const NamedDevice> devices, WorkerReady* ready) {
  if (devices.size() > kMostNamedDevices || strnlen(ready->text, sizeof ready->text) >= kNamedDevicesAt)
    return;
  std::memset(ready->text + kNamedDevicesAt, 0, kMostNamedDevices * sizeof(NamedDevice));
  std::memcpy(ready->text + kNamedDevicesAt, devices.data(), devices.size_bytes());
  ready->device_count = static_cast<uint32_t>(devices.size());
  ready->features |= kNamesDevices;
}

// Empty: it names none. Checked by WorkerDialogue: the features are true to the text.
inline std::vector<NamedDevice> NamedDevices(const WorkerReady& ready) {
  if ((ready.features & kNamesDevices) == 0) return {};
  std::vector<NamedDevice> devices(std::min(ready.device_count, kMostNamedDevices));
  std::memcpy(devices.data(), ready.text + kNamedDevicesAt, devices.size() * sizeof(NamedDevice));
  return devices;
}

}  // namespace causeway
