// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/sharing/shared_objects.h"

#include <fcntl.h>
#include <sys/random.h>

namespace causeway::daemon {

SharingResult SharedObjects::Put(const std::string& scope, uint64_t session, SharedKind kind,
                                 const SharedBytes& bytes, WorkerFd descriptor, Token* token) {
  Scope& place = scopes_[scope];
  Own& own = place.own[session];
  if (!descriptor) {
    const auto known = own.bytes.find({kind, bytes});
    if (known != own.bytes.end()) {
      *token = known->second;
      return SharingResult::kOk;
    }
  } else if (own.descriptors >= kMaxDescriptorsPerSession ||
             place.descriptors >= (max_descriptors_ - (descriptors_ - place.descriptors) + 1) / 2) {
    return SharingResult::kFull;
  }
  if (own.objects >= kMaxPerSession || place.objects.size() >= kMaxPerScope) return SharingResult::kFull;
  if (getrandom(token->data(), token->size(), 0) != ssize_t(token->size())) return SharingResult::kFull;
  ++own.objects;
  if (descriptor) {
    ++own.descriptors;
    ++place.descriptors;
    ++descriptors_;
  } else {
    own.bytes.emplace(std::pair(kind, bytes), *token);
  }
  place.objects.emplace(*token, Object{session, kind, bytes, std::move(descriptor)});
  return SharingResult::kOk;
}

SharingResult SharedObjects::Get(const std::string& scope, SharedKind kind, const Token& token,
                                 SharedBytes* bytes, UniqueFd* descriptor) const {
  const auto place = scopes_.find(scope);
  if (place == scopes_.end()) return SharingResult::kUnknown;
  const auto found = place->second.objects.find(token);
  if (found == place->second.objects.end() || found->second.kind != kind) return SharingResult::kUnknown;
  *bytes = found->second.bytes;
  if (found->second.descriptor) {
    descriptor->reset(fcntl(found->second.descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!*descriptor) return SharingResult::kFull;
  }
  return SharingResult::kOk;
}

void SharedObjects::Erase(Scope& scope, const Token& token) {
  const auto found = scope.objects.find(token);
  const Object& object = found->second;
  if (object.descriptor) {
    --descriptors_;
    --scope.descriptors;
  }
  if (const auto own = scope.own.find(object.session); own != scope.own.end()) {
    --own->second.objects;
    if (object.descriptor) {
      --own->second.descriptors;
    } else {
      own->second.bytes.erase({object.kind, object.bytes});
    }
  }
  scope.objects.erase(found);
}

SharingResult SharedObjects::Drop(const std::string& scope, uint64_t session, const Token& token) {
  const auto place = scopes_.find(scope);
  if (place == scopes_.end()) return SharingResult::kUnknown;
  const auto found = place->second.objects.find(token);
  if (found == place->second.objects.end() || found->second.session != session)
    return SharingResult::kUnknown;
  Erase(place->second, token);
  return SharingResult::kOk;
}

void SharedObjects::EndSession(const std::string& scope, uint64_t session, bool last) {
  const auto place = scopes_.find(scope);
  if (place == scopes_.end()) return;
  Scope& ended = place->second;
  if (const auto own = ended.own.find(session); own != ended.own.end()) {
    const auto bytes = own->second.bytes;
    for (const auto& [known, token] : bytes) Erase(ended, token);
    ended.own.erase(own);
  }
  if (!last) return;
  descriptors_ -= ended.descriptors;
  scopes_.erase(place);
}

size_t SharedObjects::size() const {
  size_t total = 0;
  for (const auto& [scope, place] : scopes_) total += place.objects.size();
  return total;
}

}  // namespace causeway::daemon
