// Problem -> Plan: the choice among all candidates. Printable and comparable.
#pragma once

#include <string>
#include <vector>

#include "device_info.h"
#include "plan.h"

namespace convt {

// One way to compute the problem: either a plan, or the reason why it cannot or should not be used.
struct Candidate {
  Algorithm algorithm = Algorithm::empty;
  std::string configuration;  // the name of the family's table row
  Plan plan;
  double estimated_seconds = 0;  // ranks the candidates that fit; not a measurement
  double modelled_seconds = 0;   // what its family's model says; the estimate is that, calibrated
  std::string reservation;       // why only a forced plan uses it although it fits
  std::string refusal;           // empty if the candidate fits

  bool fits() const { return refusal.empty(); }
};

// The choice and all candidates in the order in which they were considered.
struct Explanation {
  Problem problem;
  DeviceInfo device;
  Candidate chosen;
  std::vector<Candidate> candidates;

  std::string to_string() const;
};

// The fastest candidate by estimate; the first of equals. Pure: the same problem and device give the same plan.
Plan make_plan(const Problem&, const DeviceInfo&);

Explanation explain(const Problem&, const DeviceInfo&);

// The plan of one named configuration ("direct/thread_per_output"), for tests and benchmarks that force it.
// Throws std::invalid_argument with the reason if it does not fit.
Plan make_forced_plan(const Problem&, const DeviceInfo&, const std::string& configuration);

// The full names of every configuration that is compiled in.
std::vector<std::string> configuration_names();

}  // namespace convt
