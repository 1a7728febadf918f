"""The implicit GEMM with x from registers: its source in the SIMT emulator, its row, its kernels on a GPU."""

import math
import random

import pytest
import simt_program
import torch
from forced import (
    DTYPES,
    affordable,
    candidates_of,
    check_configurations,
    check_random_problems,
    check_spread,
    explained,
)
from reference import Problem, lay_out, random_tensor

from convt import _C

FAMILY = "implicit_gemm_nchw_sm90"
CHANNELS = ("2x32x256",)
MERGED = ("subpixel_16x512", "subpixel_32x384", "subpixel_64x256")
NAMES = [f"{FAMILY}/{name}" for name in (*CHANNELS, *MERGED)]

SQUARE = Problem(2, 64, 64, (128, 96), (3, 3))
WIDE = Problem(1, 32, 32, (64, 512), (3, 7), padding=(1, 3))
CYCLEGAN = Problem(1, 64, 32, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1))
POSE = Problem(4, 256, 64, (32, 24), (4, 4), (2, 2), (1, 1))
FEW_CHANNELS = Problem(1, 162, 16, (64, 128), (4, 4), (2, 2), (1, 1))
ODD = Problem(1, 90, 45, (65, 81), (7, 5), (2, 2), (3, 2))  # rows of x that begin anywhere
STRIDE_4 = Problem(1, 64, 64, (60, 60), (8, 8), (4, 4), (2, 2))
DILATED = Problem(2, 64, 32, (32, 64), (3, 3), (1, 1), (1, 4), dilation=(1, 4))
REAL = [SQUARE, WIDE, CYCLEGAN, POSE, FEW_CHANNELS, ODD, STRIDE_4, DILATED]


def problem(rng):
    """A random problem of the family's."""

    def draw():
        groups = rng.choice((1, 1, 1, 2, 3))
        stride = (rng.randint(1, 3), rng.choice((1, 2, 2, 3, 4)))
        dilation = tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(2))
        return Problem(
            batch=rng.randint(1, 4),
            in_channels=groups * rng.choice((8 * rng.randint(1, 20), rng.randint(1, 60))),
            out_channels=groups * rng.choice((8 * rng.randint(1, 20), rng.randint(1, 80))),
            size=(rng.randint(1, 40), rng.choice((8 * rng.randint(1, 20), rng.randint(1, 100)))),
            kernel=(rng.randint(1, 8), rng.randint(1, 8)),
            stride=stride,
            padding=(rng.randint(0, 3), rng.randint(0, 3)),
            output_padding=tuple(rng.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )

    return affordable(draw)


@pytest.fixture(autouse=True)
def tf32(_fresh_state):
    torch.backends.cudnn.allow_tf32 = True


def candidates(p, dtype=torch.float16, memory=torch.contiguous_format, device="h200"):
    return candidates_of(FAMILY, explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration and type, every way to lay strips out: float64, accesses, NaN, infinity."""
    said = simt_program.run(simt_program.build("implicit_gemm_nchw_sm90_simt.cpp", tmp_path), 0, 900)
    assert ": 0" not in said


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, precision):
    found = candidates(p, DTYPES[precision])
    assert [f"{FAMILY}/{name}" for name in found] == NAMES
    two_phases = "takes strides of the columns that are multiples of 2"
    for name, c in found.items():
        assert (c.refusal == two_phases) == (name.startswith("2x") and p.arguments["stride"][1] % 2 != 0)
    # Large kernels have large patches.
    room = "has no room for two patches of x and the weights of two steps"
    assert {c.refusal for c in found.values() if not c.fits} <= {two_phases, room}
    assert found["subpixel_32x384"].fits


@pytest.mark.parametrize("precision", DTYPES)
def test_x_is_copied_where_its_rows_begin_anywhere(precision):
    dtype = DTYPES[precision]
    packed = 4 * 64 * math.prod((9, 64)) if precision == "tf32" else 2 * 64 * math.prod((9, 64))
    assert candidates(SQUARE, dtype)["subpixel_32x384"].plan.workspace_bytes == packed
    odd = Problem(2, 64, 64, (128, 99), (3, 3))
    copy = 2 * 64 * 128 * (100 * 4 if precision == "tf32" else 104 * 2)
    assert candidates(odd, dtype)["subpixel_32x384"].plan.workspace_bytes == packed + copy


def test_refusals_say_why():
    assert {c.refusal for c in candidates(SQUARE, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(SQUARE, device="a100").values()} == {"needs sm_90"}
    last = {c.refusal for c in candidates(SQUARE, memory=torch.channels_last).values()}
    assert last == {"takes outputs whose columns are innermost"}
    two = {c.refusal for name, c in candidates(SQUARE).items() if name.startswith("2x")}
    assert two == {"takes strides of the columns that are multiples of 2"}
    many = Problem(1, 16, 8, (8, 8), (13, 13))
    assert not any(c.fits for c in candidates(many).values())
    torch.backends.cudnn.allow_tf32 = False
    assert {c.refusal for c in candidates(SQUARE, torch.float32).values()} == {"computes float32 in TF32"}


# GPU


def operands(p, dtype, rng):
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    if rng.random() < 0.3:
        x = lay_out(x, "offset")
    if rng.random() < 0.2:
        w = w.contiguous(memory_format=torch.channels_last)
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, precision):
    rng = random.Random(f"{configuration} {precision}")

    def draw():
        p = problem(rng)
        return p, *operands(p, DTYPES[precision], rng)

    check_random_problems(configuration, precision, draw, 40)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("p", REAL)
def test_every_configuration_takes_real_layers(p, precision):
    x, w, b = operands(p, DTYPES[precision], random.Random(0))
    assert check_configurations(NAMES, precision, p, x, w, b) > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("configuration", NAMES)
def test_nan_and_inf_spread_by_taps_only(configuration, precision):
    rng = random.Random(configuration)
    ran = 0
    for _ in range(12):
        p = problem(rng)
        p = Problem(**{**p.__dict__, "batch": 1, "size": (p.size[0] % 6 + 1, p.size[1] % 24 + 1)})
        if min(p.y_shape) > 0:
            ones = [torch.ones(s, dtype=DTYPES[precision], device="cuda") for s in (p.x_shape, p.w_shape)]
            ran += check_spread(configuration, p, rng, *ones)
    assert ran > 0
