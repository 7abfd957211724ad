// SPDX-License-Identifier: Apache-2.0
#include "tools/system/doctor.h"

#include <dlfcn.h>

#include <cstdio>

#include "host_backend/common/json.h"

namespace causeway::doctor {
namespace {

const char* NameOf(State state) {
  switch (state) {
    case State::kFine:
      return "ok";
    case State::kBroken:
      return "broken";
    case State::kSkipped:
      return "skipped";
  }
  return "";
}

void PrintJson(const std::string& side, const Chain& chain, const Finding* broken) {
  Json links = Json::array();
  for (const Finding& finding : chain.findings()) {
    links.push_back({{"link", finding.link},
                     {"state", NameOf(finding.state)},
                     {"sentence", finding.sentence},
                     {"mend", finding.mend}});
  }
  const Json all = {{"side", side},
                    {"healthy", broken == nullptr},
                    {"broken", broken == nullptr ? "" : broken->link},
                    {"links", links}};
  std::printf("%s\n", JsonText(all).c_str());
}

void PrintText(const std::string& side, const Chain& chain, const Finding* broken) {
  for (const Finding& finding : chain.findings()) {
    std::printf("%-8s %-14s %s\n", NameOf(finding.state), finding.link.c_str(),
                PrintableText(finding.sentence).c_str());
    if (!finding.mend.empty())
      std::printf("%-8s %-14s mend it: %s\n", "", "", PrintableText(finding.mend).c_str());
  }
  if (broken == nullptr) {
    std::printf("The %s is healthy.\n", side.c_str());
  } else {
    std::printf("The first broken link is: %s. %s\n", broken->link.c_str(),
                PrintableText(broken->sentence).c_str());
  }
}

}  // namespace

bool IsGuest(const machine::Machine& machine, const std::string& side) {
  if (!side.empty()) return side == "guest";
  if (machine.Has("/etc/causeway/causewayd.toml") || machine.Has("/usr/libexec/causeway/causewayd"))
    return false;
  const std::string own = machine::OwnPath();
  const std::string beside = own.substr(0, own.rfind('/')) + "/causewayd";
  return !(machine.lives() && machine::Machine("").Has(beside));
}

bool Chain::IsFine(const std::string& link) const {
  for (const Finding& finding : findings_) {
    if (finding.link == link && finding.state != State::kFine) return false;
  }
  return true;
}

int RunDoctor(const DoctorOptions& options) {
  const machine::Machine machine(options.root);
  const std::string side = IsGuest(machine, options.side) ? "guest" : "host";
  Chain chain;
  if (side == "guest") {
    CheckGuest(machine, &chain);
  } else {
    CheckHost(machine, options, &chain);
  }
  CheckContainers(machine, side == "guest", options.config, &chain);
  const Finding* broken = nullptr;
  for (const Finding& finding : chain.findings()) {
    if (finding.state == State::kBroken && broken == nullptr) broken = &finding;
  }
  options.json ? PrintJson(side, chain, broken) : PrintText(side, chain, broken);
  return broken == nullptr ? 0 : 1;
}

int TryCuda() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(library, "cuDeviceGetName"));
  if (init == nullptr || count == nullptr || name == nullptr) {
    std::printf("libcuda.so.1 lacks functions of the driver\n");
    return 1;
  }
  if (const int result = init(0); result != 0) {
    std::printf("cuInit answers error %d\n", result);
    return 1;
  }
  int devices = 0;
  count(&devices);
  char text[256] = "";
  if (devices > 0) name(text, sizeof(text), 0);
  std::printf("%d GPU%s, the first is %s\n", devices, devices == 1 ? "" : "s", devices > 0 ? text : "none");
  return devices > 0 ? 0 : 1;
}

}  // namespace causeway::doctor
