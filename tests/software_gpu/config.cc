// SPDX-License-Identifier: Apache-2.0
// Reads the environment. A value that cannot be understood is reported on stderr and ends the process: a test
// that misspells its wish must not pass because nothing happened.
#include "tests/software_gpu/config.h"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace causeway::software_gpu {
namespace {

constexpr size_t kMaxDevices = 16;

[[noreturn]] void RefuseVariable(const char* variable, std::string_view value, const char* expected) {
  std::fprintf(stderr, "software GPU: %s is '%.*s'; expected %s.\n", variable, static_cast<int>(value.size()),
               value.data(), expected);
  std::abort();
}

bool ParseNumber(std::string_view text, uint64_t* value) {
  if (text.empty() || text.size() > 18) return false;
  *value = 0;
  for (char digit : text) {
    if (digit < '0' || digit > '9') return false;
    *value = *value * 10 + static_cast<uint64_t>(digit - '0');
  }
  return true;
}

uint64_t NumberFromEnvironment(const char* variable, uint64_t default_value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return default_value;
  uint64_t value = 0;
  if (!ParseNumber(text, &value)) RefuseVariable(variable, text, "a decimal number");
  return value;
}

void ParseFailures(const char* text, Config* config) {
  constexpr const char* kVariable = "SOFTWARE_GPU_FAIL";
  constexpr const char* kExpected = "function:call number:error code, several separated by commas";
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() < rest.size() ? item.size() + 1 : rest.size());
    size_t first = item.find(':');
    size_t second = first == item.npos ? item.npos : item.find(':', first + 1);
    if (second == item.npos) RefuseVariable(kVariable, item, kExpected);
    auto rule = std::make_unique<FailureRule>();
    rule->function = item.substr(0, first);
    uint64_t error = 0;
    if (!ParseNumber(item.substr(first + 1, second - first - 1), &rule->call) || rule->call == 0 ||
        !ParseNumber(item.substr(second + 1), &error) || error == 0 || error > 999) {
      RefuseVariable(kVariable, item, kExpected);
    }
    rule->error = static_cast<int>(error);
    config->failures.push_back(std::move(rule));
  }
}

// "GPU-" and the bytes of the UUID, as NVML writes them.
std::string UuidText(int device) {
  std::string text = "GPU-";
  const CUuuid uuid = UuidOf(device);
  for (int i = 0; i < 16; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                  static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

// The devices that CUDA_VISIBLE_DEVICES leaves, by number or beginning of the UUID: its list ends at what
// names no device.
std::vector<int> VisibleDevices(int devices) {
  std::vector<int> visible;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; text == nullptr && i < devices; ++i) visible.push_back(i);
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() < rest.size() ? item.size() + 1 : rest.size());
    uint64_t number = static_cast<uint64_t>(devices);
    if (item.starts_with("GPU-")) {
      for (number = 0; number < static_cast<uint64_t>(devices); ++number)
        if (UuidText(static_cast<int>(number)).starts_with(item)) break;
    } else if (!ParseNumber(item, &number)) {
      break;
    }
    if (number >= static_cast<uint64_t>(devices) || visible.size() == kMaxDevices) break;
    visible.push_back(static_cast<int>(number));
  }
  return visible;
}

Config* ReadConfig() {
  auto* config = new Config;
  const uint64_t devices = NumberFromEnvironment("SOFTWARE_GPU_DEVICES", 1);
  if (devices > kMaxDevices) RefuseVariable("SOFTWARE_GPU_DEVICES", "above 16", "0 to 16");
  config->devices = VisibleDevices(static_cast<int>(devices));
  config->device_count = static_cast<int>(config->devices.size());
  config->device_memory_bytes = NumberFromEnvironment("SOFTWARE_GPU_MEMORY_MIB", 8192) << 20;
  config->lose_device_after_launches = NumberFromEnvironment("SOFTWARE_GPU_LOSE_AFTER_LAUNCHES", 0);
  config->abort_at_launch = NumberFromEnvironment("SOFTWARE_GPU_ABORT_AT_LAUNCH", 0);
  config->call_delay_us = NumberFromEnvironment("SOFTWARE_GPU_CALL_DELAY_US", 0);
  config->launch_delay_us = NumberFromEnvironment("SOFTWARE_GPU_LAUNCH_DELAY_US", 0);
  config->launch_turns = NumberFromEnvironment("SOFTWARE_GPU_LAUNCH_TURNS", 0);
  config->start_ms = NumberFromEnvironment("SOFTWARE_GPU_START_MS", 0);
  config->start_turns = NumberFromEnvironment("SOFTWARE_GPU_START_TURNS", 0) != 0;
  config->checkpoint_delay_ms = NumberFromEnvironment("SOFTWARE_GPU_CHECKPOINT_DELAY_MS", 0);
  config->host_memory_bytes = NumberFromEnvironment("SOFTWARE_GPU_HOST_MEMORY_MIB", 0) << 20;
  config->word_wait_ms = NumberFromEnvironment("SOFTWARE_GPU_WORD_WAIT_MS", 0);
  config->link_mb_per_s = NumberFromEnvironment("SOFTWARE_GPU_LINK_MB_PER_S", 0);
  config->map_at_gib = NumberFromEnvironment("SOFTWARE_GPU_MAP_AT_GIB", 0);
  config->memory_at_gib = NumberFromEnvironment("SOFTWARE_GPU_MEMORY_AT_GIB", 0);
  config->outline_cubins = NumberFromEnvironment("SOFTWARE_GPU_CUBINS", 0) != 0;
  config->event_thread = NumberFromEnvironment("SOFTWARE_GPU_EVENT_THREAD", 0) != 0;
  config->work_in_calls = NumberFromEnvironment("SOFTWARE_GPU_WORK_IN_CALLS", 0) != 0;
  config->strict_handles = NumberFromEnvironment("SOFTWARE_GPU_STRICT_HANDLES", 0) != 0;
  // It exists where this process is another user's: such a one may not create files in a shared folder.
  if (const char* file = std::getenv("SOFTWARE_GPU_MISUSE_FILE")) {
    config->misuse_file = open(file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (config->misuse_file < 0)
      config->misuse_file = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  }
  if (const char* places = std::getenv("SOFTWARE_GPU_CONTEXT_PLACES")) config->context_places = places;
  if (const char* failures = std::getenv("SOFTWARE_GPU_FAIL")) ParseFailures(failures, config);
  return config;
}

}  // namespace

CUuuid UuidOf(int device) {
  CUuuid uuid;
  std::memcpy(uuid.bytes, "causeway-swgpu", 14);
  uuid.bytes[14] = 0;
  uuid.bytes[15] = static_cast<char>(device);
  return uuid;
}

const Config& GetConfig() {
  // Never destroyed: stream threads may still run while the process exits.
  static const Config* const config = ReadConfig();
  return *config;
}

int InjectedFailure(const char* function) {
  for (const auto& rule : GetConfig().failures) {
    if (rule->function != function) continue;
    if (rule->calls_seen.fetch_add(1, std::memory_order_relaxed) + 1 == rule->call) return rule->error;
  }
  return 0;
}

}  // namespace causeway::software_gpu
