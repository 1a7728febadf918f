// What a configuration with a way is called. Not in config.h, which translation units of device code read.
#pragma once

#include <string>

#include "config.h"

namespace convt::implicit_gemm_sm90 {

inline std::string name_of(const Config& c, Way way) {
  return std::string(c.name) +
         (way.form == Form::lines     ? ""
          : way.form == Form::squares ? "+squares"
                                      : "+gathered") +
         (way.source == Source::direct ? ""
          : way.source == Source::rows ? "+rows"
                                       : "+copy");
}

}  // namespace convt::implicit_gemm_sm90
