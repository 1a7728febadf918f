"""The family that sums products of whole images in shared memory: its source in the SIMT emulator, its row, a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
    affordable,
    candidates_of,
    check_accuracy,
    check_configurations,
    check_random_problems,
    check_spread,
    check_the_largest_numbers,
    explained,
    precise,
)
from reference import Problem, lay_out, random_tensor

from convt import _C

PRECISIONS = ("tf32", "ieee", "float16", "bfloat16")
IN_TURN = ("64x64", "64x128", "128x128", "64x256", "192x64")
COOPERATIVE = tuple(f"{name}_cooperative" for name in ("64x64", "64x128", "128x128", "64x256"))
NAMES = [f"gemm_fold_sm90/{name}" for name in IN_TURN + COOPERATIVE]

COMPILED = [(n, p) for n in NAMES for p in PRECISIONS if (n, p) != ("gemm_fold_sm90/64x256", "ieee")]

POSE = Problem(5, 256, 64, (8, 6), (4, 4), (2, 2), (1, 1))  # five images of 48 positions in 256
DCGAN = Problem(64, 128, 64, (4, 4), (4, 4), (2, 2), (1, 1))
CYCLEGAN = Problem(1, 64, 32, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1))  # rows of an image
WAV2LIP = Problem(8, 96, 64, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1))  # images of 9 positions
WIDE = Problem(1, 48, 16, (8, 336), (8, 1), (4, 1))  # more columns than a tile
SIGNAL = Problem(2, 96, 48, (1, 1344), (1, 8), (1, 4))
MANY_TAPS = Problem(1, 64, 8, (12, 16), (12, 12), (8, 8), (2, 2))
DILATED = Problem(2, 64, 32, (16, 16), (3, 3), (1, 1), (4, 4), dilation=(4, 4))
PIX2PIX = Problem(1, 128, 3, (128, 128), (4, 4), (2, 2), (1, 1))  # fewer tiles than multiprocessors
REAL = [POSE, DCGAN, CYCLEGAN, WAV2LIP, WIDE, SIGNAL, MANY_TAPS, DILATED, PIX2PIX]


def problem(rng):
    """A random problem of the family's: small images, or wide ones of few rows."""

    def draw():
        groups = rng.choice((1, 1, 1, 2, 3))
        small = rng.random() < 0.7
        stride = (rng.randint(1, 4), rng.choice((1, 2, 2, 3, 8)))
        dilation = tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(2))
        return Problem(
            batch=rng.randint(1, 20) if small else rng.randint(1, 2),
            in_channels=groups * rng.choice((8 * rng.randint(1, 60), rng.randint(1, 40))),
            out_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 60))),
            size=(rng.randint(1, 16), rng.randint(1, 16)) if small else (rng.randint(1, 40), 8 * rng.randint(1, 60)),
            kernel=(rng.randint(1, 6), rng.randint(1, 6) if rng.random() < 0.8 else rng.randint(6, 16)),
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


def candidates(p, dtype=torch.float16, **named):
    return candidates_of("gemm_fold_sm90", explained(p, dtype, **named))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("gemm_fold_sm90/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration and precision, every kind of tile: float64, accesses, NaN, infinity."""
    said = simt_program.run(simt_program.build("gemm_fold_sm90_simt.cpp", tmp_path), 0, 900)
    assert ": 0" not in said


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, precision):
    found = candidates(p, precise(precision))
    assert [f"gemm_fold_sm90/{name}" for name in found] == NAMES
    fit = {name for name in IN_TURN if found[name].fits}
    compiled = {name for name, c in found.items() if c.refusal != "has no registers for two parts of float32"}
    assert compiled == set(found) - ({"64x256"} if precision == "ieee" else set())
    if p is MANY_TAPS:  # 144 of them
        assert fit == {"192x64"}
    elif p is DILATED:  # between the rows that its kernel reaches, smaller tiles have none with all of its inputs
        assert fit == {"64x256"} & compiled
    else:
        assert fit >= {"64x128", "128x128", "64x256"} & compiled


def test_warpgroups_share_a_tile_where_there_is_one_for_each_block():
    few = Problem(16, 512, 256, (1, 32), (1, 16), (1, 8), (0, 4))
    found = candidates(few)
    assert found["128x128_cooperative"].fits and found["128x128_cooperative"].plan.grid == 128
    assert found["64x64_cooperative"].refusal == "has more tiles than multiprocessors"
    assert found["64x64"].fits and found["64x64"].plan.grid == 132
    assert explained(few, torch.float16).configuration in COOPERATIVE


@pytest.mark.parametrize("padding", (0, 1))
def test_tiles_begin_ahead_where_their_outputs_have_fewer_inputs(padding):
    """Four rows of x are all inputs of six rows of y, which begin ahead of it where the padding is odd."""
    p = Problem(1, 128, 3, (128, 128), (4, 4), (2, 2), (padding, padding))
    assert candidates(p)["64x256_cooperative"].plan.grid == 43 * 3


def test_the_only_tile_of_a_block_has_fewer_positions_where_there_are_multiprocessors_for_more():
    """Six boxes of 32 positions instead of eight, of which warps without any have nothing to do: ten rows of y each."""
    grids = {p: candidates(PIX2PIX, precise(p))["64x256_cooperative"].plan.grid for p in PRECISIONS}
    assert grids == {"tf32": 26 * 5, "ieee": 26 * 5, "float16": 43 * 3, "bfloat16": 43 * 3}


