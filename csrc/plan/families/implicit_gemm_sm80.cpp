// Any dense or grouped layer on tensor cores. See csrc/kernels/implicit_gemm_sm80.
#include <algorithm>
#include <cmath>

#include "../../kernels/implicit_gemm_sm80/tiling.h"
#include "family.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm80;
using family::Config;
using family::Mode;

std::string refusal(const Problem& p, const DeviceInfo& device) {
  const std::string reason = implicit_gemm_refusal(p);
  if (!reason.empty()) return reason;
  if (device.compute_capability < 80) return "needs sm_80 or later";
  return "";
}

// Multiplications by mma.sync, in units of m16n8k8 in TF32 or m16n8k16 in 16 bits, which take as long. Of the rate of
// the tensor cores, mma.sync reaches .65 on Hopper (322 of 495 TFLOP/s TF32, register only), and this kernel .8 of
// that.
double mma_seconds(const DeviceInfo& d) { return 4096 / (0.65 * 0.8 * d.fp16_flops / d.multiprocessors); }

// Of the tiles of `size` positions of an axis, the part in which some position, plus `offset`, is inside the image.
double tiles_with_pixels(int64_t in, int64_t positions, int64_t size, int64_t offset) {
  const int64_t tiles = ceil_div(positions, size);
  const int64_t first = std::max<int64_t>(0, floor_div<int64_t>(-offset, size));
  const int64_t end = std::min(tiles, ceil_div(std::max<int64_t>(0, in - offset), size));
  return static_cast<double>(std::max<int64_t>(0, end - first)) / static_cast<double>(tiles);
}

// How many of the `extent` pixels of an axis that a tile of `size` positions reads are inside the image, in the mean.
double pixels_inside(int64_t in, int64_t positions, int64_t size, int64_t extent, int64_t lowest) {
  const int64_t tiles = ceil_div(positions, size);
  if (tiles > 16) return static_cast<double>(extent);
  int64_t inside = 0;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t first = i * size + lowest;
    inside += std::max<int64_t>(0, std::min(extent, in - first) - std::max<int64_t>(0, -first));
  }
  return static_cast<double>(inside) / static_cast<double>(tiles);
}

// What it costs to read a pixel of four lanes of a channel group, in multiplications: copies and putting in order, or
// loads that are waited for.
double pixel_cost(const Problem& p) {
  const bool wide = element_size(p.dtype) == 4;
  if (family::rows_in_quads(p)) return wide ? 0.3 : 0.2;
  if (p.x_strides[1] == 1) {
    // Four channels of a pixel at once, or one by one.
    if (p.in_channels_per_group() % 4 != 0) return 1.0;
    return wide ? 0.4 : 0.2;
  }
  return wide ? 0.6 : 1.2;
}

