"""The implicit GEMMs on tensor cores: their kernels in the SIMT emulator, their plans, and the kernels on a GPU."""

import functools
import math
import random
import re
from dataclasses import replace

import pytest
import simt_program
import torch
from forced import check_every_stream, dtype_of, explained, forced, runs_hopper_code
from reference import (
    MEMORY,
    Problem,
    assert_parity,
    lay_out,
    poison_allocator,
    problem_count,
    random_problem,
    random_tensor,
    reference,
    rule_of_forward,
    spoilt_operands,
)

import convt
from convt import _C

FAMILIES = ("implicit_gemm_sm80", "implicit_gemm_sm90")
NAMES = [name for name in _C.configuration_names() if name.split("/")[0] in FAMILIES]
# float32 with TF32 and without, and the 16-bit types.
MODES = ("tf32", "ieee", "float16", "bfloat16")


@pytest.fixture
def precision(request):
    """Sets the mode's precision of float32 convolutions, and gives the mode."""
    mode = request.param
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    yield mode
    torch.backends.cudnn.allow_tf32 = allowed


modes = pytest.mark.parametrize("precision", MODES, indirect=True)
families = pytest.mark.parametrize("family", FAMILIES)


# Which GPU runs the code that has all configurations of a family.
DEVICES = {"implicit_gemm_sm80": "a100", "implicit_gemm_sm90": "h200"}
# Why a configuration that takes a mode does not take a layer, in the way that its name says.
REASONS = (
    "needs more shared memory than a block has",
    "is compiled for boxes of x and whole rows of y, without gathering and splits",
    "is compiled for x that the copy engine brings",
    "is not in the code for sm_90a",
)


def takes(configuration, mode):
    """float32 without TF32 promotes its sums: the largest tiles have no registers for them, and others are its own."""
    family, tile = configuration.partition("+")[0].split("/")
    if family == "implicit_gemm_sm80":
        return tile not in ("64x256", "128x128") if mode == "ieee" else tile != "128x128x8"
    if tile not in ("2x64x128", "128x64") and (tile in ("128x128", "64x256", "64x128")) != (mode == "ieee"):
        return False
    if tile == "64x136x2_pingpong" and mode == "tf32":
        return False
    if tile in ("64x96x2_pingpong", "64x72x2_pingpong") and mode in ("float16", "bfloat16"):
        return False
    return "+gathered" not in configuration or may_gather(configuration, mode)


