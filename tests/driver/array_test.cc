// SPDX-License-Identifier: Apache-2.0
// Census category array: shapes, contents, levels, planes, sparse arrays and the memory under them.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

using ArrayTest = DriverTest;

TEST_F(ArrayTest, DescriptorIsWhatWasAskedFor) {
  const unsigned layered = CUDA_ARRAY3D_LAYERED, cube = CUDA_ARRAY3D_CUBEMAP;
  const CUDA_ARRAY3D_DESCRIPTOR shapes[] = {
      ArrayShape(100),
      ArrayShape(64, 32),
      ArrayShape(16, 8, 4),
      ArrayShape(100, 0, 3, CU_AD_FORMAT_UNSIGNED_INT8, 4, layered),
      ArrayShape(64, 32, 5, CU_AD_FORMAT_HALF, 2, layered),
      ArrayShape(16, 16, 6, CU_AD_FORMAT_FLOAT, 4, cube),
      ArrayShape(16, 16, 12, CU_AD_FORMAT_SIGNED_INT16, 1, cube | layered),
      ArrayShape(64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST),
      ArrayShape(64, 32, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_TEXTURE_GATHER),
  };
  for (const CUDA_ARRAY3D_DESCRIPTOR& shape : shapes) {
    CUarray array = nullptr;
    OK(cuArray3DCreate(&array, &shape));
    CUDA_ARRAY3D_DESCRIPTOR described{};
    EXPECT_EQ(cuArray3DGetDescriptor(&described, array), CUDA_SUCCESS);
    EXPECT_EQ(described.Width, shape.Width);
    EXPECT_EQ(described.Height, shape.Height);
    EXPECT_EQ(described.Depth, shape.Depth);
    EXPECT_EQ(described.Format, shape.Format);
    EXPECT_EQ(described.NumChannels, shape.NumChannels);
    EXPECT_EQ(described.Flags, shape.Flags);
    EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  }
}

TEST_F(ArrayTest, FlatForm) {
  for (const size_t height : {size_t{0}, size_t{48}}) {
    const CUDA_ARRAY_DESCRIPTOR shape{64, height, CU_AD_FORMAT_UNSIGNED_INT16, 2};
    CUarray array = nullptr;
    OK(cuArrayCreate(&array, &shape));
    CUDA_ARRAY_DESCRIPTOR flat{};
    EXPECT_EQ(cuArrayGetDescriptor(&flat, array), CUDA_SUCCESS);
    EXPECT_EQ(flat.Width, 64u);
    EXPECT_EQ(flat.Height, height);
    EXPECT_EQ(flat.Format, CU_AD_FORMAT_UNSIGNED_INT16);
    EXPECT_EQ(flat.NumChannels, 2u);
    CUDA_ARRAY3D_DESCRIPTOR deep{};
    EXPECT_EQ(cuArray3DGetDescriptor(&deep, array), CUDA_SUCCESS);
    EXPECT_EQ(deep.Height, height);
    EXPECT_EQ(deep.Depth, 0u);
    EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  }
}

TEST_F(ArrayTest, EveryNumberFormat) {
  for (const CUarray_format format :
       {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32,
        CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,
        CU_AD_FORMAT_FLOAT}) {
    for (const unsigned channels : {1u, 2u, 4u}) {
      const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8, 8, 0, format, channels);
      CUarray array = nullptr;
      EXPECT_EQ(cuArray3DCreate(&array, &shape), CUDA_SUCCESS) << format << " x " << channels;
      EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
    }
  }
}

