"""The family for few positions: the kernels' source in the SIMT emulator, the planner's row, the kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
    FORMATS,
    candidates_of,
    check_configurations,
    check_spread,
    check_without_tensor_cores,
    explained,
    forced,
)
from reference import Problem, lay_out, problem_count, random_tensor

import convt
from convt import _C

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = [f"few_positions/p{n}" for n in (1, 4)]

INNERMOST = Problem(1, 512, 512, (1, 1), (4, 4), (2, 2), (1, 1))
WORLD_MODEL = Problem(1, 1024, 128, (1, 1), (5, 5), (2, 2))
DCGAN = Problem(2, 100, 512, (1, 1), (4, 4), (1, 1))
DEPTH = Problem(1, 512, 512, (1, 4), (3, 3), (2, 2), (1, 1), (1, 1))
GROUPS = Problem(3, 96, 48, (2, 3), (3, 3), (2, 2), (1, 1), (0, 0), 3)
REAL = [INNERMOST, WORLD_MODEL, DCGAN, DEPTH, GROUPS]


def problem(rng):
    """A random problem of a few small images."""
    while True:
        groups = rng.choice((1, 1, 1, 2, 3))
        stride, dilation = ((rng.randint(1, 4), rng.randint(1, 4)) for _ in range(2))
        if rng.random() < 0.6:
            dilation = (1, 1)
        p = Problem(
            batch=rng.choice((1, 1, rng.randint(1, 20))),
            in_channels=groups * rng.choice((rng.randint(1, 24), rng.randint(1, 700))),
            out_channels=groups * rng.choice((rng.randint(1, 60), 8 * rng.randint(1, 20))),
            size=rng.choice(((1, 1), (rng.randint(1, 6), rng.randint(1, 10)))),
            kernel=(rng.randint(1, 5), rng.choice((rng.randint(1, 5), rng.randint(1, 12)))),
            stride=stride,
            padding=(rng.randint(0, 4), rng.randint(0, 4)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) > 0:
            return p


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of("few_positions", explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("few_positions/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, element type, layout and width: float64, accesses, barriers, NaN, infinity."""
    simt_program.run(simt_program.build("few_positions_simt.cpp", tmp_path), 0, 216)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", REAL)
def test_real_layers_fit_and_fill_the_gpu(p, dtype, layout):
    fitting = [c for c in candidates(p, dtype, FORMATS[layout]).values() if c.fits]
    assert len(fitting) == len(NAMES)
    # Blocks of more channels, and so fewer of them, where those are innermost in the weights.
    best = min(fitting, key=lambda c: c.estimated_seconds)
    assert best.plan.grid >= 64 or p is GROUPS or layout == "nhwc"


def test_is_chosen_where_weights_are_the_memory():
    x, w = torch.empty(INNERMOST.x_shape, device="meta"), torch.empty(INNERMOST.w_shape, device="meta")
    assert convt.explain(x, w, device="h200", **INNERMOST.arguments).algorithm == "few_positions"
    # Many images read them once for all.
    x = torch.empty(512, *INNERMOST.x_shape[1:], device="meta")
    assert convt.explain(x, w, device="h200", **INNERMOST.arguments).algorithm != "few_positions"


def test_refusals_say_why():
    refused = {
        "takes at most 256 taps": Problem(1, 4, 1, (1, 1), (8, 33), (2, 2), (1, 1)),
        "takes images of at most 64 pixels": Problem(1, 4, 5, (8, 9), (2, 2), (2, 2)),
        "takes images of less than 2^30 rows and columns": Problem(1, 4, 5, (2, 1), (2, 1), (1 << 15, 1)),
        "takes outputs of less than 2^22 elements a channel": Problem(
            1, 4, 5, (64, 1), (1, 1), (32000, 9), (0, 0), (0, 8)
        ),
    }
    for reason, p in refused.items():
        assert {c.refusal for c in candidates(p).values()} == {reason}
    wide = Problem(1, 1 << 16, 8, (1, 1), (1, 1), (1, 1))
    assert "bytes of shared memory a block" in candidates(wide)["p4"].refusal
    assert {c.refusal for c in candidates(INNERMOST, torch.float64).values()} == {"has no float64"}
    # CUDA cores only: any GPU takes it.
    assert all(c.fits for c in candidates(INNERMOST, device="v100").values())


# GPU


def operands(p, dtype, rng, layout):
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    w = lay_out(w, rng.choice(("contiguous", "contiguous", "channels_last", "offset")))
    x = (
        x.contiguous(memory_format=FORMATS[layout])
        if layout == "nhwc"
        else lay_out(x, rng.choice(("contiguous", "offset")))
    )
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, dtype, layout):
    rng = random.Random(f"{configuration} {dtype} {layout}")
    for _ in range(problem_count(15)):
        p = problem(rng)
        x, w, b = operands(p, dtype, rng, layout)
        if not check_without_tensor_cores(configuration, p, x, w, b):
            # Small images whose kernel is as large as their stride become one image.
            assert p.batch * p.size[0] * p.size[1] > 64, p


@pytest.mark.gpu
@pytest.mark.parametrize("p", REAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", FORMATS)
def test_real_layers(p, dtype, layout):
    torch.backends.cudnn.allow_tf32 = False
    x, w, b = operands(p, dtype, random.Random(0), layout)
    assert check_configurations(NAMES, str(dtype), p, x, w, b) == len(NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_spread_by_taps_only(configuration, dtype):
    rng = random.Random(configuration)
    for _ in range(4):
        p = problem(rng)
        p = Problem(**{**p.__dict__, "batch": 1})
        ones = torch.ones(p.x_shape, dtype=dtype, device="cuda"), torch.ones(p.w_shape, dtype=dtype, device="cuda")
        check_spread(configuration, p, rng, *ones, run=forced)
