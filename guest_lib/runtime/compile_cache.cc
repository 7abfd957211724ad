// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/runtime/compile_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

// As the driver's manual has them.
constexpr uint64_t kDefaultLimitBytes = uint64_t{1} << 30;
constexpr uint64_t kMostLimitBytes = uint64_t{4} << 30;

constexpr std::array<char, 8> kMagic = {'C', 'W', 'C', 'O', 'D', 'E', '0', '1'};
constexpr char kUnfinished[] = ".new-";
constexpr time_t kUnfinishedSeconds = 3600;  // whoever began it is gone
constexpr size_t kNameChars = 2 * sizeof(ImageHash);

struct Header {
  std::array<char, 8> magic;
  uint64_t code_bytes;
  ImageHash code_hash;
};
static_assert(sizeof(Header) == 48);

ImageHash HashOf(std::span<const std::byte> bytes) {
  ImageHasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  return hasher.Finish();
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  bool Read(void* bytes, size_t size) const {
    for (auto* at = static_cast<char*>(bytes); size != 0;) {
      const ssize_t got = read(descriptor_, at, size);
      if (got <= 0 && !(got < 0 && errno == EINTR)) return false;
      if (got > 0) at += got, size -= static_cast<size_t>(got);
    }
    return true;
  }

  bool Write(const void* bytes, size_t size) const {
    for (const auto* at = static_cast<const char*>(bytes); size != 0;) {
      const ssize_t put = write(descriptor_, at, size);
      if (put < 0 && errno != EINTR) return false;
      if (put > 0) at += put, size -= static_cast<size_t>(put);
    }
    return true;
  }

 private:
  int descriptor_;
};

// Makes the folders on the way as well; only their owner may look into them.
bool MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    if (mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (end == path.npos) return true;
  }
}

std::string DirectoryFromEnvironment() {
  const char* disabled = std::getenv("CUDA_CACHE_DISABLE");
  if (disabled != nullptr && std::strtol(disabled, nullptr, 10) != 0) return {};
  if (const char* path = std::getenv("CUDA_CACHE_PATH"); path != nullptr && *path != '\0')
    return std::string(path) + "/causeway";
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? std::string() : std::string(home) + "/.nv/ComputeCache/causeway";
}

uint64_t LimitFromEnvironment() {
  const char* text = std::getenv("CUDA_CACHE_MAXSIZE");
  if (text == nullptr || *text < '0' || *text > '9') return kDefaultLimitBytes;
  return std::min<uint64_t>(std::strtoull(text, nullptr, 10), kMostLimitBytes);
}

}  // namespace

CompileCache::CompileCache(std::string directory, uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes), unchecked_bytes_(limit_bytes) {}

CompileCache CompileCache::FromEnvironment() {
  return CompileCache(DirectoryFromEnvironment(), LimitFromEnvironment());
}

std::string CompileCache::PathOf(const ImageHash& key) const {
  std::string path = directory_ + "/";
  for (const uint8_t byte : key) {
    path += "0123456789abcdef"[byte >> 4];
    path += "0123456789abcdef"[byte & 15];
  }
  return path;
}

