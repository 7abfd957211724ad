// SPDX-License-Identifier: Apache-2.0
// The two policies that Shape needs, in one process and without a transport: a guest whose handles are their
// own numbers, a host with a table, and a message that is served as soon as it is finished.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "ivshmem_ring/protocol/call.h"

namespace causeway::test {

class MockHost {
 public:
  void* ToDriver(HandleKind kind, WireHandle wire, Reader& r) {
    if (wire == 0) return nullptr;
    const auto found = table.find(wire);
    if (found == table.end() || WireKind(wire) != NumberKind(kind)) {
      r.Fail(InvalidHandleError(kind));
      return nullptr;
    }
    return found->second;
  }
  void* ToEnd(HandleKind kind, WireHandle wire, Reader& r) { return ToDriver(kind, wire, r); }
  void Bind(HandleKind kind, WireHandle wire, void* value, Writer& w) {
    if (WireKind(wire) != kind) return w.Fail(CUDA_ERROR_INVALID_VALUE);
    table[wire] = value;
  }
  WireHandle BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Writer& w) {
    if (value == nullptr) return 0;
    for (const auto& [wire, known] : table) {
      if (known == value && WireKind(wire) == kind) return wire;
    }
    Bind(kind, fresh, value, w);
    return fresh;
  }
  WireHandle Known(HandleKind kind, void* value) const {
    for (const auto& [wire, known] : table) {
      if (known == value && WireKind(wire) == kind) return wire;
    }
    return 0;
  }
  CUresult Prepare() { return CUDA_SUCCESS; }
  CUresult End(HandleKind, WireHandle wire, const void*, const std::function<CUresult()>& call) {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) table.erase(wire);
    return result;
  }

  std::map<WireHandle, void*> table;
};

class MockGuest {
 public:
  using Server = std::function<CUresult(Reader&, Writer&)>;
  static constexpr size_t kMessageBytes = 1u << 14;

  explicit MockGuest(Server server) : server_(std::move(server)), space_(kMessageBytes) {}

  class Message {
   public:
    explicit Message(MockGuest& guest) : guest_(guest), writer_(guest.space_) {}
    Writer& writer() { return writer_; }
    Reader& reader() { return reader_; }
    void Enlarge() {}
    CUresult Finish() {
      guest_.request.assign(guest_.space_.begin(),
                            guest_.space_.begin() + static_cast<ptrdiff_t>(writer_.size()));
      std::vector<std::byte> space(kMessageBytes);
      Reader in(guest_.request);
      Writer out(space);
      const CUresult result = guest_.server_(in, out);
      guest_.reply.assign(space.begin(), space.begin() + static_cast<ptrdiff_t>(out.size()));
      guest_.reply.resize(std::min(guest_.reply.size(), guest_.reply_limit));
      guest_.reply.shrink_to_fit();
      reader_ = Reader(guest_.reply);
      return result;
    }

   private:
    MockGuest& guest_;
    Writer writer_;
    Reader reader_;
  };
  Message StartCall(Op) { return Message(*this); }
  Message StartPost(Op) { return Message(*this); }

  template <class T>
  T Make(Writer&) {
    const WireHandle wire = MakeWireHandle(kKindOf<T>, 1, ++next_);
    live.insert(wire);
    return reinterpret_cast<T>(wire);
  }
  template <class T>
  WireHandle ToWire(T handle, Writer&) {
    return reinterpret_cast<WireHandle>(handle);
  }
  template <class T>
  T Settle(T fresh, WireHandle wire) {
    if (reinterpret_cast<WireHandle>(fresh) != wire) Forget(fresh);
    return reinterpret_cast<T>(wire);
  }
  template <class T>
  T FromWire(WireHandle wire) {
    return reinterpret_cast<T>(wire);
  }
  template <class T>
  void Forget(T handle) {
    live.erase(reinterpret_cast<WireHandle>(handle));
  }

  std::set<WireHandle> live;
  std::vector<std::byte> request;  // the last message, exactly sized
  std::vector<std::byte> reply;    // what came back for it, cut at reply_limit
  size_t reply_limit = static_cast<size_t>(-1);

 private:
  Server server_;
  std::vector<std::byte> space_;
  uint32_t next_ = 0;
};

}  // namespace causeway::test
