// Times cuts of a family that has them: how a problem is divided among blocks, which the planner chooses by a model
// (`seconds` in the config.h of csrc/kernels/grouped, rolling_rows and warp_rows). Without torch, so that a kernel is
// tried within a minute and a half:
//
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=sm_90a -Icsrc -o cuts
//       benchmarks/cuts.cpp csrc/kernels/{grouped,rolling_rows,warp_rows}/launch.cu $(find csrc/plan -name '*.cpp')
//   ./cuts grouped benchmarks/data/cases.csv 200 kb75 kb81 > cuts.csv
//
// For every precision (TF32, strict float32, float16), layout and configuration that takes the case: the model's choice
// first, then the cuts that the model likes best and others at random, as many as the third argument says. A row is a
// median of 5 (the choice's of 15) of events around a launch, after 192 MB were written. Results are not checked:
// tests/ does that. Under compute-sanitizer it takes a minute where the tests, which import torch, take hours:
//
//   compute-sanitizer --tool racecheck ./cuts warp_rows benchmarks/data/small.csv 12 s1 s2 s3 s4 s5 s6
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/grouped/config.h"
#include "kernels/grouped/launch.h"
#include "kernels/rolling_rows/config.h"
#include "kernels/rolling_rows/launch.h"
#include "kernels/scalar.h"
#include "kernels/warp_rows/config.h"
#include "kernels/warp_rows/launch.h"
#include "plan/planner.h"

