// What a kernel is given, by value.
#pragma once

#include <type_traits>

#include "../../plan/plan.h"
#include "../divisor.h"
#include "../strided_params.h"
#include "tiling.h"

namespace convt::gemm_fold_rows_sm90 {

struct Params : StridedParams {
  TensorMap x_map;
  Phases phases;  // of the rows
  int32_t pairs;
  // Of the first phases, and of the others: y's rows, tiles of them, pairs of these in an image and in all.
  int32_t phases_with_more, phase_rows[2], row_tiles[2];
  Divisor row_pairs[2], phase_pairs[2], block_pairs, channel_blocks;
  int32_t steps, chunks, products, chunk_products, stages;
  int32_t weight_bytes, stage_bytes, patch_row_bytes;
  bool shares;  // both stripes of a pair have one patch
  CachePolicy y_policy;
};

static_assert(std::is_trivially_copyable_v<Params>);

struct Launch {
  Params params;
  TensorMapLayout x_map;  // of which the driver makes the map
};

inline void make_launch(const Plan& plan, const Problem& p, const Operands& o, Launch& launch) {
  const Tiling t = make_tiling(configs[plan.configuration], p);
  const auto narrow = [](int64_t v) { return static_cast<int32_t>(v); };
  Params& q = launch.params;
  q = {};
  set_strided(q, p, o);
  launch.x_map = make_x_map(p, t, o.x);
  q.phases = phases(p.axis_h());
  q.phases_with_more = narrow(phases_with_more(p));
  for (const int i : {0, 1}) {
    const PhaseTiling phase(configs[plan.configuration], p, i == 0);
    q.phase_rows[i] = narrow(phase.rows), q.row_tiles[i] = narrow(phase.row_tiles);
    q.row_pairs[i] = Divisor(std::max<int64_t>(phase.row_pairs, 1));
    q.phase_pairs[i] = Divisor(std::max<int64_t>(phase.pairs, 1));
  }
  q.block_pairs = Divisor(t.block_pairs), q.channel_blocks = Divisor(t.channel_blocks);
  q.pairs = narrow(t.pairs), q.steps = narrow(t.steps), q.chunks = narrow(t.chunks), q.products = narrow(t.products);
  q.chunk_products = narrow(t.chunk / k_of_product), q.stages = narrow(t.stages);
  q.weight_bytes = narrow(t.weight_bytes), q.stage_bytes = narrow(t.stage_bytes);
  q.patch_row_bytes = narrow(t.chunk * row_bytes), q.shares = t.shares;
  q.y_policy = once_policy(plan.result_exceeds_l2);
}

}  // namespace convt::gemm_fold_rows_sm90
