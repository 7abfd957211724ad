// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/key_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "host_backend/common/plain_name.h"
#include "host_backend/common/unique_fd.h"

namespace causeway {
namespace {

constexpr char kEnding[] = ".key";
constexpr char kReaders[] =
    "causeway-tls";  // the group of the process that looks keys up, where it has a user of its own

Error FolderError(const std::string& folder, const std::string& what) {
  return Error{"The folder of keys " + folder + " " + what + ": " + ErrnoText() + "."};
}

// Empty, or a sentence. An existing folder stays as its administrator made it.
std::string MakeFolder(const std::string& folder) {
  struct stat found {};
  if (stat(folder.c_str(), &found) == 0) {
    if (!S_ISDIR(found.st_mode))
      return folder + " is no folder; remove it or choose another one with --keys.";
    if ((found.st_mode & S_IWOTH) == 0) return {};
    return "Everybody may write into the folder of keys " + folder + "; run `chmod o-w " + folder +
           "` first.";
  }
  if (mkdir(folder.c_str(), 0700) != 0) return FolderError(folder, "cannot be made").text;
  const struct group* readers = getgrnam(kReaders);
  if (geteuid() != 0 || readers == nullptr) return {};
  if (chown(folder.c_str(), uid_t(-1), readers->gr_gid) != 0 || chmod(folder.c_str(), 0750) != 0)
    return FolderError(folder, "cannot be given to group causeway-tls").text;
  return {};
}

}  // namespace

std::string KeyPath(const std::string& folder, const std::string& name) {
  return folder + "/" + name + kEnding;
}

Result<Key> NewKey(const std::string& vm) {
  Key key;
  uint8_t id[kKeyIdDigits / 2];
  if (getrandom(id, sizeof id, 0) != ssize_t(sizeof id) ||
      getrandom(key.secret.data(), key.secret.size(), 0) != ssize_t(key.secret.size()))
    return Error{"The kernel gives no random bytes: " + ErrnoText() + "."};
  char digits[3];
  for (const uint8_t byte : id) {
    snprintf(digits, sizeof digits, "%02x", byte);
    key.id += digits;
  }
  key.vm = vm;
  key.created = std::time(nullptr);
  key.has_secret = true;
  return key;
}

Result<Key> ReadKey(const std::string& folder, const std::string& name) {
  if (!IsPlainName(name))
    return Error{"\"" + name.substr(0, 60) +
                 "\" is no name of a key: letters, digits, and _ . - between them, at most 48."};
  const std::string path = KeyPath(folder, name);
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    return Error{"There is no key " + name + " in " + folder + "; see `causeway keys list`."};
  Key key;
  if (std::string problem = ReadKeyFile(path, &key); !problem.empty()) {
    problem[0] = 'T';
    return Error{problem + "."};
  }
  return key;
}

Result<std::vector<NamedKey>> ListKeys(const std::string& folder, std::vector<std::string>* problems) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), &closedir);
  if (directory == nullptr) return FolderError(folder, "cannot be read");
  std::vector<NamedKey> keys;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string file = entry->d_name;
    if (file[0] == '.' || !file.ends_with(kEnding)) continue;
    const std::string name = file.substr(0, file.size() - sizeof(kEnding) + 1);
    auto key = ReadKey(folder, name);
    if (!key.ok()) {
      problems->push_back(key.error());
    } else if (keys.size() == kMaxKeys) {
      problems->push_back("There are more than " + std::to_string(kMaxKeys) + " keys in " + folder + ".");
      break;
    } else {
      keys.push_back({name, std::move(key.value())});
    }
  }
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return keys;
}

std::string WriteGuestKey(const Key& key, const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const std::string text = KeyText(key, true);
  if (file && write(file.get(), text.data(), text.size()) == ssize_t(text.size()) && fsync(file.get()) == 0)
    return {};
  return "The guest's key file " + path + " cannot be written: " + ErrnoText() + ".";
}

std::string WriteKey(const std::string& folder, const NamedKey& key) {
  if (std::string problem = MakeFolder(folder); !problem.empty()) return problem;
  const std::string path = KeyPath(folder, key.name);
  std::string temporary = folder + "/.new-XXXXXX";
  const UniqueFd file(mkostemp(temporary.data(), O_CLOEXEC));
  struct stat of_folder {};
  bool good = file && stat(folder.c_str(), &of_folder) == 0;
  if (good && geteuid() == 0) good = fchown(file.get(), uid_t(-1), of_folder.st_gid) == 0;
  const std::string text = KeyText(key.key, false);
  good = good && fchmod(file.get(), (of_folder.st_mode & S_IRGRP) != 0 ? 0640 : 0600) == 0 &&
         write(file.get(), text.data(), text.size()) == ssize_t(text.size()) && fsync(file.get()) == 0 &&
         rename(temporary.c_str(), path.c_str()) == 0;
  if (good) {
    const UniqueFd directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory) fsync(directory.get());
    return {};
  }
  const std::string why = ErrnoText();
  if (file) unlink(temporary.c_str());
  return "The key file " + path + " cannot be written: " + why + ".";
}

}  // namespace causeway
