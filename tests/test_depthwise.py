"""The depthwise family: the threads' function on the CPU for every configuration, and the kernels on a GPU."""

import dataclasses
import random
from pathlib import Path

import pytest
import simt_program
import torch
import torch.nn.functional as F
from forced import forced
from reference import (
    Problem,
    assert_parity,
    lay_out,
    poison_allocator,
    problem_count,
    random_tensor,
    reference,
    spoilt_operands,
)

import convt
from convt import _C

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# (kernel, stride, padding) of either axis, by the configuration that takes them.
SHAPES = {
    "3x3_s1": ((3, 3), (1, 1), (1, 1)),
    "5x5_s1": ((5, 5), (1, 1), (2, 2)),
    "7x7_s1": ((7, 7), (1, 1), (3, 3)),
    "1x5_s1": ((1, 5), (1, 1), (0, 2)),
    "2x2_s2_p0": ((2, 2), (2, 2), (0, 0)),
    "3x3_s2_p0": ((3, 3), (2, 2), (0, 0)),
    "3x3_s2_p1": ((3, 3), (2, 2), (1, 1)),
    "4x4_s2_p0": ((4, 4), (2, 2), (2, 2)),
    "4x4_s2_p1": ((4, 4), (2, 2), (1, 1)),
    "5x5_s2_p0": ((5, 5), (2, 2), (2, 2)),
    "6x6_s2_p0": ((6, 6), (2, 2), (2, 2)),
    "7x7_s2_p1": ((7, 7), (2, 2), (3, 3)),
    "1x3_s1_s2_p1": ((1, 3), (1, 2), (0, 1)),
    "2x3_s1_s2_p1": ((2, 3), (1, 2), (1, 1)),
    "4x1_s1": ((4, 1), (1, 1), (0, 0)),
    "6x1_s2_s1_p0": ((6, 1), (2, 1), (4, 0)),
    "3x3_s3_p0": ((3, 3), (3, 3), (0, 0)),
    "5x5_s3_p1": ((5, 5), (3, 3), (1, 1)),
    "4x4_s4_p0": ((4, 4), (4, 4), (0, 0)),
    "7x7_s4_p2": ((7, 7), (4, 4), (2, 2)),
    "8x8_s4_p2": ((8, 8), (4, 4), (2, 2)),
}
# The forms of csrc/kernels/depthwise/config.h.
TILE = {f"nchw_{shape}": shape for shape in SHAPES}
ROWS = {
    f"nchw_{shape}_rows": shape for shape in ("3x3_s1", "3x3_s2_p1", "4x4_s2_p1", "5x5_s2_p0", "5x5_s1", "8x8_s4_p2")
}
VECTORS = {
    f"nhwc_{shape}": shape
    for shape in (
        *("2x2_s2_p0", "3x3_s1", "3x3_s2_p1", "4x4_s2_p1", "5x5_s2_p0"),
        *("1x3_s1_s2_p1", "2x3_s1_s2_p1", "1x5_s1", "6x1_s2_s1_p0"),
    )
} | {f"nhwc_{shape}_small": shape for shape in ("3x3_s1", "5x5_s2_p0", "1x3_s1_s2_p1", "2x3_s1_s2_p1", "1x5_s1")}
ELEMENTS = {f"nhwc_{shape}_elements": shape for shape in ("4x1_s1", "4x4_s2_p1", "4x4_s2_p1_small")}
LAST = VECTORS | ELEMENTS
EXACT = TILE | ROWS | LAST
ANY = ("nhwc_any", "any", "any_one")
# Stride and output channels at most.
ONE_TAP = {"one_tap_s1_c4": (1, 4), "one_tap_s1_c16": (1, 16), "one_tap_s2_c4": (2, 4), "one_tap_s4_c1": (4, 1)}
BOTH_LAYOUTS = ("any", "any_one", *ONE_TAP)
CONFIGURATIONS = (*EXACT, *ANY, *ONE_TAP)
COMPILED = [(c, d) for c in CONFIGURATIONS for d in DTYPES]


def is_last(configuration, rng):
    """Whether the configuration takes channels_last; some take both."""
    return configuration.startswith("nhwc_") or (configuration in BOTH_LAYOUTS and rng.random() < 0.5)