@functools.cache
def may_gather(configuration, mode):
    """Some configurations have no kernel that gathers."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    try:
        p = Problem(4, 64, 64, (8, 8), (3, 3), (1, 1), (1, 1))
        found = candidates(explain(p, mode, memory_format=torch.channels_last), "implicit_gemm_sm90")
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    return found[configuration.replace("+copy", "")].fits


def explain(p, mode, device="h200", memory_format=torch.contiguous_format):
    return explained(p, dtype_of(mode), memory_format, device=device)


def candidates(plan, family):
    """By the name of the configuration."""
    return {f"{family}/{c.configuration}": c for c in plan.candidates if c.algorithm == family}


@families
@pytest.mark.parametrize("seed", range(4))
def test_random_problems_in_the_emulator(family, seed, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    program = folder / f"{family}_simt"
    if not program.exists():
        simt_program.build(f"{family}_simt.cpp", folder)
    told = simt_program.run(program, 60 * seed, 60)
    # Of each kind that is counted there are some.
    assert "60 problems" in told and not re.search(r": 0\b", told)


@families
@modes
def test_every_configuration_takes_a_dense_layer(family, precision):
    p = Problem(4, 64, 64, (32, 32), (4, 4), (2, 2), (1, 1))
    found = candidates(explain(p, precision, DEVICES[family]), family)
    assert set(found) == {name for name in NAMES if name.startswith(family)}
    fitting = {name for name, candidate in found.items() if candidate.fits}
    named = {name for name in found if "+" not in name and takes(name, precision)}
    assert {name.partition("+")[0] for name in fitting} == named
    for name, candidate in found.items():
        if candidate.fits:
            way, tile = name.split("+")[1:], candidate.plan.tile
            assert (tile.rows_in_boxes, tile.channels_last) == ("rows" in way, "copy" in way)
            if family == "implicit_gemm_sm90":
                form = "gathered" if tile.piece_rows == 0 else "squares" if tile.piece_rows > 1 else None
                assert form == next((f for f in way if f in ("gathered", "squares")), None)
        elif name.partition("+")[0] in named:
            assert candidate.refusal in REASONS


@modes
def test_hopper_code_has_one_configuration_for_what_its_own_families_refuse(precision):
    found = candidates(explain(Problem(4, 64, 64, (32, 32), (3, 3)), precision), "implicit_gemm_sm80")
    fitting = {name for name, candidate in found.items() if candidate.fits}
    if precision == "ieee":
        assert fitting == {name for name in found if takes(name, precision)}
    else:
        assert fitting == {"implicit_gemm_sm80/64x64"}


@pytest.mark.parametrize("precision", ("float16", "bfloat16"), indirect=True)
def test_x_in_channels_last_has_one_source(precision):
    """16-bit types are multiplied as they are, so that the copy engine brings boxes of x from where it is."""
    p = Problem(4, 64, 64, (32, 32), (4, 4), (2, 2), (1, 1))
    x, w = (
        lay_out(torch.empty(shape, dtype=dtype_of(precision), device="meta"), "channels_last")
        for shape in (p.x_shape, p.w_shape)
    )
    found = candidates(convt.explain(x, w, device="h200", **p.arguments), "implicit_gemm_sm90")
    tiles = [candidate.plan.tile for candidate in found.values() if candidate.fits]
    assert tiles
    assert not any(tile.rows_in_boxes or tile.channels_last for tile in tiles)
    direct = {name: c for name, c in found.items() if takes(name, precision) and not name.endswith(("+rows", "+copy"))}
    assert all(candidate.fits or candidate.refusal in REASONS for candidate in direct.values())


REFUSALS = {
    "needs sm_80 or later": ("implicit_gemm_sm80", (3, 3), (1, 1), "t4"),
    "needs sm_90": ("implicit_gemm_sm90", (3, 3), (1, 1), "a100"),
    "takes kernels of at most 160 taps": (None, (16, 16), (8, 8), "h200"),
    "takes strides of at most 32": (None, (3, 3), (33, 33), "h200"),
}


@pytest.mark.parametrize("reason", REFUSALS)
@modes
def test_refusals_say_why(precision, reason):
    only, kernel, stride, device = REFUSALS[reason]
    for family in (only,) if only else FAMILIES:
        found = candidates(explain(Problem(1, 8, 8, (8, 8), kernel, stride), precision, device), family)
        assert {c.refusal for c in found.values()} == {reason}


def test_a_small_layer_is_split_over_its_channels():
    # 16 positions and 512 channels: without splits one block for every 16 to 64 output channels.
    p = Problem(1, 512, 256, (4, 4), (4, 4), (2, 2), (1, 1))
    found = candidates(explain(p, "float16", "a100"), "implicit_gemm_sm80")
    best = min((c for c in found.values() if c.fits), key=lambda c: c.estimated_seconds)
    assert best.plan.tile.splits > 1
    assert best.plan.grid >= 64


def test_a_large_layer_takes_large_tiles_whole():
    found = candidates(explain(Problem(64, 64, 128, (128, 256), (3, 5)), "tf32", "a100"), "implicit_gemm_sm80")
    best = min((c for c in found.values() if c.fits), key=lambda c: c.estimated_seconds)
    assert best.configuration in ("64x256", "128x128")
    tile = best.plan.tile
    assert tile.splits == 1
    assert tile.images * tile.rows * tile.columns > 0.75 * int(best.configuration.split("x")[1])


@pytest.mark.parametrize("images, groups", ((64, 2), (1, 1)))
@pytest.mark.parametrize("precision", ("tf32", "float16"), indirect=True)
def test_many_tiles_have_more_steps_between_barriers(images, groups, precision):
    """Nine steps of a group of channels are enough where chunks are what a layer of few tiles is split by."""
    p = Problem(images, 128, 64, (64, 64), (3, 3), (1, 1), (1, 1))
    found = candidates(explain(p, precision, "a100"), "implicit_gemm_sm80")
    tiles = [c.plan.tile for c in found.values() if c.fits and c.configuration in ("64x256", "64x128", "64x64")]
    assert {tile.channel_groups for tile in tiles} == {groups}


# Tiles of which neither whole ones nor a power of two of parts keep all multiprocessors busy.
UNEVEN = {
    "3x3": Problem(2, 256, 128, (72, 64), (3, 3), (1, 1), (1, 1)),
    # Phases of four taps, two and one.
    "3x3 s2": Problem(9, 512, 192, (8, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "3x3 s2, wide": Problem(10, 512, 256, (12, 10), (3, 3), (2, 2), (1, 1), (1, 1)),
}


def balanced_plans(plan):
    """By the name of the configuration, those that share out the steps of all tiles evenly."""
    found = candidates(plan, "implicit_gemm_sm90")
    return {name: c.plan for name, c in found.items() if c.fits and c.plan.tile.balanced_blocks > 0}


# Float32 without TF32 alone has kernels for it: three products for each byte.
shares_steps = pytest.mark.parametrize("precision", ("ieee",), indirect=True)


@pytest.mark.parametrize("layer", UNEVEN)
@shares_steps
def test_uneven_steps_are_shared_out_among_all_multiprocessors(layer, precision):
    balanced = balanced_plans(explain(UNEVEN[layer], precision))
    assert balanced
    for plan in balanced.values():
        tile = plan.tile
        assert plan.grid == tile.balanced_blocks == 132
        assert tile.splits > 1 and tile.reuse == 1
        assert "balanced" in str(tile)


# Images whose rows or positions fill no tile.
ANY_IMAGES = {
    "12x12 s2": Problem(70, 64, 256, (12, 12), (3, 3), (2, 2), (1, 1), (1, 1)),
    "13x11": Problem(70, 32, 264, (13, 11), (3, 3), (1, 1), (1, 1)),
    "5x5 s2": Problem(333, 40, 136, (5, 5), (4, 4), (2, 2), (1, 1)),
    "65 columns": Problem(5, 32, 256, (33, 65), (3, 3), (2, 2), (1, 1)),
    # Tiles begin in any column, and images are less than what they are computed from.
    "cropped": Problem(120, 64, 256, (16, 14), (2, 2), (2, 2), (4, 5)),
    "two groups": Problem(60, 64, 512, (9, 11), (3, 3), (1, 1), (1, 1), groups=2),
    "far taps": Problem(60, 32, 256, (13, 13), (3, 3), (1, 1), (5, 5), dilation=(5, 5)),
}


def im2col_plans(plan):
    """By the name of the configuration, those whose tiles are positions that the copy engine's im2col mode brings."""
    found = candidates(plan, "implicit_gemm_sm90")
    return {name: c.plan for name, c in found.items() if c.fits and c.plan.tile.im2col}


