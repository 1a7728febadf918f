"""The family for kernels as large as their stride: its source in the SIMT emulator, its row, its kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import FORMATS, candidates_of, check_configurations, check_random_problems, check_spread, explained
from reference import Problem, lay_out, random_tensor

import convt
from convt import _C

DTYPES = (torch.float16, torch.bfloat16)
NAMES = [f"gemm_scatter_sm90/{name}" for name in ("128x64", "128x128_pingpong", "256x128")]


def patches(batch, in_channels, out_channels, size, kernel, groups=1):
    return Problem(batch, in_channels, out_channels, size, kernel, kernel, groups=groups)


SAM = patches(2, 256, 64, (32, 64), (2, 2))
MASK_RCNN = patches(7, 256, 256, (14, 14), (2, 2))  # rows of x of 392 bytes
DEBLOCK = patches(1, 128, 256, (60, 176), (1, 1))
DEPTH = patches(1, 256, 128, (37, 37), (4, 4))  # rows of x of 2738 bytes
UNETR = patches(4, 768, 256, (6, 6), (2, 2))
SIGNAL = patches(2, 64, 24, (1, 1001), (1, 8))
REAL = [SAM, MASK_RCNN, DEBLOCK, DEPTH, UNETR, SIGNAL]
# Outputs that the copy engine writes: in channels_last, or where a kernel has one tap.
BOXES = {
    "rows of segments": patches(2, 64, 96, (3, 128), (2, 4)),
    "whole rows in a segment": patches(3, 64, 128, (5, 8), (2, 2)),
    "sixteen positions": patches(2, 72, 64, (7, 48), (2, 2)),
    "eight positions, which are vectors": patches(2, 72, 64, (7, 24), (2, 2)),
    "outputs of one row of the kernel": patches(2, 64, 24, (1, 200), (1, 3)),
    "one tap": patches(3, 96, 136, (9, 40), (1, 1)),
    "one tap, groups": patches(2, 128, 144, (12, 24), (1, 1), groups=2),
    "many tiles": patches(8, 128, 256, (64, 64), (1, 1)),
}


def problem(rng, layout):
    """A random problem of the family's."""
    width = rng.randint(1, 7) if layout == "nhwc" else rng.choice((1, 1, 2, 2, 4, 8, 16, 64))
    groups = 1 if layout == "nhwc" else rng.choice((1, 1, 1, 2, 3))
    return patches(
        batch=rng.choice((1, 1, rng.randint(1, 8))),
        in_channels=groups * (8 * rng.randint(1, 60) if layout == "nhwc" else rng.randint(1, 400)),
        out_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 60))),
        size=(rng.randint(1, 16), rng.choice((4 * rng.randint(1, 12), rng.randint(1, 30)))),
        kernel=(rng.randint(1, 4), width),
        groups=groups,
    )


def candidates(p, dtype=torch.float16, memory=torch.contiguous_format, device="h200", w_memory=None):
    return candidates_of("gemm_scatter_sm90", explained(p, dtype, memory, w_memory, device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("gemm_scatter_sm90/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, element type and layout, rows of x that begin anywhere: float64, accesses, NaN, infinity."""
    said = simt_program.run(simt_program.build("gemm_scatter_sm90_simt.cpp", tmp_path), 0, 600)
    # All of them: maps of x by residues of its rows, and vectors of y.
    assert ": 0" not in said


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, dtype, layout):
    found = candidates(p, dtype, FORMATS[layout])
    assert len(found) == len(NAMES) and all(c.fits for c in found.values())
    # Rows of x that begin anywhere are copied, all images one after another.
    images, channels, rows, columns = p.x_shape
    copied = layout == "nchw" and rows * columns % 8 != 0
    copy = 2 * channels * (-(-images * rows * columns // 8) * 8)
    assert all(c.plan.workspace_bytes == (copy if copied else 0) or p is UNETR for c in found.values())


@pytest.mark.parametrize("layout", FORMATS)
def test_is_chosen_where_memory_is_the_limit(layout):
    x, w = (
        torch.empty(shape, dtype=torch.float16, device="meta").contiguous(memory_format=FORMATS[layout])
        for shape in (DEBLOCK.x_shape, DEBLOCK.w_shape)
    )
    assert convt.explain(x, w, device="h200", **DEBLOCK.arguments).algorithm == "gemm_scatter_sm90"


def test_refusals_say_why():
    larger = "takes kernels as large as their stride, of whose outputs nothing is cut or padded"
    refused = {
        larger: Problem(1, 16, 16, (8, 8), (4, 4), (2, 2), (1, 1)),
        "takes 1, 2, 4, 8, 16, 32 or 64 columns of a kernel": patches(1, 16, 16, (8, 8), (3, 3)),
        "takes strides of weights, and of x in channels_last, that are multiples of 16 bytes": patches(
            1, 16, 3, (8, 8), (2, 2)
        ),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p).values()} == {reason}
    for cut in ({"padding": (1, 0)}, {"output_padding": (0, 1)}, {"dilation": (2, 1)}):
        p = Problem(**{**SAM.__dict__, **cut})
        assert {c.refusal for c in candidates(p).values()} == {larger}
    mixed = candidates(SAM, memory=torch.channels_last, w_memory=torch.contiguous_format)
    refusals = {c.refusal for c in mixed.values()}
    assert refusals == {"takes weights in the layout of y"}
    last = {c.refusal for c in candidates(patches(1, 32, 32, (8, 8), (2, 2), 2), memory=torch.channels_last).values()}
    assert last == {"takes one group in channels_last"}
    assert {c.refusal for c in candidates(SAM, torch.float32).values()} == {"has no float32"}
    assert {c.refusal for c in candidates(SAM, device="a100").values()} == {"needs sm_90"}


# GPU


def operands(p, dtype, layout, rng):
    x, w = (random_tensor(s, dtype, "cuda").contiguous(memory_format=FORMATS[layout]) for s in (p.x_shape, p.w_shape))
    if layout == "nchw" and rng.random() < 0.3:
        x = lay_out(x, "offset")
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, dtype, layout):
    rng = random.Random(f"{configuration} {dtype} {layout}")

    def draw():
        p = problem(rng, layout)
        return p, *operands(p, dtype, layout, rng)

    check_random_problems(configuration, str(dtype), draw, 15)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", [*REAL, *(pytest.param(p, id=f"boxes: {name}") for name, p in BOXES.items())])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", FORMATS)
def test_every_configuration_takes_real_layers_and_boxes(p, dtype, layout):
    if (layout == "nhwc" and p.groups > 1) or (layout == "nchw" and p.kernel[1] == 3):
        pytest.skip("groups in channels_last, and kernels of three columns in NCHW, are not taken")
    x, w, b = operands(p, dtype, layout, random.Random(0))
    assert check_configurations(NAMES, str(dtype), p, x, w, b) == len(NAMES)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("layout", FORMATS)
def test_nan_and_inf_spread_by_taps_only(configuration, layout):
    rng = random.Random(configuration)
    dtype, ran = torch.float16, 0
    for _ in range(6):
        p = problem(rng, layout)
        p = Problem(**{**p.__dict__, "batch": 1, "size": (p.size[0] % 4 + 1, p.size[1])})
        ones = [
            torch.ones(s, dtype=dtype, device="cuda").contiguous(memory_format=FORMATS[layout])
            for s in (p.x_shape, p.w_shape)
        ]
        ran += check_spread(configuration, p, rng, *ones)
    assert ran > 0