def any_problem(rng, most_height, most_width):
    """Any kernel, stride and dilation."""
    while True:
        groups = rng.choice((2, 3, 4, 5, 8, 12, 16))
        inputs = rng.choice((1, 1, 1, 2, 5))
        stride = (rng.choice((1, 2, 3, 4, 9)), rng.choice((1, 2, 3, 4, 9)))
        dilation = (rng.randint(1, 4), rng.randint(1, 4)) if rng.random() < 0.5 else (1, 1)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * inputs,
            out_channels=groups * (rng.choice((1, 1, 2, 3)) if inputs == 1 else 1),
            size=(rng.randint(1, most_height), rng.randint(2, most_width)),
            kernel=(rng.randint(1, 6), rng.randint(1, 6)),
            stride=stride,
            padding=(rng.randint(0, 6), rng.randint(0, 6)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        # Images of one pixel are in both layouts at once.
        if min(p.y_shape) > 0 and p.y_shape[2] * p.y_shape[3] > 1:
            return p


def problem(configuration, rng, most_height=12, most_width=40):
    """A random problem that the configuration takes; every second one has rows that vectors fit."""
    if configuration in ANY:
        return any_problem(rng, most_height, most_width)
    if configuration in ONE_TAP:
        stride, channels = ONE_TAP[configuration]
        inputs = rng.choice((8 * rng.randint(1, 8), rng.randint(1, 40)))
        size = rng.randint(1, most_height), rng.choice((rng.randint(2, most_width), 8 * rng.randint(1, 5)))
        strides = (stride, stride)
        return Problem(rng.randint(1, 3), inputs, rng.randint(1, channels), size, strides, strides)
    kernel, stride, padding = SHAPES[EXACT[configuration].removesuffix("_small")]
    while True:
        if configuration in LAST:
            groups = 8 * rng.randint(1, 6) if configuration in VECTORS else rng.randint(2, 70)
            multiplier, width = 1, rng.randint(2, 20)
        else:
            groups = rng.randint(1, 3)
            multiplier = rng.choice((1, 1, 2, 3))
            width = rng.choice((rng.randint(1, most_width), 8 * rng.randint(1, 5)))
        # An axis of stride 1 may be dilated, in planes the height only.
        dilation = tuple(
            rng.choice((1, 1, 2, 3, 5)) if s == 1 and k > 1 and (axis == 0 or configuration in LAST) else 1
            for axis, (s, k) in enumerate(zip(stride, kernel, strict=True))
        )
        output_padding = tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True))
        # Any padding of the same remainder is taken; the one of the configuration loads fastest.
        paddings = tuple(
            q if rng.random() < 0.6 else q % s + s * rng.randint(0, 8 // s)
            for q, s in zip(padding, stride, strict=True)
        )
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups,
            out_channels=groups * multiplier,
            size=(rng.randint(1, most_height), width),
            kernel=kernel,
            stride=stride,
            padding=paddings,
            output_padding=output_padding,
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) <= 0 or (configuration in LAST and p.y_shape[2] * p.y_shape[3] == 1):
            continue
        if configuration in ROWS and (p.size[1] % 8 or p.y_shape[3] % 8 or (paddings[1] - padding[1]) // stride[1] % 8):
            continue
        return p


def in_memory(t, last, offset):
    """`t` in one of the two layouts, `offset` elements into its memory."""
    dense = t.permute(0, 2, 3, 1).contiguous() if last else t.contiguous()
    flat = torch.empty(dense.numel() + offset, dtype=t.dtype, device=t.device)
    view = flat[offset:].view(dense.shape).copy_(dense)
    return view.permute(0, 3, 1, 2) if last else view


def operands(p, configuration, dtype, rng, device="cpu"):
    last = is_last(configuration, rng)
    x = in_memory(random_tensor(p.x_shape, dtype, device), last, rng.choice((0, 0, 3)))
    w = random_tensor(p.w_shape, dtype, device)
    if configuration in BOTH_LAYOUTS and rng.random() < 0.3:
        x, w = lay_out(x, "sliced"), lay_out(w, rng.choice(("permuted", "sliced")))
    return x, w, random_tensor((p.out_channels,), dtype, device) if rng.random() < 0.5 else None


def on_host(p, configuration, x, w, bias=None):
    pairs = [list(pair) for pair in (p.stride, p.padding, p.output_padding)]
    return _C.run_on_host(
        _C.Operation.forward, x, w, bias, [], *pairs, p.groups, list(p.dilation), f"depthwise/{configuration}", None
    )


def explanation(p, dtype=torch.float32, memory=torch.contiguous_format):
    x = torch.empty(p.x_shape, dtype=dtype, device="meta").contiguous(memory_format=memory)
    w = torch.empty(p.w_shape, dtype=dtype, device="meta")
    return convt.explain(x, w, device="h200", **p.arguments)


def refusals(plan):
    return {c.configuration: c.refusal for c in plan.candidates if c.algorithm == "depthwise"}


def best(plan):
    """The depthwise configuration that the planner would choose of its family."""
    fitting = [c for c in plan.candidates if c.algorithm == "depthwise" and c.fits]
    return min(fitting, key=lambda c: c.estimated_seconds).configuration if fitting else None


def test_the_configurations_tested_are_those_compiled():
    names = {name for name in _C.configuration_names() if name.startswith("depthwise/")}
    assert names == {f"depthwise/{c}" for c in CONFIGURATIONS}


@pytest.mark.parametrize(("configuration", "dtype"), COMPILED, ids=str)
def test_random_problems_on_the_host(configuration, dtype):
    rng = random.Random(f"{configuration} {dtype}")
    for _ in range(10):
        p = problem(configuration, rng)
        x, w, b = operands(p, configuration, dtype, rng)
        result = on_host(p, configuration, x, w, b)
        wide = [None if t is None else t.float() for t in (x, w, b)]
        theirs = F.conv_transpose2d(*wide, **p.arguments).to(dtype)
        assert_parity(result, theirs, reference(p, "forward", x=x, w=w, bias=b))


def test_no_access_outside_a_tensor(tmp_path):
    """Random problems under AddressSanitizer and UBSan, in buffers of exactly their size and of every alignment."""
    host = "csrc/kernels/depthwise/host.cpp"
    program = simt_program.build("depthwise_host.cpp", tmp_path, host, sanitizers=("address", "undefined"))
    simt_program.run(program, 0, 6000)


def check_spread(p, configuration, forward, device="cpu", dtype=torch.float32):
    """NaN and infinities in single elements reach exactly the outputs that a tap connects with them."""
    rng = random.Random(0)
    ones = torch.ones(p.x_shape, dtype=dtype, device=device), torch.ones(p.w_shape, dtype=dtype, device=device)
    for (x, w), reached, _, where in spoilt_operands(p, rng, *ones, times=4):
        x = in_memory(x, is_last(configuration, rng), 0)
        assert torch.equal(~forward(p, configuration, x, w).cpu().isfinite(), reached), where


@pytest.mark.parametrize(("configuration", "dtype"), COMPILED, ids=str)
def test_nan_and_inf_spread_by_taps_only_on_the_host(configuration, dtype):
    rng = random.Random(configuration)
    for _ in range(2):
        check_spread(problem(configuration, rng, 6, 16), configuration, on_host, dtype=dtype)


@pytest.mark.parametrize(
    ("configuration", "last"),
    [("nchw_1x3_s1_s2_p1", False), ("nhwc_1x3_s1_s2_p1", True), ("any", True), ("any_one", True)],
)
def test_outputs_without_taps_are_the_bias(configuration, last):
    p = Problem(1, 4, 4, (3, 5), (1, 3), (1, 2), (0, 1), (0, 1), 4)
    x, w, b = random_tensor(p.x_shape, torch.float32), torch.zeros(p.w_shape), random_tensor((4,), torch.float32)
    result = on_host(p, configuration, in_memory(x, last, 0), w, b)
    assert torch.equal(result, b.view(1, 4, 1, 1).expand(p.y_shape))


@pytest.mark.parametrize("configuration", ANY)
def test_strides_larger_than_the_kernel_and_common_divisors(configuration):
    """Phases that no tap reaches, for the stride and for the common divisor of stride and dilation; many phases."""
    for stride, dilation in (((5, 4), (1, 2)), ((4, 6), (2, 4)), ((1, 3), (3, 3)), ((9, 12), (6, 1))):
        p = Problem(2, 4, 4, (4, 5), (2, 3), stride, (1, 2), (0, 0), 4, dilation)
        x, w, b = (random_tensor(s, torch.float32) for s in (p.x_shape, p.w_shape, (4,)))
        result = on_host(p, configuration, in_memory(x, configuration == "nhwc_any", 0), w, b)
        assert_parity(result, None, reference(p, "forward", x=x, w=w, bias=b))


def test_views_of_the_input_are_taken():
    p = Problem(2, 3, 3, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 3)
    x, w = random_tensor((2, 3, 9, 17), torch.float32)[:, :, 1:7, 3:11], random_tensor(p.w_shape, torch.float32)
    taken = "nchw_4x4_s2_p1"
    assert torch.equal(on_host(p, taken, x, w), on_host(p, taken, x.contiguous(), w))
    rows = x[:, :1, :1].expand(p.x_shape)
    assert torch.equal(on_host(p, taken, rows, w), on_host(p, taken, rows.contiguous(), w))
    with pytest.raises(ValueError, match="takes kernels that are contiguous in memory"):
        on_host(p, taken, x, w.transpose(2, 3))
    expected = on_host(p, "any", x, w.transpose(2, 3))
    assert torch.equal(expected, on_host(p, "any", x.contiguous(), w.transpose(2, 3).contiguous()))


BILINEAR = Problem(16, 64, 64, (128, 128), (4, 4), (2, 2), (1, 1), (0, 0), 64)
FIVE = Problem(16, 256, 256, (56, 56), (5, 5), (2, 2), (2, 2), (1, 1), 256)
DILATED = Problem(16, 16, 16, (256, 33), (3, 3), (1, 1), (10, 1), (0, 0), 16, (5, 1))
SMALL = Problem(1, 16, 16, (67, 33), (3, 3), (1, 1), (4, 1), (0, 0), 16, (2, 1))
ODD = Problem(8, 49, 49, (48, 63), (4, 4), (2, 2), (1, 1), (0, 0), 49)
STATIONARY = Problem(8, 3, 3, (268, 256), (4, 1), (1, 1), (0, 0), (0, 0), 3, (4, 1))
FREQUENCIES = Problem(16, 32, 32, (501, 33), (1, 5), (1, 1), (0, 2), (0, 0), 32)
DEEP = Problem(1, 1024, 1024, (7, 7), (5, 5), (2, 2), (2, 2), (1, 1), 1024)
WIDE = Problem(4, 64, 64, (120, 61), (5, 5), (2, 2), (2, 2), (0, 0), 64)
WAVELET = Problem(8, 12, 3, (129, 129), (4, 4), (2, 2), (2, 2), (0, 0), 3)


@pytest.mark.parametrize(
    ("p", "configuration"),
    [
        (BILINEAR, "nchw_4x4_s2_p1"),
        (FIVE, "nchw_5x5_s2_p0"),
        (Problem(64, 256, 256, (16, 16), (2, 2), (2, 2), (0, 0), (0, 0), 256), "nchw_2x2_s2_p0"),
        (Problem(16, 64, 64, (1000, 8), (1, 3), (1, 2), (0, 1), (0, 1), 64), "nchw_1x3_s1_s2_p1"),
        (Problem(8, 3, 6, (50, 50), (8, 8), (4, 4), (6, 2), (0, 0), 3), "nchw_8x8_s4_p2"),
        (Problem(70_000, 2, 2, (3, 3), (3, 3), (1, 1), (1, 1), (0, 0), 2), "nchw_3x3_s1"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_layers_are_planned(p, configuration, dtype):
    plan = explanation(p, dtype)
    assert f"{plan.algorithm}/{plan.configuration}".startswith(f"depthwise/{configuration}")
    assert plan.block == 256


@pytest.mark.parametrize(
    ("p", "memory", "wide", "narrow"),
    [
        (BILINEAR, torch.contiguous_format, "nchw_4x4_s2_p1_rows", "nchw_4x4_s2_p1_rows"),
        (BILINEAR, torch.channels_last, "nhwc_4x4_s2_p1", "nhwc_4x4_s2_p1"),
        (FIVE, torch.channels_last, "nhwc_5x5_s2_p0", "nhwc_5x5_s2_p0"),
        (DILATED, torch.contiguous_format, "nchw_3x3_s1", "nchw_3x3_s1"),
        (SMALL, torch.contiguous_format, "nchw_3x3_s1", "nchw_3x3_s1"),
        (DILATED, torch.channels_last, "nhwc_3x3_s1", "nhwc_3x3_s1"),
        (WAVELET, torch.contiguous_format, "any", "any"),
        (WAVELET, torch.channels_last, "any", "any"),
        # Channels and widths that no vector divides.
        (ODD, torch.channels_last, "nhwc_4x4_s2_p1_elements", "nhwc_4x4_s2_p1_elements"),
        (ODD, torch.contiguous_format, "nchw_4x4_s2_p1", "nchw_4x4_s2_p1"),
        (STATIONARY, torch.channels_last, "nhwc_4x1_s1_elements", "nhwc_4x1_s1_elements"),
        (STATIONARY, torch.contiguous_format, "nchw_4x1_s1", "nchw_4x1_s1"),
        (FREQUENCIES, torch.channels_last, "nhwc_1x5_s1", "nhwc_1x5_s1"),
        # Too few outputs for a block a multiprocessor.
        (SMALL, torch.channels_last, "nhwc_3x3_s1_small", "nhwc_3x3_s1_small"),
        (DEEP, torch.channels_last, "nhwc_5x5_s2_p0_small", "nhwc_5x5_s2_p0_small"),
    ],
)
def test_layers_are_planned(p, memory, wide, narrow):
    for dtype in DTYPES:
        assert best(explanation(p, dtype, memory)) == (wide if dtype == torch.float32 else narrow)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("configuration", VECTORS)
def test_channels_of_every_number_are_planned_in_channels_last(configuration, dtype):
    """Also fewer than the vectors of some tiles of the same shape."""
    kernel, stride, padding = SHAPES[VECTORS[configuration].removesuffix("_small")]
    for channels in range(2, 18):
        p = Problem(2, channels, channels, (9, 11), kernel, stride, padding, (0, 0), channels)
        plan = explanation(p, dtype, torch.channels_last)
        fits = channels % (4 if dtype == torch.float32 or "2x2" not in configuration else 8) == 0
        assert best(plan) is not None
        if fits and "1x3" not in configuration:
            assert refusals(plan)[configuration] == ""


def layer(configuration, rng):
    """A problem of the configuration's, of the size of a network's layer."""
    p = problem(configuration, rng)
    groups = 16 * rng.randint(1, 16)
    return dataclasses.replace(
        p,
        batch=rng.choice((1, 4, 16)),
        in_channels=groups,
        out_channels=groups * (p.out_channels // p.in_channels),
        size=(rng.randint(14, 128), rng.randint(14, 128)),
        groups=groups,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_exact_configuration_is_chosen_for_its_problems(dtype):
    """Of all families. Problems of a microsecond may be another's as well."""
    for configuration in TILE:
        for seed in range(5):
            plan = explanation(layer(configuration, random.Random(seed)), dtype)
            assert f"{plan.algorithm}/{plan.configuration}".startswith(f"depthwise/{configuration}")
            small = best(explanation(problem(configuration, random.Random(seed)), dtype))
            # Images of one channel are in both layouts at once.
            assert small.startswith(configuration) or small == "any_one" or LAST[small].startswith(TILE[configuration])


def test_refusals_say_why():
    takes = Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 4)
    tile, rows, last = "nchw_4x4_s2_p1", "nchw_4x4_s2_p1_rows", "nhwc_4x4_s2_p1"
    assert refusals(explanation(takes))[tile] == ""
    huge = Problem(1, 2, 2, (2**15, 2**14), (2, 2), (2, 2), (0, 0), (0, 0), 2)
    dense = Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 2)
    many = Problem(2, 34, 2, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 2)
    dilated = Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 4, (1, 2))
    dilated_rows = Problem(2, 4, 4, (6, 8), (3, 3), (1, 1), (1, 1), (0, 0), 4, (2, 1))
    dilated_columns = Problem(2, 4, 4, (6, 8), (3, 3), (1, 1), (1, 1), (0, 0), 4, (1, 2))
    far = Problem(2, 4, 4, (6, 8), (3, 3), (1, 1), (2**24 - 2, 1), (0, 0), 4, (2**24, 1))
    nine = Problem(2, 4, 4, (6, 8), (9, 9), (2, 2), (1, 1), (0, 0), 4)
    two = Problem(2, 4, 4, (6, 8), (2, 2), (2, 2), (0, 1), (0, 0), 4)
    odd = Problem(2, 4, 4, (6, 7), (4, 4), (2, 2), (1, 1), (0, 0), 4)
    five = Problem(2, 4, 4, (6, 8), (4, 4), (5, 5), (1, 1), (0, 0), 4)
    for p, configuration, reason in (
        (dense, tile, "takes 1 input channel a group, not 2"),
        (dense, "any", "takes 1 input channel a group, or 1 output channel, not 2 and 2"),
        (many, "any", "takes at most 16 input channels a group, not 17"),
        (dilated, tile, "takes dilation 1 along the width only"),
        (dilated_rows, "nchw_3x3_s1", ""),
        (dilated_columns, "nchw_3x3_s1", "takes dilation 1 along the width only"),
        (far, "nchw_3x3_s1", "takes dilated kernels whose taps are less than 2^27 elements apart"),
        (nine, "nchw_8x8_s4_p2", "has kernel 8 along the height, not 9"),
        (two, "nchw_2x2_s2_p0", "has padding modulo stride 0 along the width, not 1"),
        (five, tile, "has stride 2 along the height, not 5"),
        (huge, "nchw_2x2_s2_p0", "takes images of less than 2^30 elements a channel"),
        (huge, "any", "takes images of less than 2^30 elements a channel"),
        (takes, last, "takes inputs whose channels are contiguous in memory"),
        (odd, rows, "takes widths that are multiples of 2 and, of the output, 4"),
    ):
        assert refusals(explanation(p))[configuration] == reason
    for p in (dense, many, huge):
        plan = explanation(p)
        assert plan.algorithm != "depthwise"
        assert best(plan) is None
    for p in (dilated, nine, two, five):
        assert best(explanation(p)) == "any_one"
    assert set(refusals(explanation(takes, torch.float64)).values()) == {"has no float64"}

    memory = torch.channels_last
    plan = explanation(takes, memory=memory)
    assert refusals(plan)[tile] == "takes input rows that are contiguous in memory"
    six = Problem(2, 6, 6, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 6)
    assert refusals(explanation(six, memory=memory))[last] == "takes channels and strides that are multiples of 4"
    twice = Problem(2, 4, 8, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 4)
    assert refusals(explanation(twice, memory=memory))[last] == "takes 1 output channel a group, not 2"
    large = Problem(2, 4, 4, (6, 8), (120, 120), (2, 2), (1, 1), (0, 0), 4)
    assert refusals(explanation(large, memory=memory))["nhwc_any"] == (
        "has no room in shared memory for a kernel of this size"
    )
    assert best(explanation(large, memory=memory)) == "any_one"


# GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("configuration", "dtype"), COMPILED, ids=str)
def test_random_problems(configuration, dtype):
    rng = random.Random(f"{configuration} {dtype} gpu")
    name = f"depthwise/{configuration}"
    for _ in range(problem_count(10)):
        p = problem(configuration, rng, 16, 96)
        x, w, b = operands(p, configuration, dtype, rng, "cuda")
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced(name, x, w, b, p)
        ref = reference(p, "forward", x=x, w=w, bias=b)
        direct = forced("direct/thread_per_output", x, w, b, p)
        assert_parity(result, direct, ref)
        for _ in range(2):
            poison_allocator(p.y_shape, dtype=dtype)
            assert torch.equal(forced(name, x, w, b, p), result)
        assert_parity(on_host(p, configuration, *(None if t is None else t.cpu() for t in (x, w, b))), direct, ref)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("configuration", ("nchw_4x4_s2_p1", "nchw_4x4_s2_p1_rows", "nhwc_4x4_s2_p1", "nhwc_any"))
def test_misaligned_inputs(configuration, dtype, offset):
    p = Problem(2, 8, 8, (7, 32), (4, 4), (2, 2), (1, 1), (0, 0), 8)
    w = random_tensor(p.w_shape, dtype, "cuda")
    x = random_tensor(p.x_shape, dtype, "cuda")
    last = configuration.startswith("nhwc")
    result = forced(f"depthwise/{configuration}", in_memory(x, last, offset), w, None, p)
    assert_parity(result, None, reference(p, "forward", x=x, w=w))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("p", "last", "configurations"),
    [
        (BILINEAR, False, ("nchw_4x4_s2_p1", "nchw_4x4_s2_p1_rows", "any")),
        (BILINEAR, True, ("nhwc_4x4_s2_p1", "nhwc_any", "any")),
        (FIVE, True, ("nhwc_5x5_s2_p0", "nhwc_5x5_s2_p0_small", "nhwc_any")),
        # Rows that vectors do not fit: tall tiles.
        (WIDE, False, ("nchw_5x5_s2_p0", "any")),
        (ODD, True, ("nhwc_4x4_s2_p1_elements", "nhwc_4x4_s2_p1_small_elements", "nhwc_any", "any")),
        (Problem(2, 200, 200, (30, 40), (4, 4), (2, 2), (1, 1), (0, 0), 200), True, ("nhwc_4x4_s2_p1", "nhwc_any")),
        (DILATED, True, ("nhwc_3x3_s1", "nhwc_3x3_s1_small", "nhwc_any", "any", "any_one")),
    ],
)
def test_large_layers_of_all_configurations_agree(p, last, configurations, dtype):
    """Several waves of blocks, several tiles a thread, several chunks of channels; against ATen."""
    x = in_memory(torch.randn(p.x_shape, device="cuda").to(dtype), last, 0)
    w = torch.randn(p.w_shape, device="cuda").to(dtype)
    expected = F.conv_transpose2d(x.double(), w.double(), **p.arguments)
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for configuration in configurations:
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced(f"depthwise/{configuration}", x, w, None, p)
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("configuration", "dtype"), COMPILED, ids=str)
def test_nan_and_inf_spread_by_taps_only(configuration, dtype):
    rng = random.Random(configuration)

    def forward(p, configuration, x, w):
        return forced(f"depthwise/{configuration}", x, w, None, p)

    check_spread(problem(configuration, rng, 6, 16), configuration, forward, "cuda", dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", (None, "any", "nhwc_any"))
def test_more_images_than_a_grid_is_high(configuration):
    p = Problem(70_000, 2, 2, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    x, w = random_tensor(p.x_shape, torch.float32, "cuda"), random_tensor(p.w_shape, torch.float32, "cuda")
    last = Problem(1, 2, 2, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    if configuration is None:
        assert convt.explain(x, w, **p.arguments).algorithm == "depthwise"
        result = convt.conv_transpose2d(x, w, **p.arguments)
    else:
        result = forced(f"depthwise/{configuration}", in_memory(x, configuration == "nhwc_any", 0), w, None, p)
    assert_parity(result[-1:], None, reference(last, "forward", x=x[-1:], w=w))


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
@pytest.mark.parametrize("configuration", ("nchw_4x4_s2_p1", "nchw_4x4_s2_p1_rows", "nhwc_4x4_s2_p1", "nhwc_any"))
def test_outputs_beyond_32_bits(configuration, dtype):
    p = Problem(34, 64, 64, (512, 512), (4, 4), (2, 2), (1, 1), (0, 0), 64)
    memory = torch.channels_last if configuration.startswith("nhwc") else torch.contiguous_format
    x = torch.empty(p.x_shape, dtype=dtype, device="cuda", memory_format=memory).normal_()
    w = random_tensor(p.w_shape, dtype, "cuda")
    result = forced(f"depthwise/{configuration}", x, w, None, p)
    assert result.numel() > 2**31
    one = Problem(1, 1, 1, (512, 512), (4, 4), (2, 2), (1, 1))
    for n, c in ((0, 0), (33, 63)):
        ref = reference(one, "forward", x=x[n : n + 1, c : c + 1], w=w[c : c + 1])
        assert_parity(result[n : n + 1, c : c + 1], None, ref)
