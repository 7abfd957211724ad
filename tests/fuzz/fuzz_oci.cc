// SPDX-License-Identifier: Apache-2.0
// What the hook of containers reads: a state and a configuration of any bytes, or nearly as a runtime writes them, with the
// environment of any image. What comes out is absolute paths that name what they say, in bounds, and else one sentence.
#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "host_backend/common/json.h"
#include "tests/fuzz/fuzz_input.h"
#include "tools/containers/container_state.h"

namespace causeway::fuzz {
namespace {

using namespace containers;

std::string SomeText(Input& input) {
  static constexpr const char* kTexts[] = {"/",      "/usr/lib", "/usr/local/lib:", ";", ":",
                                           "rootfs", "$ORIGIN",  "LD_LIBRARY_PATH", "=", ""};
  std::string text;
  for (int parts = input.Byte() % 4; parts > 0; --parts) {
    const uint8_t choice = input.Byte();
    if (choice < 160) {
      text += kTexts[choice % std::size(kTexts)];
    } else if (choice < 170) {
      text += std::string(input.Word() % 5000, '/');
    } else {
      const auto bytes = input.Bytes(choice % 24);
      text.append(bytes.begin(), bytes.end());
    }
  }
  return text;
}

Json SomeValue(Input& input) {
  switch (input.Byte() % 8) {
    case 0:
      return nullptr;
    case 1:
      return input.Byte();
    case 2:
      return Json::array({SomeText(input)});
    case 3:
      return Json::object();
    default:
      return SomeText(input);
  }
}

Json SomeEnvironment(Input& input) {
  if (input.Byte() > 250) return SomeValue(input);
  Json environment = Json::array();
  for (int entries = input.Byte() % 8; entries > 0; --entries) {
    const uint8_t odd = input.Byte();
    if (odd < 100) environment.push_back("LD_LIBRARY_PATH=" + SomeText(input));
    if (odd >= 100 && odd < 240) environment.push_back(SomeText(input));
    if (odd >= 240) environment.push_back(SomeValue(input));
    if (odd % 32 != 1) continue;
    std::string many = "LD_LIBRARY_PATH=";
    for (unsigned folders = input.Byte() % 130; folders > 0; --folders)
      many += "/" + std::to_string(folders) + ":";
    environment.push_back(many);
  }
  return environment;
}

// As a runtime writes it, but for a value here and there, and a byte.
std::string SomeJson(Input& input, Json json) {
  std::string text =
      input.Byte() < 250 ? JsonText(json) : json.dump(-1, ' ', false, Json::error_handler_t::ignore);
  if (input.Byte() > 240 && !text.empty()) text[input.Word() % text.size()] = char(input.Byte());
  if (input.Byte() > 250) text.resize(input.Word() % (text.size() + 1));
  if (input.Byte() > 252) text.insert(0, input.Word() % 10'000, input.Byte() % 2 ? '[' : '{');
  return text;
}

void RequireSentence(const std::string& error) {
  Require(!error.empty());
}

void TryState(const std::string& text) {
  const auto bundle = BundleOf(text);
  if (!bundle.ok()) return RequireSentence(bundle.error());
  Require(bundle.value().starts_with('/') && bundle.value().find('\0') == std::string::npos);
}

void TryConfiguration(const std::string& text) {
  const std::string bundle = "/run/bundle";
  const auto read = ReadContainer(bundle, text);
  if (!read.ok()) return RequireSentence(read.error());
  const Container& container = read.value();
  Require(container.root.starts_with('/') && container.root.find('\0') == std::string::npos);
  const auto& folders = container.library_folders;
  Require(folders.size() <= kMostFolders + 1);
  Require(std::set<std::string>(folders.begin(), folders.end()).size() == folders.size());
  for (const std::string& folder : folders)
    Require(folder.starts_with('/') &&
            folder.find_first_of(std::string_view(":;\0", 3)) == std::string::npos);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway;
  using namespace causeway::fuzz;
  Input input(data, size);
  switch (input.Byte() % 4) {
    case 0: {
      const auto bytes = input.Bytes(size);
      const std::string text(bytes.begin(), bytes.end());
      TryState(text);
      TryConfiguration(text);
      break;
    }
    case 1: {
      Json state = {{"ociVersion", "1.0.2"}, {"id", SomeText(input)}, {"status", "creating"}};
      state["bundle"] = input.Byte() < 200 ? Json("/run/" + SomeText(input)) : SomeValue(input);
      TryState(SomeJson(input, state));
      break;
    }
    default: {
      Json process = {{"env", SomeEnvironment(input)}, {"cwd", SomeText(input)}};
      Json json = {{"root", {{"path", SomeText(input)}}}, {"process", process}};
      const uint8_t odd = input.Byte();
      if (odd > 250) json["root"]["path"] = SomeValue(input);
      if (odd == 250) json["root"] = SomeValue(input);
      if (odd == 249) json["process"] = SomeValue(input);
      if (odd == 248) json.erase("process");
      TryConfiguration(SomeJson(input, json));
    }
  }
  return 0;
}
