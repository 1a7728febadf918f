"""The large-stride family: the kernels' source in the SIMT emulator, the planner's row, the kernels on a GPU."""

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
from large_strides import BDCN, CLIPSEG, FCN8S, FCN16S, FCN32S, problem
from reference import Problem

from convt import _C

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Words of K: float32 channels or pairs of 16-bit channels, times taps.
STEPS = {"k96": 96, "k48_n32": 48, "k96_n32": 96}
TILED = ("tile_64x64", "tile_64x128", "tile_128x128")  # of any depth
NAMES = [f"large_stride/{name}" for name in (*STEPS, *TILED)]

DPOT = Problem(1, 768, 32, (14, 14), (16, 16), (16, 16))
ISTFT = Problem(2, 514, 1, (1, 483), (1, 400), (1, 100))
DBPN = Problem(1, 64, 64, (16, 16), (12, 12), (8, 8), (2, 2))
FLAT = Problem(4, 32, 8, (1, 200), (1, 16), (1, 8), (0, 4))


def tiled_problem(rng):
    """A random problem for the configurations that cut the product into tiles: many channels, any stride."""
    while True:
        flat = rng.random() < 0.3
        stride = (1 if flat else rng.randint(1, 12), rng.choice((4 * rng.randint(1, 6), rng.randint(1, 40))))
        kernel = tuple(s * rng.randint(1, 3) if rng.random() < 0.6 else rng.randint(1, 3 * s + 3) for s in stride)
        groups = rng.choice((1, 1, 1, 2))
        p = Problem(
            batch=rng.randint(1, 5),
            in_channels=groups * rng.choice((rng.randint(1, 300), 8 * rng.randint(1, 64))),
            out_channels=groups * rng.choice((rng.randint(1, 6), 4 * rng.randint(1, 16))),
            size=(1 if flat else rng.randint(1, 12), rng.randint(1, 40)),
            kernel=(1 if flat else kernel[0], kernel[1]),
            stride=stride,
            padding=(rng.choice((0, rng.randint(0, 8))), rng.choice((0, 4 * rng.randint(0, 2), rng.randint(0, 12)))),
            output_padding=tuple(rng.randrange(s) for s in stride),
            groups=groups,
        )
        taps = -(-p.kernel[0] // stride[0]) * -(-p.kernel[1] // stride[1])
        if min(p.y_shape) > 0 and stride[0] * stride[1] >= 8 and taps <= 9:
            return p


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of("large_stride", explained(p, dtype, memory, torch.contiguous_format, device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("large_stride/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, element type and layout: values against float64, accesses, barriers, NaN and infinity."""
    simt_program.run(simt_program.build("large_stride_simt.cpp", tmp_path), 0, 216)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [FCN32S, FCN16S, FCN8S, CLIPSEG, BDCN, FLAT, DPOT, ISTFT, DBPN])
def test_real_layers_fit(p, dtype, layout):
    assert any(c.fits for c in candidates(p, dtype, FORMATS[layout]).values())


def test_few_pixels_fill_the_gpu():
    fitting = [c for c in candidates(FCN32S).values() if c.fits]
    best = min(fitting, key=lambda c: c.estimated_seconds)
    assert best.plan.grid > 0.9 * 132


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_depth_is_tiled(dtype, layout):
    """Reductions that fit no registers, kernels of more taps than the implicit GEMMs take: more than one block each."""
    for p in (DPOT, ISTFT, DBPN, Problem(1, 2000, 3, (4, 4), (9, 40), (8, 9)), Problem(1, 64, 8, (9, 9), (12, 13))):
        for name in TILED:
            c = candidates(p, dtype, FORMATS[layout])[name]
            assert c.fits, c.refusal
            assert c.estimated_seconds < 120e-6


def test_refusals_say_why():
    refused = {
        "takes strides of 8 phases or kernels of more than 128 taps, not 4 and 16": Problem(
            1, 4, 5, (8, 8), (4, 4), (2, 2)
        ),
        "takes strides of 8 or more, not 7": Problem(1, 4, 5, (8, 8), (8, 8), (7, 2)),
        "takes dilation 1 only": Problem(1, 4, 1, (8, 8), (8, 8), (8, 8), (0, 0), (0, 0), 1, (1, 2)),
        "takes at most 96 input channels, padded to 2, times taps of a phase, not 256": Problem(
            1, 64, 64, (8, 8), (12, 12), (8, 8)
        ),
        "has no TF32": FCN32S,
    }
    for reason, p in refused.items():
        assert reason in {c.refusal for c in candidates(p).values()}
    deep = candidates(Problem(1, 64, 64, (8, 8), (12, 12), (8, 8)), torch.float16)
    assert deep["k48_n32"].refusal == "takes at most 96 input channels, padded to 4, times taps of a phase, not 256"
    assert deep["k96"].refusal == "has no 16-bit types"
    assert {c.refusal for c in candidates(FCN32S, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(FCN32S, device="v100").values()} == {"needs the tensor cores of sm_80"}
    torch.backends.cudnn.allow_tf32 = False
    assert candidates(FCN32S)["tile_128x128"].refusal == "has no strict float32"


# GPU


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("precision", ("tf32", "ieee", "float16", "bfloat16"))
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, precision, layout):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {layout}")
    most = STEPS.get(configuration.split("/")[1])

    def draw():
        p = problem(rng, most, 1 if dtype == torch.float32 else 2) if most else tiled_problem(rng)
        return p, *random_operands(p, dtype, rng, layout)

    taken = check_those_taken(configuration, precision, draw, 10)
    refused = {"ieee": ("tile_128x128", "k48_n32", "k96_n32"), "tf32": ("k48_n32",)}.get(precision, ("k96", "k96_n32"))
    assert (taken == 0) == configuration.endswith(refused)


@pytest.mark.gpu
@pytest.mark.parametrize("p", [FCN32S, FCN16S, FCN8S, CLIPSEG, BDCN, FLAT, DPOT, ISTFT, DBPN])
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
        p = problem(rng, 48, 1)
        ones = torch.ones(p.x_shape, dtype=dtype, device="cuda"), torch.ones(p.w_shape, dtype=dtype, device="cuda")
        check_spread(configuration, p, rng, *ones)


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    p = Problem(70_000, 3, 1, (2, 2), (8, 8), (8, 8), (1, 1))
    check_the_last_image("large_stride/k96", p)
