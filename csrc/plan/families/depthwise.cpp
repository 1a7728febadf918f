// One input channel a group, or few of them and one output channel. See csrc/kernels/depthwise.
#include <algorithm>
#include "../../kernels/depthwise/blocking.h"
#include "family.h"

namespace convt {
namespace {

using depthwise::Config;
using depthwise::Form;

constexpr int64_t threads_limit = std::numeric_limits<int32_t>::max() - slack;

std::string number(int64_t n) { return std::to_string(n); }

// Every offset inside an image is computed in 32 bits, tiles that reach beyond its end included.
constexpr int64_t image_limit = int64_t{1} << 30;

std::string size_refusal(const Problem& p, int64_t x_image, int64_t y_image, const char* image) {
  for (int64_t size : {p.in_h, p.in_w, p.padding_h, p.padding_w, x_image, y_image}) {
    if (size >= image_limit) return std::string("takes images of less than 2^30 elements") + image;
  }
  return "";
}

// From the first to the last element of a dimension.
int64_t extent(int64_t size, int64_t stride) { return checked_mul(size - 1, std::abs(stride)); }

std::string shape_refusal(const Config& config, const Problem& p) {
  const auto mismatch = [](const char* axis, const depthwise::AxisConfig& c, int64_t kernel, int64_t stride,
                           int64_t padding) -> std::string {
    const auto differs = [&](const char* what, int64_t wanted, int64_t given) {
      return std::string("has ") + what + " " + number(wanted) + " along " + axis + ", not " + number(given);
    };
    if (kernel != c.kernel) return differs("kernel", c.kernel, kernel);
    if (stride != c.stride) return differs("stride", c.stride, stride);
    if (padding % stride != c.padding % c.stride) {
      return differs("padding modulo stride", c.padding % c.stride, padding % stride);
    }
    return "";
  };
  const std::string reason = mismatch("the height", config.h, p.kernel_h, p.stride_h, p.padding_h);
  return !reason.empty() ? reason : mismatch("the width", config.w, p.kernel_w, p.stride_w, p.padding_w);
}

// Forms tile, rows and last: an axis of stride 1 is computed slice by slice if its kernel is dilated, but the columns
// of a plane are read and written in vectors.
std::string exact_refusal(const Config& config, const Problem& p) {
  if (p.in_channels_per_group() != 1) {
    return "takes 1 input channel a group, not " + number(p.in_channels_per_group());
  }
  const int64_t slices_h = depthwise::slices_of(p.kernel_h, p.dilation_h),
                slices_w = depthwise::slices_of(p.kernel_w, p.dilation_w);
  if (slices_h != 1 && config.h.stride != 1) return "takes dilation 1 along the height only";
  if (slices_w != 1 && (config.w.stride != 1 || config.form != Form::last)) {
    return "takes dilation 1 along the width only";
  }
  for (int axis : {2, 3}) {
    const int64_t slices = axis == 2 ? slices_h : slices_w;
    const int64_t stride = larger(std::abs(p.x_strides[axis]), std::abs(p.y_strides[axis]));
    if (slices != 1 && checked_mul(slices, stride) >= image_limit / 8) {
      return "takes dilated kernels whose taps are less than 2^27 elements apart";
    }
  }
  return "";
}

bool contiguous_kernels(const Problem& p) {
  return (p.kernel_w == 1 || p.w_strides[3] == 1) && (p.kernel_h == 1 || p.w_strides[2] == p.kernel_w);
}

std::string planes_refusal(const Problem& p) {
  if (p.in_w > 1 && p.x_strides[3] != 1) return "takes input rows that are contiguous in memory";
  if (!contiguous_kernels(p)) return "takes kernels that are contiguous in memory";
  if ((p.out_w > 1 && p.y_strides[3] != 1) || (p.out_h > 1 && p.y_strides[2] != p.out_w)) {
    return "writes contiguous outputs only";
  }
  return size_refusal(p, checked_add(extent(p.in_h, p.x_strides[2]), p.in_w), checked_mul(p.out_h, p.out_w),
                      " a channel");
}

std::string last_refusal(const Problem& p) {
  if (p.in_channels > 1 && p.x_strides[1] != 1) return "takes inputs whose channels are contiguous in memory";
  if (p.out_channels > 1 && p.y_strides[1] != 1) return "writes outputs whose channels are contiguous in memory";
  const auto image = [](int64_t channels, int64_t h, int64_t row, int64_t w, int64_t column) {
    return checked_add(channels, checked_add(extent(h, row), extent(w, column)));
  };
  return size_refusal(p, image(p.in_channels, p.in_h, p.x_strides[2], p.in_w, p.x_strides[3]),
                      image(p.out_channels, p.out_h, p.y_strides[2], p.out_w, p.y_strides[3]), "");
}

// Forms any, any_one and any_last.
std::string any_refusal(const Problem& p) {
  const int64_t inputs = p.in_channels_per_group(), outputs = p.out_channels_per_group();
  if (inputs > 1 && outputs > 1) {
    return "takes 1 input channel a group, or 1 output channel, not " + number(inputs) + " and " + number(outputs);
  }
  if (inputs > depthwise::most_inputs_of_a_group) {
    return "takes at most " + number(depthwise::most_inputs_of_a_group) + " input channels a group, not " +
           number(inputs);
  }
  // The arithmetic of taps is in 32 bits too.
  for (const Axis<int64_t>& a : {p.axis_h(), p.axis_w()}) {
    const int64_t reach = checked_add(checked_mul(a.in, a.stride), checked_mul(a.dilation, a.kernel));
    if (checked_add(reach, checked_add(a.out, a.padding)) >= image_limit ||
        checked_mul(a.tap_step, a.tap_step) >= image_limit ||
        checked_mul(checked_add(a.stride, 1), depthwise::columns_of_any) >= image_limit) {
      return "takes coordinates of less than 2^30";
    }
  }
  if (checked_add(extent(p.kernel_h, p.w_strides[2]), extent(p.kernel_w, p.w_strides[3])) >= image_limit) {
    return "takes kernels that reach less than 2^30 elements far";
  }
  return "";
}

// Form rows.
std::string vectors_refusal(const Config& config, const Problem& p) {
  const int64_t bytes = element_size(p.dtype), columns = depthwise::tile_of(config, bytes).columns;
  const auto whole = [](const std::array<int64_t, 4>& sizes, const Strides& strides, int dimensions, int64_t width) {
    for (int d = 0; d < dimensions; ++d) {
      if (sizes[d] > 1 && strides[d] % width != 0) return false;
    }
    return true;
  };
  const int64_t store = depthwise::widest_store(config, bytes), weights = depthwise::weight_piece(config, bytes);
  if (p.in_w % columns != 0 || p.out_w % store != 0) {
    return "takes widths that are multiples of " + number(columns) + " and, of the output, " + number(store);
  }
  if ((p.padding_w - config.w.padding) / config.w.stride % columns != 0) {
    return "takes padding that shifts the input by multiples of " + number(columns);
  }
  if (!whole(p.x_sizes(), p.x_strides, 3, columns) || !whole(p.y_sizes(), p.y_strides, 3, store) ||
      !whole(p.w_sizes(), p.w_strides, 2, weights)) {
    return "takes strides of whole vectors";
  }
  return "";
}

// `threads` of the form's launch, which are numbered in 32 bits.
std::string count_refusal(int64_t threads) {
  return threads < threads_limit ? "" : "needs " + number(threads) + " threads, more than it can number";
}

std::string one_tap_refusal(const Config& config, const Problem& p) {
  if (p.groups != 1) return "takes 1 group, not " + number(p.groups);
  std::string reason = shape_refusal(config, p);
  if (!reason.empty()) return reason;
  if ((p.dilation_h != 1 && p.kernel_h > 1) || (p.dilation_w != 1 && p.kernel_w > 1)) return "takes dilation 1 only";
  if (p.padding_h != 0 || p.padding_w != 0 || p.out_h != p.in_h * p.stride_h || p.out_w != p.in_w * p.stride_w) {
    return "takes no padding";
  }
  if (p.out_channels > config.channels) {
    return "takes at most " + number(config.channels) + " output channels, not " + number(p.out_channels);
  }
  if (p.in_h >= image_limit || p.out_w >= image_limit || p.in_channels >= image_limit) {
    return "takes images of less than 2^30 rows and columns";
  }
  if (p.in_channels == 0 || depthwise::one_tap_table_bytes(config, p) > depthwise::table_bytes) {
    return "has no room in shared memory for the weights of " + number(p.in_channels) + " input channels";
  }
  return "";
}

// Of tall tiles, so many blocks keep a multiprocessor as busy as the smaller tiles do.
constexpr int64_t tall_blocks = 3;

// One configuration for one problem: fills in the plan's grid, or says why not.
std::string plan_configuration(const Config& config, const Problem& p, const DeviceInfo& device, Plan& plan) {
  const int64_t bytes = element_size(p.dtype);
  const auto plan_threads = [&](int64_t threads) {
    plan.grid = ceil_div<int64_t>(threads, depthwise::block);
    return count_refusal(threads);
  };
  const auto blocks_refusal = [](const depthwise::Blocking& b) {
    if (b.lanes == 0) return std::string("has no room in shared memory for a kernel of this size");
    return count_refusal(checked_mul(checked_mul(b.groups, depthwise::block), b.chunks));
  };
  const auto plan_blocks = [&](const depthwise::Blocking& b, int64_t repeats) {
    std::string reason = blocks_refusal(b);
    // What is launched when memory is not aligned for vectors.
    if (reason.empty()) reason = blocks_refusal(depthwise::any_last_blocking(p, 1));
    if (reason.empty()) plan.grid = b.chunks * ceil_div(b.groups, repeats);
    return reason;
  };
  const auto first_of = [](std::initializer_list<std::string (*)(const Problem&)> checks, const Problem& problem) {
    for (const auto check : checks) {
      if (std::string reason = check(problem); !reason.empty()) return reason;
    }
    return std::string();
  };

  switch (config.form) {
    case Form::tile:
    case Form::rows: {
      std::string reason = exact_refusal(config, p);
      if (reason.empty()) reason = planes_refusal(p);
      if (reason.empty()) reason = shape_refusal(config, p);
      if (!reason.empty()) return reason;
      if (config.form == Form::rows) {
        // What the kernel for any shape refuses: it computes what lies in memory without alignment.
        reason = any_refusal(p);
        if (reason.empty()) reason = count_refusal(depthwise::any_threads(p, depthwise::columns_of_any));
        if (reason.empty()) reason = vectors_refusal(config, p);
        if (!reason.empty()) return reason;
      }
      const auto tiles = [&](depthwise::Access access) {
        const depthwise::Tile tile = depthwise::tile_of(config, bytes, access);
        return checked_mul(checked_mul(ceil_div<int64_t>(p.out_w, tile.columns * config.w.stride),
                                       depthwise::tiles_along(p.out_h, depthwise::slices_of(p.kernel_h, p.dilation_h),
                                                              tile.rows * config.h.stride)),
                           checked_mul(p.batch, p.out_channels));
      };
      // Which of them it is depends on pointers too, which only the launch knows.
      if (config.form == Form::tile) reason = count_refusal(tiles(depthwise::Access::elements));
      if (depthwise::has_tall(config, bytes)) {
        const int64_t tall = tiles(depthwise::Access::tall);
        plan.cut[0] = tall >= tall_blocks * depthwise::block * device.multiprocessors ? 1 : 0;
      }
      return reason.empty() ? plan_threads(tiles(depthwise::Access::vectors)) : reason;
    }
    case Form::last: {
      std::string reason = exact_refusal(config, p);
      if (reason.empty()) reason = last_refusal(p);
      if (reason.empty()) reason = shape_refusal(config, p);
      // What the kernel for any shape refuses: it computes what lies in memory without alignment.
      if (reason.empty()) reason = any_refusal(p);
      if (!reason.empty()) return reason;
      if (p.out_channels_per_group() != 1) {
        return "takes 1 output channel a group, not " + number(p.out_channels_per_group());
      }
      if (!contiguous_kernels(p) || (p.in_channels > 1 && p.w_strides[0] != p.kernel_h * p.kernel_w)) {
        return "takes weights that are contiguous in memory";
      }
      // A window's offsets too are computed in 32 bits.
      for (int64_t stride : {p.x_strides[2], p.x_strides[3]}) {
        if (stride >= image_limit / 8) return "takes rows of less than 2^27 elements";
      }
      const int32_t vector = depthwise::vector_of(config, bytes);
      if (!depthwise::takes_vectors(p, vector)) {
        return "takes channels and strides that are multiples of " + number(vector);
      }
      const depthwise::Blocking b = depthwise::last_blocking(config, p);
      return plan_blocks(b, depthwise::last_repeats(config, p, b, device.multiprocessors));
    }
    case Form::any_last: {
      const std::string reason = first_of({any_refusal, last_refusal}, p);
      if (!reason.empty()) return reason;
      const depthwise::Blocking b = depthwise::any_last_blocking(p, depthwise::any_vector(p));
      return plan_blocks(b, depthwise::repeats_of(b, device.multiprocessors));
    }
    case Form::one_tap: {
      const std::string reason = one_tap_refusal(config, p);
      if (!reason.empty()) return reason;
      return plan_threads(
          depthwise::one_tap_threads(p, depthwise::pixels_of_one_tap(config, bytes, depthwise::takes_channels(p))));
    }
    case Form::any:
    case Form::any_one: {
      std::string reason = any_refusal(p);
      if (reason.empty()) {
        reason =
            size_refusal(p, checked_add(extent(p.in_h, p.x_strides[2]), extent(p.in_w, p.x_strides[3])),
                         checked_add(extent(p.out_h, p.y_strides[2]), extent(p.out_w, p.y_strides[3])), " a channel");
      }
      if (!reason.empty()) return reason;
      return plan_threads(depthwise::any_threads(p, config.form == Form::any ? depthwise::columns_of_any : 1));
    }
  }
  return "is unknown";
}

// What the kernels for any shape take: the sum of what a warp issues, of the lines of memory that its loads and stores
// touch, one a cycle, and of a thread's waits. Measured, in cycles but for the waits.
struct AnyCosts {
  double waits, wait_of_tap;             // seconds
  double copy;                           // of the time of a copy
  double warp, row, tap, tap_of_halves;  // instructions
  double tap_of_channel;                 // of a vector
  double line, stored_line;
};
constexpr AnyCosts costs_of_any{2.4e-6, 0.24e-6, 0.23, 244, 45, 18, 8.5, 0, 0.40, 3.1};
constexpr AnyCosts costs_of_any_one{2.3e-6, 0.10e-6, 0.87, 307, 39, 11, 14, 0, 0.35, 9.4};
constexpr AnyCosts costs_of_any_last{3.3e-6, 0.29e-6, 0.46, 282, 0, 0, 0.4, 20, 0.52, 0};

double any_seconds(const Config& config, const Problem& p, const DeviceInfo& device) {
  const auto real = [](auto n) { return static_cast<double>(n); };
  const double bytes = real(element_size(p.dtype)), line = 128, lanes_of_warp = 32;
  const double inputs = real(p.in_channels_per_group());
  const double rows = inputs * std::max(1.0, real(p.kernel_h) / real(p.stride_h));
  const double taps = rows * std::max(1.0, real(p.kernel_w) / real(p.stride_w));
  AnyCosts costs = costs_of_any_last;
  double warps = 0, outputs = depthwise::columns_of_any, vector = 1, loaded = 1, stored = 1;
  if (config.form == Form::any_last) {
    vector = depthwise::any_vector(p);
    const depthwise::Blocking b = depthwise::any_last_blocking(p, depthwise::any_vector(p));
    warps = real(b.groups) * real(b.chunks) * (depthwise::block / lanes_of_warp);
    // Slots of a warp: neighbours are phases of the same columns, then the next columns.
    const double slots = std::max(1.0, lanes_of_warp / b.lanes);
    const double phases = std::min(slots, real(p.stride_w)), places = std::max(1.0, slots / phases);
    const double width = std::max(1.0, b.lanes * vector * bytes / line);
    loaded = std::min({places * width, places * outputs * real(p.in_channels) * bytes / line, lanes_of_warp});
    loaded = std::max({1.0, loaded, vector * bytes * lanes_of_warp / phases / line});
  } else {
    const bool one = config.form == Form::any_one;
    costs = one ? costs_of_any_one : costs_of_any;
    outputs = one ? 1 : depthwise::columns_of_any;
    warps = real(depthwise::any_threads(p, one ? 1 : depthwise::columns_of_any)) / lanes_of_warp;
    const bool channels = depthwise::channels_first(p);
    const auto lines = [&](double stride) {
      return std::clamp(lanes_of_warp * stride * bytes / line, 1.0, lanes_of_warp);
    };
    loaded =
        lines(channels ? real(std::abs(p.x_strides[1])) * inputs : real(std::abs(p.x_strides[3])) / real(p.stride_w));
    stored = lines(real(std::abs(p.y_strides[channels ? 1 : 3])));
  }
  const double cycle = 1 / (1.7e9 * device.multiprocessors), issue = cycle / 4;
  const double half = bytes == 2 ? 1 : 0;
  const double of_warp =
      costs.warp + costs.row * rows + taps * (costs.tap + costs.tap_of_halves * half + costs.tap_of_channel * vector);
  return launch_seconds + costs.waits + costs.wait_of_tap * taps +
         costs.copy * real(p.compulsory_bytes()) / device.bandwidth + warps * of_warp * issue +
         warps * outputs * (costs.line * taps * (loaded - 1) + costs.stored_line * stored) * cycle;
}

// A copy, or what a warp issues: for each input channel a load and for each output a multiply-add. Rows that are no
// whole vectors are read element by element.
double one_tap_seconds(const Config& config, const Problem& p, const DeviceInfo& device) {
  const bool last = depthwise::takes_channels(p);
  const int64_t bytes = element_size(p.dtype);
  const int32_t pixels = depthwise::pixels_of_one_tap(config, bytes, last);
  const bool vectors = last ? p.in_channels % (16 / bytes) == 0 : p.in_w % pixels == 0;
  const double outputs = config.h.stride * config.w.stride * config.channels;
  const double warps = static_cast<double>(depthwise::one_tap_threads(p, pixels)) / 32;
  const double of_channel = outputs * pixels + outputs / 4 + (vectors ? 4 : 8 * pixels);
  const double issue =
      warps * (200 + static_cast<double>(p.in_channels) * of_channel) / (4 * 1.7e9 * device.multiprocessors);
  const double copy = static_cast<double>(p.compulsory_bytes()) / device.bandwidth;
  // Measured. More than 4 channels of a pixel are stored in pieces, which touch a line of memory several times.
  const bool pieces = last && config.channels > 4;
  const double waits = (pieces ? 7.5e-6 : 5e-6) + (vectors ? 0 : 0.25e-6 * static_cast<double>(p.in_channels));
  const double stores = pieces ? static_cast<double>(p.y_elements() * bytes) / (0.11 * device.bandwidth) : 0;
  return launch_seconds + waits + std::max(copy * (last ? 1.4 : 1.15), (last ? 1.4 : 1.75) * issue) + stores;
}

double estimate(const Config& config, const Problem& p, const DeviceInfo& device) {
  if (config.form == Form::one_tap) return one_tap_seconds(config, p, device);
  if (!config.exact()) return any_seconds(config, p, device);
  const double copy = static_cast<double>(p.compulsory_bytes()) / device.bandwidth;
  // At the rate of a copy: no other family is faster. Form rows issues fewer instructions for the same shape. Of form
  // last, small tiles are better where not every multiprocessor has a block of large ones, and only there.
  double seconds = launch_seconds + copy * (config.form == Form::rows ? 0.98 : 1);
  if (config.form == Form::last) {
    const auto* const other =
        std::find_if(std::begin(depthwise::configs), std::end(depthwise::configs), [&](const Config& c) {
          return c.form == Form::last && c.small != config.small && depthwise::same_shape(c, config);
        });
    if (other != std::end(depthwise::configs)) {
      const Config& large = config.small ? *other : config;
      bool fills = false;
      // Its vectors may be longer, and not take the problem.
      if (depthwise::takes_vectors(p, depthwise::vector_of(large, element_size(p.dtype)))) {
        const depthwise::Blocking b = depthwise::last_blocking(large, p);
        fills = b.groups * b.chunks >= device.multiprocessors;
      }
      if (fills == config.small) seconds *= 1.4;
    }
  }
  return seconds;
}

}  // namespace

void depthwise_candidates(const Problem& p, const DeviceInfo& device, std::vector<Candidate>& out) {
  const std::string refusal = forward_refusal(p);
  for (int32_t row = 0; row < depthwise::config_count; ++row) {
    const Config& config = depthwise::configs[row];
    Candidate c = fitting(Algorithm::depthwise, config.name, row);
    const std::string reason = refusal.empty() ? plan_configuration(config, p, device, c.plan) : refusal;
    if (!reason.empty()) {
      out.push_back(refuse(Algorithm::depthwise, config.name, reason));
      continue;
    }
    c.plan.block = depthwise::block;
    c.estimated_seconds = estimate(config, p, device);
    out.push_back(c);
  }
}

}  // namespace convt
