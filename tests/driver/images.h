// SPDX-License-Identifier: Apache-2.0
// Images that nvcc made of image_kernels.cu when the tests were built: PTX for sm_75 and SASS for sm_90,
// stored and compressed; SASS alone as a fatbin, as a cubin, and relocatable.
#pragma once

namespace causeway::driver_test {

#include "tests/driver/image_cubin_90.h"
#include "tests/driver/image_lz4.h"
#include "tests/driver/image_relocatable_90.h"
#include "tests/driver/image_sass_only.h"
#include "tests/driver/image_stored.h"
#include "tests/driver/image_zstd.h"

}  // namespace causeway::driver_test
