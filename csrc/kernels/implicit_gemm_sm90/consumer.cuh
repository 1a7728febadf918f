// The consumers: two warpgroups multiply, and write their sums.
#pragma once

#include <type_traits>

#include "epilogue.cuh"
#include "producer.cuh"
#include "row_boxes.cuh"
#include "unaligned_rows.cuh"

namespace convt::implicit_gemm_sm90 {

template <Mode mode, int Row, Variant variant>
CONVT_DEVICE void consume(const Params& p, unsigned char* shared, const Barriers& barriers) {
  constexpr bool general = is_general(variant), shares = variant == Variant::balanced,
                 boxes = variant == Variant::boxes, channels = variant == Variant::channels,
                 unaligned = variant == Variant::unaligned_rows;
  using Scalar = typename Traits<mode>::Scalar;
  constexpr Config config = configs[Row];
  constexpr int width = config.width, pieces = config.pieces, blocks = config.m_blocks;
  constexpr int slab = slab_of(config), slab_pitch = slab_pitch_of(config);
  constexpr int most_count = row_bytes / k_bytes;
  // A step's fragment of a block of rows. If it has two parts, sums leave the tensor core after two products of
  // channels, because it truncates the sum so far; one warpgroup's leave while the other one multiplies.
  constexpr int parts = parts_of(mode), fragment_bytes = block_bytes * parts;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  // The same for all threads of a warp, and the compiler has to see that: products in a branch that might diverge are
  // done one after another.
  const int32_t group = __shfl_sync(0xffffffffu, thread / 128, 0);
  constexpr bool alternate = config.alternate();
  const WarpPlace w{alternate ? 0 : group / config.groups_n, alternate ? 0 : group % config.groups_n, thread / 32 % 4,
                    thread % 32};
  const auto* const edges = reinterpret_cast<const uint32_t*>(shared + words_at);
  auto* const last_split =
      reinterpret_cast<uint32_t*>(shared + words_at) + most_patch_stages + 2 + (alternate ? group : 0);
  const auto staged_by = [&](int32_t t) {
    return reinterpret_cast<float*>(shared + p.sums_at) + t / 32 * (blocks * block_words<Row>);
  };
  device::Ring patch, ring;
  // Where this warpgroup's pieces begin in a patch, and how far it is from 8 positions to the next 8. In units of 16
  // bytes, as descriptors count.
  uint32_t piece_units[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const int32_t piece = w.group_n * pieces + i;
    const PiecePlace at = piece_place(p, piece);
    const int32_t row = at.image * p.patch_rows + at.row * p.x_row_step;
    const int32_t pixel = general && p.gather ? piece * width : row * p.patch_columns + at.column;
    piece_units[i] = device::uniform(static_cast<uint32_t>(row_bytes / unit_bytes * pixel));
  }
  const auto stride_bytes =
      static_cast<uint32_t>(p.piece_rows > 1 ? row_bytes * p.patch_columns * p.x_row_step : 8 * row_bytes);
  // The first stage of each operand; all others are a distance from it.
  const device::SharedAddress memory = device::dynamic_shared_address();
  const device::MatrixDescriptor patches =
      device::matrix_descriptor(memory + static_cast<uint32_t>(p.patches_at), stride_bytes);
  const device::MatrixDescriptor weights =
      device::matrix_descriptor(memory + static_cast<uint32_t>(p.weights_at), swizzle_bytes);
  const bool elected = w.lane == 0;
  const uint32_t group_m = device::uniform(static_cast<uint32_t>(w.group_m));

  // Warpgroups that take tiles in turn: the one whose turn it is, and how often it was this one's.
  int32_t turn = 0, turns = 0;
  // While the second of two warpgroups that take turns waits for the first one's steps, or has no tile, it writes one
  // that is outside of the batch: the instructions that write the first tile have been fetched then.
  constexpr int32_t steps_of_rehearsal = 8;
  const bool idle = p.units <= static_cast<int32_t>(gridDim.x);
  bool rehearses = alternate && device::uniform(static_cast<uint32_t>(group)) == 1 && p.splits == 1 && p.reuse == 1 &&
                   (idle || p.chunks * p.sets[0].steps >= steps_of_rehearsal);
  // Slabs that this warpgroup's copies of boxes to y have had, if those of a tile are odd: their buffers alternate.
  [[maybe_unused]] uint32_t stored = 0;
  // Of the tiles that share a patch, how many are left.
  int32_t left = p.reuse;
  int32_t unit = first_unit<variant>(p);
  const int32_t end = units_end<variant>(p);
  // When a tile has ended, and no earlier: what it takes would be fetched before the first is begun. Not where a tile
  // begins: the compiler would make products wait for each other.
  const auto next_tile = [&] {
    if (left == 0) unit = next_unit<variant>(p, unit, end), left = p.reuse;
  };
  for (; unit < opaque(end); next_tile()) {
    Place at = place_of<variant>(p, unit, p.reuse - left);
    const DeviceSet& set = p.sets[at.set];
    Chunks chunks = chunks_of<variant>(p, at, unit, end);
    const bool rehearsal = rehearses;
    rehearses = false;
    // The patch is given back by the last tile of each warpgroup that reads it.
    const bool shared_patch = p.reuse > 1, gives_back = left <= (alternate && shared_patch ? 2 : 1);
    const bool unit_ends = left == 1;
    const int32_t steps = opaque(set.steps);
    if (rehearsal) {
      at.image = p.batch, chunks = {0, 0};
    } else {
      --left;
    }
    if (alternate && !rehearsal) {
      const bool mine = turn == group;
      turn ^= 1;
      if (!mine) {
        const int32_t count = chunks.last - chunks.first;
        if (unit_ends) patch.skip(general && p.gather ? count * steps : count, p.by_stages);
        ring.skip(count * steps, p.by_weight_stages);
        continue;
      }
    }
    // Sums begin with the bias, those of the first split: adding it afterwards is as many instructions again. But sums
    // of parts are kept small while they are added up, so that less is rounded.
    constexpr bool bias_first = mode != Mode::ieee;
    float sums[blocks][pieces][width / 2];
#pragma unroll
    for (int m = 0; m < blocks; ++m) {
      float bias[2];
      load_bias<mode>(p, at, w, p.channel_blocks > 1 ? w.group_m * blocks + m : 0, bias_first && at.split == 0, bias);
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
#pragma unroll
        for (int e = 0; e < width / 2; ++e) sums[m][i][e] = bias[e / 2 % 2];
        // As values that nobody knows: those that each loop below made for itself would be copied, and products wait.
        device::wgmma_results(sums[m][i]);
      }
    }
    if (alternate && p.in_turn && !rehearsal) {
      device::mbarrier_wait(barriers.order(group), static_cast<uint32_t>(turns + 1 - group) & 1);
      ++turns;
    }
    // A part of an infinity times a part that is zero is NaN, and so is one times the zero weight of a row of y that
    // has no tap where others of its block have one.
    const bool has_zeros = mode == Mode::ieee || (!boxes && p.stacked > 1);
    bool edge = has_zeros;
    // The barriers of the stages whose products have been issued but may not have been read: of the weights and of the
    // patch; or 0.
    device::SharedAddress used_weights = 0, used_patch = 0;
    const auto release = [&] {
      device::mbarrier_arrive_if(used_weights, elected && used_weights != 0);
      device::mbarrier_arrive_if(used_patch, elected && used_patch != 0);
      used_weights = used_patch = 0;
    };
    static_assert(config.rows() <= most_rows && most_rows == 2, "blocks of weights are counted without a loop");
    // A step is fetched while the one before is multiplied: it takes as long as its products to come.
    const DeviceStep* const table = p.steps + opaque(set.first_step);
    // All steps of the tile's chunks. Products are in flight from one to the next, and the compiler makes them wait for
    // each other unless it sees that whatever is decided here is decided alike by all threads: by parameters, by what
    // is counted from them, or by what comes from uniform(). A step is to take fewer instructions than clocks of
    // products, which is why its operands are counted on from step to step. If all steps are `alike`, each is for all
    // blocks, and a shift of the patch.
    bool first = !has_zeros;
    const auto multiply_steps = [&](auto major_, auto alike) {
      constexpr device::Major major = decltype(major_)::value;
      constexpr bool gathers = !decltype(alike)::value, masks = gathers && config.rows() > 1;
      constexpr bool k_major = major == device::Major::k;
      constexpr auto fragment_units = static_cast<uint32_t>(fragment_bytes / unit_bytes);
      // From the channels of a product to the next ones'.
      constexpr auto a_units =
          static_cast<uint32_t>((k_major ? k_bytes : channels_of_fragment(mode) * row_bytes) / unit_bytes);
      constexpr auto b_units = static_cast<uint32_t>(k_bytes / unit_bytes);
      const bool gather = general && gathers && p.gather;
      const uint32_t weights_turn = p.weights_stay ? 0 : 1;  // weights that stay come once
      const auto stage_units = static_cast<uint32_t>(p.weight_stage_bytes / unit_bytes);
      const device::SharedAddress a_first =
          device::uniform(device::start_of(weights)) + (masks || blocks > 1 ? 0 : group_m * fragment_units);
      const device::SharedAddress full_first = device::uniform(barriers.weights_full(0));
      const device::SharedAddress full_end = full_first + 8 * static_cast<uint32_t>(p.weight_stages);
      const auto stage = device::uniform(static_cast<uint32_t>(ring.stage));
      device::SharedAddress full = full_first + 8 * stage;
      device::SharedAddress a_stage = a_first + stage_units * stage, patch_units = 0;
      uint32_t parity = device::uniform(ring.parity & weights_turn);
      auto patch_stage = device::uniform(static_cast<uint32_t>(patch.stage)),
           patch_parity = device::uniform(patch.parity);
      const int32_t count_of_last = p.last_count;
      int32_t step = 0, chunks_left = p.chunks - chunks.first;  // of all splits
      DeviceStep next = table[0];
      uint32_t there = 0;  // whether the weights of a step are known to be there
#pragma unroll 1
      for (int32_t left = (chunks.last - chunks.first) * steps; left > 0; --left) {
        const DeviceStep now = next;
        const bool first_step = step == 0, last_step = step == steps - 1;
        step = last_step ? 0 : step + 1;
        next = table[step];
        if (gather || first_step) {
          device::mbarrier_wait(barriers.patch_full(static_cast<int32_t>(patch_stage)), patch_parity);
          // Read by the lane that gives the stage back.
          if (first) edge = device::uniform(__shfl_sync(0xffffffffu, elected ? edges[patch_stage] : 0, 0)) != 0;
          first = false;
          patch_units = device::uniform(device::start_of(patches)) +
                        patch_stage * static_cast<uint32_t>(p.patch_bytes / unit_bytes);
        }
        const device::SharedAddress b_stage = patch_units + (gather ? 0 : now.offset / unit_bytes);
        device::mbarrier_wait_unless(there, full, parity);
        const bool whole = chunks_left > 1 || count_of_last == most_count;
        // The products of some blocks, as one group. Each branch commits its own: a group whose last product the
        // compiler does not see becomes two, and then nothing is left in flight by the wait below.
        const auto multiply = [&](auto first_, auto last_, uint32_t first_stage_block) {
          constexpr int first_block = decltype(first_)::value, last_block = decltype(last_)::value;
          const device::SharedAddress a = a_stage + first_stage_block * fragment_units;
          // Of all blocks and pieces, so far into the operands.
          const auto multiply_at = [&](auto& to, auto is_first, uint32_t a_more, uint32_t b_more) {
#pragma unroll
            for (int m = 0; m < last_block - first_block; ++m) {
#pragma unroll
              for (int i = 0; i < pieces; ++i) {
                const auto a_now = device::with_start(weights, a + a_more + static_cast<uint32_t>(m) * fragment_units);
                const auto b_now = device::with_start(patches, b_stage + piece_units[i] + b_more);
                if constexpr (decltype(is_first)::value) {
                  device::first_wgmma<device::wgmma_type<Scalar>, width>(to(m, i), a_now, b_now);
                } else {
                  device::wgmma<device::wgmma_type<Scalar>, width, major>(to(m, i), a_now, b_now);
                }
              }
            }
          };
          constexpr std::false_type more{};
          if constexpr (parts == 2) {
            // The small products first: their sums are truncated to less than the large ones' are.
            float products[last_block - first_block][pieces][width / 2];
            const auto leaving = [&](int m, int i) -> float (&)[width / 2] { return products[m][i]; };
            constexpr uint32_t a_low = block_bytes / unit_bytes;
            const auto b_low = static_cast<uint32_t>(p.patch_part_bytes / unit_bytes);
            // Of one or two products of channels.
            const auto add_products = [&](int32_t k, auto last_product) {
              constexpr bool two = decltype(last_product)::value > 0;
              device::wgmma_fence();
              const uint32_t units = static_cast<uint32_t>(k) * b_units, second = units + b_units;
              multiply_at(leaving, std::true_type{}, units + a_low, units);
              if constexpr (two) multiply_at(leaving, more, second + a_low, second);
              multiply_at(leaving, more, units, units + b_low);
              if constexpr (two) multiply_at(leaving, more, second, second + b_low);
              multiply_at(leaving, more, units, units);
              if constexpr (two) multiply_at(leaving, more, second, second);
              device::wgmma_commit();
              device::wgmma_wait<0>();
#pragma unroll
              for (int m = first_block; m < last_block; ++m) {
#pragma unroll
                for (int i = 0; i < pieces; ++i) {
                  float (&sum)[width / 2] = products[m - first_block][i];
                  device::wgmma_results(sum);
#pragma unroll
                  for (int e = 0; e < width / 2; ++e) sums[m][i][e] += sum[e];
                }
              }
            };
            const int32_t count = whole ? most_count : count_of_last;
            int32_t k = 0;
#pragma unroll 1
            for (; k + 2 <= count; k += 2) add_products(k, std::integral_constant<int, 1>{});
            if (k < count) add_products(k, std::integral_constant<int, 0>{});
          } else {
            const auto kept = [&](int m, int i) -> float (&)[width / 2] { return sums[first_block + m][i]; };
            const auto multiply_channels = [&](int32_t k) {
              multiply_at(kept, more, static_cast<uint32_t>(k) * a_units, static_cast<uint32_t>(k) * b_units);
            };
            const auto multiply_so_many = [&](auto count) {
#pragma unroll
              for (int k = 0; k < decltype(count)::value; ++k) multiply_channels(k);
              device::wgmma_commit();
            };
            device::wgmma_fence();
            static_assert(most_count == 4);
            if (whole) {
              multiply_so_many(std::integral_constant<int, 4>{});
            } else if (count_of_last == 1) {
              multiply_so_many(std::integral_constant<int, 1>{});
            } else if (count_of_last == 2) {
              multiply_so_many(std::integral_constant<int, 2>{});
            } else {
              multiply_so_many(std::integral_constant<int, 3>{});
            }
          }
        };
        constexpr std::integral_constant<int, 0> zero{};
        constexpr std::integral_constant<int, 1> one{};
        constexpr std::integral_constant<int, blocks> all{};
        if constexpr (!masks) {
          multiply(zero, all, 0);
        } else if constexpr (blocks == 1) {
          if (now.mask >> group_m & 1) {
            multiply(zero, one, now.mask & group_m);
          } else {
            device::wgmma_wait<0>();
          }
        } else if (now.mask == 3) {
          multiply(zero, all, 0);
        } else if (now.mask == 1) {
          multiply(zero, one, 0);
        } else {
          multiply(one, all, 0);
        }
        // Nobody waits for those of weights that stay.
        const device::SharedAddress used_now = full + 8 * most_weight_stages;
        full += 8, a_stage += stage_units;
        if (full == full_end) full = full_first, a_stage = a_first, parity ^= weights_turn;
        there = device::mbarrier_test(full, parity);
        if constexpr (parts == 1) {
          device::wgmma_wait<1>();
          release();
        }
        used_weights = weights_turn != 0 ? used_now : 0;
        if (last_step) --chunks_left;
        if (gather || last_step) {
          if (gives_back) used_patch = barriers.patch_empty(static_cast<int32_t>(patch_stage));
          if (++patch_stage == static_cast<uint32_t>(p.stages)) patch_stage = 0, patch_parity ^= 1;
        }
        if constexpr (parts == 2) release();  // nothing is left in flight
      }
      patch.stage = static_cast<int32_t>(patch_stage), patch.parity = patch_parity;
      ring.stage = static_cast<int32_t>((full - full_first) / 8), ring.parity = parity;
    };
    constexpr std::integral_constant<device::Major, device::Major::k> k_major{};
    constexpr std::integral_constant<device::Major, device::Major::mn> m_major{};
    // (Those of TF32 have been transposed.)
    constexpr bool may_place = takes_in_place(mode, variant) && sizeof(Scalar) == 2;
    // Without gathering, the steps of one block of rows are alike.
    constexpr bool always_alike = parts == 1 && !general && config.rows() == 1;
    const auto multiply_in_place_or_packed = [&](auto alike) {
      if (may_place && p.weights_in_place) {
        if constexpr (may_place) multiply_steps(m_major, alike);
      } else {
        multiply_steps(k_major, alike);
      }
    };
    if (always_alike || (parts == 1 && p.steps_alike)) {
      if constexpr (parts == 1) multiply_in_place_or_packed(std::true_type{});
    } else {
      if constexpr (!always_alike) multiply_in_place_or_packed(std::false_type{});
    }
    // The next tile has the same patch.
    if (!unit_ends) patch.rewind(p.chunks, p.stages);
    if (alternate && p.in_turn && !rehearsal) {
      // All lanes have seen their own turn: without steps nothing else brings them together.
      __syncwarp();
      device::mbarrier_arrive_if(barriers.order(group ^ 1), elected);
    }
    device::wgmma_wait<0>();
    release();

    const Parts parts = parts_of<variant>(p, at, unit, chunks);
    if (parts.count == 1) [[likely]] {
      // The sums are whole.
    } else if (set.steps == 0) {
      // There is nothing to add up.
      if (at.split > 0) continue;
    } else {
      // Every part leaves its sums; the block that is last adds them all, in their order, whichever it is.
      constexpr int32_t elements = 64 * config.rows() * config.columns(), tile_threads = config.tile_threads();
      const int32_t barrier = 2 + (alternate ? group : 0), number = opaque(static_cast<int32_t>(threadIdx.x));
      float* const partials = p.partials + number % tile_threads;
      uint32_t* const done = p.counters + at.reduction;
      // What one thread finds out, for all.
      const auto whether = [&](const auto& is) {
        device::named_barrier(barrier, tile_threads);
        if (number % tile_threads == 0) {
          device::wait_for_previous_kernel();  // which clears the counters
          *last_split = is();
        }
        device::named_barrier(barrier, tile_threads);
        return *last_split != 0;
      };
      const auto others = static_cast<uint32_t>(parts.count - 1);
      // A block ends with the first part of a tile, and the next blocks begin with the others: these are there then,
      // and its own sums need not leave.
      bool last = shares && parts.part == 0 && whether([&] { return atomicAdd(done, 0u) == others; });
      if (!last) {
        float* const own = partials + parts.template at<variant>(parts.part) * elements;
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e)
              own[((m * pieces + i) * (width / 2) + e) * tile_threads] = sums[m][i][e];
          }
        }
        __threadfence();
        last = whether([&] { return atomicAdd(done, 1u) == others; });
      }
      if (!last) continue;
      __threadfence();
      // Two numbers have the same sum either way: the first two parts may be where they are. (Of splits all sums are
      // read: it is fewer instructions, for which small layers wait.)
      if (!shares || parts.part > 1) {
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e) sums[m][i][e] = -0.0f;
          }
        }
      }
      for (int32_t k = 0; k < parts.count; ++k) {
        if (shares && k == parts.part && k < 2) continue;
        const float* const theirs = partials + parts.template at<variant>(k) * elements;
#pragma unroll
        for (int m = 0; m < blocks; ++m) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e) {
              sums[m][i][e] += __ldcg(theirs + ((m * pieces + i) * (width / 2) + e) * tile_threads);
            }
          }
        }
      }
    }

    const bool at_edge = edge;
    // Sums that are infinite make it search, but no more than that.
    if (edge) [[unlikely]] {
      ZeroSum zeros;
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) zeros.add(sums[m][i]);
      }
      edge = __any_sync(0xffffffffu, zeros.is_nan()) != 0;
    }
    // Whether the sums are all phases of the columns that the set has.
    const bool one_phase = p.column_phases == 1 && (!general || set.columns == 1);
    const bool two_phases = blocks == 2 && p.column_phases == 2 && (!general || set.columns == 2);
    __syncwarp();
    const bool has_tapless = general && !p.channels_innermost && !one_phase && !two_phases;
    if (!bias_first || has_tapless) [[unlikely]] {
#pragma unroll
      for (int m = 0; m < blocks; ++m) {
        float bias[2];
        load_bias<mode>(p, at, w, p.channel_blocks > 1 ? w.group_m * blocks + m : 0, true, bias);
        if constexpr (!bias_first) {
#pragma unroll
          for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < width / 2; ++e) sums[m][i][e] += bias[e / 2 % 2];
          }
        }
        if (!has_tapless) continue;
        // Beyond the positions, for outputs that no tap reaches.
        const int32_t now = opaque(static_cast<int32_t>(threadIdx.x));
        float* const to = staged_by(now) + m * block_words<Row> + now % 32 / 4 * slab_pitch + slab + now % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(bias[0], bias[0]);
        *reinterpret_cast<float2*>(to + 8 * slab_pitch) = make_float2(bias[1], bias[1]);
      }
    }

    const int32_t barrier = 4 + group;
    constexpr int32_t group_threads = 128;
    const auto buffers_of_group = [&] {
      return device::dynamic_shared_address() +
             static_cast<uint32_t>(
                 p.sums_at + opaque(group) * (4 * blocks * block_words<Row> * static_cast<int32_t>(sizeof(float))));
    };
    // The copy engine writes what the warpgroup stages, in one layout or the other.
    const auto store_boxes = [&](auto layout) {
      using Layout = typename decltype(layout)::type;
      const device::SharedAddress buffers = buffers_of_group();
      const int32_t group_thread = opaque(static_cast<int32_t>(threadIdx.x)) % Layout::threads;
      // A thread's bulk stores are its own: the same one of a warp issues them all. The general kernel has no
      // registers for what the warp would keep beside its sums: there it is one thread that computes all anew for
      // each slab.
      const bool stores = general ? group_thread == 0 : device::uniform(static_cast<uint32_t>(w.warp)) == 0;
      constexpr int slabs = pieces * Layout::slabs;
      typename Layout::Boxes to(p, at, w.group_m, w.group_n * pieces, 0);
#pragma unroll 1
      for (int s = 0; s < slabs; ++s) {
        const int turn_of_buffer = slabs % 2 == 0 ? s : static_cast<int>(stored++);
        const device::SharedAddress buffer = buffers + static_cast<uint32_t>(turn_of_buffer % 2 * (staged_bytes / 2));
#pragma unroll
        for (int k = 0; k < slabs; ++k) {
          if (s == k) Layout::stage(p, sums, k, buffer, group_thread / 32, group_thread % 32);
        }
        device::fence_async_proxy();
        // Behind the barrier the other buffer has been read.
        if (stores) device::bulk_wait_read<0>();
        device::named_barrier(barrier, Layout::threads);
        if (stores) {
          if (general || (pieces > 1 && s == Layout::slabs)) to = {p, at, w.group_m, w.group_n * pieces, s};
          to.template store<!general>(p, p.sets[at.set], buffer);
          device::bulk_commit();
        }
      }
    };

    const auto write_tile = [&] {
      if (boxes || channels || (general && p.channels_innermost)) {
        using Layout = ChannelsLast<mode, Row>;
        if (boxes || (general && p.store_boxes)) {
          store_boxes(std::type_identity<Layout>{});
          return;
        }
        const device::SharedAddress buffers = buffers_of_group();
        const int32_t group_thread = opaque(static_cast<int32_t>(threadIdx.x)) % Layout::threads;
        typename Layout::Writer writer(p, at, w.group_m, group_thread);
        // Others may read the last slab of the tile before.
        device::named_barrier(barrier, Layout::threads);
#pragma unroll 1
        for (int s = 0; s < pieces * Layout::slabs; ++s) {
          const device::SharedAddress buffer = buffers + static_cast<uint32_t>(s % 2 * (staged_bytes / 2));
          // Only what stages a slab is chosen by its number: sums are registers.
#pragma unroll
          for (int k = 0; k < pieces * Layout::slabs; ++k) {
            if (s == k) Layout::stage(p, sums, k, buffer, group_thread / 32, group_thread % 32);
          }
          const int32_t piece = w.group_n * pieces + s / Layout::slabs, first = s % Layout::slabs * Layout::positions;
          if (first == 0 && !p.gather) {
            writer.locate(p, at, Slab(p, at, piece, 0, Layout::positions, false), writer.first_position());
          }
          device::named_barrier(barrier, Layout::threads);
          writer.write_at_width(p, at, piece, first, buffer);
        }
        return;
      }

      if constexpr (unaligned) {
        const auto write_lines = [&](auto phases, auto twos) {
          using Lines = UnalignedRows<mode, Row, decltype(phases)::value, decltype(twos)::value>;
          constexpr int lines = pieces * Lines::parts * Lines::blocks;
#pragma unroll 1
          for (int s = 0; s < lines; ++s) {
            const int32_t now_thread = opaque(static_cast<int32_t>(threadIdx.x));
            const WarpPlace now_w{w.group_m, w.group_n, now_thread / 32 % 4, now_thread % 32};
            const int piece = s / (Lines::parts * Lines::blocks), block = s / Lines::parts % Lines::blocks;
            const int32_t channel_block = w.group_m * Lines::blocks + block;
            auto* const staged = reinterpret_cast<unsigned char*>(staged_by(now_thread));
            const WarpChannels its(p, at, now_w, channel_block);
            const typename Lines::Line l =
                Lines::line(p, at, its, now_w.warp, w.group_n * pieces + piece, s % Lines::parts);
            __syncwarp();
            // Only what stages is chosen by its number: sums are registers.
#pragma unroll
            for (int k = 0; k < lines; ++k) {
              if (s != k) continue;
              const int k_piece = k / (Lines::parts * Lines::blocks), k_block = k / Lines::parts % Lines::blocks;
              const int first = k % Lines::parts * (Lines::positions / 8);
              Lines::stage(
                  l, [&](int j, int phase) -> const float* { return &sums[k_block + phase][k_piece][(first + j) * 4]; },
                  width / 8 - first, staged, now_w.lane);
            }
            __syncwarp();
            Lines::write(l, p.y_channel_stride, channel_block < p.channel_blocks ? its.count : 0, staged, now_w.lane);
          }
        };
        const auto write_phases = [&](auto twos) {
          if (blocks == 1 || p.column_phases == 1) {
            write_lines(std::integral_constant<int, 1>{}, twos);
          } else {
            write_lines(std::integral_constant<int, blocks>{}, twos);
          }
        };
        if (p.store_width > 1) {
          write_phases(std::true_type{});
        } else {
          write_phases(std::false_type{});
        }
        return;
      }

      if constexpr (!boxes && !channels && has_row_boxes(configs[Row], sizeof(Scalar))) {
        if (p.store_boxes) {
          store_boxes(std::type_identity<RowsInBoxes<mode, Row>>{});
          return;
        }
      }

      // A slab at a time through shared memory of the warp's own.
      constexpr bool may_merge = merges_pieces(config, sizeof(Scalar));
      const bool merged = may_merge && p.piece_rows > 1 && p.by_pieces_columns.divisor % 2 == 0;
      constexpr int slabs = (width + slab - 1) / slab, merged_slabs = (2 * width + slab - 1) / slab;
      RowWriter<Scalar> writer{};
#pragma unroll 1
      for (int s = 0; s < (merged ? merged_slabs : pieces * slabs); ++s) {
        // Nothing else that writing a slab computes is kept for the next one: registers are full of sums.
        const int32_t now_thread = opaque(static_cast<int32_t>(threadIdx.x));
        const WarpPlace now_w{w.group_m, w.group_n, now_thread / 32 % 4, now_thread % 32};
        float* const staged = staged_by(now_thread);
        Place now_at = at;
        now_at.set = opaque(at.set), now_at.channel_tile = opaque(at.channel_tile);
        const int piece = w.group_n * pieces + (merged ? 0 : s / slabs), first = merged ? s * slab : s % slabs * slab;
        // Stages slab s: its number chooses the registers. In the order of y, of one or two phases; or sums as they
        // are.
        const auto stage = [&](auto side_by_side, auto phases) {
          constexpr bool two = decltype(side_by_side)::value;
          constexpr int in_order = decltype(phases)::value;
#pragma unroll
          for (int k = 0; k < (two ? merged_slabs : pieces * slabs); ++k) {
            if (s != k) continue;
            constexpr int groups = slab / 8;
            const auto fragment = [&](int j, int m) -> const float* {
              return two ? &sums[m][j % 2][(k * (groups / 2) + j / 2) * 4]
                         : &sums[m][k / slabs][(k % slabs * groups + j) * 4];
            };
            const int count = smaller(groups, two ? 2 * (width / 8) - k * groups : width / 8 - k % slabs * groups);
            if constexpr (in_order > 0) {
              RowsInOrder<mode, Row, in_order>::stage(fragment, count, reinterpret_cast<unsigned char*>(staged),
                                                      now_w.lane);
            } else {
              float* const to = staged + now_w.lane / 4 * slab_pitch + now_w.lane % 4 * 2;
#pragma unroll
              for (int m = 0; m < blocks; ++m) {
#pragma unroll
                for (int j = 0; j < groups; ++j) {
                  if (j >= count) break;
                  const float* const v = fragment(j, m);
                  float* const block = to + m * block_words<Row> + j * 8;
                  *reinterpret_cast<float2*>(block) = make_float2(v[0], v[1]);
                  *reinterpret_cast<float2*>(block + 8 * slab_pitch) = make_float2(v[2], v[3]);
                }
              }
            }
          }
        };
        const auto stage_and_write = [&](auto phases) {
          constexpr int in_order = decltype(phases)::value;
          __syncwarp();
          if constexpr (may_merge) {
            if (merged) {
              stage(std::true_type{}, phases);
            } else {
              stage(std::false_type{}, phases);
            }
          } else {
            stage(std::false_type{}, phases);
          }
          __syncwarp();
          if constexpr (in_order > 0) {
            RowsInOrder<mode, Row, in_order>::write_at_width(p, now_at, now_w, piece, first, merged, writer,
                                                             reinterpret_cast<const unsigned char*>(staged));
          } else {
            const Slab now(p, at, piece, first, smaller(slab, (merged ? 2 * width : width) - first), merged);
            write_slab_at_width<mode, Row, static_cast<int>(16 / sizeof(Scalar))>(p, now_at, now_w, now, staged);
          }
        };
        if (one_phase || (!general && blocks == 1)) {
          stage_and_write(std::integral_constant<int, 1>{});
        } else if (blocks == 2 && (!general || two_phases)) {
          stage_and_write(std::integral_constant<int, blocks>{});
        } else if constexpr (general) {
          stage_and_write(std::integral_constant<int, 0>{});
        }
      }
    };
    write_tile();
    if (at_edge) [[unlikely]] {
      // What is looked at again has been written, by the same warp or by the warpgroup.
      if (!boxes && !channels && !p.store_boxes && !(general && p.channels_innermost)) {
        __syncwarp();
      } else if (device::named_barrier_or(barrier, group_threads, edge)) {
        device::bulk_wait();
        device::named_barrier(barrier, group_threads);
      }
      if (edge) correct_edges<mode, Row>(p, at, {w.group_m, w.group_n, w.warp, opaque(w.lane)});
    }
  }
  // Shared memory stays until the last boxes have been read.
  if (!channels && p.store_boxes && thread % 128 < 32) device::bulk_wait_read<0>();
}

}  // namespace convt::implicit_gemm_sm90
