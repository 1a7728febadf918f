// Problem -> Plan. A kernel family is one file of families/ and one row of `families`.
#include <cstdio>
#include <stdexcept>

#include "../kernels/column/config.h"
#include "../kernels/depthwise/config.h"
#include "../kernels/direct/config.h"
#include "../kernels/few_channels/config.h"
#include "../kernels/few_positions/config.h"
#include "../kernels/gemm_fold_rows_sm90/config.h"
#include "../kernels/gemm_fold_sm90/config.h"
#include "../kernels/gemm_scatter_rows_sm90/config.h"
#include "../kernels/gemm_scatter_sm90/config.h"
#include "../kernels/gemm_scatter_tf32_sm90/config.h"
#include "../kernels/grouped/config.h"
#include "../kernels/implicit_gemm_nchw_sm90/config.h"
#include "../kernels/implicit_gemm_nhwc_sm90/config.h"
#include "../kernels/implicit_gemm_sm80/config.h"
#include "../kernels/implicit_gemm_sm90/name.h"
#include "../kernels/large_stride/config.h"
#include "../kernels/large_stride_sm90/config.h"
#include "../kernels/rolling_rows/config.h"
#include "../kernels/warp_rows/config.h"
#include "calibration.h"
#include "families/family.h"
#include "planner.h"

namespace convt {
namespace {

struct Family {
  Algorithm algorithm;
  const char* name;
  std::vector<std::string> (*configurations)();
  Candidates* candidates;
  bool splits_float32 = false;  // into two TF32 parts, where TF32 itself is not allowed
};

template <const auto& configs>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& config : configs) names.push_back(config.name);
  return names;
}

std::vector<std::string> names_of_implicit_gemm_sm90() {
  std::vector<std::string> names;
  for (const auto& config : implicit_gemm_sm90::configs) {
    for (const auto way : implicit_gemm_sm90::ways) names.push_back(implicit_gemm_sm90::name_of(config, way));
  }
  return names;
}

const Family families[] = {
    {Algorithm::depthwise, "depthwise", names_of<depthwise::configs>, depthwise_candidates},
    {Algorithm::grouped, "grouped", names_of<grouped::configs>, grouped_candidates},
    {Algorithm::warp_rows, "warp_rows", names_of<warp_rows::configs>, warp_rows_candidates},
    {Algorithm::rolling_rows, "rolling_rows", names_of<rolling_rows::configs>, rolling_rows_candidates},
    {Algorithm::few_positions, "few_positions", names_of<few_positions::configs>, few_positions_candidates},
    {Algorithm::few_channels, "few_channels", names_of<few_channels::configs>, few_channels_candidates},
    {Algorithm::column, "column", names_of<column::configs>, column_candidates, true},
    {Algorithm::large_stride, "large_stride", names_of<large_stride::configs>, large_stride_candidates, true},
    {Algorithm::large_stride_sm90, "large_stride_sm90", names_of<large_stride_sm90::configs>,
     large_stride_sm90_candidates},
    {Algorithm::gemm_scatter_sm90, "gemm_scatter_sm90", names_of<gemm_scatter_sm90::configs>,
     gemm_scatter_sm90_candidates},
    {Algorithm::gemm_scatter_rows_sm90, "gemm_scatter_rows_sm90", names_of<gemm_scatter_rows_sm90::configs>,
     gemm_scatter_rows_sm90_candidates},
    {Algorithm::gemm_scatter_tf32_sm90, "gemm_scatter_tf32_sm90", names_of<gemm_scatter_tf32_sm90::configs>,
     gemm_scatter_tf32_sm90_candidates},
    {Algorithm::gemm_fold_sm90, "gemm_fold_sm90", names_of<gemm_fold_sm90::configs>, gemm_fold_sm90_candidates, true},
    {Algorithm::gemm_fold_rows_sm90, "gemm_fold_rows_sm90", names_of<gemm_fold_rows_sm90::configs>,
     gemm_fold_rows_sm90_candidates},
    {Algorithm::implicit_gemm_nchw_sm90, "implicit_gemm_nchw_sm90", names_of<implicit_gemm_nchw_sm90::configs>,
     implicit_gemm_nchw_sm90_candidates},
    {Algorithm::implicit_gemm_nhwc_sm90, "implicit_gemm_nhwc_sm90", names_of<implicit_gemm_nhwc_sm90::configs>,
     implicit_gemm_nhwc_sm90_candidates},
    {Algorithm::implicit_gemm_sm90, "implicit_gemm_sm90", names_of_implicit_gemm_sm90, implicit_gemm_sm90_candidates,
     true},
    {Algorithm::implicit_gemm_sm80, "implicit_gemm_sm80", names_of<implicit_gemm_sm80::configs>,
     implicit_gemm_sm80_candidates, true},
    {Algorithm::direct, "direct", names_of<direct::configs>, direct_candidates},
    {Algorithm::aten, "aten", [] { return std::vector<std::string>{"convolution"}; }, aten_candidates},
};

std::string full_name(const Candidate& c) { return std::string(name(c.algorithm)) + "/" + c.configuration; }

