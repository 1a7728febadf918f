// Dense and grouped layers on Hopper's tensor cores. See csrc/kernels/implicit_gemm_sm90.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "../../kernels/implicit_gemm_sm90/name.h"
#include "../../kernels/implicit_gemm_sm90/tiling.h"
#include "family.h"
#include "implicit_gemm.h"

namespace convt {
namespace {

namespace family = implicit_gemm_sm90;
using family::Config;
using family::Form;
using family::Source;
using family::Way;
using implicit_gemm::Fill;
using implicit_gemm::Mode;

std::string refusal(const Problem& p, const DeviceInfo& device) {
  const std::string reason = implicit_gemm_refusal(p);
  return reason.empty() ? hopper_refusal(device) : reason;
}

// Clocks in which a multiprocessor multiplies 64 rows by `width` positions and 32 bytes of channels: at so much of the
// tensor cores' rate, or at that at which they read operands from shared memory, 128 bytes a clock.
double product_clocks(int32_t width, double rate) { return std::max(width / 2.0 / rate, (2048 + 32.0 * width) / 128); }

// Whether rows, columns and shifts fit the words in which they are kept.
bool may_gather(const Problem& p, const family::Tables& t) {
  const family::PhaseSet& set = t.set[0];
  for (int64_t count : {p.in_h, p.in_w, ceil_div(p.out_h, p.stride_h), ceil_div(p.out_w, p.stride_w)}) {
    if (count >= family::gathers_less_than) return false;
  }
  for (int64_t reach :
       {int64_t{set.highest_row}, -int64_t{set.lowest_row}, int64_t{set.highest_column}, -int64_t{set.lowest_column}}) {
    if (reach >= family::gathers_less_than / 2) return false;
  }
  return true;
}

// Whether pixels are whole units of 16 bytes, as the copy engine wants them.
bool has_pixels_of_units(const Problem& p) {
  return p.x_strides[1] == 1 && p.in_channels_per_group() * element_size(p.dtype) % family::unit_bytes == 0;
}

// Whether x is not in channels_last as it is, or not as the copy engine wants it, or is to be rounded to TF32 or split
// into two such numbers; and how many blocks bring it there.
bool may_bring_into_channels_last(const Problem& p) {
  const bool rounds = p.dtype == DataType::float32;
  if (!rounds && has_pixels_of_units(p)) return false;
  const int64_t pixels = checked_mul(p.in_h, p.in_w);
  const int64_t tiles =
      checked_mul(ceil_div<int64_t>(pixels, family::channels_last_pixels), checked_mul(p.batch, p.in_channels));
  const int64_t bytes = checked_mul(checked_mul(family::channels_last_elements(p), element_size(p.dtype)),
                                    family::parts_of(family::mode_of(p)));
  return pixels < int64_t{1} << 30 && tiles < int64_t{1} << 30 && bytes <= most_copied_bytes;
}

// Steps of the busiest block over those that it would have if all its tiles had the mean. Tiles are numbered with
// channels and sets fastest, and a block's units are one place further in each round.
double busiest(const family::Tables& t, int64_t channels, int64_t reuse, int64_t units, int64_t blocks) {
  std::array<int64_t, implicit_gemm::most_sets + 1> before{};  // of a set, the steps of those before it
  bool alike = true;
  for (int32_t i = 0; i < t.sets; ++i) {
    before[i + 1] = before[i] + t.set[i].steps;
    alike &= t.set[i].steps == t.set[0].steps;
  }
  if (alike) return 1;
  // A unit has the steps of `reuse` tiles; after so many units, the sets come again.
  const int64_t count = channels * t.sets / reuse;
  const auto steps_before = [&](int64_t tile) {
    const int64_t set = tile / channels, in_set = tile % channels;
    return channels * before[set] + (in_set > 0 ? in_set * t.set[set].steps : 0);
  };
  const int64_t rounds = ceil_div(units, blocks), further = blocks + 1;
  const int64_t again = count / std::gcd(count, further);
  // Neighbours have about the same: of many, about 16 at equal distances are enough.
  const int64_t kinds = std::min(count, blocks), next_kind = ceil_div<int64_t>(kinds, 16);
  int64_t most = 0;
  for (int64_t block = 0; block < kinds; block += next_kind) {
    int64_t steps = 0;
    for (int64_t round = 0; round < std::min(again, rounds); ++round) {
      const int64_t first = (block + round * further) % count * reuse;
      steps += ((rounds - round - 1) / again + 1) * (steps_before(first + reuse) - steps_before(first));
    }
    most = std::max(most, steps);
  }
  const double mean = static_cast<double>(channels * before[t.sets]) / static_cast<double>(count);
  return std::max(1.0, static_cast<double>(most) / (static_cast<double>(rounds) * mean));
}

// Whether the channels of a group are half of a chunk or less. (Packed weights took kb78 in float16 from 1030 us to
// 690.)
bool few_channels(const Problem& p) {
  return 2 * p.in_channels_per_group() <= family::channels_of_chunk(family::mode_of(p));
}

void consider(const Problem& p, const DeviceInfo& device, const Config& config, const family::Tables& t, GemmTile tile,
              Choice& best) {
  if (tile.images > 1 && checked_mul(tile.images, std::abs(p.x_strides[0])) >= int64_t{1} << 30) return;
  tile.channel_groups = 1;
  const family::Patch patch = family::make_patch(config, p, t, tile);
  const bool gathers = family::gathers(tile);
  // What a matrix descriptor holds.
  if (int64_t{family::row_bytes} * patch.columns * t.row_step >= 1 << 18) return;
  const family::Counts n = family::make_counts(p, t, tile);
  const double clock = 4096.0 * device.multiprocessors / device.fp16_flops;  // seconds: 2048 multiplications each
  const double element = static_cast<double>(element_size(p.dtype)), cores = device.multiprocessors;
  const Mode mode = family::mode_of(p);
  const double chunk = family::channels_of_chunk(mode), parts = family::parts_of(mode);
  const double products_of_chunk =
      std::min(4.0, std::ceil(static_cast<double>(p.in_channels_per_group()) / family::channels_of_fragment(mode)));
  double blocks_of_weights = 0, steps = 0, tapless = 1;  // tapless: the share of outputs that no tap reaches
  bool all_have_taps = true;
  for (int32_t i = 0; i < t.sets; ++i) {
    blocks_of_weights += t.set[i].fragments, steps += t.set[i].steps;
    all_have_taps &= t.set[i].steps > 0;
    if (t.set[i].steps > 0) tapless -= t.set[i].columns / static_cast<double>(t.row_sets * p.stride_w);
  }
  // Of a tile and a chunk, on average.
  blocks_of_weights /= t.sets, steps /= t.sets;
  // The constants of this model are fitted to a sweep of all layers by every configuration on an H200.
  // Boxes cost their reading, and two warps' transposing of rows. Otherwise three warps copy, which waits for each line
  // of memory, and unless channels are innermost bring into order. Two parts are split and stored twice.
  const TensorMapLayout x_map = family::make_x_map(p, nullptr, t, tile, patch);
  const bool innermost = family::copies_boxes(p, tile, x_map);
  if (tile.channels_last && !innermost) return;
  if (tile.im2col && !(innermost && (tile.channels_last || p.x_aligned))) return;
  const bool y_innermost = family::channels_innermost(p), y_boxes = family::stores_boxes(config, p, nullptr, t, tile);
  const bool y_in_order = !y_innermost && family::in_order(config, t, tile);
  const bool y_unaligned = family::has_unaligned_rows(p, nullptr, tile);
  const auto compiled = [&](int32_t splits) {
    const bool special = gathers || splits > 1, x_boxes = innermost && (tile.channels_last || p.x_aligned);
    const family::Needs needs{
        x_boxes,     tile.rows_in_boxes, special,    tile.balanced_blocks > 0, tile.weights_in_place, y_boxes,
        y_innermost, y_in_order,         y_unaligned};
    return family::variant_for(config, mode, needs).has_value();
  };
  if (tile.weights_in_place && mode == Mode::tf32 && !family::may_transpose_weights(p, tile, x_map)) return;
  const double regions = static_cast<double>(patch.pixels) / family::region_pixels;
  const double lines = static_cast<double>(tile.images) * patch.rows * chunk * (patch.columns * element / 128 + 1);
  const bool elements = implicit_gemm::fill_of(p, nullptr, family::patch_begin(p, tile)) == Fill::elements;
  const double part = products_of_chunk / 4;  // of a chunk's channels that there are
  double fill_clocks = 0;
  if (innermost) {
    if (tile.rows_in_boxes) {
      // Of 16 bits the copy engine is what takes long, a row of a box at a time; of float32 it is transposing.
      const int32_t wide = family::wide_pixels(element_size(p.dtype));
      fill_clocks = tile.images * patch.rows *
                    (patch.columns / wide * (element == 4 ? 400 + 100 * parts : 170 + 420 * part) +
                     patch.columns % wide / family::region_pixels * (80 + 200 * part));
    } else if (mode == Mode::ieee && !tile.channels_last) {
      fill_clocks = (130 + 60 * parts) * regions * part;
    }
  } else if (gathers) {
    fill_clocks = 300 * regions * (elements ? 2 : 1) * part;
  } else if (p.x_strides[1] == 1) {
    fill_clocks = 220 * regions * (elements ? 3 : 1) * part;
  } else if (element == 4) {
    fill_clocks = ((120 + 40 * parts) * regions + 5 * lines) * (elements ? 2 : 1) * part;
  } else {
    fill_clocks = (125 * regions + (115 * regions + 5 * lines) * part) * (elements ? 2 : 1);
  }
  // To bring x into channels_last, it is read and written once more, all its parts.
  // Where positions begin anywhere its vectors are shifted.
  const bool shifted = p.in_channels > 1 && p.x_strides[1] == 1 &&
                       p.in_channels_per_group() * element_size(p.dtype) % family::unit_bytes != 0;
  const double twice = (1 + parts) * element * static_cast<double>(p.batch * p.in_channels) *
                       static_cast<double>(p.in_h * p.in_w) / ((shifted ? 0.68 : 0.82) * device.bandwidth);
  const double read_parts = tile.channels_last ? parts : 1;
  // Boxes of rows take 1 to 1.1 times less than what threads write, which is not in the constants.
  const bool writes_boxes = y_innermost && y_boxes;
  // Where rows are innermost in y, their parts in a tile are written for themselves. Columns of which a tile does not
  // have all phases are written one by one: tiles of other phases write the same sectors at another time, and lines of
  // which a tile has a part are worse.
  const bool squares = !gathers && tile.piece_rows > 1;
  const bool merged = squares && tile.columns % 16 == 0 && family::merges_pieces(config, element_size(p.dtype));
  const int32_t columns_together = squares ? (merged ? 16 : 8) : tile.im2col ? patch.columns : tile.columns;
  double again = 0;  // writing, in times that of y
  const double visits = static_cast<double>(p.stride_w) / tile.column_phases;
  if (y_innermost) {
    // Pixels that are less than a line, and whose neighbours are written at another time.
    if (visits > 1 && p.out_channels * element < 128) again = 2;
  } else {
    const auto part_columns = static_cast<int32_t>(columns_together * p.stride_w);
    const double row_part = part_columns * element, shared = sectors_of_parts(p, part_columns) - 1;
    again = 3.8 * shared * shared + (visits > 1 ? 3.4 * std::pow(visits - 1, 0.9) * (1 + 46 / row_part) : 8 / row_part);
  }
  // Weights that do not stay in L2 are read from memory by each wave of blocks: those of all channels and phases that
  // one has at the same positions.
  const double w_bytes = static_cast<double>(n.fragments) * family::block_bytes * parts;
  const double of_positions = static_cast<double>(n.channels * t.sets * p.groups);
  const double passes = static_cast<double>(n.blocks) / std::max(of_positions, cores);
  const double weights_again = 5 * w_bytes > 2.0 * static_cast<double>(device.l2_bytes) ? std::max(passes - 1, 0.0) : 0;
  const double traffic = static_cast<double>(p.compulsory_bytes()) +
                         again * element * static_cast<double>(p.y_elements()) + weights_again * w_bytes;
  // Of the memory's rate.
  const double bytes_of_lane = element * implicit_gemm::store_width(p, nullptr, tile, n.columns);
  const double store_rate = y_innermost ? 0.66 : bytes_of_lane > 2 ? 0.92 : 0.48;
  // Gathered inputs stay for other tiles if theirs are the same ones: kernels as large as the stride.
  bool one_shift = true;
  for (int32_t i = 0; i < t.sets; ++i) {
    const family::Step& step = t.step[t.set[i].first_step];
    one_shift &= t.set[i].steps == 1 && step.row == t.step[0].row && step.column == t.step[0].column;
  }
  const int64_t tiles = n.channels * t.sets;
  // Up to 8 splits of reductions that would leave multiprocessors idle; and all steps shared out evenly.
  constexpr int32_t most_splits = 8;
  for (int32_t attempt = 1; attempt <= most_splits + 1; ++attempt) {
    const bool balanced = attempt > most_splits;
    tile.balanced_blocks = balanced ? device.multiprocessors : 0;
    const int32_t splits = balanced ? family::most_parts(t, n, tile.balanced_blocks) : attempt;
    if (!balanced && (splits > n.chunks || (splits > 1 && n.blocks * splits > device.multiprocessors))) continue;
    if (splits == 0 || !compiled(splits)) continue;
    tile.splits = splits;
    for (int64_t reuse = 1; reuse <= tiles; ++reuse) {
      if (tiles % reuse != 0) continue;
      const bool same_patch = all_have_taps && (!gathers || one_shift);
      if (reuse > 1 && (splits > 1 || !same_patch || n.chunks > family::most_patch_stages)) break;
      tile.reuse = static_cast<int32_t>(reuse);
      // Stages for a whole patch if it stays, and for the next one's first chunk; up to four.
      family::SharedLayout shared{};
      const auto fewest =
          std::max<int32_t>(family::fewest_patch_stages, reuse > 1 ? static_cast<int32_t>(n.chunks) : 0);
      for (int32_t stages = std::max(4, std::min(fewest + 1, family::most_patch_stages)); stages >= fewest; --stages) {
        shared = family::shared_layout(config, p, t, patch, tile, stages);
        if (shared.bytes > 0) break;
      }
      // Fewer of them, if all weights stay then and warpgroups that take tiles in turn need not wait for theirs.
      for (int32_t stages = shared.patch_stages; config.alternate() && stages >= fewest; --stages) {
        const family::SharedLayout other = family::shared_layout(config, p, t, patch, tile, stages);
        if (other.bytes == 0 || family::multiplies_in_turn(other, t, tile, n)) continue;
        shared = other;
        break;
      }
      if (shared.bytes == 0 || shared.bytes > device.shared_memory_per_block) continue;
      tile.patch_stages = shared.patch_stages;
      const double blocks = static_cast<double>(n.blocks) * splits;
      if (blocks >= std::numeric_limits<int32_t>::max() || n.fragments >= std::numeric_limits<int32_t>::max()) return;
      const family::Workspace workspace = family::make_workspace(config, p, n, tile);
      // What comes before: x and the weights are prepared at the same time.
      const bool packs = !tile.weights_in_place;
      const double packing =
          packs ? 1e-6 + packing_seconds(p, device, n.fragments * family::block_bytes * family::parts_of(mode)) : 0;
      const double bringing = tile.channels_last ? 1.7e-6 + twice : 0;
      const double preparation = std::max(packing, bringing) + 0.4 * std::min(packing, bringing);
      // Tiles of a block, or parts of them.
      const double shares_of_block = static_cast<double>(n.blocks) / cores + 1;
      const double waves = balanced
                               ? shares_of_block
                               : std::ceil(blocks / static_cast<double>(reuse) / cores) * static_cast<double>(reuse);
      const double chunks =
          balanced ? static_cast<double>(n.blocks * n.chunks) / cores / waves : static_cast<double>(n.chunks) / splits;
      const bool ieee = mode == Mode::ieee;
      double multiply = chunks * blocks_of_weights * products_of_chunk * config.groups_n * config.pieces *
                        product_clocks(config.width, ieee ? 0.9 : 0.75) * clock;
      if (ieee) {
        // Three products of the parts. A warpgroup's sums leave after each step, while the other one multiplies.
        multiply *= 3;
        multiply = std::max(multiply, multiply / 2 + chunks * steps * (config.accumulators() + 200) * clock);
      } else {
        multiply *= element == 4 ? 0.43 : 0.62;
      }
      // What a step takes beside its products, and a patch.
      const double patches = gathers ? chunks * steps : chunks / static_cast<double>(reuse);
      const double overhead = (chunks * steps *
                                   (gathers ? 550
                                    : ieee  ? 420
                                            : 310) +
                               patches * (ieee ? 200 : 150)) *
                              clock;
      const double weights = shared.weights_stay ? 0 : chunks * blocks_of_weights * family::block_bytes * parts;
      const double bytes_read =
          patches * patch.pixels * std::min<double>(chunk, p.in_channels_per_group()) * element * read_parts + weights;
      const double readers = balanced ? cores : std::min(blocks / static_cast<double>(reuse), cores);
      const double read = bytes_read / device.bandwidth * std::max(cores / 2, readers / 2);
      const double load = std::max(read, patches * fill_clocks * clock);
      const double parts_of_tile = balanced ? 1 + cores / static_cast<double>(n.blocks) : splits;
      // A tile's sums are written while its warpgroup multiplies nothing. If warpgroups take tiles in turn, the other
      // one multiplies, or both whenever they can. Those of splits are written in float32, and read by the last of
      // them.
      const double written =
          64.0 * config.rows() * config.columns() * (splits > 1 ? 4 * (1.1 + 0.27 * parts_of_tile) : element);
      // Outputs without taps are written one vector at a time.
      const double store =
          (1 + 2.6 * tapless + 0.15 * std::log2(tile.stacked_rows)) *
          (written / (store_rate * device.bandwidth / cores) + 2000.0 / 4 * config.rows() * config.pieces * clock);
      // What it takes more where two warps transpose the weights, or where few of a chunk's channels are there: a block
      // of them. Those that stay come once.
      const double blocks_in_place =
          tile.weights_in_place ? chunks * blocks_of_weights / (shared.weights_stay ? waves : 1) : 0;
      const double of_block = element == 4 ? 320 : few_channels(p) ? 150 : 0;
      const double mean = std::max(multiply + overhead, load) + of_block * blocks_in_place * clock;
      const bool in_turn = family::multiplies_in_turn(shared, t, tile, n);
      // The kernel for boxes of x and y alone has fewer instructions to wait for, in each tile and at first.
      const bool boxes_alone = writes_boxes && innermost && !tile.rows_in_boxes && splits == 1 && !ieee &&
                               !(mode == Mode::tf32 && tile.weights_in_place);
      // But of few products of 16-bit types a tile waits for each step.
      const bool brief = element == 2 && (products_of_chunk <= 2 || chunks * steps <= 1);
      const bool quick = boxes_alone && !brief;
      // Warps that split x into its parts share the memory with the products.
      // Blocks that begin anywhere in a tile do not read the same inputs and weights at the same time.
      const double shares = (ieee && innermost && !tile.channels_last ? 1.05 : 1) * (balanced ? 1.05 : 1);
      const auto seconds_if = [&](double uneven) {
        const double main = uneven * mean, both = main + store;
        const double turn = in_turn ? std::max(main, (quick ? 0.89 : 0.9) * both)
                                    : std::max({load, multiply, (quick ? 0.7 : 0.78) * both});
        const double work =
            shares * (config.alternate() ? waves * turn + std::min(store, both / 2) : waves * both) + 1500 * clock;
        return launch_seconds + (boxes_alone ? 7.2e-6 : 9e-6) + preparation + (splits > 1 ? 3e-6 : 0) +
               (boxes_alone ? 0.9 : 1) *
                   std::pow(std::pow(work, 1.5) + std::pow(traffic / (1.25 * device.bandwidth), 1.5), 2.0 / 3);
      };
      if (seconds_if(1) >= best.seconds) continue;
      const int64_t units = n.blocks * splits / reuse;
      const double seconds =
          balanced ? seconds_if(1 + steps / 2 / (chunks * steps * waves))  // a block's last chunk is whole
                   : seconds_if(busiest(t, n.channels, reuse, units, std::min<int64_t>(units, device.multiprocessors)));
      if (seconds < best.seconds) {
        const int64_t grid = balanced ? device.multiprocessors
                                      : std::min<int64_t>(static_cast<int64_t>(blocks) / reuse, device.multiprocessors);
        best = {tile, grid, shared.bytes, workspace.bytes, seconds};
      }
    }
  }
}

// What all ways of a configuration have alike: the phases that a tile has of the columns, and its tables with 1, 2 and
// 4 rows of y stacked, as far as it takes them; or why it takes none.
struct Phases {
  std::string refusal;
  int32_t columns = 0;
  std::vector<family::Tables> stacked;
};

Phases phases_of(const Problem& p, const Config& config) {
  // All phases of the columns in a warpgroup, so that it writes whole lines, or as many as it has blocks for.
  Phases phases;
  family::Tables t;
  const auto cannot_hold = [&](int32_t columns) -> std::string {
    const std::string cannot = text(family::make_tables(config, p, columns, 1, t));
    if (!cannot.empty()) return cannot;
    for (int32_t i = 0; i < t.sets; ++i) {
      if (t.set[i].columns > config.m_blocks) return "has too few blocks for the phases";
    }
    return "";
  };
  phases.columns = static_cast<int32_t>(p.stride_w);
  phases.refusal = cannot_hold(phases.columns);
  while (!phases.refusal.empty() && phases.columns > 1) {
    phases.columns = (phases.columns + 1) / 2;
    phases.refusal = cannot_hold(phases.columns);
  }
  if (!phases.refusal.empty()) return phases;
  phases.stacked.push_back(t);
  for (int32_t stacked = 2; stacked <= family::most_stacked && stacked <= p.out_h; stacked *= 2) {
    if (!family::make_tables(config, p, phases.columns, stacked, t).empty()) break;
    phases.stacked.push_back(t);
  }
  return phases;
}

// Why a configuration takes nothing of a problem, in whatever way, but for its phases; empty if it may.
std::string mode_refusal(const Problem& p, const Config& config) {
  if (family::has_mode(config, family::mode_of(p))) return "";
  if (family::mode_of(p) == Mode::ieee) return "has no registers for promoted sums, which float32 without TF32 needs";
  return config.tf32 != 0 ? "is for TF32" : config.half != 0 ? "is for 16-bit types" : "is for float32 without TF32";
}

Candidate candidate_of(const Problem& p, const DeviceInfo& device, int32_t row, Way way, const Phases& phases) {
  const Config& config = family::configs[row];
  const std::string name = family::name_of(config, way);
  const auto refused = [&](const std::string& why) { return refuse(Algorithm::implicit_gemm_sm90, name, why); };
  if (way.source == Source::rows && !family::may_bring_rows(p)) {
    return refused("takes x whose rows are innermost and begin at multiples of 16 bytes");
  }
  if (way.source == Source::copy && !may_bring_into_channels_last(p)) {
    return refused("copies x of less than 1 GiB that is not yet as the copy engine and the tensor cores take it");
  }
  if (!phases.refusal.empty()) return refused(phases.refusal);
  if (way.form == Form::gathered) {
    if (!may_gather(p, phases.stacked[0])) return refused("gathers images and kernels of fewer rows and columns");
  }
  Choice best;
  GemmTile tile;
  tile.row_phases = 1, tile.column_phases = phases.columns;
  tile.channels_last = way.source == Source::copy, tile.rows_in_boxes = way.source == Source::rows;
  const int32_t pieces = config.groups_n * config.pieces;
  // Small images: all positions of a row, of as many rows and images as a tile has positions for.
  const int64_t all_rows = ceil_div(p.out_h, p.stride_h), all_columns = ceil_div(p.out_w, p.stride_w);
  const auto consider_gathered = [&](const family::Tables& t) {
    tile.piece_rows = 0, tile.im2col = false;
    if (all_columns <= config.columns()) {
      tile.columns = static_cast<int32_t>(all_columns);
      tile.rows = static_cast<int32_t>(std::min(all_rows, config.columns() / all_columns));
      tile.images = tile.rows < all_rows
                        ? 1
                        : static_cast<int32_t>(std::min(p.batch, config.columns() / (all_rows * all_columns)));
      consider(p, device, config, t, tile, best);
    }
    if (family::may_bring_im2col(p, t)) {
      tile.im2col = true, tile.images = tile.rows = 1, tile.columns = config.columns();
      consider(p, device, config, t, tile, best);
    }
  };
  const auto consider_tiles = [&](const family::Tables& t) {
    if (way.form == Form::gathered) return consider_gathered(t);
    tile.piece_rows = way.form == Form::squares ? config.width / 8 : 1;
    for (int32_t columns = 1; columns <= pieces; columns *= 2) {
      for (int32_t rows = 1; rows * columns <= pieces; rows *= 2) {
        tile.columns = columns * (config.width / tile.piece_rows), tile.rows = rows * tile.piece_rows;
        tile.images = pieces / (columns * rows);
        consider(p, device, config, t, tile, best);
      }
    }
  };
  // Only TF32's, those of few channels, or those of rows of y cost something where they are.
  const bool in_place_is_free = p.dtype != DataType::float32 && !few_channels(p) && family::channels_innermost(p);
  // What is gathered is not stacked.
  const size_t most = way.form == Form::gathered ? 1 : phases.stacked.size();
  for (size_t i = 0; i < most; ++i) {
    tile.stacked_rows = 1 << i;
    const bool may_place = family::weights_in_place(p, tile.stacked_rows);
    for (const bool in_place : {false, true}) {
      if (in_place ? !may_place : may_place && in_place_is_free) continue;
      tile.weights_in_place = in_place;
      consider_tiles(phases.stacked[i]);
    }
  }
  if (best.grid == 0) {
    if (way.form == Form::gathered && all_columns > config.columns()) {
      return refused("gathers images of no more columns than a tile, unless the copy engine brings x in im2col mode");
    }
    const auto compiled = [&](family::Variant v) { return family::has_variant(config, family::mode_of(p), v); };
    if (way.source == Source::direct && !(has_pixels_of_units(p) && p.x_aligned) &&
        !compiled(family::Variant::threads)) {
      return refused("is compiled for x that the copy engine brings");
    }
    return refused(compiled(family::Variant::general) || compiled(family::Variant::threads)
                       ? "needs more shared memory than a block has"
                       : "is compiled for boxes of x and whole rows of y, without gathering and splits");
  }
  return chosen_tile(Algorithm::implicit_gemm_sm90, name, row, family::threads, best);
}

}  // namespace

void implicit_gemm_sm90_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const auto candidates_of = [&](const Problem& q) {
    const std::string refused = refusal(q, device);
    std::vector<Candidate> candidates;
    for (int32_t row = 0; row < family::config_count; ++row) {
      const Config& config = family::configs[row];
      const std::string reason = refused.empty() ? mode_refusal(q, config) : refused;
      const Phases phases = reason.empty() ? phases_of(q, config) : Phases{};
      for (const Way way : family::ways) {
        candidates.push_back(reason.empty()
                                 ? candidate_of(q, device, row, way, phases)
                                 : refuse(Algorithm::implicit_gemm_sm90, family::name_of(config, way), reason));
      }
    }
    return candidates;
  };
  add_better_foldings(p, candidates_of, out);
}

}  // namespace convt