memory_formats = pytest.mark.parametrize(
    "memory_format", (torch.contiguous_format, torch.channels_last), ids=("nchw", "nhwc")
)


def has_im2col(p, precision, memory_format):
    """Channels of other groups lie between those of one in channels_last, unless x is to be copied."""
    return p.groups == 1 or memory_format == torch.contiguous_format or precision in ("tf32", "ieee")


@pytest.mark.parametrize("layer", ANY_IMAGES)
@modes
@memory_formats
def test_tiles_are_full_whatever_the_images(memory_format, layer, precision):
    p = ANY_IMAGES[layer]
    plans = im2col_plans(explain(p, precision, memory_format=memory_format))
    assert bool(plans) == has_im2col(p, precision, memory_format)
    positions = p.batch * math.prod(-(-out // stride) for out, stride in zip(p.y_shape[2:], p.stride, strict=True))
    for plan in plans.values():
        tile = plan.tile
        assert (tile.images, tile.rows, tile.piece_rows) == (1, 1, 0) and "im2col" in str(tile)
        # All tiles but the last.
        tiles = -(-positions // tile.columns)
        assert plan.grid <= tiles * max(1, tile.splits) * p.groups * math.prod(p.stride) * -(-p.out_channels // 64)


def test_what_leaves_the_cache_and_what_stays():
    small, large = (Problem(batch, 64, 64, (128, 128), (3, 3)) for batch in (8, 32))
    for p, expected in ((small, False), (large, True)):  # float16: 17 and 69 MB, of 63
        found = candidates(explain(p, "float16"), "implicit_gemm_sm90")
        fitting = [c.plan for c in found.values() if c.fits]
        assert {(plan.result_exceeds_l2, plan.weights_stay_in_l2) for plan in fitting} == {(expected, expected)}
    # What is copied counts: 27 MB of x, twice, and as much of y.
    found = candidates(explain(Problem(13, 64, 64, (128, 128), (3, 3)), "float16"), "implicit_gemm_sm90")
    assert all(c.plan.weights_stay_in_l2 == ("+copy" in name) for name, c in found.items() if c.fits)
    # Weights of 9 MB take too much of it.
    found = candidates(explain(Problem(32, 512, 512, (64, 64), (4, 4)), "float16"), "implicit_gemm_sm90")
    assert not any(c.plan.weights_stay_in_l2 for c in found.values() if c.fits)


# Weights, how they lie in memory, and whether Hopper's kernels may read them in place.
WEIGHTS = {
    "3x3": (Problem(2, 64, 128, (12, 12), (3, 3), (1, 1), (1, 1)), "channels_last", True),
    "4x4 s2": (Problem(3, 80, 40, (9, 7), (4, 4), (2, 2), (1, 1)), "channels_last", True),
    "3x3 s2": (Problem(2, 72, 136, (8, 8), (3, 3), (2, 2), (1, 1), (1, 1)), "channels_last", True),
    "2x2 s2": (Problem(2, 100, 64, (8, 8), (2, 2), (2, 2)), "channels_last", True),
    "1x1": (Problem(2, 200, 72, (20, 20), (1, 1)), "contiguous", True),
    "groups": (Problem(2, 216, 144, (10, 10), (4, 3), (2, 1), (1, 1), groups=2), "channels_last", True),
    "groups of 1x1": (Problem(2, 150, 240, (16, 16), (1, 1), groups=3), "contiguous", True),
    "one input channel": (Problem(2, 1, 64, (16, 16), (3, 3)), "channels_last", True),
    "split": (Problem(1, 1024, 64, (4, 4), (4, 4), (2, 2), (1, 1)), "channels_last", True),
    "channels beyond 16 bytes": (Problem(2, 64, 66, (12, 12), (3, 3)), "channels_last", False),
    "taps innermost": (Problem(2, 64, 64, (12, 12), (3, 3)), "contiguous", False),
    "every second": (Problem(2, 64, 64, (12, 12), (3, 3)), "sliced", False),
    "behind 16 bytes": (Problem(2, 64, 64, (20, 20), (1, 1)), "offset", False),
    "expanded": (Problem(2, 64, 64, (12, 12), (3, 3)), "expanded", False),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@modes
def test_which_weights_are_read_in_place(weights, precision):
    p, memory, in_place = WEIGHTS[weights]
    x, w = torch.empty(p.x_shape, dtype=dtype_of(precision)), torch.ones(p.w_shape, dtype=dtype_of(precision))
    plan = convt.explain(x, lay_out(w, memory), device="h200", **p.arguments)
    tiles = [c.plan.tile for c in candidates(plan, "implicit_gemm_sm90").values() if c.fits]
    assert tiles
    assert all(("weights in place" in str(tile)) == tile.weights_in_place for tile in tiles)
    if precision == "tf32" and in_place:
        # The warps that transpose them else bring x.
        assert all(tile.channels_last for tile in tiles if tile.weights_in_place)
    elif in_place and precision != "ieee" and (p.in_channels // p.groups <= 32 or memory == "contiguous"):
        # Of few channels, or for rows of y, where that is expected to be faster: with some configurations.
        assert {tile.weights_in_place for tile in tiles} == {True, False}
    else:
        assert {tile.weights_in_place for tile in tiles} == {in_place and precision != "ieee"}


@pytest.mark.parametrize("channels, packed", ((32, True), (64, False)))
@pytest.mark.parametrize("precision", ("float16", "bfloat16"), indirect=True)
def test_weights_that_fill_half_of_a_chunk_are_packed_for_many_positions(channels, packed, precision):
    p = Problem(8, channels, 64, (512, 1024), (3, 7), (1, 1), (1, 3))
    shapes = p.x_shape, p.w_shape
    x, w = (lay_out(torch.empty(s, dtype=dtype_of(precision), device="meta"), "channels_last") for s in shapes)
    for device in ("h100", "h200"):
        plan = convt.explain(x, w, device=device, **p.arguments)
        tiles = {c.plan.tile.weights_in_place for c in candidates(plan, "implicit_gemm_sm90").values() if c.fits}
        assert tiles == {not packed}, device


# Many weights for them: reading these in place pays in TF32, too.
FEW_POSITIONS = Problem(1, 1024, 1024, (8, 8), (5, 5), (1, 1), (2, 2))


@pytest.mark.parametrize("precision", ("tf32",), indirect=True)
@pytest.mark.parametrize("behind", (0, 1), ids=("aligned", "behind 16 bytes"))
def test_warps_transpose_weights_where_the_copy_engine_brings_x(behind, precision):
    """From where x is, if it lies as the copy engine wants it, or from a copy in the workspace."""
    p = FEW_POSITIONS
    batch, channels, rows, columns = p.x_shape
    x = torch.empty(math.prod(p.x_shape) + behind)[behind:].view(batch, rows, columns, channels).permute(0, 3, 1, 2)
    w = torch.empty(p.w_shape).to(memory_format=torch.channels_last)
    plan = convt.explain(x, w, device="h200", **p.arguments)
    tiles = [c.plan.tile for c in candidates(plan, "implicit_gemm_sm90").values() if c.fits]
    assert {tile.channels_last for tile in tiles if tile.weights_in_place} == ({True} if behind else {False, True})


@pytest.mark.parametrize("precision", ("tf32",), indirect=True)
def test_many_weights_for_few_positions_are_read_in_place(precision):
    p = FEW_POSITIONS
    x, w = (torch.empty(s).to(memory_format=torch.channels_last) for s in (p.x_shape, p.w_shape))
    plan = convt.explain(x, w, device="h200", **p.arguments)
    best = min(
        (c for c in plan.candidates if c.algorithm == "implicit_gemm_sm90" and c.fits),
        key=lambda c: c.estimated_seconds,
    )
    assert best.plan.tile.weights_in_place


# x, how it lies in memory, and whether Hopper's copy engine may bring its rows, as far as the planner knows.
ROWS = {
    "1x1": (Problem(2, 128, 72, (16, 128), (1, 1)), "contiguous", True),
    "2x2 s2": (Problem(2, 128, 64, (12, 128), (2, 2), (2, 2)), "contiguous", True),
    "2x2 s2 of larger images": (Problem(2, 128, 64, (64, 128), (2, 2), (2, 2)), "contiguous", True),
    "4x4 s2": (Problem(2, 64, 64, (12, 128), (4, 4), (2, 2), (1, 1)), "contiguous", True),
    "3x3": (Problem(2, 64, 64, (24, 136), (3, 3), (1, 1), (1, 1)), "contiguous", True),
    "groups of 40": (Problem(2, 80, 128, (16, 72), (3, 3), (1, 1), (1, 1), groups=2), "contiguous", True),
    "behind 16 bytes": (Problem(2, 128, 64, (12, 128), (2, 2), (2, 2)), "offset", True),
    "width": (Problem(2, 128, 64, (12, 101), (2, 2), (2, 2)), "contiguous", False),
    "every second": (Problem(2, 128, 64, (12, 128), (2, 2), (2, 2)), "sliced", False),
    "expanded": (Problem(2, 128, 64, (12, 128), (2, 2), (2, 2)), "expanded", False),
    "channels_last": (Problem(2, 128, 64, (12, 128), (2, 2), (2, 2)), "channels_last", False),
}


@pytest.mark.parametrize("rows", ROWS)
@modes
def test_which_rows_are_brought_in_boxes(rows, precision):
    p, memory, may = ROWS[rows]
    x, w = torch.ones(p.x_shape, dtype=dtype_of(precision)), torch.empty(p.w_shape, dtype=dtype_of(precision))
    plan = convt.explain(lay_out(x, memory), w, device="h200", **p.arguments)
    tiles = [c.plan.tile for c in candidates(plan, "implicit_gemm_sm90").values() if c.fits]
    assert tiles
    assert all(("rows in boxes" in str(tile)) == tile.rows_in_boxes for tile in tiles)
    if dtype_of(precision) == torch.float32:
        assert may or not any(tile.rows_in_boxes for tile in tiles)
    else:
        assert any(tile.rows_in_boxes for tile in tiles) == may


# Layers of few output channels, of which Hopper's kernels hold several rows of y in a block of rows.
STACKED = {
    "3x3": Problem(4, 32, 32, (128, 128), (3, 3), (1, 1), (1, 1)),
    "3x7": Problem(4, 24, 3, (150, 140), (3, 7), (1, 1), (1, 3)),
    "4x4 s2": Problem(6, 64, 32, (64, 64), (4, 4), (2, 2), (1, 1)),
    "3x3 s2": Problem(8, 40, 17, (63, 64), (3, 3), (2, 2), (1, 1), (1, 1)),
    "2x2 s2": Problem(8, 64, 16, (64, 64), (2, 2), (2, 2)),
    "5x5 s3": Problem(4, 32, 9, (60, 62), (5, 5), (3, 3), (2, 2)),
    "9x9 s4": Problem(1, 56, 1, (60, 64), (9, 9), (4, 4), (4, 4), (3, 3)),
    "one channel, no whole unit": Problem(2, 16, 1, (128, 241), (5, 2), (2, 1), (2, 0), (1, 0)),
    "dilated": Problem(4, 32, 8, (128, 130), (3, 3), (1, 1), (2, 2), dilation=(2, 2)),
    "groups": Problem(2, 64, 64, (90, 96), (3, 3), (1, 1), (1, 1), groups=4),
}


@pytest.mark.parametrize("layer", STACKED)
@modes
def test_which_layers_stack_rows(layer, precision):
    p = STACKED[layer]
    tiles = [c.plan.tile for c in candidates(explain(p, precision), "implicit_gemm_sm90").values() if c.fits]
    assert any(tile.stacked_rows > 1 for tile in tiles)
    for tile in tiles:
        assert tile.stacked_rows * (p.out_channels // p.groups) <= 64
        assert ("rows stacked" in str(tile)) == (tile.stacked_rows > 1)
        assert not (tile.stacked_rows > 1 and tile.weights_in_place)


@modes
def test_rows_of_many_channels_are_not_stacked(precision):
    found = candidates(explain(Problem(2, 64, 33, (24, 40), (3, 3)), precision), "implicit_gemm_sm90")
    assert {c.plan.tile.stacked_rows for c in found.values() if c.fits} == {1}


# A problem, the memory of x and w (and so of y), and whether the phases of its columns may be output channels.
FOLDED = {
    "2x2 s2": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 2)), "channels_last", True),
    "4x4 s4, one channel": (Problem(1, 72, 1, (16, 24), (4, 4), (4, 4)), "channels_last", True),
    "one channel, rows innermost": (Problem(2, 72, 1, (16, 24), (4, 4), (4, 4)), "contiguous", True),
    "3x5 s1x5": (Problem(2, 24, 7, (8, 12), (3, 5), (1, 5), (1, 0)), "channels_last", True),
    "dilated rows": (Problem(2, 24, 8, (8, 12), (3, 2), (1, 2), dilation=(2, 1)), "channels_last", True),
    "more columns than phases": (Problem(1, 64, 12, (3, 4), (1, 24), (1, 24)), "channels_last", True),
    "two strides wide": (Problem(2, 40, 20, (9, 24), (3, 4), (2, 2)), "channels_last", True),
    "one channel, four strides wide": (Problem(2, 72, 1, (1, 64), (1, 40), (1, 10)), "contiguous", True),
    "padding of a stride": (Problem(2, 40, 20, (9, 24), (2, 6), (2, 2), (0, 2)), "channels_last", True),
    "rows innermost": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 2)), "contiguous", False),
    "groups": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 2), groups=2), "channels_last", False),
    "padding": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 2), (0, 1)), "channels_last", False),
    "output_padding": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 2), (0, 0), (0, 1)), "channels_last", False),
    "overlap": (Problem(2, 40, 20, (9, 24), (2, 3), (2, 2)), "channels_last", False),
    "gaps": (Problem(2, 40, 20, (9, 24), (2, 2), (2, 3)), "channels_last", False),
}


