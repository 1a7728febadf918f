// Random problems through the kernels of implicit_gemm_sm90 in the SIMT emulator, in every mode and configuration,
// against float64. Built and run by test_implicit_gemm.py. Usage: implicit_gemm_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "kernels/implicit_gemm_sm90/kernel.cuh"
#include "kernels/implicit_gemm_sm90/name.h"
#include "kernels/implicit_gemm_sm90/prepare.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm90;
using implicit_gemm::Mode;

using family::Variant;

int balanced = 0, im2col = 0, unaligned = 0;  // problems

template <Mode mode>
void launch_row(int32_t row, Variant variant, const family::Launch& launch) {
  visit_row<family::config_count>(row, [&]<int Row>() {
    family::with_variant<mode, Row>(variant, [&](auto constant) {
      simt::launch(dim3(launch.grid), dim3(family::threads), static_cast<size_t>(launch.shared_bytes),
                   [&] { family::implicit_gemm_sm90_kernel<mode, Row, decltype(constant)::value>(launch.params); });
    });
  });
}

template <Mode mode>
bool run(DataType dtype, Precision precision) {
  using Scalar = typename implicit_gemm::Traits<mode>::Scalar;
  // Few problems have such weights by chance, or such rows of x or of y, or rows of y that begin anywhere.
  const bool in_place = mode != Mode::ieee && pick(0, 2) == 0;
  const bool boxes = pick(0, 2) == 0, row_boxes = sizeof(Scalar) == 2 && pick(0, 2) == 0;
  const bool rows_anywhere = sizeof(Scalar) == 2 && !in_place && !row_boxes && pick(0, 3) == 0;
  for (;;) {
    Problem random = random_problem(dtype, precision);
    const bool deep = pick(0, 1) == 0;
    if (pick(0, 11) == 0) random = without_taps(random);
    if (deep) random = with_many_channels(random);
    if (rows_anywhere && pick(0, 2) == 0) random = with_one_output_channel(random);
    const Case<Scalar> c(random);
    Problem p = c.p;
    p.x_aligned = reinterpret_cast<uintptr_t>(c.x.data) % 16 == 0;
    p.w_aligned = reinterpret_cast<uintptr_t>(c.w.data) % 16 == 0;
    if (folds(p) && pick(0, 1) == 0) p = folded(p);
    if (in_place && !family::weights_in_place(p, 1)) continue;
    if (boxes && !family::may_bring_rows(p)) continue;
    Plan plan;
    std::string configuration;
    try {
      const family::Config& config = family::configs[pick(0, family::config_count - 1)];
      configuration = "implicit_gemm_sm90/" + family::name_of(config, family::ways[pick(0, family::way_count - 1)]);
      plan = make_forced_plan(p, *find_device("h200"), configuration);
    } catch (const std::invalid_argument&) {
      continue;
    }
    p = as_planned(plan, p);
    // The planner splits reductions that leave a GPU idle; here any may be.
    family::Tables tables;
    const family::Config& config = family::configs[plan.configuration];
    GemmTile& shape = plan.tile;
    // Rows of y that share a block need more shared memory for their patch.
    const int32_t planned_rows = shape.stacked_rows;
    shape.stacked_rows = family::gathers(shape) ? 1 : 1 << pick(0, 2);
    const auto fits = [&] {
      if (!family::make_tables(config, p, shape.column_phases, shape.stacked_rows, tables).empty()) return false;
      const family::Patch patch = family::make_patch(config, p, tables, shape);
      return family::shared_layout(config, p, tables, patch, shape, shape.patch_stages).bytes > 0;
    };
    if (!fits()) {
      shape.stacked_rows = planned_rows;
      family::make_tables(config, p, shape.column_phases, shape.stacked_rows, tables);
    }
    // Small images may be gathered.
    const int64_t rows = ceil_div(p.out_h, p.stride_h), columns = ceil_div(p.out_w, p.stride_w);
    if (!family::gathers(shape) && shape.stacked_rows == 1 && columns <= config.columns() && pick(0, 2) == 0) {
      shape.piece_rows = 0, shape.im2col = false;
      shape.columns = static_cast<int32_t>(columns), shape.rows_in_boxes = false;
      shape.rows = static_cast<int32_t>(std::min(rows, config.columns() / columns));
      shape.images =
          shape.rows < rows ? 1 : static_cast<int32_t>(std::min(p.batch, config.columns() / (rows * columns)));
      shape.patch_stages = family::fewest_patch_stages, shape.reuse = 1;
    }
    if (boxes && !shape.channels_last && !family::gathers(shape)) {
      const bool planned = std::exchange(shape.rows_in_boxes, true);
      const family::Patch rows = family::make_patch(config, p, tables, shape);
      shape.rows_in_boxes =
          planned || family::shared_layout(config, p, tables, rows, shape, shape.patch_stages).bytes > 0;
    }
    // x may be brought into channels_last first.
    shape.channels_last = shape.channels_last || (!shape.rows_in_boxes && pick(0, 3) == 0);
    // And gathered positions may be any that follow each other, if the copy engine brings x.
    if (family::gathers(shape) && pick(0, 1) == 0) {
      GemmTile other = shape;
      other.im2col = true, other.images = other.rows = 1, other.columns = config.columns(), other.reuse = 1;
      const family::Patch patch = family::make_patch(config, p, tables, other);
      if ((other.channels_last || p.x_aligned) && family::may_bring_im2col(p, tables) &&
          family::copies_boxes(p, other, family::make_x_map(p, nullptr, tables, other, patch))) {
        shape = other;
      }
    }
    const family::Counts counts = family::make_counts(p, tables, plan.tile);
    const family::Patch patch = family::make_patch(config, p, tables, shape);
    plan.tile.splits = static_cast<int32_t>(pick(0, 1) == 0 ? 1 : pick(1, std::min<int64_t>(4, counts.chunks)));
    // And weights packed, wherever they are.
    shape.weights_in_place =
        family::weights_in_place(p, shape.stacked_rows) && pick(0, 3) != 0 &&
        (mode != Mode::tf32 ||
         family::may_transpose_weights(p, shape, family::make_x_map(p, nullptr, tables, shape, patch)));
    // A patch may stay for several tiles, whatever the planner thinks of it.
    bool all_have_taps = shape.splits == 1 && !family::gathers(shape);
    for (int32_t i = 0; i < tables.sets; ++i) all_have_taps &= tables.set[i].steps > 0;
    shape.reuse = 1;
    for (int64_t reuse = pick(1, counts.channels * tables.sets); reuse > 1; --reuse) {
      const auto stages = static_cast<int32_t>(pick(counts.chunks, family::most_patch_stages));
      if (!all_have_taps || counts.channels * tables.sets % reuse != 0) continue;
      if (family::shared_layout(config, p, tables, patch, shape, stages).bytes == 0) continue;
      shape.reuse = static_cast<int32_t>(reuse), shape.patch_stages = std::max(stages, family::fewest_patch_stages);
      break;
    }
    if (row_boxes && (family::channels_innermost(p) || !family::stores_boxes(config, p, nullptr, tables, shape)))
      continue;
    // A block takes several tiles, or parts of them.
    plan.grid = pick(1, std::min<int64_t>(6, counts.blocks * plan.tile.splits / plan.tile.reuse));
    if (shape.reuse == 1 && (deep || pick(0, 2) == 0) && family::has_variant(config, mode, Variant::balanced)) {
      const int64_t grid = pick(1, 6);
      const int32_t parts = family::most_parts(tables, counts, grid);
      if (parts > 0) shape.balanced_blocks = static_cast<int32_t>(grid), shape.splits = parts, plan.grid = grid;
    }
    plan.workspace_bytes = family::make_workspace(config, p, counts, plan.tile).bytes;

    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    std::optional<Variant> variant = family::variant_of(launch, config, mode);
    if (rows_anywhere && variant != Variant::unaligned_rows) continue;
    // The general one does what all of them do, and one whose threads may bring x does what it does.
    const Variant wider = pick(0, 1) == 0 ? Variant::general : Variant::threads;
    if (pick(0, 3) == 0 && variant && *variant != Variant::threads && !launch.balanced &&
        family::has_variant(config, mode, wider)) {
      variant = wider;
    }
    if (!variant) continue;
    if (launch.params.channels_last && !launch.x_map.valid()) continue;
    if (shape.weights_in_place) {
      launch.params.w_map = device::make_tensor_map(family::make_w_map(p, c.w.data));
    }
    family::PrepareParams& prepare = launch.prepare;
    if (family::packs(launch)) {
      implicit_gemm::choose_pack_tile<mode, family::Fragments<mode>>(
          prepare.pack, pick(0, 1) == 0 ? 1 : implicit_gemm::fewest_pack_blocks);
      prepare.packing = static_cast<uint32_t>(prepare.pack.tile.blocks);
    }
    const auto run_prepare = [&](uint32_t blocks) {
      if (blocks == 0) return;
      simt::launch(dim3(blocks), dim3(implicit_gemm::pack_threads),
                   std::max<size_t>(prepare.packing > 0 ? static_cast<size_t>(prepare.pack.tile.shared_bytes) : 0,
                                    family::channels_last_shared_bytes),
                   [&] { family::prepare_kernel<mode>(prepare); });
    };
    const uint32_t bringing = launch.params.channels_last ? launch.channels_last_grid : 0;
    const bool together = pick(0, 1) == 0;
    run_prepare(prepare.packing + (together ? bringing : 0));
    if (!together) prepare.follows = prepare.packing > 0, prepare.packing = 0, run_prepare(bringing);
    if (family::uses_x_map(launch.params)) launch.params.x_map = device::make_tensor_map(launch.x_map);
    if (family::uses_wide_x_map(launch.params)) {
      launch.params.wide_x_map = device::make_tensor_map(launch.wide_x_map);
    }
    for (int32_t i = 0; i < family::y_map_count(launch.params); ++i) {
      launch.params.y_maps[i] = device::make_tensor_map(launch.y_maps[i]);
    }
    launch_row<mode>(plan.configuration, *variant, launch);
    const GemmTile& t = plan.tile;
    balanced += t.balanced_blocks > 0, im2col += t.im2col, unaligned += *variant == Variant::unaligned_rows;
    const std::string what =
        configuration + ", fill " + std::to_string(static_cast<int>(launch.params.fill)) + ", store width " +
        std::to_string(launch.params.store_width) + ", tile " + std::to_string(t.images) + " x " +
        std::to_string(t.rows) + " x " + std::to_string(t.columns) +
        (t.im2col             ? " im2col"
         : family::gathers(t) ? " gathered"
                              : "") +
        ", stacked " + std::to_string(t.stacked_rows) + ", phases " + std::to_string(t.row_phases) + " x " +
        std::to_string(t.column_phases) + ", boxes " + std::to_string(launch.params.copy_boxes) +
        (launch.params.rows_in_boxes ? " of rows" : "") + ", stages " + std::to_string(launch.params.stages) + " and " +
        std::to_string(launch.params.weight_stages) + (launch.params.weights_stay ? " (stay)" : "") +
        (!launch.params.store_boxes         ? ""
         : launch.params.channels_innermost ? ", stores boxes"
                                            : ", stores boxes of rows") +
        ", variant " + std::to_string(static_cast<int>(*variant)) + (shape.weights_in_place ? " in place" : "") +
        (p.bias_period > 0 ? ", folded" : "") + ", reuse " + std::to_string(t.reuse) + ", splits " +
        std::to_string(t.splits) + (t.balanced_blocks > 0 ? ", balanced" : "");
    if (mode != Mode::tf32) return c.check(what.c_str(), [](float v) { return v; });
    // Products of TF32 mode are of rounded operands: by the copy engine, or by threads.
    const auto rounded = [](bool by_engine) -> float (*)(float) {
      if (by_engine) return [](float v) { return float_of_bits(simt::nearest_tf32(bits_of_float(v))); };
      return [](float v) { return float_of_bits(device::to_tf32(v)); };
    };
    return c.check(what.c_str(), rounded(launch.params.copy_boxes && !shape.channels_last),
                   rounded(shape.weights_in_place));
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  using convt::DataType, convt::Precision, convt::Mode;
  const int status = convt::run_problems(argc, argv, [](int number) {
    return number % 4 == 0   ? convt::run<Mode::ieee>(DataType::float32, Precision::ieee)
           : number % 4 == 1 ? convt::run<Mode::tf32>(DataType::float32, Precision::tf32)
           : number % 4 == 2 ? convt::run<Mode::float16>(DataType::float16, Precision::ieee)
                             : convt::run<Mode::bfloat16>(DataType::bfloat16, Precision::ieee);
  });
  std::printf("balanced: %d, im2col: %d, unaligned rows: %d\n", convt::balanced, convt::im2col, convt::unaligned);
  return status;
}
