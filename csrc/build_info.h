// What this binary was built from and with. Defined in a file that setup.py writes at build time.
#pragma once

#include <string>
#include <vector>

namespace convt {

struct BuildInfo {
  std::string version, torch;
  std::string cuda;       // nvcc's version; empty in a build without CUDA
  std::string cuda_note;  // where nvcc was found, or why there is no CUDA
  std::vector<std::string> archs;
  std::string source_digest;  // of csrc/
};

const BuildInfo& build_info();

}  // namespace convt