@pytest.mark.parametrize("layer", FOLDED)
@modes
def test_which_columns_may_be_channels(layer, precision):
    p, memory, may = FOLDED[layer]
    x, w = (lay_out(torch.ones(shape, dtype=dtype_of(precision)), memory) for shape in (p.x_shape, p.w_shape))
    plan = convt.explain(x, w, device="h200", **p.arguments)
    tiles = [c.plan.tile for family in FAMILIES for c in candidates(plan, family).values() if c.fits]
    assert tiles
    assert all(("columns folded" in str(tile)) == tile.columns_folded for tile in tiles)
    assert any(tile.columns_folded for tile in tiles) == may


def test_columns_beyond_the_largest_stride_are_channels():
    p = Problem(1, 96, 12, (36, 36), (32, 32), (32, 32))
    x, w = (torch.ones(shape, dtype=torch.float16) for shape in (p.x_shape, p.w_shape))
    refused = candidates(convt.explain(x, w, device="h200", **p.arguments), "implicit_gemm_sm90")
    assert {c.refusal for c in refused.values()} == {"takes kernels of at most 160 taps"}
    p = Problem(1, 96, 12, (36, 36), (4, 33), (4, 33))
    x, w = (lay_out(torch.ones(shape, dtype=torch.float16), "channels_last") for shape in (p.x_shape, p.w_shape))
    taken = candidates(convt.explain(x, w, device="h200", **p.arguments), "implicit_gemm_sm90")
    assert any(c.fits for c in taken.values())


