// What the planner needs to know of a GPU. A table of named ones lets it run where there is none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convt {

struct DeviceInfo {
  std::string name;
  int32_t compute_capability = 0;  // 10 * major + minor
  int32_t multiprocessors = 0;
  int64_t shared_memory_per_block = 0;  // bytes, opt-in maximum
  int64_t l2_bytes = 0;
  double bandwidth = 0;     // bytes/s, device memory
  double fp32_flops = 0;    // FLOP/s on CUDA cores
  double fp16_flops = 0;    // FLOP/s on tensor cores, dense, float32 accumulation
  bool hopper_code = true;  // on sm_90: the code for sm_90a has been built

  bool operator==(const DeviceInfo&) const = default;
};

// Of an SM, each clock: FMA lanes, and how many times as many half-precision operations its tensor cores do (dense,
// float32 accumulation).
struct Generation {
  int32_t first_capability;
  double lanes, tensor_ratio;
};

inline Generation generation(int32_t capability) {
  constexpr Generation generations[] = {{70, 64, 8},   {80, 64, 16},   {86, 128, 4},
                                        {90, 128, 16}, {100, 128, 32}, {120, 128, 4}};
  Generation found = generations[0];
  for (const Generation& g : generations) {
    if (capability >= g.first_capability) found = g;
  }
  return found;
}

// What a device's SMs do at the clock that the driver names. They rank candidates and are never reported as
// measurements. GeForce cards accumulate in float32 at half of the tensor cores' rate.
inline DeviceInfo at_clock(DeviceInfo d, double core_hz, bool geforce = false) {
  const Generation sm = generation(d.compute_capability);
  d.fp32_flops = 2 * sm.lanes * core_hz * d.multiprocessors;
  d.fp16_flops = sm.tensor_ratio * d.fp32_flops / (geforce ? 2 : 1);
  return d;
}

// As the driver describes them, so that a device's name has the plans of the device.
inline const std::vector<DeviceInfo>& known_devices() {
  static const std::vector<DeviceInfo> devices = {
      at_clock({"v100", 70, 80, 98304, 6291456, 0.90e12}, 1.53e9),
      at_clock({"t4", 75, 40, 65536, 4194304, 0.32e12}, 1.59e9),
      at_clock({"a100", 80, 108, 166912, 41943040, 2.04e12}, 1.41e9),
      at_clock({"a10", 86, 72, 101376, 6291456, 0.60e12}, 1.695e9),
      at_clock({"rtx3090", 86, 82, 101376, 6291456, 0.94e12}, 1.695e9, true),
      at_clock({"l4", 89, 58, 101376, 50331648, 0.30e12}, 2.04e9),
      at_clock({"l40s", 89, 142, 101376, 100663296, 0.86e12}, 2.52e9),
      at_clock({"rtx4090", 89, 128, 101376, 75497472, 1.01e12}, 2.52e9, true),
      at_clock({"h100", 90, 132, 232448, 52428800, 3.35e12}, 1.98e9),
      at_clock({"h200", 90, 132, 232448, 62914560, 4.81e12}, 1.98e9),
      at_clock({"b200", 100, 148, 232448, 132120576, 8.00e12}, 1.965e9),
      at_clock({"rtx5090", 120, 170, 101376, 100663296, 1.79e12}, 2.407e9, true),
  };
  return devices;
}

inline const DeviceInfo* find_device(std::string_view name) {
  for (const DeviceInfo& d : known_devices()) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

}  // namespace convt