namespace convt {
namespace {

constexpr int64_t most_shared_bytes = 227 << 10;
constexpr size_t flushed_bytes = 192 << 20;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// The fields of a line of a CSV file; those in quotes may have commas.
std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> result(1);
  bool quoted = false;
  for (char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

Strides strides_of(const std::array<int64_t, 4>& s, bool last) {
  return last ? Strides{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : Strides{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
}

// By the file's header.
Problem problem_of(const std::map<std::string, int64_t>& c, DataType dtype, Precision precision, bool channels_last) {
  Problem p;
  p.dtype = dtype, p.precision = precision;
  p.batch = c.at("n"), p.in_channels = c.at("cin"), p.in_h = c.at("h"), p.in_w = c.at("w");
  p.out_channels = c.at("cout"), p.groups = c.at("groups");
  p.kernel_h = c.at("kh"), p.kernel_w = c.at("kw"), p.stride_h = c.at("sh"), p.stride_w = c.at("sw");
  p.padding_h = c.at("ph"), p.padding_w = c.at("pw"), p.dilation_h = c.at("dh"), p.dilation_w = c.at("dw");
  p.out_h = output_size(p.in_h, p.kernel_h, p.stride_h, p.padding_h, c.at("oph"), p.dilation_h);
  p.out_w = output_size(p.in_w, p.kernel_w, p.stride_w, p.padding_w, c.at("opw"), p.dilation_w);
  p.x_strides = strides_of(p.x_sizes(), channels_last), p.y_strides = strides_of(p.y_sizes(), channels_last);
  p.w_strides = strides_of(p.w_sizes(), false);
  p.has_bias = c.at("bias") != 0, p.bias_stride = 1;
  return p;
}

// Device memory of random numbers near 1 or less, in whichever type it is read.
void* operand(int64_t elements, DataType dtype) {
  const int64_t bytes = elements * element_size(dtype);
  void* result = nullptr;
  check(cudaMalloc(&result, static_cast<size_t>(bytes)));
  constexpr int64_t block = 1 << 20;
  std::vector<char> some(static_cast<size_t>(block * element_size(dtype)));
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < block; ++i) {
    const float v = uniform(generator);
    if (dtype == DataType::float32) {
      reinterpret_cast<float*>(some.data())[i] = v;
    } else {
      reinterpret_cast<Float16*>(some.data())[i] = from_float<Float16>(v);
    }
  }
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(some.size())) {
    const auto count = std::min<int64_t>(bytes - at, static_cast<int64_t>(some.size()));
    check(cudaMemcpy(static_cast<char*>(result) + at, some.data(), static_cast<size_t>(count), cudaMemcpyHostToDevice));
  }
  return result;
}

using Cut = std::array<int32_t, 8>;
using Timed = std::pair<double, Cut>;  // with the modelled time

// Whether a configuration takes a problem, as the planner says.
bool takes(const Explanation& explained, Algorithm algorithm, const std::string& configuration) {
  return std::any_of(explained.candidates.begin(), explained.candidates.end(), [&](const Candidate& c) {
    return c.algorithm == algorithm && c.configuration == configuration && c.fits();
  });
}

// What a family tells of its cuts: all of a configuration's for a problem that it takes, the model's choice first; and
// how one is launched.
struct Grouped {
  static constexpr const auto& configs = grouped::configs;
  static constexpr auto algorithm = Algorithm::grouped;
  static constexpr auto launch = grouped::launch;

  const grouped::Config& config;
  const Problem& problem;
  Phases h = phases(problem.axis_h());
  std::array<int64_t, 2> columns{};

  Grouped(int32_t row, const Problem& p) : config(configs[row]), problem(p) {
    const int64_t batches = ceil_div<int64_t>(p.stride_w, grouped::most_residues);
    columns = {p.kernel_w,
               grouped::shared_columns(p.axis_w(), phases(p.axis_w()), ceil_div<int64_t>(p.stride_w, batches))};
  }
  grouped::Tiling tiling(const Cut& cut) const { return grouped::tiling(config, problem, cut); }
  int64_t grid(const grouped::Tiling& t) const { return blocks(t, problem); }
  static int32_t block(const grouped::Tiling&) { return grouped::block; }
  double seconds(const grouped::Tiling& t) const {
    return grouped::seconds(t, config, problem, h, grouped::work_of(t, config, problem, h, columns), t.chunk_rows, {});
  }
  std::vector<Cut> cuts() const {
    const Problem& p = problem;
    const int64_t cout = p.out_channels_per_group(), tiles = ceil_div<int64_t>(cout, 8);
    const grouped::Tiling chosen = grouped::tiling(config, p, most_shared_bytes, {});
    std::vector<Cut> result{grouped::cut_of(chosen)};
    std::vector<std::pair<int64_t, int64_t>> channels;  // groups of a block, tiles of a group
    for (int64_t g = 2; g < 2 * p.groups && g * cout <= 256; g *= 2)
      channels.emplace_back(std::min(g, p.groups), tiles);
    for (int64_t t = tiles; t > 0; t /= 2) channels.emplace_back(1, t);
    const int64_t unit = 16 * grouped::pixel_tiles(config, p) * p.stride_w,
                  most_strips = ceil_div<int64_t>(p.out_w, unit);
    for (const auto& [groups, block_tiles] : channels) {
      for (int64_t strips = 1; strips <= std::min<int64_t>(most_strips, 16); strips += strips < 4 ? 1 : strips) {
        const int64_t columns =
            strips == 1 ? round_up(p.out_w, p.stride_w) : ceil_div<int64_t>(most_strips, strips) * unit;
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32}) {
          if (rows > p.out_h) continue;
          for (int64_t chunks = 1; chunks < 2 * p.out_h; chunks = chunks < 4 ? chunks + 1 : chunks * 3 / 2) {
            const int64_t chunk_rows = round_up(ceil_div<int64_t>(p.out_h, std::min(chunks, p.out_h)), rows);
            result.push_back({static_cast<int32_t>(groups), static_cast<int32_t>(round_up(block_tiles, config.tiles)),
                              static_cast<int32_t>(columns), static_cast<int32_t>(rows),
                              static_cast<int32_t>(chunk_rows), chosen.staged});
            if (chunk_rows == rows) break;
          }
        }
      }
    }
    return result;
  }
};

struct WarpRows {
  static constexpr const auto& configs = warp_rows::configs;
  static constexpr auto algorithm = Algorithm::warp_rows;
  static constexpr auto launch = warp_rows::launch;

  const warp_rows::Config& config;
  const Problem& problem;
  warp_rows::Work work = warp_rows::work_of(config, problem);

