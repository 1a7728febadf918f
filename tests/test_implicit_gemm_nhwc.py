"""The implicit GEMM of few outputs of a position in channels_last: its source in the SIMT emulator, its row, its
kernels on a GPU."""

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
from reference import Problem, random_tensor

from convt import _C

FAMILY = "implicit_gemm_nhwc_sm90"
COLUMNS = {"16x256": 16, "32x256": 32}
NAMES = [f"{FAMILY}/{name}" for name in COLUMNS]

PLANET = Problem(4, 32, 3, (30, 30), (6, 6), (2, 2))
DCGAN = Problem(4, 64, 3, (32, 32), (4, 4), (2, 2), (1, 1))
FSRCNN = Problem(1, 56, 1, (90, 120), (9, 9), (4, 4), (4, 4), (3, 3))
SEGMENTATION = Problem(2, 64, 16, (64, 128), (3, 3), (2, 2), (1, 1), (1, 1))
SQUARE = Problem(1, 64, 16, (96, 64), (3, 3), (1, 1), (1, 1))
VOCODER = Problem(2, 64, 16, (1, 3000), (1, 4), (1, 2), (0, 1))
GROUPS = Problem(2, 96, 18, (24, 40), (5, 3), (1, 2), (2, 1), groups=3)
DILATED = Problem(1, 64, 8, (32, 64), (3, 3), (1, 1), (4, 4), dilation=(4, 4))
REAL = [PLANET, DCGAN, FSRCNN, SEGMENTATION, SQUARE, VOCODER, GROUPS, DILATED]


def problem(rng):
    """A random problem of the family's, and just outside of it: positions of x that begin anywhere."""

    def draw():
        groups = rng.choice((1, 1, 1, 2, 3))
        stride = (rng.randint(1, 3), rng.choice((1, 2, 2, 3, 4)))
        dilation = tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(2))
        return Problem(
            batch=rng.randint(1, 4),
            in_channels=groups * rng.choice((8 * rng.randint(1, 20), 8 * rng.randint(1, 8), rng.randint(1, 60))),
            out_channels=groups * rng.randint(1, 40),
            size=(rng.randint(1, 40), rng.randint(1, 160)),
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


def candidates(p, dtype=torch.float16, memory=torch.channels_last, device="h200"):
    return candidates_of(FAMILY, explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration and type, every way to lay blocks out: float64, accesses, NaN, infinity."""
    said = simt_program.run(simt_program.build("implicit_gemm_nhwc_sm90_simt.cpp", tmp_path), 0, 600)
    assert ": 0" not in said


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, precision):
    found = candidates(p, DTYPES[precision])
    assert [f"{FAMILY}/{name}" for name in found] == NAMES
    phases = math.prod(p.arguments["stride"])
    few = "has fewer columns than there are phases"
    for name, c in found.items():
        assert (c.refusal == few) == (COLUMNS[name] < phases)
    assert any(c.fits for c in found.values())


def test_refusals_say_why():
    assert {c.refusal for c in candidates(DCGAN, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(DCGAN, device="a100").values()} == {"needs sm_90"}
    first = {c.refusal for c in candidates(DCGAN, memory=torch.contiguous_format).values()}
    assert first == {"takes outputs whose channels are innermost"}
    many = Problem(1, 16, 8, (8, 8), (13, 13))
    assert {c.refusal for c in candidates(many).values()} == {"takes kernels of at most 160 taps"}
    torch.backends.cudnn.allow_tf32 = False
    assert {c.refusal for c in candidates(DCGAN, torch.float32).values()} == {"computes float32 in TF32"}


def test_positions_that_begin_anywhere_are_copied():
    """Their channels to multiples of 16 bytes, each group's; the rest of the workspace is packed weights."""
    packed = candidates(DCGAN)["16x256"].plan.workspace_bytes
    assert packed == 9 * 64 * 16 * 2  # a phase has taps of a kernel of 2 x 2, all phases together of 3 x 3
    for channels, groups in ((62, 1), (124, 2)):
        p = Problem(4, channels, 3 * groups, (32, 32), (4, 4), (2, 2), (1, 1), groups=groups)
        assert candidates(p)["16x256"].plan.workspace_bytes == groups * (packed + 2 * 64 * 4 * 32 * 32)


@pytest.mark.parametrize(("precision", "channels", "product"), [("float16", 32, 16), ("tf32", 16, 8)])
def test_few_channels_have_half_a_chunk(precision, channels, product):
    """64 bytes of a position instead of 128: more blocks of a multiprocessor have room, and fewer bytes are read."""
    for of_group, halves in ((channels, 1), (channels + product, 2)):
        p = Problem(4, of_group, 32, (256, 256), (3, 3), (1, 1), (1, 1))
        plan = candidates(p, DTYPES[precision])["32x256"].plan
        assert plan.tile.channel_groups == 2 * halves
        assert plan.grid == (3 if halves == 1 else 2) * 132


# GPU


def operands(p, dtype, rng):
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    if rng.random() < 0.5:
        w = w.contiguous(memory_format=torch.channels_last)
    bias = random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None
    return x.contiguous(memory_format=torch.channels_last), w, bias


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
            ones[0] = ones[0].contiguous(memory_format=torch.channels_last)
            ran += check_spread(configuration, p, rng, *ones)
    assert ran > 0
