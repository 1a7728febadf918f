"""Kernels as large as their stride whose rows begin anywhere: emulator, planner row, kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
    affordable,
    candidates_of,
    check_against_direct,
    check_configurations,
    check_random_problems,
    check_spread_in_ones,
    dtype_of,
    explained,
)
from reference import Problem, random_tensor

from convt import _C

FAMILY = "gemm_scatter_rows_sm90"
NAMES = [f"{FAMILY}/128x128"]
DTYPES = (torch.float16, torch.bfloat16)


def patches(batch, in_channels, out_channels, size, kernel, groups=1):
    return Problem(batch, in_channels, out_channels, size, kernel, kernel, groups=groups)


MASK_RCNN = patches(256, 256, 256, (14, 14), (2, 2))  # rows of x of 28 bytes
CENTERPOINT = patches(4, 256, 256, (90, 90), (2, 2))
CLIPSEG = patches(64, 64, 32, (22, 22), (4, 4))
ITS = [MASK_RCNN, CENTERPOINT, CLIPSEG]
REAL = [
    patches(7, 256, 256, (14, 14), (2, 2)),  # tiles of rows of two images
    patches(1, 256, 256, (90, 90), (2, 2)),
    patches(4, 64, 32, (22, 22), (4, 4)),
    patches(40, 96, 40, (6, 6), (2, 2)),  # tiles of several images; channels that fill no piece
    patches(3, 72, 10, (5, 30), (2, 8)),
    patches(2, 130, 6, (4, 34), (8, 8)),
    patches(2, 66, 48, (9, 18), (2, 4), groups=2),
    patches(5, 16, 8, (3, 2), (2, 2)),  # images of less than 8 positions
    patches(1, 64, 64, (32, 64), (2, 2)),  # rows that the copy engine takes, too
]


def problem(rng):
    """A random one of the family's: an even number of columns, taps that are a power of two."""
    groups = rng.choice((1, 1, 1, 2, 3))
    return patches(
        batch=rng.choice((1, rng.randint(1, 8), rng.randint(1, 40))),
        in_channels=groups * rng.choice((64 * rng.randint(1, 4), rng.randint(1, 300))),
        out_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 60))),
        size=(rng.randint(1, 12), 2 * rng.choice((rng.randint(1, 10), rng.randint(1, 64)))),
        kernel=(2 ** rng.randint(0, 3), 2 ** rng.randint(1, 3)),
        groups=groups,
    )


def fitting_problem(rng, dtype):
    """A random one that the family takes: weights of an input channel have to be whole vectors of 16 bytes."""
    while True:
        p = affordable(lambda: problem(rng))
        if candidate(p, dtype).fits:
            return p


def candidate(p, dtype=torch.float16, memory=torch.contiguous_format, device="h200"):
    (found,) = candidates_of(FAMILY, explained(p, dtype, memory, device=device)).values()
    return found


def operands(p, dtype, rng):
    x, w = (random_tensor(shape, dtype, "cuda") for shape in (p.x_shape, p.w_shape))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Rows of y that begin anywhere, tiles of several images, several tiles: float64, accesses, barriers, infinity."""
    said = simt_program.run(simt_program.build("gemm_scatter_rows_sm90_simt.cpp", tmp_path), 0, 600)
    assert ": 0" not in said


@pytest.mark.parametrize("p", ITS)
def test_layers_whose_rows_begin_anywhere_are_its(p):
    plan = explained(p, torch.float16)
    assert plan.algorithm == FAMILY and plan.workspace_bytes == 0


@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p):
    assert candidate(p).fits, candidate(p).refusal


def test_refusals_say_why():
    refused = {
        "takes kernels as large as their stride, of whose outputs nothing is cut or padded": Problem(
            1, 16, 16, (8, 8), (4, 4), (2, 2), (1, 1)
        ),
        "takes kernels of several columns and 2, 4, 8, 16, 32 or 64 taps": patches(1, 16, 16, (8, 8), (3, 2)),
        "takes x of which rows begin at multiples of 4 bytes": patches(8, 64, 64, (37, 37), (2, 2)),
        "takes less than 2^30 rows of x": patches(2**27, 8, 8, (8, 2), (2, 2)),
        "takes rows of at most 128 positions": patches(1, 16, 16, (8, 130), (2, 2)),
        "takes images of which at most 32 fill a tile": patches(100, 16, 16, (1, 2), (2, 2)),
        "has not enough shared memory for all input channels of a tile": patches(1, 512, 64, (14, 14), (2, 2)),
        "takes strides of weights that are multiples of 16 bytes": patches(1, 16, 3, (8, 8), (2, 2)),
    }
    for reason, p in refused.items():
        assert candidate(p).refusal == reason
    assert candidate(MASK_RCNN, torch.float32).refusal == "has no float32"
    assert candidate(MASK_RCNN, device="a100").refusal == "needs sm_90"
    last = candidate(MASK_RCNN, memory=torch.channels_last).refusal
    assert last == "takes outputs of which columns are innermost"


# GPU


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_problems(dtype):
    rng = random.Random(str(dtype))

    def draw():
        p = fitting_problem(rng, dtype)
        return p, *operands(p, dtype, rng)

    check_random_problems(NAMES[0], str(dtype), draw, 60)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", REAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_layers(p, dtype):
    assert check_configurations(NAMES, str(dtype), p, *operands(p, dtype, random.Random(0))) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", ("float16", "bfloat16"))
def test_nan_and_inf_spread_by_taps_only(precision):
    check_spread_in_ones(NAMES[0], precision, lambda rng: fitting_problem(rng, dtype_of(precision)))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", ITS)
def test_large_layers_as_direct(p):
    """Every block takes several tiles of several rows."""
    check_against_direct(FAMILY, "float16", p)