  WarpRows(int32_t row, const Problem& p) : config(configs[row]), problem(p) {}
  warp_rows::Tiling tiling(const Cut& cut) const { return warp_rows::tiling(config, problem, cut); }
  int64_t grid(const warp_rows::Tiling& t) const { return blocks(t, problem); }
  int32_t block(const warp_rows::Tiling& t) const { return warp_rows::block_threads(config, t); }
  double seconds(const warp_rows::Tiling& t) const { return warp_rows::seconds(t, config, problem, work, {}); }
  std::vector<Cut> cuts() const {
    const Problem& p = problem;
    std::vector<Cut> result{warp_rows::cut_of(warp_rows::choose(config, p, {}, most_shared_bytes).tiling)};
    const int64_t most = ceil_div<int64_t>(p.out_h, p.stride_h);
    const warp_rows::Tiling one = warp_rows::tiling(config, p, {1, 1, 1, 1, 1});
    const int32_t most_tiles = warp_rows::is_last(p) ? std::min(warp_rows::warps, 2 * one.tile_blocks - 1) : 1;
    if (config.whole()) {
      const std::vector<Cut> tried = warp_rows::cuts_of_rows(config, p);
      result.insert(result.end(), tried.begin(), tried.end());
    }
    // The warps that write rows together have all of their strips.
    const bool together = warp_rows::has_two_tiles(config.writes);
    const int32_t least_buffers = config.whole() ? 1 : 0,
                  most_buffers = config.whole() ? warp_rows::most_row_buffers : 0;
    for (int32_t tiles = 1; tiles <= most_tiles; tiles *= 2) {
      for (int32_t strips = together ? result[0][0] : 1; strips <= warp_rows::warps / tiles && strips < 2 * one.strips;
           strips *= 2) {
        for (int32_t rows = 1; rows < 2 * most && rows <= 128; rows += rows < 6 ? 1 : rows / 3) {
          if (together) {
            for (int32_t of_warp = 1; of_warp <= std::min(2, one.tiles); ++of_warp) {
              for (int32_t buffers = least_buffers; buffers <= most_buffers; ++buffers) {
                result.push_back({strips, rows, tiles, buffers, of_warp});
              }
            }
          } else {
            result.push_back({strips, rows, tiles});
          }
        }
      }
    }
    return result;
  }
};

struct RollingRows {
  static constexpr const auto& configs = rolling_rows::configs;
  static constexpr auto algorithm = Algorithm::rolling_rows;
  static constexpr auto launch = rolling_rows::launch;
  static constexpr int64_t multiprocessors = 132;

  const rolling_rows::Config& config;
  const Problem& problem;

  RollingRows(int32_t row, const Problem& p) : config(configs[row]), problem(p) {}
  rolling_rows::Tiling tiling(const Cut& cut) const { return rolling_rows::tiling(config, problem, cut); }
  int64_t grid(const rolling_rows::Tiling& t) const {
    return rolling_rows::blocks(t, problem, multiprocessors, most_shared_bytes);
  }
  static int32_t block(const rolling_rows::Tiling& t) { return 32 * t.warps; }
  double seconds(const rolling_rows::Tiling& t) const {
    return rolling_rows::seconds(t, config, problem, multiprocessors, most_shared_bytes, {});
  }
  std::vector<Cut> cuts() const {
    const Problem& p = problem;
    const auto chosen = rolling_rows::choose(config, p, multiprocessors, most_shared_bytes, {}, true);
    std::vector<Cut> result{rolling_rows::cut_of(chosen.tiling)};
    const int64_t most = rolling_rows::frames(p.axis_h()).count;
    const bool boxes = rolling_rows::takes_boxes(config, p, chosen.tiling);
    for (int32_t warps = rolling_rows::most_warps; warps > 0; warps /= 2) {
      for (int32_t splits = 1; splits <= warps && splits < 2 * chosen.tiling.steps; splits *= 2) {
        for (int32_t of_warp = 1; of_warp < 2 * most; of_warp += of_warp < 4 ? 1 : of_warp / 3) {
          result.push_back({warps, splits, of_warp, rolling_rows::least_stages, 0});
          if (boxes) result.push_back({warps, splits, of_warp, rolling_rows::box_stages, 1});
        }
      }
    }
    return result;
  }
};

// The model's choice, then others by their modelled time.
template <class Family>
std::vector<Timed> timed_cuts(const Family& family, const Problem& p) {
  std::set<Cut> seen;
  std::vector<Timed> result;
  for (const Cut& cut : family.cuts()) {
    if (!seen.insert(cut).second) continue;
    const auto t = family.tiling(cut);
    if (t.shared_bytes > most_shared_bytes || family.grid(t) > std::numeric_limits<int32_t>::max()) continue;
    result.emplace_back(family.seconds(t), cut);
  }
  std::sort(result.begin() + 1, result.end());
  return result;
}

template <class Family>
void measure(const std::string& name, const Problem& p, bool channels_last, int count) {
  const Operands operands{operand(p.x_elements(), p.dtype), operand(p.w_elements(), p.dtype), nullptr,
                          operand(p.out_channels, p.dtype), operand(p.y_elements(), p.dtype)};
  void* flushed = nullptr;
  check(cudaMalloc(&flushed, flushed_bytes));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  std::mt19937 generator(1);
  const Explanation explained = explain(p, *find_device("h200"));
  for (int32_t row = 0; row < static_cast<int32_t>(std::size(Family::configs)); ++row) {
    if (!takes(explained, Family::algorithm, Family::configs[row].name)) continue;
    const Family family(row, p);
    auto cuts = timed_cuts(family, p);
    // Half of them the first, half of them any that are not far from the best.
    const auto first = std::min<size_t>(cuts.size(), 1 + static_cast<size_t>(count) / 2);
    auto near = cuts.begin() + static_cast<int64_t>(first);
    while (near != cuts.end() && near->first < 1.8 * cuts[std::min<size_t>(1, cuts.size() - 1)].first) ++near;
    std::shuffle(cuts.begin() + static_cast<int64_t>(first), near, generator);
    cuts.resize(std::min<size_t>(static_cast<size_t>(near - cuts.begin()), 1 + static_cast<size_t>(count)));
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto& [seconds, cut] = cuts[i];
      Plan plan;
      plan.algorithm = Family::algorithm, plan.configuration = row, plan.cut = cut;
      const auto t = family.tiling(cut);
      plan.grid = family.grid(t), plan.block = family.block(t);
      std::vector<float> us;
      for (int sample = 0; sample < (i == 0 ? 15 : 5); ++sample) {
        float ms = 0;
        check(cudaMemsetAsync(flushed, sample, flushed_bytes));
        check(cudaEventRecord(begin));
        check(Family::launch(plan, p, operands, nullptr));
        check(cudaEventRecord(end));
        check(cudaEventSynchronize(end));
        check(cudaEventElapsedTime(&ms, begin, end));
        us.push_back(1000 * ms);
      }
      std::nth_element(us.begin(), us.begin() + static_cast<int64_t>(us.size() / 2), us.end());
      const bool tf32 = p.dtype == DataType::float32 && p.precision == Precision::tf32;
      std::printf("%s,%s,%s,%s,%d,%d,%d,%d,%d,%d,%.2f,%.2f\n", name.c_str(),
                  p.dtype == DataType::float16 ? "fp16"
                  : tf32                       ? "tf32"
                                               : "fp32",
                  channels_last ? "nhwc" : "nchw", Family::configs[row].name, static_cast<int>(i == 0), cut[0], cut[1],
                  cut[2], cut[3], cut[4], static_cast<double>(us[us.size() / 2]), 1e6 * seconds);
    }
    std::fflush(stdout);
  }
  for (const void* memory : {operands.x, operands.w, operands.bias, static_cast<const void*>(operands.result),
                             static_cast<const void*>(flushed)}) {
    check(cudaFree(const_cast<void*>(memory)));
  }
  check(cudaEventDestroy(begin)), check(cudaEventDestroy(end));
}

