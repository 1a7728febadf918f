// Random problems through the kernels of gemm_fold_sm90 in the SIMT emulator, in every configuration and precision,
// against float64. Built and run by test_gemm_fold.py. Usage: gemm_fold_sm90_simt SEED PROBLEMS
#define SIMT_MAIN
#include "kernels/device.h"

#include <cmath>
#include <cstdio>

#include "kernels/copy_rows.cuh"
#include "kernels/gemm_fold_sm90/kernel.cuh"
#include "kernels/visit_row.h"
#include "plan/planner.h"
#include "simt_problem.h"

namespace convt {
namespace {

namespace family = gemm_fold_sm90;

Problem images(DataType dtype, Precision precision) {
  for (;;) {
    Problem p;
    p.dtype = dtype, p.precision = precision;
    p.batch = pick(0, 1) == 0 ? pick(1, 4) : pick(1, 20);
    p.groups = pick(0, 3) == 0 ? pick(1, 3) : 1;
    p.in_channels = p.groups * (pick(0, 3) == 0 ? pick(1, 20) : 8 * pick(1, pick(0, 2) == 0 ? 80 : 20));
    p.out_channels = p.groups * (pick(0, 1) == 0 ? pick(1, 20) : 8 * pick(1, 5));
    p.in_h = pick(1, 14), p.in_w = pick(0, 1) == 0 ? pick(1, 20) : 4 * pick(1, 8);
    if (pick(0, 3) == 0) p.in_h = pick(1, 3), p.in_w = pick(0, 1) == 0 ? pick(20, 400) : 8 * pick(8, 60);
    p.kernel_h = pick(1, 6), p.kernel_w = pick(0, 5) == 0 ? pick(5, 16) : pick(1, 5);
    if (pick(0, 7) == 0) p.kernel_h = pick(6, 12), p.kernel_w = pick(6, 12);
    p.stride_h = pick(1, 4), p.stride_w = pick(0, 5) == 0 ? pick(3, 8) : pick(1, 3);
    p.padding_h = pick(0, 3), p.padding_w = pick(0, 3);
    p.dilation_h = pick(0, 3) == 0 ? pick(1, 3) : 1, p.dilation_w = pick(0, 3) == 0 ? pick(1, 3) : 1;
    // Rows of y that are written 16 bytes at a time.
    const bool doubled = pick(0, 3) == 0;
    if (doubled) p.in_w = 4 * pick(1, 8), p.stride_w = 2, p.kernel_w = 4, p.padding_w = 1, p.dilation_w = 1;
    const auto more = [](int64_t stride, int64_t dilation) { return pick(0, std::max(stride, dilation) - 1); };
    p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, more(p.stride_h, p.dilation_h), p.dilation_h);
    p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, doubled ? 0 : more(p.stride_w, p.dilation_w),
                          p.dilation_w);
    if (p.out_h < 1 || p.out_w < 1 || p.useful_macs() > 6000000) continue;
    const bool last = pick(0, 1) == 0;
    p.x_strides = last || pick(0, 7) == 0 ? channels_last(p.x_sizes()) : dense(p.x_sizes());
    p.w_strides = dense(p.w_sizes());
    // Images or channels of a larger tensor.
    if (pick(0, 3) == 0) p.x_strides[0] += (pick(0, 1) == 0 ? 8 : 1) * pick(1, 9);
    if (last && pick(0, 2) > 0) {
      p.out_channels = p.groups * pick(1, 8);
      p.w_strides = channels_last(p.w_sizes());
    }
    if (pick(0, 7) == 0) p.w_strides[0] += 8 * pick(1, 3);
    p.y_strides = last ? channels_last(p.y_sizes()) : dense(p.y_sizes());
    if (pick(0, 7) == 0) p.y_strides[0] += pick(1, 9);
    p.has_bias = pick(0, 1) == 1;
    p.bias_stride = 1;
    return p;
  }
}

template <class Scalar, bool Strict, bool Last>
void launch_row(const Plan& plan, const family::Params& params) {
  visit_row<family::config_count>(plan.configuration, [&]<int Row>() {
    simt::launch(dim3(static_cast<unsigned>(plan.grid)), dim3(family::threads), static_cast<size_t>(plan.shared_bytes),
                 [&] { family::gemm_fold_sm90_kernel<Scalar, Strict, Row, Last>(params); });
  });
}

int copied = 0, in_place = 0, channels_last_copied = 0, channels_last_in_place = 0, channels_last_weights = 0,
    tiles_of_rows = 0, tiles_of_columns = 0, begins_ahead[2] = {}, fewer_boxes = 0, several_images = 0, widths[9] = {};

