// SPDX-License-Identifier: Apache-2.0
// The folder in which the host keeps the keys of remote guests, a file NAME.key for each (ivshmem_ring/tls/key_file.h), made by
// `causeway keys`. Changes replace a file as a whole, so that a reader sees the old one or the new one. All functions may be
// called from any thread; errors are one sentence.
#pragma once
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "ivshmem_ring/tls/key_file.h"

namespace causeway {

inline constexpr char kKeyFolder[] = "/etc/causeway/keys";
inline constexpr size_t kMaxKeys = 4096;

struct NamedKey {
  std::string name;
  Key key;
};

// Of a name that is plain (plain_name.h).
std::string KeyPath(const std::string& folder, const std::string& name);

// A new key of that VM, which begins now.
Result<Key> NewKey(const std::string& vm);

Result<Key> ReadKey(const std::string& folder, const std::string& name);
// All keys, by name. What is wrong with files that are no keys goes into `problems`, a sentence each.
Result<std::vector<NamedKey>> ListKeys(const std::string& folder, std::vector<std::string>* problems);
// Writes the file and has it on the disk before it returns. The folder is made if it is missing. File and folder are the caller's,
// and readable for the folder's group.
std::string WriteKey(const std::string& folder, const NamedKey& key);
// Writes the guest's file, mode 0600. An existing file is not touched.
std::string WriteGuestKey(const Key& key, const std::string& path);

}  // namespace causeway