TEST_F(ArrayTest, WrongShapes) {
  const CUDA_ARRAY3D_DESCRIPTOR shapes[] = {
      ArrayShape(0),
      ArrayShape(0, 16),
      ArrayShape(16, 16, 0, CU_AD_FORMAT_FLOAT, 0),
      ArrayShape(16, 16, 0, CU_AD_FORMAT_FLOAT, 3),
      ArrayShape(16, 16, 0, CU_AD_FORMAT_FLOAT, 5),
      ArrayShape(16, 16, 0, static_cast<CUarray_format>(0x3f)),
      ArrayShape(size_t{1} << 20),
      ArrayShape(16, size_t{1} << 20),
      ArrayShape(16, 0, 16),
      ArrayShape(16, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP),
      ArrayShape(16, 16, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP),
      ArrayShape(16, 16, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED),
  };
  for (const CUDA_ARRAY3D_DESCRIPTOR& shape : shapes) {
    CUarray array = nullptr;
    EXPECT_EQ(cuArray3DCreate(&array, &shape), CUDA_ERROR_INVALID_VALUE)
        << shape.Width << " x " << shape.Height << " x " << shape.Depth << " format " << shape.Format
        << " channels " << shape.NumChannels << " flags " << shape.Flags;
    CUmipmappedArray mipmapped = nullptr;
    EXPECT_EQ(cuMipmappedArrayCreate(&mipmapped, &shape, 1), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(ArrayTest, NullPointers) {
  const CUDA_ARRAY_DESCRIPTOR flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr;
  EXPECT_EQ(cuArrayCreate(nullptr, &flat), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayCreate(&array, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArray3DCreate(nullptr, &shape), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArray3DCreate(&array, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUmipmappedArray mipmapped = nullptr;
  EXPECT_EQ(cuMipmappedArrayCreate(nullptr, &shape, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayCreate(&mipmapped, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuArray3DCreate(&array, &shape));
  EXPECT_EQ(cuArrayGetDescriptor(nullptr, array), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArray3DGetDescriptor(nullptr, array), CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY3D_DESCRIPTOR described{};
  Say("describe no array", static_cast<int>(cuArray3DGetDescriptor(&described, nullptr)));
  Say("destroy no array", static_cast<int>(cuArrayDestroy(nullptr)));
  Say("destroy no mipmapped array", static_cast<int>(cuMipmappedArrayDestroy(nullptr)));
  EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

// Also of an array that a graph's copy names.
TEST_F(ArrayTest, DestroyBesideACapture) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box.srcArray = box.dstArray = array;
  box.dstY = 1;
  box.WidthInBytes = 4;
  box.Height = box.Depth = 1;
  CUstream stream = nullptr;
  CUgraph graph = nullptr, captured = nullptr;
  CUgraphNode node = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &box, context_));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuGraphDestroy(graph));
  OK(cuArrayDestroy(array));
  OK(cuStreamDestroy(stream));
}

TEST_F(ArrayTest, DeadAndForeignHandles) {
  if (OnNvidiaLibrary()) GTEST_SKIP() << "NVIDIA's library does not check them all";
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuArrayDestroy(array));
  CUDA_ARRAY3D_DESCRIPTOR described{};
  EXPECT_EQ(cuArray3DGetDescriptor(&described, array), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, 0));
  EXPECT_EQ(cuArrayDestroy(reinterpret_cast<CUarray>(stream)), CUDA_ERROR_INVALID_HANDLE);
  int local = 0;
  EXPECT_EQ(cuArrayDestroy(reinterpret_cast<CUarray>(&local)), CUDA_ERROR_INVALID_HANDLE);
  OK(cuStreamDestroy(stream));
  // What belongs to a context ends with it.
  CUcontext other = nullptr;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuArray3DCreate(&array, &shape));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ArrayTest, TooLarge) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16384, 16384, 4096, CU_AD_FORMAT_FLOAT, 4);
  CUarray array = nullptr;
  EXPECT_EQ(cuArray3DCreate(&array, &shape), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(ArrayTest, KeepsItsContents) {
  struct Extent {
    size_t width, height, depth;
    unsigned flags;
  };
  for (const Extent& e : {Extent{37, 0, 0, 0}, Extent{37, 11, 0, 0}, Extent{37, 11, 5, 0},
                          Extent{37, 11, 5, CUDA_ARRAY3D_LAYERED}, Extent{12, 12, 6, CUDA_ARRAY3D_CUBEMAP}}) {
    const CUDA_ARRAY3D_DESCRIPTOR shape =
        ArrayShape(e.width, e.height, e.depth, CU_AD_FORMAT_FLOAT, 1, e.flags);
    CUarray array = nullptr;
    OK(cuArray3DCreate(&array, &shape));
    const auto values =
        Counting(e.width * std::max<size_t>(e.height, 1) * std::max<size_t>(e.depth, 1), 1000);
    EXPECT_EQ(FillArray(array, values, e.width, e.height, e.depth), CUDA_SUCCESS);
    EXPECT_EQ(ContentsOf(array, e.width, e.height, e.depth), values);
    EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  }
}

TEST_F(ArrayTest, PartOfAnArray) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8, 4);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(FillArray(array, std::vector<float>(32, 0), 8, 4));
  const float part[] = {1, 2, 3, 4, 5, 6};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = part;
  copy.srcPitch = 3 * sizeof(float);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.dstXInBytes = 5 * sizeof(float);
  copy.dstY = 2;
  copy.WidthInBytes = 3 * sizeof(float);
  copy.Height = 2;
  OK(cuMemcpy2D(&copy));
  std::vector<float> wanted(32, 0);
  for (int i = 0; i < 6; ++i) wanted[static_cast<size_t>((2 + i / 3) * 8 + 5 + i % 3)] = part[i];
  EXPECT_EQ(ContentsOf(array, 8, 4), wanted);
  copy.dstXInBytes = 6 * sizeof(float);  // beyond the row's end
  EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
  copy.dstXInBytes = 0;
  copy.dstY = 3;  // beyond the last row
  EXPECT_EQ(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ContentsOf(array, 8, 4), wanted);
  OK(cuArrayDestroy(array));
}

TEST_F(ArrayTest, MipmapLevels) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 8);
  CUmipmappedArray mipmapped = nullptr;
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 3));
  CUarray levels[3] = {};
  for (unsigned i = 0; i < 3; ++i) {
    OK(cuMipmappedArrayGetLevel(&levels[i], mipmapped, i));
    CUDA_ARRAY3D_DESCRIPTOR described{};
    EXPECT_EQ(cuArray3DGetDescriptor(&described, levels[i]), CUDA_SUCCESS);
    EXPECT_EQ(described.Width, size_t{16} >> i);
    EXPECT_EQ(described.Height, size_t{8} >> i);
    EXPECT_EQ(described.Depth, 0u);
    EXPECT_EQ(FillArray(levels[i], Counting(128 >> 2 * i, 100.0f * i), 16 >> i, 8 >> i), CUDA_SUCCESS);
  }
  for (unsigned i = 0; i < 3; ++i) {
    EXPECT_EQ(ContentsOf(levels[i], 16 >> i, 8 >> i), Counting(128 >> 2 * i, 100.0f * i));
  }
  CUarray again = nullptr;
  EXPECT_EQ(cuMipmappedArrayGetLevel(&again, mipmapped, 1), CUDA_SUCCESS);
  Say("same level, same handle", again == levels[1]);
  EXPECT_EQ(cuMipmappedArrayGetLevel(&again, mipmapped, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayGetLevel(nullptr, mipmapped, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayDestroy(mipmapped), CUDA_SUCCESS);
  if (OnNvidiaLibrary()) return;
  CUDA_ARRAY3D_DESCRIPTOR described{};
  EXPECT_EQ(cuArray3DGetDescriptor(&described, levels[0]), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMipmappedArrayGetLevel(&again, mipmapped, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMipmappedArrayDestroy(mipmapped), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ArrayTest, AsManyLevelsAsThereAre) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 4);
  CUmipmappedArray mipmapped = nullptr;
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 100));  // clamped
  CUarray level = nullptr;
  OK(cuMipmappedArrayGetLevel(&level, mipmapped, 4));
  CUDA_ARRAY_DESCRIPTOR described{};
  EXPECT_EQ(cuArrayGetDescriptor(&described, level), CUDA_SUCCESS);
  EXPECT_EQ(described.Width, 1u);
  EXPECT_EQ(described.Height, 1u);
  EXPECT_EQ(cuMipmappedArrayGetLevel(&level, mipmapped, 5), CUDA_ERROR_INVALID_VALUE);
  OK(cuMipmappedArrayDestroy(mipmapped));
}

