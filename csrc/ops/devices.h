// The GPU of this process, and the plans made for it.
#pragma once

#include <optional>
#include <string>

#include "../plan/planner.h"

namespace convt::ops {

// The current CUDA device; nothing if there is none or convt was built without CUDA.
std::optional<DeviceInfo> current_device();

// From now on every call on a GPU uses this configuration ("direct/thread_per_output"), and is an error if it does not
// fit; an empty name ends that. For tests and benchmarks.
void force_configuration(const std::string& name);
const std::string& forced_configuration();

}  // namespace convt::ops