std::optional<CompileCache::Code> CompileCache::Find(const ImageHash& key) const {
  if (!enabled()) return std::nullopt;
  const File file(open(PathOf(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  // What another user could have put there is not run.
  if (!file.is_open() || fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != geteuid())
    return std::nullopt;
  Header header{};
  if (!file.Read(&header, sizeof header) || header.magic != kMagic || header.code_bytes >= UINT32_MAX ||
      static_cast<uint64_t>(status.st_size) != sizeof header + header.code_bytes)
    return std::nullopt;
  auto* const bytes = static_cast<std::byte*>(std::malloc(header.code_bytes + 1));
  if (bytes == nullptr) return std::nullopt;
  bytes[header.code_bytes] = std::byte{0};  // it may be text
  if (!file.Read(bytes, header.code_bytes) || HashOf({bytes, header.code_bytes}) != header.code_hash) {
    std::free(bytes);
    return std::nullopt;
  }
  futimens(file.descriptor(), nullptr);  // what is used lately is evicted last
  return Code{bytes, static_cast<uint32_t>(header.code_bytes)};
}

bool CompileCache::Keep(const ImageHash& key, std::span<const std::byte> code) {
  if (!enabled() || code.size() > limit_bytes_) return false;
  std::string unfinished = directory_ + "/" + kUnfinished + "XXXXXX";
  int descriptor = mkostemp(unfinished.data(), O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT && MakeFolders(directory_)) {
    unfinished = directory_ + "/" + kUnfinished + "XXXXXX";
    descriptor = mkostemp(unfinished.data(), O_CLOEXEC);
  }
  const File file(descriptor);
  if (!file.is_open()) return false;
  const Header header{kMagic, code.size(), HashOf(code)};
  if (!file.Write(&header, sizeof header) || !file.Write(code.data(), code.size()) ||
      rename(unfinished.c_str(), PathOf(key).c_str()) != 0) {
    unlink(unfinished.c_str());
    return false;
  }
  // The first time, and whenever another sixteenth of what is allowed has been written.
  if (unchecked_bytes_.fetch_add(code.size()) >= limit_bytes_ / 16) Evict();
  return true;
}

// Deletes the files that were used least lately until a quarter of the space is free, if there is too much.
void CompileCache::Evict() {
  unchecked_bytes_ = 0;
  DIR* const folder = opendir(directory_.c_str());
  if (folder == nullptr) return;
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  uint64_t total_bytes = 0;
  while (const dirent* const item = readdir(folder)) {
    const std::string_view name = item->d_name;
    struct stat status {};
    if (fstatat(dirfd(folder), item->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (name.starts_with(kUnfinished)) {
      if (status.st_mtim.tv_sec + kUnfinishedSeconds < time(nullptr))
        unlinkat(dirfd(folder), item->d_name, 0);
    } else if (name.size() == kNameChars) {
      total_bytes += static_cast<uint64_t>(status.st_size);
      entries.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), std::string(name)});
    }
  }
  if (total_bytes > limit_bytes_) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
    });
    for (const Entry& entry : entries) {
      if (total_bytes <= limit_bytes_ / 4 * 3) break;
      if (unlinkat(dirfd(folder), entry.name.c_str(), 0) == 0) total_bytes -= entry.bytes;
    }
  }
  closedir(folder);
}

namespace slots {
namespace {

CompileCache& Cache() {
  static auto* cache = new CompileCache(CompileCache::FromEnvironment());
  return *cache;
}

// What callers hold of FindCompiled. cuBLASLt calls the slot that frees without having got anything.
struct Lent {
  Mutex<Lock::kLentCode> mutex;
  std::unordered_set<void*> code;
};

Lent& LentCode() {
  static auto* lent = new Lent;
  return *lent;
}

void AddText(ImageHasher& hasher, const char* text) {
  const std::string_view view = text == nullptr ? "" : text;
  hasher.Add(view.data(), view.size() + (text == nullptr ? 0 : 1));
}

}  // namespace

struct CompileKey {
  ImageHash hash;
};

CUresult MakeCompileKey(CompileKey** key, int kind, const void* source, uint32_t source_bytes,
                        const char* options, const char* host, const char* compiler, uint32_t architecture,
                        uint32_t flag) {
  if (key == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *key = nullptr;
  if (source == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Cache().enabled()) return CUDA_ERROR_NOT_SUPPORTED;
  ImageHasher hasher;
  const std::array<uint32_t, 4> numbers = {static_cast<uint32_t>(kind), architecture, flag, source_bytes};
  hasher.Add(numbers.data(), sizeof numbers);
  for (const char* text : {options, host, compiler}) AddText(hasher, text);
  hasher.Add(source, source_bytes);
  *key = new CompileKey{hasher.Finish()};
  return CUDA_SUCCESS;
}

CUresult DestroyCompileKey(CompileKey* key) {
  delete key;
  return CUDA_SUCCESS;
}

CUresult FindCompiled(const CompileKey* key, const void* /*unused*/, void** code, uint32_t* code_bytes) {
  if (code == nullptr || code_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *code = nullptr;
  *code_bytes = 0;
  if (key == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<CompileCache::Code> found = Cache().Find(key->hash);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  const std::lock_guard lock(LentCode().mutex);
  LentCode().code.insert(found->bytes);
  *code = found->bytes;
  *code_bytes = found->size;
  return CUDA_SUCCESS;
}

CUresult KeepCompiled(const CompileKey* key, const void* /*unused*/, const void* code, uint32_t code_bytes) {
  if (key == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::span bytes(static_cast<const std::byte*>(code), code_bytes);
  return Cache().Keep(key->hash, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult FreeCompiled(void* code) {
  {
    const std::lock_guard lock(LentCode().mutex);
    if (LentCode().code.erase(code) == 0) return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::free(code);
  return CUDA_SUCCESS;
}

}  // namespace slots
}  // namespace causeway::guest