# GPU


def candidate_of(configuration, p, x, w, b=None):
    plan = convt.explain(x, w, b, **p.arguments)
    (candidate,) = (c for c in plan.candidates if f"{c.algorithm}/{c.configuration}" == configuration)
    return candidate


def check(p, configuration, x, w, b, assert_right):
    """Whether the configuration takes it, and then right and the same bits again."""
    dtype = x.dtype
    candidate = candidate_of(configuration, p, x, w, b)
    if not candidate.fits:
        # A patch of many small images; x is not such a source; strides that only folded columns have.
        known = [*REASONS, "takes strides of at most 32"]
        if not runs_hopper_code():
            known += ["needs sm_90", "was not built: the list of architectures had no 9.0a"]
        assert "+" in configuration or candidate.refusal in known
        return False
    poison_allocator(p.y_shape, dtype=dtype)
    result = forced(configuration, x, w, b, p)
    assert_right(result)
    for _ in range(2):
        poison_allocator(p.y_shape, dtype=dtype)
        assert torch.equal(forced(configuration, x, w, b, p), result)
    return True


def check_all(p, x, w, mode, only=FAMILIES):
    """With a bias, by each configuration that takes the mode."""
    b = random_tensor((p.out_channels,), x.dtype, "cuda")
    assert_right = rule_of_forward(p, x, w, b, mode)
    tried = [name for name in NAMES if name.startswith(only) and takes(name, mode)]
    assert sum(check(p, name, x, w, b, assert_right) for name in tried) > 2


