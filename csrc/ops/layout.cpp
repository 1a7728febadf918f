#include "layout.h"

#include <ATen/ops/as_strided.h>

#include <algorithm>

namespace convt::ops {

c10::MemoryFormat result_format(const at::Tensor& a, const at::Tensor& b, std::optional<c10::MemoryFormat> requested) {
  if (requested) return *requested;
  const bool is_double = a.scalar_type() == at::kDouble || a.scalar_type() == at::kComplexDouble;
  if (is_double && a.device().is_cuda()) return c10::MemoryFormat::Contiguous;
  const auto suggests = [](const at::Tensor& t) {
    // An unbatched image takes part as a batch of one.
    return (t.dim() == 3 ? t.unsqueeze(0) : t).suggest_memory_format() == c10::MemoryFormat::ChannelsLast;
  };
  return suggests(a) || suggests(b) ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::Contiguous;
}

std::array<int64_t, 4> strides_of(const std::array<int64_t, 4>& sizes, c10::MemoryFormat format) {
  constexpr std::array<int, 4> contiguous = {3, 2, 1, 0}, channels_last = {1, 3, 2, 0};
  std::array<int64_t, 4> strides{};
  int64_t step = 1;
  for (int d : format == c10::MemoryFormat::ChannelsLast ? channels_last : contiguous) {
    strides[d] = step;
    step *= std::max<int64_t>(1, sizes[d]);
  }
  return strides;
}

at::Tensor with_format(const at::Tensor& t, c10::MemoryFormat format) {
  const at::Tensor dense = t.contiguous(format);
  // A dimension of size 1 may carry any stride, and a tensor may be contiguous in both formats.
  const auto strides = strides_of({t.size(0), t.size(1), t.size(2), t.size(3)}, format);
  return dense.strides() == at::IntArrayRef(strides) ? dense : dense.as_strided(dense.sizes(), strides);
}

}  // namespace convt::ops
