// SPDX-License-Identifier: Apache-2.0
// As the programming guide's chapter on texture fetching defines it; fractions of linear filters have 8 bits.
#include "tests/software_gpu/texture_sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/software_gpu/array.h"

namespace causeway::software_gpu {
namespace {

float FromHalf(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31u, mantissa = half & 1023u;
  float value = exponent == 0
                    ? std::ldexp(static_cast<float>(mantissa), -24)
                    : std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  if (exponent == 31) value = mantissa == 0 ? HUGE_VALF : NAN;
  return (half & 0x8000u) != 0 ? -value : value;
}

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// A channel as it stands in memory, widened to 32 bits.
uint32_t Raw(const std::byte* from, CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      return Load<uint8_t>(from);
    case CU_AD_FORMAT_SIGNED_INT8:
      return static_cast<uint32_t>(Load<int8_t>(from));
    case CU_AD_FORMAT_UNSIGNED_INT16:
      return Load<uint16_t>(from);
    case CU_AD_FORMAT_SIGNED_INT16:
      return static_cast<uint32_t>(Load<int16_t>(from));
    case CU_AD_FORMAT_HALF:
      return std::bit_cast<uint32_t>(FromHalf(Load<uint16_t>(from)));
    default:
      return Load<uint32_t>(from);
  }
}

float Promoted(uint32_t raw, CUarray_format format) {
  const auto number = static_cast<float>(static_cast<int32_t>(raw));
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      return number / 255.0f;
    case CU_AD_FORMAT_SIGNED_INT8:
      return std::fmax(number / 127.0f, -1.0f);
    case CU_AD_FORMAT_UNSIGNED_INT16:
      return number / 65535.0f;
    case CU_AD_FORMAT_SIGNED_INT16:
      return std::fmax(number / 32767.0f, -1.0f);
    default:
      return std::bit_cast<float>(raw);
  }
}

constexpr int64_t kOutside = -1;

// The texel that a coordinate means along one axis, or kOutside.
int64_t Place(int64_t index, size_t size, CUaddress_mode mode, bool normalized) {
  const auto extent = static_cast<int64_t>(size);
  if (index >= 0 && index < extent) return index;
  if (mode == CU_TR_ADDRESS_MODE_BORDER) return kOutside;
  if (mode == CU_TR_ADDRESS_MODE_WRAP && normalized) return ((index % extent) + extent) % extent;
  if (mode == CU_TR_ADDRESS_MODE_MIRROR && normalized) {
    const int64_t folded = ((index % (2 * extent)) + 2 * extent) % (2 * extent);
    return folded < extent ? folded : 2 * extent - 1 - folded;
  }
  return index < 0 ? 0 : extent - 1;
}

class Sampler {
 public:
  Sampler(const TexelGrid& grid, const CUDA_TEXTURE_DESC& how, const TextureRead& read)
      : grid_(grid), how_(how), read_(read), normalized_((how.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0) {}

  RawTexel RawAt(const int64_t (&index)[3]) const {
    RawTexel texel{0, 0, 0, 0};
    const size_t sizes[] = {grid_.width, grid_.height, grid_.depth};
    size_t at[3] = {};
    for (uint32_t i = 0; i < read_.dimensions; ++i) {
      const int64_t place = Place(index[i], sizes[i], how_.addressMode[i], normalized_);
      if (place == kOutside) return Border();
      at[i] = static_cast<size_t>(place);
    }
    const size_t layer = std::min<size_t>(read_.layer, grid_.layers - 1);
    const size_t slice = read_.layered ? layer : at[2];
    const unsigned bytes = ElementBytes(grid_.format, 1);
    const std::byte* from =
        grid_.data + slice * grid_.slice_bytes + at[1] * grid_.row_bytes + at[0] * bytes * grid_.channels;
    for (unsigned channel = 0; channel < grid_.channels; ++channel) {
      texel[channel] = Raw(from + channel * bytes, grid_.format);
    }
    return texel;
  }

  RawTexel Nearest() const {
    int64_t index[3] = {};
    for (uint32_t i = 0; i < read_.dimensions; ++i) {
      index[i] = read_.integers ? read_.index[i] : static_cast<int64_t>(std::floor(Scaled(i)));
    }
    return RawAt(index);
  }

  Texel Linear() const {
    int64_t first[3] = {};
    float fraction[3] = {};
    for (uint32_t i = 0; i < read_.dimensions; ++i) {
      const float at = Scaled(i) - 0.5f;
      first[i] = static_cast<int64_t>(std::floor(at));
      fraction[i] = std::round((at - std::floor(at)) * 256.0f) / 256.0f;
    }
    Texel sum{};
    for (unsigned corner = 0; corner < 1u << read_.dimensions; ++corner) {
      int64_t index[3] = {};
      float weight = 1;
      for (uint32_t i = 0; i < read_.dimensions; ++i) {
        const bool second = (corner >> i & 1u) != 0;
        index[i] = first[i] + (second ? 1 : 0);
        weight *= second ? fraction[i] : 1 - fraction[i];
      }
      const RawTexel texel = RawAt(index);
      for (size_t channel = 0; channel < 4; ++channel) {
        sum[channel] += weight * Promoted(texel[channel], grid_.format);
      }
    }
    return sum;
  }

 private:
  float Scaled(uint32_t axis) const {
    const size_t sizes[] = {grid_.width, grid_.height, grid_.depth};
    return normalized_ ? read_.at[axis] * static_cast<float>(sizes[axis]) : read_.at[axis];
  }
  // Border colours other than zero are for floats alone here.
  RawTexel Border() const {
    RawTexel texel{0, 0, 0, 0};
    for (unsigned i = 0; i < grid_.channels && grid_.format == CU_AD_FORMAT_FLOAT; ++i) {
      texel[i] = std::bit_cast<uint32_t>(how_.borderColor[i]);
    }
    return texel;
  }

  const TexelGrid& grid_;
  const CUDA_TEXTURE_DESC& how_;
  const TextureRead& read_;
  const bool normalized_;
};

}  // namespace

bool ReadsIntegers(const TexelGrid& grid, const CUDA_TEXTURE_DESC& how) {
  switch (grid.format) {
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_FLOAT:
      return false;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
      return true;
    default:
      return (how.flags & CU_TRSF_READ_AS_INTEGER) != 0;
  }
}

RawTexel SampleGrid(const TexelGrid& grid, const CUDA_TEXTURE_DESC& how, const TextureRead& read) {
  const Sampler sampler(grid, how, read);
  const bool integers = ReadsIntegers(grid, how);
  if (how.filterMode == CU_TR_FILTER_MODE_LINEAR && !integers && !read.integers) {
    return std::bit_cast<RawTexel>(sampler.Linear());
  }
  RawTexel texel = sampler.Nearest();
  if (!integers) {
    for (uint32_t& channel : texel) channel = std::bit_cast<uint32_t>(Promoted(channel, grid.format));
  }
  return texel;
}

}  // namespace causeway::software_gpu
