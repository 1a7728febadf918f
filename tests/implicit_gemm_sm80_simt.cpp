// Random problems through the kernels of implicit_gemm_sm80 in the SIMT emulator, in every mode and configuration,
// against float64. Built and run by test_implicit_gemm.py. Usage: implicit_gemm_sm80_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/implicit_gemm_sm80/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm80;
using implicit_gemm::Mode;

int whole_steps = 0, one_phase = 0, two_phases = 0;  // problems; the last ones' tiles leave from registers

template <Mode mode>
void launch_row(int32_t row, const family::Launch& launch) {
  visit_row<family::config_count>(row, [&]<int Row>() {
    if constexpr (family::fits_registers(family::configs[Row], mode)) {
      simt::launch(dim3(launch.grid), dim3(static_cast<unsigned>(family::configs[Row].threads())),
                   static_cast<size_t>(launch.shared_bytes),
                   [&] { family::implicit_gemm_kernel<mode, Row>(launch.params); });
    }
  });
}

// The same with rows of y of whole sectors of memory, one after another, which may be written from registers.
Problem with_whole_sectors(Problem p) {
  const int64_t sector = 32 / element_size(p.dtype);
  p.out_w -= p.out_w % sector;
  if (p.out_w > 0) p.y_strides = dense(p.y_sizes());
  return p;
}

// The plan's tile with other rows and columns, if a patch of them fits.
GemmTile another_tile(const family::Config& config, const Problem& p, const family::Tables& tables, GemmTile tile) {
  const GemmTile planned = tile;
  tile.images = 1, tile.columns = static_cast<int32_t>(pick(0, 1) == 0 ? 32 : 8 * pick(1, 4));
  tile.rows = static_cast<int32_t>(std::min<int64_t>(pick(1, 4), config.columns() / tile.columns));
  const bool fits = family::fewest_stages * family::make_patch(p, tables, tile).bytes <= family::stages_room(config, p);
  return fits ? tile : planned;
}

template <Mode mode>
bool run(DataType dtype, Precision precision) {
  using Scalar = typename implicit_gemm::Traits<mode>::Scalar;
  for (;;) {
    Problem given = random_problem(dtype, precision);
    const bool whole_sectors = pick(0, 1) == 0;
    if (whole_sectors) given = with_whole_sectors(given);
    if (given.out_w == 0) continue;
    Problem p = folds(given) && pick(0, 1) == 0 ? folded(given) : given;
    Plan plan;
    std::string configuration;
    try {
      const auto row = pick(0, family::config_count - 1);
      configuration = std::string("implicit_gemm_sm80/") + family::configs[row].name;
      plan = make_forced_plan(p, *find_device("h200"), configuration);
    } catch (const std::invalid_argument&) {
      continue;
    }
    p = as_planned(plan, p);
    // The planner splits reductions that leave a GPU idle; here any may be.
    family::Tables tables;
    const family::Config& config = family::configs[plan.configuration];
    family::make_tables(config, p, plan.tile.row_phases, plan.tile.column_phases, tables);
    if (pick(0, 2) == 0) plan.tile.channel_groups = 1;
    if (whole_sectors) plan.tile = another_tile(config, p, tables, plan.tile);
    const family::Counts counts = family::make_counts(p, tables, plan.tile);
    plan.tile.splits = static_cast<int32_t>(pick(0, 1) == 0 ? 1 : pick(1, std::min<int64_t>(4, counts.chunks)));
    plan.workspace_bytes = family::make_workspace(config, p, counts, plan.tile).bytes;

    const Case<Scalar> c(given);
    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    using Fragments = family::Fragments<mode>;
    implicit_gemm::choose_pack_tile<mode, Fragments>(launch.pack,
                                                     pick(0, 1) == 0 ? 1 : implicit_gemm::fewest_pack_blocks);
    simt::launch(dim3(static_cast<unsigned>(launch.pack.tile.blocks)), dim3(implicit_gemm::pack_threads),
                 static_cast<size_t>(launch.pack.tile.shared_bytes),
                 [&] { implicit_gemm::pack_kernel<mode, Fragments>(launch.pack); });
    launch_row<mode>(plan.configuration, launch);
    whole_steps += launch.params.full_sets != 0;
    if (launch.params.from_registers) ++(launch.params.column_phases == 1 ? one_phase : two_phases);
    const GemmTile& t = plan.tile;
    const std::string what =
        configuration + ", fill " + std::to_string(static_cast<int>(launch.params.fill)) + ", store width " +
        std::to_string(launch.params.store_width) + ", tile " + std::to_string(t.images) + " x " +
        std::to_string(t.rows) + " x " + std::to_string(t.columns) + ", phases " + std::to_string(t.row_phases) +
        " x " + std::to_string(t.column_phases) + ", groups " + std::to_string(t.channel_groups) + ", splits " +
        std::to_string(t.splits) + (launch.params.from_registers ? ", from registers" : "");
    // Products of TF32 mode are of rounded operands.
    return c.check(
        what.c_str(),
        mode == Mode::tf32 ? [](float v) { return float_of_bits(device::to_tf32(v)); } : [](float v) { return v; });
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  using convt::DataType, convt::Precision, convt::Mode;
  const int status = convt::run_problems(argc, argv, [](int number) {
    return number % 4 == 0   ? convt::run<Mode::tf32>(DataType::float32, Precision::tf32)
           : number % 4 == 1 ? convt::run<Mode::ieee>(DataType::float32, Precision::ieee)
           : number % 4 == 2 ? convt::run<Mode::float16>(DataType::float16, Precision::ieee)
                             : convt::run<Mode::bfloat16>(DataType::bfloat16, Precision::ieee);
  });
  std::printf("steps of all blocks: %d, from registers, of one phase: %d, of two: %d\n", convt::whole_steps,
              convt::one_phase, convt::two_phases);
  return status;
}
