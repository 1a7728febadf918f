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

// Rates are the vendor's datasheets'; they rank candidates and are never reported as measurements.
inline const std::vector<DeviceInfo>& known_devices() {
  static const std::vector<DeviceInfo> devices = {
      {"v100", 70, 80, 98304, 6291456, 0.90e12, 15.7e12, 125e12},
      {"t4", 75, 40, 65536, 4194304, 0.32e12, 8.1e12, 65e12},
      {"a100", 80, 108, 166912, 41943040, 2.04e12, 19.5e12, 312e12},
      {"a10", 86, 72, 101376, 6291456, 0.60e12, 31.2e12, 125e12},
      {"rtx3090", 86, 82, 101376, 6291456, 0.94e12, 35.6e12, 71e12},
      {"l4", 89, 58, 101376, 50331648, 0.30e12, 30.3e12, 121e12},
      {"l40s", 89, 142, 101376, 100663296, 0.86e12, 91.6e12, 362e12},
      {"rtx4090", 89, 128, 101376, 75497472, 1.01e12, 82.6e12, 165e12},
      {"h100", 90, 132, 232448, 52428800, 3.35e12, 66.9e12, 989e12},
      {"h200", 90, 132, 232448, 62914560, 4.80e12, 66.9e12, 989e12},
      {"b200", 100, 148, 232448, 132120576, 8.00e12, 75.0e12, 2250e12},
      {"rtx5090", 120, 170, 101376, 100663296, 1.79e12, 104.8e12, 210e12},
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
