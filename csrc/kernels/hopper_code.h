#pragma once

namespace convt {

// Whether the code for sm_90a is what the current device would run; a build without it has other code in its place.
bool compiled_for_hopper();

}  // namespace convt
