// SPDX-License-Identifier: Apache-2.0
// Module images, modules, libraries. An image is parsed by the driver alone, from the worker's own copy, and
// only what is one (host_backend/worker/code/image.h).
#include <algorithm>
#include <cstring>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/code/image.h"
#include "host_backend/worker/code/image_cache.h"
#include "host_backend/worker/code/jit_options.h"
#include "host_backend/worker/session/blob.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/code_messages.h"

namespace causeway::host {
namespace {

using ImageBytes = std::shared_ptr<std::vector<std::byte>>;

struct FatbinWrapper {  // driver_interface: 24 bytes, version 2 points to an array of fatbins
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* const* linked;
};

// An image with what must live as long as the library.
struct Image {
  ImageBytes bytes;                 // of options and image, unless
  std::unique_ptr<KeptImage> kept;  // the image lies here
  uint64_t own_bytes = 0;           // that this session sent
  uint64_t total_bytes = 0;         // whoever sent it
  std::vector<std::span<const std::byte>> parts;
  std::vector<const void*> linked;  // the parts, for the wrapper
  FatbinWrapper wrapper;
  JitOptions options;  // a library may be compiled, and its logs written, when it is first used

  // What the driver gets; null for what is no image.
  const void* driver_view() {
    if (parts.size() == 1) return IsImage(parts[0]) ? parts[0].data() : nullptr;
    linked.clear();
    for (const auto& part : parts) {
      if (FormatOf(part) != ImageFormat::kFatbin) return nullptr;
      linked.push_back(part.data());
    }
    linked.push_back(nullptr);
    wrapper = {0x466243B1, 2, linked[0], linked.data() + 1};
    return &wrapper;
  }
};

// The image in `bytes`, whose parts stay where they are.
CUresult TakeImage(Session& session, std::span<const std::byte> bytes, Image* image) {
  const std::byte* at = bytes.data();
  image->total_bytes = bytes.size();
  ImageHeader header;
  if (bytes.size() < sizeof header) return CUDA_ERROR_INVALID_IMAGE;
  std::memcpy(&header, at, sizeof header);
  if (header.magic != kImageMagic || header.part_count == 0 || header.part_count > kMaxImageParts ||
      bytes.size() < sizeof header + 8ull * header.part_count) {
    return session.Breach("the header of an image makes no sense");
  }
  uint64_t offset = sizeof header + 8ull * header.part_count;
  for (uint32_t i = 0; i < header.part_count; ++i) {
    uint64_t part;
    std::memcpy(&part, at + sizeof header + 8ull * i, sizeof part);
    offset = ImageAligned(offset);
    if (offset > bytes.size() || part > bytes.size() - offset)
      return session.Breach("a part of an image lies outside of it");
    image->parts.push_back(bytes.subspan(offset, part));
    if (IsFatbinWrapper(image->parts.back())) return session.Breach("an image holds addresses");
    offset += part;
  }
  return CUDA_SUCCESS;
}

CUresult TakeLoad(Session& session, Request& request, LoadBody* body, Image* image) {
  *body = request.in.Get<LoadBody>();
  if (!request.in.ok() || request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  uint64_t blob_bytes = 0;
  image->bytes = session.part<Blobs>().Take(request, &blob_bytes);
  const std::span<const std::byte> blob(image->bytes->data(), blob_bytes);
  Reader in(blob.first(std::min(body->option_bytes, blob_bytes)));
  const uint64_t image_at =
      body->option_bytes <= blob_bytes ? ImageAligned(body->option_bytes) : blob_bytes + 1;
  if (image_at > blob_bytes) return session.Breach("a load names more bytes than it sends");
  const CUresult options = image->options.Take(in, body->option_count);
  if (!in.ok()) return session.Breach("the options of a load are cut");
  if (options != CUDA_SUCCESS) return options;
  if (body->known_bytes != 0) {
    ImageHash hash;
    std::copy(std::begin(body->known_hash), std::end(body->known_hash), hash.begin());
    const KeptImages found = FindImage(session.daemon(), hash, body->known_bytes, &image->kept);
    if (found == KeptImages::kFound) return TakeImage(session, image->kept->bytes(), image);
    request.out.Put(
        LoadReply{0, found == KeptImages::kUnknown ? ImageAnswer::kUnknown : ImageAnswer::kNotKept, 0});
    return CUDA_ERROR_NOT_FOUND;
  }
  image->kept = KeepImage(session.daemon(), blob.subspan(image_at));
  image->own_bytes = blob_bytes;
  if (image->kept == nullptr) return TakeImage(session, blob.subspan(image_at), image);
  *image->bytes = {};  // the options have copied theirs
  return TakeImage(session, image->kept->bytes(), image);
}

// What the compiler said, also when it failed.
void ReplyOutputs(Session& session, Request& request, const JitOptions& options) {
  std::vector<std::byte>& left = session.part<Blobs>().left(request.channel);
  left.clear();
  options.AppendOutputs(&left);
  request.out.Put(LoadReply{left.size(), ImageAnswer::kLoaded, 0});
}

// The bytes that were sent to be loaded, not those that another session did; what the driver makes of them on
// the device it does not say.
void CountImage(void* loaded, const Image& image, bool in_context) {
  TheAccounting().Hold(ChargeSpace::kImage, reinterpret_cast<uint64_t>(loaded),
                       TheAccounting().Reserve(MemoryKind::kImages, kNoDevice, image.own_bytes), in_context);
}

}  // namespace

CUresult Serve_cuModuleLoadDataEx(Session& session, Request& request) {
  LoadBody body;
  Image image;
  if (const CUresult result = TakeLoad(session, request, &body, &image)) return result;
  if (const CUresult result = RequireNumber(HandleKind::kModule, body.handle)) return result;
  JitOptions& options = image.options;
  const void* view = image.driver_view();
  CUmodule module = nullptr;
  options.Mark();
  ChargeRef charge;
  const auto load = [&] {
    return TheDriver().cuModuleLoadDataEx(&module, view, options.count(), options.options(),
                                          options.values());
  };
  const CUresult result = view == nullptr
                              ? CUDA_ERROR_INVALID_IMAGE
                              : LoadMeasured(
                                    image.total_bytes, load, [&] { Uncounted::Unload(module); }, &charge);
  ReplyOutputs(session, request, options);
  if (result != CUDA_SUCCESS) return result;
  CountImage(module, image, true);
  if (charge != nullptr)
    TheAccounting().Hold(ChargeSpace::kModule, reinterpret_cast<uint64_t>(module), std::move(charge), true);
  session.objects().Bind(HandleKind::kModule, body.handle, module, request.out);
  return request.out.error();
}

CUresult Serve_cuLibraryLoadData(Session& session, Request& request) {
  LoadBody body;
  auto image = std::make_shared<Image>();
  if (const CUresult result = TakeLoad(session, request, &body, image.get())) return result;
  if (const CUresult result = RequireNumber(HandleKind::kLibrary, body.handle)) return result;
  JitOptions& options = image->options;
  // A driver that loads lazily takes any bytes and says later that they are no image: it does so of these.
  static constexpr char kNoImage[kImageAlign] = {1};
  const void* view = image->driver_view();
  if (view == nullptr) view = kNoImage;
  // The guest may drop its image once the call returns; ours stays, so the driver need not copy it.
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* yes = reinterpret_cast<void*>(uintptr_t{1});
  CUlibrary library = nullptr;
  options.Mark();
  ChargeRef charge;
  const CUresult result = LoadMeasured(
      image->total_bytes,
      [&] {
        return TheDriver().cuLibraryLoadData(&library, view, options.options(), options.values(),
                                             options.count(), &preserved, &yes, 1);
      },
      [&] { TheDriver().cuLibraryUnload(library); }, &charge);
  ReplyOutputs(session, request, options);
  if (result != CUDA_SUCCESS) return result;
  CountImage(library, *image, false);
  if (charge != nullptr)
    TheAccounting().Hold(ChargeSpace::kModule, reinterpret_cast<uint64_t>(library), std::move(charge), false);
  session.objects().Keep(HandleKind::kLibrary, library, image);
  session.objects().Bind(HandleKind::kLibrary, body.handle, library, request.out);
  return request.out.error();
}

CUresult Serve_cuLibraryUnload(Session& session, Request& request) {
  const auto wire = request.in.Get<WireHandle>();
  auto library = static_cast<CUlibrary>(session.objects().ToEnd(HandleKind::kLibrary, wire, request.in));
  if (!request.in.ok()) return request.in.error();
  return session.objects().End(
      HandleKind::kLibrary, wire, library,
      [&session, kept = session.objects().Kept<Image>(HandleKind::kLibrary, library), library] {
        const auto key = reinterpret_cast<uint64_t>(library);
        // Before the call: the driver may give the pointer again at once.
        Holding image = TheAccounting().Take(ChargeSpace::kImage, key);
        Holding code = TheAccounting().Take(ChargeSpace::kModule, key);
        const CUresult result = TheDriver().cuLibraryUnload(library);
        if (result == CUDA_SUCCESS) {
          session.objects().Drop(HandleKind::kLibrary, library, kept);
        } else {
          TheAccounting().PutBack(ChargeSpace::kImage, key, std::move(image));
          TheAccounting().PutBack(ChargeSpace::kModule, key, std::move(code));
        }
        return result;
      });
}

}  // namespace causeway::host