def random_operands(rng, configuration, dtype, draws=2000):
    """A random problem that the configuration takes, with x and w; x is such a source as it is for. None if it takes
    none of so many."""
    way = configuration.split("+")[1:]
    for _ in range(draws):
        p = random_problem(rng, most_channels=rng.choice((6, 24, 80)), most_size=rng.choice((7, 20)))
        memory = [rng.choice(MEMORY[:5]) for _ in range(2)]
        if "rows" in way:
            p = replace(p, size=(p.size[0], math.ceil(p.size[1] / 8) * 8))
            memory[0] = "contiguous"
        # Most are not taken, and real operands take long to make.
        for make in (
            functools.partial(torch.empty, device="meta"),
            functools.partial(random_tensor, device="cuda"),
        ):
            x, w = (
                lay_out(make(shape, dtype=dtype), m) for shape, m in zip((p.x_shape, p.w_shape), memory, strict=True)
            )
            candidate = candidate_of(configuration, p, x, w)
            if not candidate.fits and candidate.refusal != "is not in the code for sm_90a":
                break
        else:
            return p, x, w
    return None


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("configuration, seed", [(c, seed) for c in NAMES for seed in range(1 if "+" in c else 4)])
def test_random_problems(configuration, precision, seed):
    if not takes(configuration, precision):
        pytest.skip("this configuration does not take the mode")
    rng = random.Random(f"{configuration} {precision} {seed}")
    dtype = dtype_of(precision)
    taken = 0
    while taken < problem_count(15) and (drawn := random_operands(rng, configuration, dtype)) is not None:
        p, x, w = drawn
        b = random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None
        check(p, configuration, x, w, b, rule_of_forward(p, x, w, b, precision))
        taken += 1
    if taken == 0:
        pytest.skip("this configuration takes next to none of such problems")


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("stride", ((5, 4), (5, 2), (3, 1)))
def test_rows_that_no_tap_reaches(stride, precision):
    """Outputs are the bias, of channels of more than one block."""
    p = Problem(1, 21, 75, (1, 3), (1, 4), stride, (1, 1), (2, 0))
    x, w = (random_tensor(shape, dtype_of(precision), "cuda") for shape in (p.x_shape, p.w_shape))
    check_all(p, x, w, precision)


