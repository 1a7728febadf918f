// How a problem is computed: what the planner chooses and a launch is given. Translation units of device code read it
// three times, so that it includes little.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>

#include "problem.h"

namespace convt {

enum class Algorithm : int32_t {
  empty,                    // nothing to compute, or nothing to reduce over: the result is filled by the operator
  direct,                   // csrc/kernels/direct
  depthwise,                // csrc/kernels/depthwise
  implicit_gemm_sm90,       // csrc/kernels/implicit_gemm_sm90
  implicit_gemm_nchw_sm90,  // csrc/kernels/implicit_gemm_nchw_sm90
  implicit_gemm_nhwc_sm90,  // csrc/kernels/implicit_gemm_nhwc_sm90
  implicit_gemm_sm80,       // csrc/kernels/implicit_gemm_sm80
  gemm_scatter_sm90,        // csrc/kernels/gemm_scatter_sm90
  gemm_scatter_tf32_sm90,   // csrc/kernels/gemm_scatter_tf32_sm90
  gemm_scatter_rows_sm90,   // csrc/kernels/gemm_scatter_rows_sm90
  gemm_fold_sm90,           // csrc/kernels/gemm_fold_sm90
  gemm_fold_rows_sm90,      // csrc/kernels/gemm_fold_rows_sm90
  column,                   // csrc/kernels/column
  large_stride,             // csrc/kernels/large_stride
  large_stride_sm90,        // csrc/kernels/large_stride_sm90
  grouped,                  // csrc/kernels/grouped
  warp_rows,                // csrc/kernels/warp_rows
  rolling_rows,             // csrc/kernels/rolling_rows
  few_positions,            // csrc/kernels/few_positions
  few_channels,             // csrc/kernels/few_channels
  aten,                     // ATen's convolution; gradients only, until their fast kernels exist
};

const char* name(Algorithm);

// What a block of an implicit GEMM computes: positions of some phases, for the channels of its configuration.
struct GemmTile {
  int32_t images = 0, rows = 0, columns = 0;  // positions
  int32_t row_phases = 0, column_phases = 0;  // phases of a block
  int32_t channel_groups = 0;                 // fragments of input channels that are in shared memory at a time
  int32_t splits = 1;                         // of the reduction over input channels
  int32_t stacked_rows = 1;                   // of y, whose channels share a block of rows of the product
  // Of implicit_gemm_sm90:
  int32_t piece_rows = 0;         // of the positions of one wgmma: 1, or an eighth of them if a row has 8
  int32_t patch_stages = 0;       // chunks of the input that are in shared memory
  int32_t reuse = 1;              // tiles that are multiplied from a patch before the next one is read
  int32_t balanced_blocks = 0;    // so many have as many steps each: of a tile's reduction `splits` parts at most
  bool im2col = false;            // positions that follow each other in the batch, as the copy engine brings them
  bool rows_in_boxes = false;     // the copy engine brings rows of x, which warps transpose
  bool channels_last = false;     // x is first brought into channels_last, in the workspace
  bool weights_in_place = false;  // they are read where they are, not packed first
  // Of implicit_gemm_nchw_sm90:
  bool rows_staged = false;  // rows of y pass through shared memory
  // Of implicit_gemm_sm90 and implicit_gemm_sm80:
  bool columns_folded = false;  // phases of the columns are output channels: all else is of folded(problem)

  bool operator==(const GemmTile&) const = default;

  std::string to_string() const;
};

struct Plan {
  Algorithm algorithm = Algorithm::empty;
  int32_t configuration = 0;  // row of the family's table (its config.h)
  int32_t index_bits = 32;    // width of the index arithmetic
  int64_t grid = 0;           // blocks
  int32_t block = 0;          // threads
  int64_t workspace_bytes = 0;
  int64_t shared_bytes = 0;        // dynamic shared memory of a block
  bool result_exceeds_l2 = false;  // so that it would only displace what is read again
  // More passes through L2 than it holds, and weights are a small part of it: they are to stay.
  bool weights_stay_in_l2 = false;
  GemmTile tile;                 // of the families that have one
  std::array<int32_t, 8> cut{};  // how the family divides the problem among blocks, if it has a choice

  bool operator==(const Plan&) const = default;
};

// The problem that a plan of an implicit GEMM is for: the given one, or that with its columns folded into channels.
inline Problem as_planned(const Plan& plan, const Problem& p) { return plan.tile.columns_folded ? folded(p) : p; }

}  // namespace convt
