// SPDX-License-Identifier: Apache-2.0
// The other half of image_kinds.cu, where device code is linked.
__device__ int scale = 2;
__device__ int Scaled(int value) {
  return value * scale;
}