TEST_F(ArrayTest, OrdinaryArraysAreNeitherSparseNorDeferredNorPlanar) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(64, 64);
  CUarray array = nullptr, plane = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 2));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  EXPECT_EQ(cuArrayGetSparseProperties(&sparse, array), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayGetSparseProperties(&sparse, mipmapped), CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  EXPECT_EQ(cuArrayGetMemoryRequirements(&needs, array, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMipmappedArrayGetMemoryRequirements(&needs, mipmapped, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMipmappedArrayDestroy(mipmapped));
  OK(cuArrayDestroy(array));
}

TEST_F(ArrayTest, Planes) {
  NEEDS_HARDWARE("planar arrays");
  // Which drivers and devices make any, cuda.h does not say.
  CUarray array = nullptr;
  for (const unsigned flags : {0u, unsigned{CUDA_ARRAY3D_SURFACE_LDST}, 0x100u}) {  // the last: video
    for (unsigned channels = 1; channels <= 4 && array == nullptr; ++channels) {
      const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(64, 32, 0, CU_AD_FORMAT_NV12, channels, flags);
      const CUresult result = cuArray3DCreate(&array, &shape);
      if (result != CUDA_SUCCESS) array = nullptr;
      Say("channels " + std::to_string(channels) + ", flags " + std::to_string(flags),
          static_cast<int>(result));
    }
  }
  if (array == nullptr) return;
  CUarray planes[2] = {};
  for (unsigned i = 0; i < 2; ++i) {
    OK(cuArrayGetPlane(&planes[i], array, i));
    CUDA_ARRAY3D_DESCRIPTOR described{};
    EXPECT_EQ(cuArray3DGetDescriptor(&described, planes[i]), CUDA_SUCCESS);
    EXPECT_EQ(described.Width, size_t{64} >> i);
    EXPECT_EQ(described.Height, size_t{32} >> i);
    EXPECT_EQ(described.Format, CU_AD_FORMAT_UNSIGNED_INT8);
    EXPECT_EQ(described.NumChannels, 1 + i);
  }
  CUarray plane = nullptr;
  EXPECT_EQ(cuArrayGetPlane(&plane, array, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayGetPlane(&plane, array, 1), CUDA_SUCCESS);
  Say("same plane, same handle", plane == planes[1]);
  OK(cuArrayDestroy(array));
}

TEST_F(ArrayTest, DestroyAndASpinningKernel) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(64, 64);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    CUarray array = nullptr;
    const CUfunction spin = Kernel("spin");
    OK(cuArray3DCreate(&array, &shape));
    Spinner spinner(spin, stream);
    Say("create waits", Waits(
                            spinner,
                            [&] {
                              CUarray other = nullptr;
                              EXPECT_EQ(cuArray3DCreate(&other, &shape), CUDA_SUCCESS);
                            },
                            false));
  }
  {
    CUarray array = nullptr;
    const CUfunction spin = Kernel("spin");
    OK(cuArray3DCreate(&array, &shape));
    Spinner spinner(spin, stream);
    Say("destroy waits", Waits(spinner, [&] { EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS); }));
  }
  OK(cuStreamDestroy(stream));
}