def test_plans_of_small_layers_use_it():
    """Layers that wait for a kernel that packs or transposes longer than for their own."""
    for p in (
        Problem(16, 256, 128, (8, 8), (4, 4), (2, 2), (1, 1)),
        Problem(1, 512, 256, (1, 86), (1, 16), (1, 8), (0, 4)),
    ):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            assert explained(p, dtype).algorithm == "gemm_fold_sm90"


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_last_layers_of_decoders_are_planned_with_it_in_channels_last(dtype):
    assert explained(PIX2PIX, dtype, memory=torch.channels_last).algorithm == "gemm_fold_sm90"


def test_x_is_copied_where_its_images_begin_anywhere():
    batch, channels, rows, columns = WAV2LIP.x_shape
    assert candidates(WAV2LIP)["64x256"].plan.workspace_bytes == 2 * channels * batch * rows * columns
    assert candidates(CYCLEGAN)["64x256"].plan.workspace_bytes == 0
    assert candidates(SIGNAL)["64x256"].plan.workspace_bytes == 0
    odd = Problem(1, 32, 16, (9, 7), (3, 3), (2, 2))
    # Rows of 63 elements begin at no multiple of 16 bytes; the copy's are 64.
    assert candidates(odd)["64x64"].plan.workspace_bytes == 2 * 32 * 64


@pytest.mark.parametrize("precision", PRECISIONS)
def test_channels_last_is_taken_as_it_is(precision):
    for p, w_memory in (
        (CYCLEGAN, torch.contiguous_format),
        (WAV2LIP, torch.contiguous_format),
        (PIX2PIX, torch.contiguous_format),
        (PIX2PIX, torch.channels_last),
    ):
        found = candidates(p, precise(precision), memory=torch.channels_last, w_memory=w_memory)
        fit = [c for c in found.values() if c.fits]
        assert fit
        assert {c.plan.workspace_bytes for c in fit} == {0}


def test_channels_last_is_copied_where_its_positions_begin_anywhere():
    p = Problem(2, 61, 4, (8, 8), (4, 4), (2, 2), (1, 1))
    copied = candidates(p, memory=torch.channels_last)["64x64"]
    assert copied.fits and copied.plan.workspace_bytes == 2 * 2 * 8 * 8 * 64
    copied = candidates(p, torch.float32, memory=torch.channels_last)["64x64"]
    assert copied.fits and copied.plan.workspace_bytes == 4 * 2 * 8 * 8 * 64


def test_refusals_say_why():
    refused = {
        "has fewer rows than a channel has taps": Problem(1, 16, 16, (8, 8), (14, 14), (2, 2)),
        "takes strides of weights that are multiples of 16 bytes": Problem(1, 16, 3, (8, 8), (3, 3), (2, 2)),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p).values()} == {reason}
    assert {c.refusal for c in candidates(POSE, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(POSE, device="a100").values()} == {"needs sm_90"}
    last = {"memory": torch.channels_last}
    unaligned = Problem(1, 2 * 61, 4, (8, 8), (4, 4), (2, 2), (1, 1), groups=2)
    assert {c.refusal for c in candidates(unaligned, **last).values()} == {
        "takes channels_last whose positions begin at multiples of 16 bytes"
    }
    assert {c.refusal for c in candidates(CYCLEGAN, **last).values()} == {
        "has fewer rows than channels_last weights have outputs of a position"
    }
    far = Problem(1, 16, 8, (64, 64), (3, 3), padding=(64, 64), dilation=(64, 64))
    assert not any(c.fits for c in candidates(far).values())


# GPU


def operands(p, dtype, rng):
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    memory = rng.random()
    if memory < 0.4:
        x = x.contiguous(memory_format=torch.channels_last)
        # Of many outputs, no tile has all.
        if p.out_channels // p.groups * p.kernel[0] * p.kernel[1] <= 64:
            w = w.contiguous(memory_format=torch.channels_last)
    elif memory < 0.6:
        x = lay_out(x, "offset")
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("configuration", "precision"), COMPILED)
def test_random_problems(configuration, precision):
    rng, dtype = random.Random(f"{configuration} {precision}"), precise(precision)

    def draw():
        p = problem(rng)
        return p, *operands(p, dtype, rng)

    check_random_problems(configuration, precision, draw, 40)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("p", "precision"), [(p, q) for p in REAL for q in PRECISIONS if (p, q) != (DILATED, "ieee")])
def test_every_configuration_takes_real_layers(p, precision):
    x, w, b = operands(p, precise(precision), random.Random(0))
    assert check_configurations(NAMES, precision, p, x, w, b) > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("configuration", "precision"), [c for c in COMPILED if c[1] != "bfloat16"])
def test_nan_and_inf_spread_by_taps_only(configuration, precision):
    rng = random.Random(configuration)
    dtype, ran = precise(precision), 0
    for _ in range(8):
        p = problem(rng)
        p = Problem(**{**p.__dict__, "batch": 1, "size": (p.size[0] % 4 + 1, p.size[1] % 40 + 1)})
        if min(p.y_shape) < 1:
            continue
        ones = [torch.ones(s, dtype=dtype, device="cuda") for s in (p.x_shape, p.w_shape)]
        ran += check_spread(configuration, p, rng, *ones)
    assert ran > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_the_largest_numbers_are_not_lost_in_parts():
    check_the_largest_numbers([n for n, p in COMPILED if p == "ieee"], Problem(1, 8, 2, (5, 40), (2, 2), (2, 2)))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("p", REAL)
def test_strict_float32_is_as_accurate_as_torch(p):
    check_accuracy("gemm_fold_sm90", p)