template <class Scalar, bool Strict>
bool run(int32_t row) {
  for (;;) {
    const Case<Scalar> c(images(data_type<Scalar>, Strict ? Precision::ieee : Precision::tf32));
    const Problem p = c.placed();
    const std::string configuration = std::string("gemm_fold_sm90/") + family::configs[row].name;
    const std::optional<Plan> forced = forced_plan(p, configuration);
    if (!forced) continue;
    Plan plan = *forced;
    // Copied though it need not be, and tiles that begin ahead, or do not.
    const family::Config& config = family::configs[row];
    const int32_t boxes = family::most_boxes(config, p);
    const family::Cut cut{pick(0, 1) == 0, static_cast<int32_t>(pick(0, 1) == 0 ? boxes : pick(1, boxes))};
    const bool copies = plan.workspace_bytes > 0;
    const auto fits = [&](const family::Tiling& t) {
      return t.tiles > 0 && (!config.cooperative || t.tiles <= find_device("h200")->multiprocessors);
    };
    if (const family::Tiling t = family::make_tiling(config, p, copies, cut); fits(t)) {
      family::set_cut(plan, cut);
      plan.workspace_bytes = copies ? family::copied_bytes(p, t) : 0, plan.grid = t.tiles;
    }
    if (plan.workspace_bytes == 0 && pick(0, 2) == 0 && family::may_copy(p)) {
      const family::Tiling t = family::make_tiling(config, p, true, family::cut_of(plan));
      if (fits(t)) plan.workspace_bytes = family::copied_bytes(p, t), plan.grid = t.tiles;
    }
    // A block takes several tiles.
    if (!config.cooperative) plan.grid = pick(1, std::min<int64_t>(4, plan.grid));
    const simt::Buffer<unsigned char> workspace(plan.workspace_bytes, 0);
    family::Launch launch;
    family::make_launch(plan, p, {c.x.data, c.w.data, nullptr, c.bias.data, c.y.data, workspace.data}, launch);
    family::Params& params = launch.params;
    if (params.copies_x) {
      simt::launch(dim3(static_cast<unsigned>(copy_blocks(launch.copy))), dim3(copy_threads), 0,
                   [&] { copy_rows_kernel<std::conditional_t<sizeof(Scalar) == 4, uint32_t, uint16_t>>(launch.copy); });
    }
    params.x_map = device::make_tensor_map(launch.x_map), params.w_map = device::make_tensor_map(launch.w_map);
    params.last ? launch_row<Scalar, Strict, true>(plan, params) : launch_row<Scalar, Strict, false>(plan, params);
    ++(params.copies_x ? (params.last ? channels_last_copied : copied)
                       : (params.last ? channels_last_in_place : in_place));
    channels_last_weights += params.last_weights;
    tiles_of_rows += params.row_tiles.divisor > 1, tiles_of_columns += params.column_tiles.divisor > 1;
    fewer_boxes += params.boxes < boxes;
    begins_ahead[0] += params.rows_before > 0, begins_ahead[1] += params.columns_before > 0;
    several_images += params.images > 1, ++widths[params.store_width];
    const std::string what = configuration + (params.copies_x ? ", copied" : "") + ", tiles of " +
                             std::to_string(params.images) + " images, " + std::to_string(params.rows) + " rows, " +
                             std::to_string(params.columns) + " columns" + (params.last ? ", channels_last" : "");
    return c.check(what.c_str(), [](float v) {
      return sizeof(Scalar) == 4 && !Strict ? float_of_bits(simt::nearest_tf32(bits_of_float(v))) : v;
    });
  }
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const int status = convt::run_problems(argc, argv, [](int number) {
    const int row = number / 4 % convt::family::config_count;
    switch (number % 4) {
      case 0:
        return convt::run<convt::Float16, false>(row);
      case 1:
        return convt::run<convt::BFloat16, false>(row);
      case 2:
        return !convt::family::compiled(convt::family::configs[row], true, false) || convt::run<float, true>(row);
      default:
        return convt::run<float, false>(row);
    }
  });
  std::printf(
      "copied: %d, as it is: %d, channels_last copied: %d, as it is: %d, its weights: %d, tiles of rows: %d, of "
      "columns: %d, ahead: %d, %d, fewer boxes: %d, several images: %d; ",
      convt::copied, convt::in_place, convt::channels_last_copied, convt::channels_last_in_place,
      convt::channels_last_weights, convt::tiles_of_rows, convt::tiles_of_columns, convt::begins_ahead[0],
      convt::begins_ahead[1], convt::fewer_boxes, convt::several_images);
  std::printf("vectors of 1: %d, 2: %d, 4: %d, 8: %d\n", convt::widths[1], convt::widths[2], convt::widths[4],
              convt::widths[8]);
  return status;
}