// Physical memory that sparse arrays can be mapped to.
CUresult CreateTilePool(size_t bytes, CUmemGenericAllocationHandle* pool, size_t* granularity) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  const CUresult result = cuMemGetAllocationGranularity(granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  return cuMemCreate(pool, (bytes + *granularity - 1) / *granularity * *granularity, &prop, 0);
}

TEST_F(ArrayTest, SparseArray) {
  NEEDS_HARDWARE("sparse arrays");
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(512, 512, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  OK(cuArrayGetSparseProperties(&sparse, array));
  Say("tile width", sparse.tileExtent.width);
  Say("tile height", sparse.tileExtent.height);
  Say("tile depth", sparse.tileExtent.depth);
  Say("tail level", sparse.miptailFirstLevel);
  Say("tail bytes", sparse.miptailSize);
  CUmemGenericAllocationHandle pool = 0;
  size_t granularity = 0;
  OK(CreateTilePool(1 << 16, &pool, &granularity));
  CUarrayMapInfo map{};
  map.resourceType = CU_RESOURCE_TYPE_ARRAY;
  map.resource.array = array;
  map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  map.subresource.sparseLevel.extentWidth = sparse.tileExtent.width;
  map.subresource.sparseLevel.extentHeight = sparse.tileExtent.height;
  map.subresource.sparseLevel.extentDepth = 1;
  map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  map.memHandle.memHandle = pool;
  map.deviceBitMask = 1;
  EXPECT_EQ(cuMemMapArrayAsync(&map, 1, nullptr), CUDA_SUCCESS);
  OK(cuStreamSynchronize(nullptr));
  // The first rows of the mapped tile keep what is written to them.
  const auto values = Counting(64 * 8, 5);
  EXPECT_EQ(FillArray(array, values, 64, 8), CUDA_SUCCESS);
  EXPECT_EQ(ContentsOf(array, 64, 8), values);
  CUarrayMapInfo unmap = map;
  unmap.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  unmap.memHandle.memHandle = 0;
  EXPECT_EQ(
      SymbolAs<CUresult(CUarrayMapInfo*, unsigned, CUstream)>("cuMemMapArrayAsync_ptsz")(&unmap, 1, nullptr),
      CUDA_SUCCESS);
  OK(cuCtxSynchronize());
  map.flags = 1;
  EXPECT_EQ(cuMemMapArrayAsync(&map, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMapArrayAsync(nullptr, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuArrayDestroy(array));
  OK(cuMemRelease(pool));
}

TEST_F(ArrayTest, SparseMipmappedArray) {
  NEEDS_HARDWARE("sparse arrays");
  const CUDA_ARRAY3D_DESCRIPTOR shape =
      ArrayShape(1024, 1024, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, CUDA_ARRAY3D_SPARSE);
  CUmipmappedArray array = nullptr;
  OK(cuMipmappedArrayCreate(&array, &shape, 6));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  OK(cuMipmappedArrayGetSparseProperties(&sparse, array));
  Say("tile width", sparse.tileExtent.width);
  Say("tail level", sparse.miptailFirstLevel);
  Say("tail bytes", sparse.miptailSize);
  if (sparse.miptailSize != 0) {
    CUmemGenericAllocationHandle pool = 0;
    size_t granularity = 0;
    OK(CreateTilePool(sparse.miptailSize, &pool, &granularity));
    CUarrayMapInfo map{};
    map.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    map.resource.mipmap = array;
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    map.subresource.miptail.size = sparse.miptailSize;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = pool;
    map.deviceBitMask = 1;
    EXPECT_EQ(cuMemMapArrayAsync(&map, 1, nullptr), CUDA_SUCCESS);
    OK(cuCtxSynchronize());
    OK(cuMipmappedArrayDestroy(array));
    OK(cuMemRelease(pool));
  } else {
    OK(cuMipmappedArrayDestroy(array));
  }
}

TEST_F(ArrayTest, MemoryRequirementsOfDeferredArrays) {
  NEEDS_HARDWARE("arrays without memory of their own");
  const CUDA_ARRAY3D_DESCRIPTOR shape =
      ArrayShape(256, 256, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 2));
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  OK(cuArrayGetMemoryRequirements(&needs, array, 0));
  EXPECT_GE(needs.size, 256u * 256 * 4);
  Say("size", needs.size);
  Say("alignment", needs.alignment);
  EXPECT_EQ(cuArrayGetMemoryRequirements(nullptr, array, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMipmappedArrayGetMemoryRequirements(&needs, mipmapped, 0));
  Say("mipmapped size", needs.size);
  Say("mipmapped alignment", needs.alignment);
  OK(cuMipmappedArrayDestroy(mipmapped));
  OK(cuArrayDestroy(array));
}

}  // namespace
}  // namespace causeway::driver_test