# Layers of published models, as large as float64 on the CPU allows.
LAYERS = {
    "3x3": Problem(2, 64, 64, (24, 40), (3, 3), (1, 1), (1, 1)),
    "3x5": Problem(1, 64, 128, (16, 64), (3, 5)),
    "4x4 s2": Problem(2, 256, 128, (16, 12), (4, 4), (2, 2), (1, 1)),
    "3x3 s2": Problem(2, 128, 64, (16, 16), (3, 3), (2, 2), (1, 1), (1, 1)),
    "2x2 s2": Problem(2, 128, 64, (16, 16), (2, 2), (2, 2)),
    "rows of whole sectors": Problem(2, 64, 64, (20, 64), (3, 3), (1, 1), (1, 1)),
    "rows of whole sectors, s2": Problem(2, 64, 32, (12, 32), (4, 4), (2, 2), (1, 1)),
    "5x5 s2": Problem(2, 64, 32, (16, 16), (5, 5), (2, 2), (2, 2), (1, 1)),
    "one pixel": Problem(16, 100, 512, (1, 1), (4, 4)),
    "many channels": Problem(4, 1024, 256, (8, 6), (4, 4), (2, 2), (1, 1)),
    "vocoder": Problem(2, 256, 128, (1, 40), (1, 16), (1, 8), (0, 4)),
}


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last), ids=("nchw", "nhwc"))
def test_layers(layer, layout, precision):
    p, dtype = LAYERS[layer], dtype_of(precision)
    x, w = (random_tensor(shape, dtype, "cuda").contiguous(memory_format=layout) for shape in (p.x_shape, p.w_shape))
    check_all(p, x, w, precision)


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", [layer for layer in FOLDED if FOLDED[layer][2]])
def test_columns_folded_into_channels(layer, precision):
    p, memory, _ = FOLDED[layer]
    dtype = dtype_of(precision)
    x, w = (lay_out(random_tensor(shape, dtype, "cuda"), memory) for shape in (p.x_shape, p.w_shape))
    check_all(p, x, w, precision)


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_weights_in_place(layout, weights, precision):
    p, memory, _ = WEIGHTS[weights]
    dtype = dtype_of(precision)
    x = lay_out(random_tensor(p.x_shape, dtype, "cuda"), layout)
    w = lay_out(random_tensor(p.w_shape, dtype, "cuda"), memory)
    check_all(p, x, w, precision, only="implicit_gemm_sm90")


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("rows", ROWS)
def test_rows_in_boxes(rows, precision):
    p, memory, _ = ROWS[rows]
    dtype = dtype_of(precision)
    x = lay_out(random_tensor(p.x_shape, dtype, "cuda"), memory)
    w = random_tensor(p.w_shape, dtype, "cuda")
    check_all(p, x, w, precision, only="implicit_gemm_sm90")


