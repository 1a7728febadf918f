"""Kernels as large as their stride in TF32: the family's source in the SIMT emulator, its row, its kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import FORMATS, candidates_of, check_configurations, check_random_problems, check_spread, explained
from reference import Problem, lay_out, random_tensor

from convt import _C

FAMILY = "gemm_scatter_tf32_sm90"
NAMES = [f"{FAMILY}/{name}" for name in ("128x64_pingpong", "128x128_pingpong", "256x128")]


def patches(batch, in_channels, out_channels, size, kernel, groups=1):
    return Problem(batch, in_channels, out_channels, size, kernel, kernel, groups=groups)


SAM = patches(2, 256, 64, (32, 64), (2, 2))
MASK_RCNN = patches(7, 256, 256, (14, 14), (2, 2))  # images of 196 positions
DEBLOCK = patches(1, 128, 256, (60, 176), (1, 1))
DEPTH = patches(1, 256, 128, (37, 37), (4, 4))  # channels of x that begin anywhere, odd rows
CENTERPOINT = patches(1, 256, 128, (45, 45), (2, 2))  # an output row of 90
PATCHES = patches(4, 768, 32, (6, 6), (16, 16))
SIGNAL = patches(2, 64, 24, (1, 1001), (1, 8))
REAL = [SAM, MASK_RCNN, DEBLOCK, DEPTH, CENTERPOINT, PATCHES, SIGNAL]


@pytest.fixture(autouse=True)
def tf32(_fresh_state):
    torch.backends.cudnn.allow_tf32 = True


def problem(rng, layout):
    """A random problem of the family's."""
    last = layout == "nhwc"
    groups = 1 if last else rng.choice((1, 1, 1, 2, 3))
    return patches(
        batch=rng.choice((1, 1, rng.randint(1, 8))),
        in_channels=groups * (4 * rng.randint(1, 100) if last else rng.randint(1, 400)),
        out_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 60))),
        size=(rng.randint(1, 16), rng.choice((4 * rng.randint(1, 12), rng.randint(1, 30)))),
        kernel=(rng.randint(1, 4), rng.randint(1, 7) if last else rng.choice((1, 1, 2, 2, 2, 4, 8, 12))),
        groups=groups,
    )


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of(FAMILY, explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, width of a kernel and kind of row: float64, accesses, NaN, infinity."""
    said = simt_program.run(simt_program.build("gemm_scatter_tf32_sm90_simt.cpp", tmp_path), 0, 600)
    # All of them: copies of x, vectors of y, neighbouring outputs of a position.
    assert ": 0" not in said


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, layout):
    found = candidates(p, memory=FORMATS[layout])
    assert len(found) == len(NAMES) and all(c.fits for c in found.values())
    # Packed weights, of whole tiles, and a copy of x where its channels begin anywhere.
    images, channels, rows, columns = p.x_shape
    outputs = p.w_shape[1] * p.w_shape[2] * p.w_shape[3]
    for name, c in found.items():
        tile = 64 if "x64" in name else 128
        packed = 4 * (-(-channels // 32) * 32) * (-(-outputs // tile) * tile)
        copy = 4 * channels * (-(-images * rows * columns // 4) * 4)
        copies = {0} if layout == "nhwc" else {copy} if rows * columns % 4 else {0, copy}
        assert c.plan.workspace_bytes - packed in copies


def test_refusals_say_why():
    apart = "takes kernels as large as their stride, of whose outputs nothing is cut or padded"
    refused = {
        apart: Problem(1, 16, 16, (8, 8), (4, 4), (2, 2), (1, 1)),
        "takes 1 or 2 columns of a kernel, or a multiple of 4": patches(1, 16, 16, (8, 8), (3, 3)),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p).values()} == {reason}
    for cut in ({"padding": (1, 0)}, {"output_padding": (0, 1)}, {"dilation": (2, 1)}):
        assert {c.refusal for c in candidates(Problem(**{**SAM.__dict__, **cut})).values()} == {apart}
    refused = {
        "takes one group in channels_last": patches(1, 32, 32, (8, 8), (2, 2), 2),
        "takes strides of x in channels_last that are multiples of 16 bytes": patches(1, 3, 32, (8, 8), (2, 2)),
        "takes multiples of 4 outputs in a row, of a position in channels_last": patches(1, 32, 3, (8, 8), (2, 2)),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p, memory=torch.channels_last).values()} == {reason}
    assert {c.refusal for c in candidates(SAM, torch.float16).values()} == {"has no float16"}
    assert {c.refusal for c in candidates(SAM, device="a100").values()} == {"needs sm_90"}
    torch.backends.cudnn.allow_tf32 = False
    assert {c.refusal for c in candidates(SAM).values()} == {"computes float32 in TF32"}


# GPU


def operands(p, layout, rng):
    x, w = (
        random_tensor(shape, torch.float32, "cuda").contiguous(memory_format=FORMATS[layout])
        for shape in (p.x_shape, p.w_shape)
    )
    if layout == "nchw" and rng.random() < 0.3:
        x = lay_out(x, "offset")
    if rng.random() < 0.2:
        w = w.contiguous(memory_format=torch.channels_last)
    return x, w, random_tensor((p.out_channels,), torch.float32, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, layout):
    rng = random.Random(f"{configuration} {layout}")

    def draw():
        p = problem(rng, layout)
        return p, *operands(p, layout, rng)

    check_random_problems(configuration, "tf32", draw, 40)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("p", REAL)
def test_every_configuration_takes_real_layers(p, layout):
    x, w, b = operands(p, layout, random.Random(0))
    assert check_configurations(NAMES, "tf32", p, x, w, b) == len(NAMES)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("configuration", NAMES)
def test_nan_and_inf_spread_by_taps_only(configuration, layout):
    rng = random.Random(configuration)
    ran = 0
    for _ in range(8):
        p = problem(rng, layout)
        p = Problem(**{**p.__dict__, "batch": 1, "size": (p.size[0] % 4 + 1, p.size[1])})
        ones = [torch.ones(s, device="cuda").contiguous(memory_format=FORMATS[layout]) for s in (p.x_shape, p.w_shape)]
        ran += check_spread(configuration, p, rng, *ones)
    assert ran > 0