void consider(const Problem& p, const DeviceInfo& device, const Config& config, const family::Tables& t, GemmTile tile,
              bool part_of_image, Choice& best) {
  const Mode mode = family::mode_of(p);
  const int64_t images = tile.images;
  if (images > 1 && checked_mul(images, std::abs(p.x_strides[0])) >= int64_t{1} << 30) return;
  tile.channel_groups = 1;
  const family::Counts counts = family::make_counts(p, t, tile);
  const int64_t channel_groups = counts.channel_groups;
  // Of a block in the mean: it leaves out the steps that read no pixel of the image.
  // On larger images those are few.
  const bool small = p.in_h <= 16 || p.in_w <= 16;
  double fewest_steps = family::most_taps, fragments = 0, steps = 0, most_steps = 0;
  int64_t all_fragments = 0;
  for (int32_t i = 0; i < t.sets; ++i) {
    double of_set = small ? 0 : t.set[i].steps;
    if (!small) fragments += t.set[i].fragments;
    for (int32_t s = t.set[i].first_step; small && s < t.set[i].first_step + t.set[i].steps; ++s) {
      const double tiles = tiles_with_pixels(p.in_h, ceil_div(p.out_h, p.stride_h), tile.rows, t.step[s].row) *
                           tiles_with_pixels(p.in_w, ceil_div(p.out_w, p.stride_w), tile.columns, t.step[s].column);
      of_set += tiles, fragments += tiles * __builtin_popcount(t.step[s].mask);
    }
    if (of_set > 0) fewest_steps = std::min(fewest_steps, of_set);
    steps += of_set, most_steps = std::max(most_steps, of_set);
    all_fragments += t.set[i].fragments;
  }
  // A tile of a part of the image reads more pixels for an output.
  if (part_of_image && fragments > 0.7 * static_cast<double>(all_fragments)) return;
  // Enough steps between two barriers, if shared memory allows it; but a layer of few tiles is split by chunks.
  const double enough = counts.blocks > 2 * device.multiprocessors ? 16 : 8;
  while (tile.channel_groups < family::most_groups && tile.channel_groups < channel_groups &&
         tile.channel_groups * fewest_steps < enough) {
    GemmTile more = tile;
    more.channel_groups *= 2;
    if (family::fewest_stages * family::make_patch(p, t, more).bytes > family::stages_room(config, p)) break;
    tile = more;
  }
  const family::Patch patch = family::make_patch(p, t, tile);
  const family::SharedLayout shared = family::shared_layout(config, p, t, patch);
  if (shared.bytes > family::shared_bytes_limit || shared.bytes > device.shared_memory_per_block) return;

  const family::Counts n = family::make_counts(p, t, tile);
  const double products = mode == Mode::ieee ? 3 : 1;
  // Fragments of B come from shared memory, those of A from L1, at 128 bytes a clock together: 32 MMAs take 47 clocks.
  const double mmas = fragments * config.columns() / 8 * products;
  const double loads = family::parts_of(mode) * (512.0 * fragments * config.warps_n +
                                                 256.0 * steps * config.n_blocks * config.warps_n * config.warps_m);
  const double bound = mmas > 0 ? std::max(1.0, loads / 128 / (mmas * 47 / 32)) : 1.0;
  double pixels = 0;  // of a block and a channel group, in the mean
  for (int32_t i = 0; i < t.sets; ++i) {
    pixels += pixels_inside(p.in_h, ceil_div(p.out_h, p.stride_h), tile.rows, patch.rows, t.set[i].lowest_row) *
              pixels_inside(p.in_w, ceil_div(p.out_w, p.stride_w), tile.columns, patch.columns,
                            family::first_column(t.set[i], family::patch_begin(p)));
  }
  pixels *= static_cast<double>(images) / t.sets;
  const double fill = 1.25 * pixels * pixel_cost(p) * mma_seconds(device);
  const double resident =
      std::max<int64_t>(1, std::min<int64_t>(family::resident_blocks(config, mode),
                                             device.shared_memory_per_block / std::max<int64_t>(1, shared.bytes)));
  // Columns of which a tile does not have all phases are written one by one, into sectors that tiles of other phases
  // write at another time.
  const double element = static_cast<double>(element_size(p.dtype)), cores = device.multiprocessors;
  double again = 0;  // writing, in times that of y
  // Of the memory's rate: by what a lane writes at a time.
  double store_rate = 1.1;
  if (implicit_gemm::channels_innermost(p)) {
    store_rate = std::min(0.95, 0.06 * element * implicit_gemm::store_width(p, nullptr, tile, n.columns));
  } else {
    again = sectors_of_parts(p, static_cast<int32_t>(tile.columns * p.stride_w)) - 1;
    if (tile.column_phases < p.stride_w) {
      again += 2 * std::pow(static_cast<double>(p.stride_w) / tile.column_phases - 1, 0.45);
    }
  }
  const double traffic =
      (static_cast<double>(p.compulsory_bytes()) + again * element * static_cast<double>(p.y_elements())) /
      (0.6 * device.bandwidth);
  // The constants of this model are fitted to a sweep of all layers by every configuration on an H200.
  const double unit = (mode == Mode::ieee ? 1 : 0.55) * mma_seconds(device) * bound;
  const double patches = static_cast<double>(n.blocks) * pixels * static_cast<double>(n.channel_groups) *
                         family::channels_of_fragment(mode) * element;
  // Patches and fragments come from L2.
  const double l2 = (patches + 512.0 * family::parts_of(mode) * fragments / t.sets *
                                   static_cast<double>(n.channel_groups) * static_cast<double>(n.blocks)) /
                    device.bandwidth;
  for (int32_t splits = 1; splits <= 16; splits *= 2) {
    if (splits > n.chunks) break;
    if (splits > 1 && static_cast<double>(n.blocks) * splits > 4 * device.multiprocessors * resident) break;
    tile.splits = splits;
    const family::Workspace workspace = family::make_workspace(config, p, n, tile);
    const double blocks = static_cast<double>(n.blocks) * splits;
    if (blocks >= std::numeric_limits<int32_t>::max() || n.fragments >= std::numeric_limits<int32_t>::max()) return;
    const double groups = std::ceil(static_cast<double>(n.chunks) / splits) * tile.channel_groups;
    const double multiply = (mmas / t.sets * unit + fill) * groups;
    // Sums of splits are written in float32, and read by the last of them.
    const double written = 16.0 * config.rows() * config.columns() * (splits > 1 ? 4 * (1 + 0.13 * splits) : element);
    const double store = written / (store_rate * device.bandwidth / cores) + 0.35e-6;
    // All blocks of an SM share its tensor cores; each waits for its loads at every step.
    const double shared_work = std::min(resident, std::ceil(blocks / cores)) * (multiply + store);
    const double alone = groups * (most_steps * 0.16e-6 + 0.9e-6 / tile.channel_groups) + multiply + store;
    const double work = std::ceil(blocks / cores / resident) * (std::max(shared_work, alone) + 3e-6);
    const double packing = packing_seconds(p, device, workspace.bytes - workspace.packed);
    const double seconds = launch_seconds + 7e-6 + 1.5 * packing + (splits > 1 ? 3.5e-6 : 0) +
                           std::pow(std::pow(work, 1.5) + std::pow(traffic, 1.5) + std::pow(l2, 1.5), 2.0 / 3);
    if (seconds < best.seconds) {
      best = {tile, static_cast<int64_t>(blocks), shared.bytes, workspace.bytes, seconds};
    }
  }
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row) {
  const std::string reason = refusal(p, device);
  const Config& config = family::configs[row];
  if (!reason.empty()) return refuse(Algorithm::implicit_gemm_sm80, config.name, reason);
  if (!family::fits_registers(config, family::mode_of(p))) {
    return refuse(Algorithm::implicit_gemm_sm80, config.name,
                  family::mode_of(p) == Mode::ieee
                      ? "has no registers for promoted sums, which float32 without TF32 needs"
                      : "is for float32 without TF32");
  }
  if (hopper_refusal(device).empty() && !family::in_hopper_code(config, family::mode_of(p))) {
    return refuse(Algorithm::implicit_gemm_sm80, config.name, "is not in the code for sm_90a");
  }
  Choice best;
  const auto rows = static_cast<int32_t>(ceil_div(p.out_h, p.stride_h));
  const auto columns = static_cast<int32_t>(ceil_div(p.out_w, p.stride_w));
  const auto stride_h = static_cast<int32_t>(p.stride_h), stride_w = static_cast<int32_t>(p.stride_w);
  // All phases of the columns in a block, so that it writes whole lines, or as many as it has rows for; of the rows
  // one phase, or all.
  int32_t column_phases = stride_w;
  family::Tables t;
  std::string cannot = text(family::make_tables(config, p, 1, column_phases, t));
  while (!cannot.empty() && column_phases > 1) {
    column_phases = (column_phases + 1) / 2;
    cannot = text(family::make_tables(config, p, 1, column_phases, t));
  }
  if (!cannot.empty()) return refuse(Algorithm::implicit_gemm_sm80, config.name, cannot);
  const bool quads = family::rows_in_quads(p);
  for (int32_t row_phases = 1; row_phases <= stride_h; row_phases += std::max(1, stride_h - 1)) {
    if (row_phases > 1 && !family::make_tables(config, p, row_phases, column_phases, t).empty()) continue;
    for (int32_t wide = 8;; wide *= 2) {
      for (int32_t whole = 0; whole < 2; ++whole) {
        // A power of two of columns, or the row cut into equal parts.
        int32_t width = wide;
        if (whole == 1) {
          width = ceil_div(columns, ceil_div(columns, wide));
          if (width < columns || quads) width = ceil_div(width, 8) * 8;
        }
        GemmTile tile;
        tile.columns = std::min(width, config.columns());
        if (tile.columns >= columns) tile.columns = quads ? ceil_div(columns, 4) * 4 : columns;
        if (tile.columns > config.columns()) continue;
        tile.rows = std::min(config.columns() / tile.columns, rows);
        tile.images = 1;
        if (tile.columns >= columns && tile.rows >= rows) {
          tile.images = static_cast<int32_t>(std::min<int64_t>(p.batch, config.columns() / (tile.columns * tile.rows)));
        } else {
          tile.rows = ceil_div(rows, ceil_div(rows, tile.rows));
        }
        tile.row_phases = row_phases, tile.column_phases = column_phases;
        consider(p, device, config, t, tile, false, best);
      }
      if (wide >= columns || wide >= config.columns()) break;
    }
    // Whole rows of several images, where whole images, or one image's rows, leave much of a tile empty.
    const int32_t whole_columns = quads ? ceil_div(columns, 4) * 4 : columns;
    const auto filled = [&](int32_t tile_rows, int64_t images) {
      return static_cast<double>(rows) / (tile_rows * ceil_div(rows, tile_rows)) *
             static_cast<double>(columns * tile_rows * images) / config.columns();
    };
    const int32_t most_rows = std::min(rows, config.columns() / whole_columns);
    int32_t halo = 0;  // rows that neighbouring tiles both read
    for (int32_t i = 0; i < t.sets; ++i) halo = std::max(halo, t.set[i].highest_row - t.set[i].lowest_row);
    if (most_rows > 0 && filled(most_rows, std::max(1, config.columns() / (whole_columns * rows))) < 0.85) {
      for (int32_t tile_rows = std::max(1, 3 * halo); tile_rows < std::min(rows, 16); ++tile_rows) {
        const int64_t images = std::min<int64_t>(p.batch, config.columns() / (int64_t{whole_columns} * tile_rows));
        if (images < 2) break;
        if (filled(tile_rows, images) < 0.9) continue;
        GemmTile tile;
        tile.columns = whole_columns, tile.rows = tile_rows, tile.images = static_cast<int32_t>(images);
        tile.row_phases = row_phases, tile.column_phases = column_phases;
        consider(p, device, config, t, tile, false, best);
      }
    }
    // On small images, a tile of few positions of many images: it leaves out what reads outside the image.
    if (columns <= 8 && rows <= 8) {
      for (int32_t tile_rows = 1; tile_rows <= rows; tile_rows += std::max(1, rows - 1)) {
        for (int32_t tile_columns = quads ? columns : 1; tile_columns <= columns; ++tile_columns) {
          if (tile_columns > 1 && tile_columns < columns) continue;
          GemmTile tile;
          tile.columns = quads ? ceil_div(columns, 4) * 4 : tile_columns, tile.rows = tile_rows;
          if (tile.columns * tile.rows > config.columns()) continue;
          tile.images = static_cast<int32_t>(std::min<int64_t>(p.batch, config.columns() / (tile.columns * tile.rows)));
          tile.row_phases = row_phases, tile.column_phases = column_phases;
          consider(p, device, config, t, tile, true, best);
        }
      }
    }
    if (stride_h == 1) break;
  }
  if (best.grid == 0) {
    return refuse(Algorithm::implicit_gemm_sm80, config.name, "needs more shared memory than a block has");
  }
  return chosen_tile(Algorithm::implicit_gemm_sm80, config.name, row, config.threads(), best);
}

}  // namespace

void implicit_gemm_sm80_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const auto candidates_of = [&](const Problem& q) {
    std::vector<Candidate> candidates;
    for (int32_t row = 0; row < family::config_count; ++row) candidates.push_back(candidate_of(q, device, row));
    return candidates;
  };
  add_better_foldings(p, candidates_of, out);
}

}  // namespace convt