# Rows of y of whole 16 bytes: the copy engine writes those of 16-bit types.
ROWS_OF_Y = {
    "rows": Problem(2, 40, 72, (5, 190), (3, 3), (1, 1), (1, 2)),
    "squares": Problem(3, 64, 136, (21, 24), (3, 3), (1, 1), (1, 1)),
    "rows of two phases": Problem(2, 64, 40, (4, 148), (4, 4), (2, 2), (1, 1)),
    "squares of two phases": Problem(3, 128, 200, (19, 20), (4, 4), (2, 2), (1, 1)),
    "phases of rows that are no dimension": Problem(2, 64, 64, (20, 20), (4, 4), (2, 2), (1, 1), (1, 0)),
    "groups": Problem(2, 96, 176, (18, 20), (4, 4), (2, 2), (1, 1), groups=2),
    "stride 3 by 2": Problem(2, 64, 64, (13, 28), (3, 4), (3, 2), (0, 1)),
    "no whole unit": Problem(2, 64, 64, (20, 21), (4, 4), (2, 2), (1, 1)),
    "from four bytes on": Problem(2, 40, 72, (5, 190), (3, 3), (1, 1), (1, 1)),
    "from two bytes on": Problem(2, 40, 136, (5, 189), (3, 3), (1, 1), (1, 1)),
    "of two phases, from four bytes on": Problem(2, 64, 40, (4, 149), (4, 4), (2, 2), (1, 1)),
    "of two phases, from two bytes on": Problem(2, 64, 40, (4, 150), (3, 3), (2, 2)),
}


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", ROWS_OF_Y)
def test_rows_of_y(layer, precision):
    p, dtype = ROWS_OF_Y[layer], dtype_of(precision)
    x, w = (random_tensor(shape, dtype, "cuda") for shape in (p.x_shape, p.w_shape))
    check_all(p, x, w, precision, only="implicit_gemm_sm90")


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", STACKED)
@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_stacked_rows(layout, layer, precision):
    p, dtype = STACKED[layer], dtype_of(precision)
    x, w = (lay_out(random_tensor(shape, dtype, "cuda"), layout) for shape in (p.x_shape, p.w_shape))
    check_all(p, x, w, precision, only="implicit_gemm_sm90")


def check_plans_of(chosen, p, precision, memory_format):
    """Each plan that `chosen` finds in an explanation; and one of them on many streams."""
    shapes, dtype = (p.x_shape, p.w_shape), dtype_of(precision)
    x, w = (random_tensor(shape, dtype, "cuda").contiguous(memory_format=memory_format) for shape in shapes)
    b = random_tensor((p.out_channels,), x.dtype, "cuda")
    assert_right = rule_of_forward(p, x, w, b, precision)
    names = list(chosen(convt.explain(x, w, **p.arguments)))
    assert names
    for name in names:
        assert check(p, name, x, w, b, assert_right)
    check_every_stream(names[0], precision, p, memory_format)


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", ANY_IMAGES)
@memory_formats
def test_any_images(memory_format, layer, precision):
    p = ANY_IMAGES[layer]
    if not has_im2col(p, precision, memory_format):
        pytest.skip("nothing brings it so")
    check_plans_of(im2col_plans, p, precision, memory_format)


@pytest.mark.gpu
@shares_steps
@pytest.mark.parametrize("layer", UNEVEN)
@memory_formats
def test_steps_that_are_shared_out_evenly(memory_format, layer, precision):
    check_plans_of(balanced_plans, UNEVEN[layer], precision, memory_format)


# They take all modes; that whose threads bring x is another one where float32 is not split.
SOME = (
    "implicit_gemm_sm80/64x64",
    "implicit_gemm_sm90/128x64+copy",
    "implicit_gemm_sm90/2x64x128+squares+copy",
    "implicit_gemm_sm90 by threads",
)


def some(name, precision):
    tile = "128x64" if precision == "ieee" else "64x128x2_pingpong"
    return name.replace(" by threads", f"/{tile}")


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("name", SOME)
def test_the_same_bits_on_every_stream(name, precision):
    check_every_stream(some(name, precision), precision, LAYERS["many channels"])


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("width", (9, 8), ids=("rows of 16 bytes", "rows of 7"))
@pytest.mark.parametrize("name", SOME)
def test_nan_and_inf_spread_by_taps_only(name, width, precision):
    configuration = some(name, precision)
    p, dtype = Problem(1, 8, 16, (6, width), (3, 4), (2, 1), (1, 2)), dtype_of(precision)
    rng = random.Random(0)
    ones = torch.ones(p.x_shape, dtype=dtype, device="cuda"), torch.ones(p.w_shape, dtype=dtype, device="cuda")
    for pair, reached, _, where in spoilt_operands(p, rng, *ones, times=6):
        assert torch.equal(~forced(configuration, *pair, None, p).cpu().isfinite(), reached), where


@pytest.mark.parametrize("configuration", ("implicit_gemm_sm80/64x64", "implicit_gemm_sm90/2x64x128+rows"))
@pytest.mark.large(gib=40)
def test_outputs_beyond_32_bits(configuration):
    p = Problem(34, 16, 64, (512, 512), (2, 2), (2, 2))
    x, w = torch.randn(p.x_shape, dtype=torch.float16, device="cuda"), random_tensor(p.w_shape, torch.float16, "cuda")
    result = forced(configuration, x, w, None, p)
    assert result.numel() > 2**31
    one = Problem(1, 16, 64, (512, 512), (2, 2), (2, 2))
    for n in (0, 33):
        assert_parity(result[n : n + 1], None, reference(one, "forward", x=x[n : n + 1], w=w))