std::vector<Candidate> all_candidates(const Problem& p, const DeviceInfo& device) {
  std::vector<Candidate> candidates;
  const bool few_terms = p.strict_float32() && terms_of_output(p) < fewest_terms_of_split;
  for (const Family& family : families) {
    const size_t first = candidates.size();
    family.candidates(p, device, candidates);
    for (size_t i = first; few_terms && family.splits_float32 && i < candidates.size(); ++i) {
      candidates[i].reservation = "is less accurate than float32 in sums of so few terms";
    }
  }
  const bool result_exceeds_l2 = checked_mul(p.result_elements(), element_size(p.dtype)) > device.l2_bytes;
  const int64_t w_bytes = checked_mul(p.w_elements(), element_size(p.dtype)), compulsory_bytes = p.compulsory_bytes();
  for (Candidate& c : candidates) {
    if (!c.fits()) continue;
    c.plan.result_exceeds_l2 = result_exceeds_l2;
    const int64_t passes = checked_add(compulsory_bytes, c.plan.workspace_bytes);
    c.plan.weights_stay_in_l2 = passes > device.l2_bytes && w_bytes <= device.l2_bytes / 16;
    c.modelled_seconds = c.estimated_seconds;
    c.estimated_seconds = calibrated(calibration_of(full_name(c), p), c.modelled_seconds);
  }
  return candidates;
}

Candidate choose(const Problem& p, const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  for (const Candidate& c : candidates) {
    if (c.fits() && c.reservation.empty() && (best == nullptr || c.estimated_seconds < best->estimated_seconds))
      best = &c;
  }
  if (best == nullptr) throw std::invalid_argument("no kernel of convt takes this problem: " + describe(p));
  return *best;
}

Candidate nothing_to_do() {
  Candidate c;
  c.configuration = "fill";
  return c;
}

std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f us", seconds * 1e6);
  return text;
}

}  // namespace

const char* name(Algorithm a) {
  for (const Family& family : families) {
    if (family.algorithm == a) return family.name;
  }
  return "empty";
}

std::string GemmTile::to_string() const {
  const auto count = [](int32_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); };
  return "tiles of " + count(images, "image") + " x " + count(rows, "row") + " x " + count(columns, "column") + ", " +
         std::to_string(row_phases) + " x " + count(column_phases, "phase") + ", " +
         count(channel_groups, "channel group") + ", " + (balanced_blocks > 0 ? "balanced, up to " : "") +
         count(splits, "split") + (stacked_rows > 1 ? ", " + count(stacked_rows, "row") + " stacked" : "") +
         (reuse > 1 ? ", " + count(reuse, "tile") + " of a patch" : "") + (im2col ? ", im2col" : "") +
         (rows_in_boxes ? ", rows in boxes" : "") + (channels_last ? ", of channels_last in the workspace" : "") +
         (weights_in_place ? ", weights in place" : "") + (rows_staged ? ", rows of y by shared memory" : "") +
         (columns_folded ? ", columns folded into channels" : "");
}

Plan make_plan(const Problem& p, const DeviceInfo& device) {
  if (p.result_elements() == 0) return nothing_to_do().plan;
  return choose(p, all_candidates(p, device)).plan;
}

Plan make_forced_plan(const Problem& p, const DeviceInfo& device, const std::string& configuration) {
  for (const Candidate& c : all_candidates(p, device)) {
    if (full_name(c) != configuration) continue;
    if (!c.fits()) throw std::invalid_argument(configuration + " " + c.refusal);
    return c.plan;
  }
  throw std::invalid_argument("there is no configuration named " + configuration);
}

Explanation explain(const Problem& p, const DeviceInfo& device) {
  Explanation e{p, device, nothing_to_do(), {}};
  if (p.result_elements() == 0) return e;
  e.candidates = all_candidates(p, device);
  e.chosen = choose(p, e.candidates);
  return e;
}

std::vector<std::string> configuration_names() {
  std::vector<std::string> names;
  for (const Family& family : families) {
    for (const std::string& configuration : family.configurations()) {
      names.push_back(std::string(family.name) + "/" + configuration);
    }
  }
  return names;
}

std::string Explanation::to_string() const {
  std::string s = describe(problem) + "\n";
  s += "on " + device.name + " (sm_" + std::to_string(device.compute_capability) + ", " +
       std::to_string(device.multiprocessors) + " multiprocessors)\n";
  s += "useful work " + std::to_string(2 * problem.useful_macs()) + " FLOP, compulsory traffic " +
       std::to_string(problem.compulsory_bytes()) + " bytes\n";
  const Plan& plan = chosen.plan;
  s += "chosen: " + full_name(chosen);
  if (plan.block > 0) {
    s += ", " + std::to_string(plan.grid) + " blocks of " + std::to_string(plan.block) + " threads, " +
         std::to_string(plan.index_bits) + "-bit indices";
  }
  if (plan.tile != GemmTile{}) s += ", " + plan.tile.to_string();
  s += ", workspace " + std::to_string(plan.workspace_bytes) + " bytes\n";
  for (const Candidate& c : candidates) {
    if (c.plan == plan && c.fits()) continue;
    s += "  not " + full_name(c) + ": ";
    if (c.fits() && !c.reservation.empty()) {
      s += c.reservation + "\n";
      continue;
    }
    s += c.fits() ? "estimated " + microseconds(c.estimated_seconds) + ", the choice " +
                        microseconds(chosen.estimated_seconds)
                  : c.refusal;
    s += "\n";
  }
  return s;
}

}  // namespace convt
