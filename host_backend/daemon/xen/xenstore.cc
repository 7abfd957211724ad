// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/xenstore.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>

#include "host_backend/daemon/xen/xen_values.h"

namespace causeway::daemon {

// xenstore.h's declarations, so that building needs no header of Xen's. They have not changed since Xen 4.5.
struct XenStore::Library {
  struct Permission {
    unsigned int id;
    int bits;
  };
  void* (*open)(unsigned long flags) = nullptr;
  void (*close)(void* connection) = nullptr;
  char** (*directory)(void* connection, uint32_t transaction, const char* path,
                      unsigned int* count) = nullptr;
  void* (*read)(void* connection, uint32_t transaction, const char* path, unsigned int* bytes) = nullptr;
  bool (*write)(void* connection, uint32_t transaction, const char* path, const void* data,
                unsigned int bytes) = nullptr;
  bool (*mkdir)(void* connection, uint32_t transaction, const char* path) = nullptr;
  bool (*rm)(void* connection, uint32_t transaction, const char* path) = nullptr;
  bool (*set_permissions)(void* connection, uint32_t transaction, const char* path, Permission* permissions,
                          unsigned int count) = nullptr;
  uint32_t (*transaction_start)(void* connection) = nullptr;
  bool (*transaction_end)(void* connection, uint32_t transaction, bool abort) = nullptr;
  bool (*is_domain_introduced)(void* connection, unsigned int domain) = nullptr;
  bool (*watch)(void* connection, const char* path, const char* token) = nullptr;
  int (*descriptor)(void* connection) = nullptr;
  char** (*check_watch)(void* connection) = nullptr;
  std::string problem;

  static const Library& Get();
};

namespace {

constexpr int kNobody = 0, kMayRead = 1;  // xs_perm_type

struct Free {
  void operator()(void* memory) const { free(memory); }
};

}  // namespace

const XenStore::Library& XenStore::Library::Get() {
  static const Library& library = *[] {
    auto* made = new Library;
    void* file = nullptr;
    for (const char* name : {"libxenstore.so.4", "libxenstore.so.3.0", "libxenstore.so"}) {
      if (file == nullptr) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (file == nullptr) {
      made->problem = std::string("libxenstore cannot be loaded (") + dlerror() +
                      "); in Xen's domain 0 install the package libxenstore4.";
      return made;
    }
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(file, name));
      if (*function == nullptr) made->problem = std::string("libxenstore has no ") + name + ".";
    };
    find("xs_open", &made->open);
    find("xs_close", &made->close);
    find("xs_directory", &made->directory);
    find("xs_read", &made->read);
    find("xs_write", &made->write);
    find("xs_mkdir", &made->mkdir);
    find("xs_rm", &made->rm);
    find("xs_set_permissions", &made->set_permissions);
    find("xs_transaction_start", &made->transaction_start);
    find("xs_transaction_end", &made->transaction_end);
    find("xs_is_domain_introduced", &made->is_domain_introduced);
    find("xs_watch", &made->watch);
    find("xs_fileno", &made->descriptor);
    find("xs_check_watch", &made->check_watch);
    return made;
  }();
  return library;
}

Result<std::unique_ptr<XenStore>> XenStore::Open() {
  const Library& library = Library::Get();
  if (!library.problem.empty()) return Error{library.problem};
  void* connection = library.open(0);
  if (connection == nullptr) {
    return Error{"xenstore cannot be reached: " + ErrnoText() +
                 "; causewayd must run in Xen's domain 0, beside xenstored, as a user that may use it."};
  }
  return std::unique_ptr<XenStore>(new XenStore(library, connection));
}

XenStore::~XenStore() {
  library_.close(connection_);
}

std::optional<std::string> XenStore::Read(const std::string& path) {
  unsigned int bytes = 0;
  const std::unique_ptr<void, Free> value(library_.read(connection_, 0, path.c_str(), &bytes));
  if (value == nullptr || bytes > kMaxXenValueBytes) return {};
  return std::string(static_cast<const char*>(value.get()), bytes);
}

std::vector<std::string> XenStore::List(const std::string& path) {
  unsigned int count = 0;
  const std::unique_ptr<char*, Free> names(library_.directory(connection_, 0, path.c_str(), &count));
  if (names == nullptr) return {};
  return {names.get(), names.get() + count};
}

std::optional<uint16_t> XenStore::FindDomain(const std::string& name) {
  for (const std::string& entry : List("/local/domain")) {
    const auto domain = ReadXenNumber(entry, 0, kLastXenDomain);
    if (domain && *domain != 0 && Read("/local/domain/" + entry + "/name") == name &&
        IsAlive(uint16_t(*domain)))
      return uint16_t(*domain);
  }
  return {};
}

bool XenStore::IsAlive(uint16_t domain) {
  return library_.is_domain_introduced(connection_, domain);
}

bool XenStore::Make(uint32_t transaction, const Folder& folder) {
  if (folder.keep) {
    unsigned int bytes = 0;
    const std::unique_ptr<void, Free> there(
        library_.read(connection_, transaction, folder.path.c_str(), &bytes));
    if (there != nullptr) return true;
  }
  library_.rm(connection_, transaction, folder.path.c_str());
  Library::Permission permissions[] = {{folder.owner, kNobody}, {folder.reader, kMayRead}};
  if (!library_.mkdir(connection_, transaction, folder.path.c_str()) ||
      !library_.set_permissions(connection_, transaction, folder.path.c_str(), permissions, 2)) {
    return false;
  }
  for (const auto& [key, value] : folder.keys) {
    const std::string path = folder.path + "/" + key;
    if (!library_.write(connection_, transaction, path.c_str(), value.data(), unsigned(value.size())))
      return false;
  }
  return true;
}

bool XenStore::Replace(const std::vector<Folder>& folders) {
  constexpr int kTries = 20;  // others' transactions may come between
  for (int i = 0; i < kTries; ++i) {
    const uint32_t transaction = library_.transaction_start(connection_);
    if (transaction == 0) return false;
    bool good = true;
    for (const Folder& folder : folders) good = good && Make(transaction, folder);
    const int problem = errno;
    if (library_.transaction_end(connection_, transaction, !good) && good) return true;
    if (!good) errno = problem;
    if (!good || errno != EAGAIN) return false;
  }
  return false;
}

int XenStore::WatchDomains() {
  return library_.watch(connection_, "@releaseDomain", "released") ? library_.descriptor(connection_) : -1;
}

void XenStore::TakeWatches() {
  while (const std::unique_ptr<char*, Free> watch{library_.check_watch(connection_)}) {
  }
}

bool XenStore::Write(const std::string& path, const std::string& value) {
  return library_.write(connection_, 0, path.c_str(), value.data(), unsigned(value.size()));
}

bool XenStore::Remove(const std::string& path) {
  return library_.rm(connection_, 0, path.c_str());
}

}  // namespace causeway::daemon