template <class Family>
int run(const char* path, int count, const std::set<std::string>& names) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const auto header = fields(line);
  std::printf("case,precision,layout,configuration,chosen,cut_0,cut_1,cut_2,cut_3,cut_4,us,modelled_us\n");
  size_t found = 0;
  while (std::getline(file, line)) {
    const auto values = fields(line);
    if (names.count(values[0]) == 0) continue;
    ++found;
    std::map<std::string, int64_t> numbers;
    for (size_t i = 2; i < std::min(header.size(), values.size()); ++i) {
      numbers[header[i]] = std::strtoll(values[i].c_str(), nullptr, 10);
    }
    for (const bool channels_last : {false, true}) {
      measure<Family>(values[0], problem_of(numbers, DataType::float32, Precision::tf32, channels_last), channels_last,
                      count);
      measure<Family>(values[0], problem_of(numbers, DataType::float32, Precision::ieee, channels_last), channels_last,
                      count);
      measure<Family>(values[0], problem_of(numbers, DataType::float16, Precision::ieee, channels_last), channels_last,
                      count);
    }
  }
  if (found == names.size()) return 0;
  std::fprintf(stderr, "%zu of %zu cases are in %s\n", found, names.size(), path);
  return 1;
}

}  // namespace
}  // namespace convt

int main(int argc, char** argv) {
  const std::string family = argc < 2 ? "" : argv[1];
  if (argc < 5 || (family != "grouped" && family != "rolling_rows" && family != "warp_rows")) {
    std::fprintf(stderr, "usage: %s grouped|rolling_rows|warp_rows CASES.csv CUTS CASE...\n", argv[0]);
    return 2;
  }
  const auto run = family == "grouped"        ? convt::run<convt::Grouped>
                   : family == "rolling_rows" ? convt::run<convt::RollingRows>
                                              : convt::run<convt::WarpRows>;
  return run(argv[2], std::atoi(argv[3]), {argv + 4, argv + argc});
}
