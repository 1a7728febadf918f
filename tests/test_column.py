"""The column family: the kernels' own source in the SIMT emulator, the planner's row, and the kernels on a GPU."""

import random
from pathlib import Path

import pytest
import simt_program
import torch
from forced import (
    FORMATS,
    candidates_of,
    check_configurations,
    check_spread,
    check_the_last_image,
    check_those_taken,
    explained,
    precise,
    random_operands,
)
from reference import (
    Problem,
    problem_count,
)

import convt
from convt import _C

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TILES = ("p128", "p192", "p256", "p512"), ("p96", "p192", "p192_w6", "p384")
NAMES = [f"column/n16_{t}" for t in TILES[0]] + [f"column/n{n}_{t}" for n in (32, 48) for t in TILES[1]]
NAMES[8:8] = [f"column/n32_{t}" for t in ("p32", "p64", "p96_w12")]

PIX2PIX = Problem(1, 128, 3, (128, 128), (4, 4), (2, 2), (1, 1))
FSRCNN = Problem(1, 56, 1, (270, 480), (9, 9), (4, 4), (4, 4), (3, 3))
DCGAN = Problem(64, 64, 3, (32, 32), (4, 4), (2, 2), (1, 1))
PWC = Problem(1, 597, 2, (56, 128), (4, 4), (2, 2), (1, 1))
WAVELET = Problem(8, 12, 3, (129, 129), (4, 4), (2, 2), (2, 2), (0, 0), 3)
DCUNET = Problem(1, 90, 1, (513, 161), (7, 1), (1, 1), (3, 0))
VOCODER = Problem(4, 32, 1, (1, 1000), (1, 8), (1, 4), (0, 2))
# Few positions: the output channels are divided among blocks.
INNERMOST = Problem(1, 512, 512, (1, 1), (4, 4), (2, 2), (1, 1))
DECODER = Problem(2, 254, 90, (3, 5), (3, 3), (2, 2), (1, 1), (1, 1), 2)
REAL = [PIX2PIX, FSRCNN, DCGAN, PWC, WAVELET, DCUNET, VOCODER, INNERMOST, DECODER]


def problem(rng, most_columns=256):
    """A random problem of few output channels, or now and then of few positions."""
    while True:
        few_positions = rng.random() < 0.25
        groups = rng.choice((1, 1, 1, 2, 3))
        stride, dilation = ((rng.randint(1, 4), rng.randint(1, 4)) for _ in range(2))
        if rng.random() < 0.6:
            dilation = (1, 1)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.choice((rng.randint(1, 24), rng.randint(1, 150))),
            out_channels=groups * (rng.randint(1, 5) * rng.randint(10, 60) if few_positions else rng.randint(1, 5)),
            size=(rng.randint(1, 3), rng.randint(1, 4))
            if few_positions
            else (rng.choice((1, rng.randint(1, 40))), rng.choice((rng.randint(1, 90), 4 * rng.randint(1, 24)))),
            kernel=(rng.randint(1, 5), rng.choice((rng.randint(1, 5), rng.randint(1, 12)))),
            stride=stride,
            padding=(rng.randint(0, 6), rng.randint(0, 6)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        columns = p.out_channels // groups * p.kernel[0] * p.kernel[1]
        if min(p.y_shape) > 0 and (columns <= most_columns or few_positions):
            return p


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of("column", explained(p, dtype, memory, torch.contiguous_format, device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("column/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, element type and layout: values against float64, accesses, barriers, NaN and infinity."""
    simt_program.run(simt_program.build("column_simt.cpp", tmp_path), 0, 216)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit(p, dtype, layout):
    assert any(c.fits for c in candidates(p, dtype, FORMATS[layout]).values())


def test_few_positions_fill_the_gpu():
    """Blocks divide the output channels, each of a whole number of them, where all of them do not fit one."""
    for c in candidates(INNERMOST).values():
        assert not c.fits or c.plan.grid >= 32, c
    assert any(c.fits and c.plan.grid > 0.9 * 132 for c in candidates(INNERMOST).values())


def test_one_small_image_fills_the_gpu():
    x, w = torch.empty(PIX2PIX.x_shape, device="meta"), torch.empty(PIX2PIX.w_shape, device="meta")
    fitting = [c for c in candidates(PIX2PIX).values() if c.fits]
    best = min(fitting, key=lambda c: c.estimated_seconds)
    assert best.configuration.startswith("n48_p192")
    assert best.plan.grid > 0.9 * 132
    # On Hopper another family is faster by measurement.
    for device, algorithm in (("a100", "column"), ("h200", "gemm_fold_sm90")):
        assert convt.explain(x, w, device=device, **PIX2PIX.arguments).algorithm == algorithm


def test_refusals_say_why():
    refused = {
        "takes at most 256 taps": Problem(1, 4, 1, (8, 8), (8, 33), (2, 2)),
        "takes more than 256 taps times output channels of a group only where most of the memory is weights": Problem(
            1, 4, 5, (8, 8), (8, 8), (2, 2)
        ),
        "has no tile of 96 input pixels for a kernel that reaches this far": Problem(
            1, 4, 1, (200, 200), (15, 15), (1, 1), (0, 0), (0, 0), 1, (2, 2)
        ),
    }
    for reason, p in refused.items():
        assert reason in {c.refusal for c in candidates(p).values()}
    assert {c.refusal for c in candidates(DCGAN, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(DCGAN, device="v100").values()} == {"needs the tensor cores of sm_80"}
    wide = Problem(1, 16, 1, (64, 64), (16, 16), (4, 4))
    assert any("bytes of shared memory" in c.refusal for c in candidates(wide).values())


# GPU


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("precision", ("tf32", "ieee", "float16", "bfloat16"))
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, precision, layout):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {layout}")

    def draw():
        p = problem(rng)
        return p, *random_operands(p, dtype, rng, layout)

    assert check_those_taken(configuration, precision, draw, 10) > 0 or problem_count(10) < 10


@pytest.mark.gpu
@pytest.mark.parametrize("p", REAL)
@pytest.mark.parametrize("precision", ("ieee", "float16"))
@pytest.mark.parametrize("layout", FORMATS)
def test_real_layers(p, precision, layout):
    torch.backends.cudnn.allow_tf32 = False
    p = Problem(**{**p.__dict__, "batch": min(p.batch, 2)})
    x, w, b = random_operands(p, torch.float32 if precision == "ieee" else torch.float16, random.Random(0), layout)
    check_configurations(NAMES, precision, p, x, w, b)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_spread_by_taps_only(configuration, dtype):
    rng = random.Random(configuration)
    for _ in range(4):
        p = problem(rng, 48)
        ones = torch.ones(p.x_shape, dtype=dtype, device="cuda"), torch.ones(p.w_shape, dtype=dtype, device="cuda")
        check_spread(configuration, p, rng, *ones)


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    p = Problem(70_000, 3, 1, (3, 4), (3, 3), (2, 2), (1, 1))
    check_the_last_image("column/n16_p128", p)
