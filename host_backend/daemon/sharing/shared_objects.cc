// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/sharing/shared_objects.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>

#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway::daemon {
void SharedObjects::Insert(Scope& scope, const Token& token, Object object) {
  Own& own = scope.own[object.session];
  ++own.objects;
  if (object.descriptor) {
    ++own.descriptors;
    ++scope.descriptors;
    ++descriptors_;
  } else {
    own.bytes.emplace(std::pair(object.kind, object.bytes), token);
  }
  scope.objects.emplace(token, std::move(object));
}

void SharedObjects::Keep(const std::string& name, Scope& scope, const Token& token) {
  if (vault_ == nullptr || !vault_->keeps() || scope.kept >= kMaxKeptOfScope || kept_ >= kMaxKept) return;
  Object& object = scope.objects.at(token);
  object.key = vault_->NewKey(Vault::Kind::kShared);
  ++scope.kept;
  ++kept_;
  vault_->Put(object.key,
              {{"scope", name},
               {"session", object.session},
               {"kind", uint32_t(object.kind)},
               {"token", HexadecimalText(token)},
               {"bytes", HexadecimalText(object.bytes)}},
              {{"object", object.descriptor.get()}}, 0, object.descriptor.account());
}

void SharedObjects::Forget(Scope& scope, Object& object) {
  if (object.key == 0) return;
  vault_->Drop(object.key);
  --scope.kept;
  --kept_;
}

uint64_t SharedObjects::Resume(const std::function<bool(const std::string&, uint64_t)>& lives) {
  uint64_t largest = 0;
  for (Vault::Record* record : vault_->All(Vault::Kind::kShared)) {
    const auto scope = record->state.at("scope").get<std::string>();
    Object object{record->state.at("session").get<uint64_t>(),
                  SharedKind(record->state.at("kind").get<uint32_t>()),
                  {},
                  WorkerFd(record->Take("object"))};
    largest = std::max(largest, object.session);
    Token token;
    // What is left in the vault ends with the taking over.
    if (!ReadHexadecimal(record->state.at("token").get<std::string>(), token) ||
        !ReadHexadecimal(record->state.at("bytes").get<std::string>(), object.bytes) ||
        !lives(scope, object.descriptor ? 0 : object.session))
      continue;
    Scope& place = scopes_[scope];
    object.key = vault_->Adopt(*record).key;
    ++place.kept;
    ++kept_;
    Insert(place, token, std::move(object));
  }
  return largest;
}

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
  Insert(place, *token, Object{session, kind, bytes, std::move(descriptor)});
  Keep(scope, place, *token);
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
  Object& object = found->second;
  Forget(scope, object);
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
  for (auto& [token, object] : ended.objects) Forget(ended, object);
  descriptors_ -= ended.descriptors;
  scopes_.erase(place);
}

size_t SharedObjects::size() const {
  size_t total = 0;
  for (const auto& [scope, place] : scopes_) total += place.objects.size();
  return total;
}

}  // namespace causeway::daemon
