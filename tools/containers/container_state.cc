// SPDX-License-Identifier: Apache-2.0
#include "tools/containers/container_state.h"

#include <algorithm>

#include "host_backend/common/json.h"

namespace causeway::containers {
namespace {

Error NoState(const Json::exception& error) {
  return Error{std::string("a container runtime has to call it with the container's state: ") + error.what()};
}

// The kernel would look up what comes before the zero byte, which is another path.
bool IsPath(const std::string& text) {
  return text.find('\0') == std::string::npos;
}

// The loader separates by both, and so a folder of the list has neither.
std::vector<std::string> LibraryFolders(const Json& configuration) {
  constexpr std::string_view kVariable = "LD_LIBRARY_PATH=", kSeparators = ":;";
  std::vector<std::string> folders;
  const Json process = configuration.value("process", Json::object());
  for (const Json& entry : process.value("env", Json::array())) {
    const std::string variable = entry.get<std::string>();
    if (!variable.starts_with(kVariable)) continue;
    for (size_t at = kVariable.size(), end = 0; at <= variable.size(); at = end + 1) {
      end = std::min(variable.find_first_of(kSeparators, at), variable.size());
      const std::string folder = variable.substr(at, end - at);
      const bool known = std::find(folders.begin(), folders.end(), folder) != folders.end();
      if (folder.starts_with('/') && IsPath(folder) && !known) folders.push_back(folder);
      if (folders.size() > kMostFolders) return folders;
    }
  }
  return folders;
}

}  // namespace

Result<std::string> BundleOf(const std::string& state) {
  try {
    std::string bundle = Json::parse(state).at("bundle").get<std::string>();
    // Else it would be looked up in the current folder, which some runtimes make the image's.
    if (!bundle.starts_with('/') || !IsPath(bundle))
      return Error{"the bundle " + bundle + " in the container's state is no absolute path"};
    return bundle;
  } catch (const Json::exception& error) {
    return NoState(error);
  }
}

Result<Container> ReadContainer(const std::string& bundle, const std::string& configuration) {
  try {
    const Json json = Json::parse(configuration);
    const std::string root = json.at("root").at("path").get<std::string>();
    if (root.empty() || !IsPath(root)) return Error{"the root in the container's configuration is no path"};
    return Container{root.starts_with('/') ? root : bundle + "/" + root, LibraryFolders(json)};
  } catch (const Json::exception& error) {
    return NoState(error);
  }
}

}  // namespace causeway::containers
