"""Rows of NCHW folded along rows: the family's source in the SIMT emulator, its row, its kernels on a GPU."""

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

FAMILY = "gemm_fold_rows_sm90"
# Columns of the kernel, and their stride.
COLUMNS = {"k3s1_64x128": (3, 1), "k3s1_32x128": (3, 1), "k3s2_32x128": (3, 2), "k4s2_32x128": (4, 2)}
NAMES = [f"{FAMILY}/{name}" for name in COLUMNS]
DTYPES = (torch.float16, torch.bfloat16)

KB57 = Problem(8, 64, 64, (1024, 1024), (3, 3))
KB71 = Problem(8, 32, 32, (512, 1024), (3, 3))
STYLEGAN = Problem(1, 64, 32, (512, 512), (3, 3), (2, 2))
HRNET = Problem(12, 66, 32, (128, 128), (4, 4), (2, 2), (1, 1))
ITS = [KB57, KB71, STYLEGAN, HRNET]
# Of a few images or rows, for all configurations of their columns.
REAL = [
    Problem(1, 64, 64, (37, 1024), (3, 3)),  # rows of y of 2052 bytes
    Problem(2, 32, 40, (21, 200), (3, 3), (1, 1), (1, 1)),
    Problem(2, 40, 24, (19, 256), (5, 3), (2, 2), (2, 1), (1, 1)),  # channels that are no multiple of 16
    Problem(1, 64, 32, (40, 512), (3, 3), (2, 2)),
    Problem(2, 66, 48, (31, 128), (4, 4), (2, 2), (1, 1)),
    Problem(3, 16, 8, (9, 64), (2, 4), (1, 2), (0, 3), (0, 1)),  # all columns at once, and some cut
    Problem(2, 96, 70, (12, 72), (3, 3), (3, 1), (1, 2), groups=2),
    Problem(1, 32, 32, (16, 136), (3, 4), (1, 2), (2, 1), dilation=(3, 1)),
]


def problem(rng, configuration):
    """A random problem of the configuration's columns."""
    columns, stride = COLUMNS[configuration.split("/")[1]]
    stride_h = rng.randint(1, 3)
    dilation_h = rng.choice((1, 1, 1, 2)) if stride_h != 2 else 1
    groups = rng.choice((1, 1, 1, 2, 3))
    return Problem(
        batch=rng.choice((1, 1, rng.randint(1, 5))),
        in_channels=groups * rng.choice((16 * rng.randint(1, 8), rng.randint(1, 80))),
        out_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 60))),
        size=(rng.randint(1, 20), 8 * rng.randint(1, 40)),
        kernel=(rng.randint(stride_h, 4), columns),
        stride=(stride_h, stride),
        padding=(rng.randint(0, 3), rng.randint(0, 4)),
        output_padding=(rng.randint(0, max(stride_h, dilation_h) - 1), rng.randint(0, stride - 1)),
        dilation=(dilation_h, 1),
        groups=groups,
    )


def fitting_problem(rng, configuration, dtype):
    """A random one that the configuration takes."""
    while True:
        p = affordable(lambda: problem(rng, configuration))
        if candidates(p, dtype)[configuration.split("/")[1]].fits:
            return p


def candidates(p, dtype=torch.float16, memory=torch.contiguous_format, device="h200"):
    return candidates_of(FAMILY, explained(p, dtype, memory, device=device))


def operands(p, dtype, rng):
    x, w = (random_tensor(shape, dtype, "cuda") for shape in (p.x_shape, p.w_shape))
    if rng.random() < 0.3:
        w = w.contiguous(memory_format=torch.channels_last)
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Rows of y that begin anywhere, several tiles, patches and sets: float64, accesses, barriers, NaN and infinity."""
    said = simt_program.run(simt_program.build("gemm_fold_rows_sm90_simt.cpp", tmp_path), 0, 500)
    assert ": 0" not in said


@pytest.mark.parametrize("p", ITS)
def test_large_images_are_its(p):
    assert explained(p, torch.float16).algorithm == FAMILY


@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p):
    for name, c in candidates(p).items():
        assert c.fits == (COLUMNS[name] == (p.kernel[1], p.stride[1])), c.refusal
        assert not c.fits or c.plan.workspace_bytes == 0


def test_refusals_say_why():
    aligned = "takes x of which columns are innermost and rows begin at multiples of 16 bytes"
    refused = {
        aligned: Problem(1, 16, 16, (8, 63), (3, 3)),
        "takes kernels with taps of every row of the output": Problem(1, 16, 16, (8, 64), (2, 3), (3, 1)),
        "takes kernels whose columns are not dilated": Problem(1, 16, 16, (8, 64), (3, 3), dilation=(1, 2)),
        "takes strides of at most 32 rows": Problem(1, 16, 16, (8, 64), (40, 3), (33, 1)),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p).values()} == {reason}
    found = candidates(Problem(1, 16, 16, (8, 64), (3, 3)))
    assert found["k4s2_32x128"].refusal == "takes kernels of 4 columns and strides of 2"
    many = candidates(Problem(1, 512, 64, (64, 64), (3, 3)))["k3s1_64x128"].refusal
    assert many == ("needs 589824 bytes of shared memory for weights, and has not enough beside them for patches of x")
    assert {c.refusal for c in candidates(KB71, torch.float32).values()} == {"has no float32"}
    assert {c.refusal for c in candidates(KB71, device="a100").values()} == {"needs sm_90"}
    last = {c.refusal for c in candidates(KB71, memory=torch.channels_last).values()}
    assert last == {"takes outputs of which columns are innermost"}


# GPU


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, dtype):
    rng = random.Random(f"{configuration} {dtype}")

    def draw():
        p = fitting_problem(rng, configuration, dtype)
        return p, *operands(p, dtype, rng)

    check_random_problems(configuration, str(dtype), draw, 20)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", REAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_layers(p, dtype):
    configurations = [name for name in NAMES if candidates(p, dtype)[name.split("/")[1]].fits]
    x, w, b = operands(p, dtype, random.Random(0))
    assert check_configurations(configurations, str(dtype), p, x, w, b) == len(configurations) > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", ("float16", "bfloat16"))
@pytest.mark.parametrize("configuration", NAMES)
def test_nan_and_inf_spread_by_taps_only(configuration, precision):
    check_spread_in_ones(configuration, precision, lambda rng: fitting_problem(rng, configuration, dtype_of(precision)))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", [HRNET, KB71])
def test_large_layers_as_direct(p):
    """Every block takes several pairs of stripes."""
    check_against_direct(FAMILY, "float16", p)
