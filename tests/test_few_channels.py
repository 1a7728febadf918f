"""The family for few output channels: its kernels in the SIMT emulator, the planner's row, the kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
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

FORMATS = (torch.contiguous_format, torch.channels_last)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = [
    f"few_channels/{name}"
    for name in (
        "1x1_n4_r8",
        "1x1_n16_r4",
        "1x3_n4_r8",
        "1x3_n16_r4",
        "2x2_n4_r8",
        "2x2_n12_r4",
        "3x2_n2_r4",
        "3x2_n2_r8",
        "3x3_n1_r8",
        "3x3_n4_r4",
        "3x3_n4_r8",
        "3x3_n12_r4",
        "4x4_n4_r4",
        "7x1_n1_r8",
        "7x1_n1_r16",
    )
]

SEGMENTATION = Problem(4, 48, 4, (101, 65), (3, 3), (1, 1), (1, 1))
GAN = Problem(8, 64, 3, (32, 32), (4, 4), (2, 2), (1, 1))
SPEECH = Problem(2, 16, 1, (33, 161), (5, 2), (2, 1), (1, 0))
SUPER_RESOLUTION = Problem(1, 56, 1, (45, 60), (9, 9), (4, 4), (4, 4), (1, 1))
TALL = Problem(2, 90, 1, (90, 161), (7, 1), (1, 1), (3, 0))
GROUPS = Problem(3, 24, 6, (21, 20), (3, 3), (2, 2), (1, 1), (0, 0), 3)
REAL = [SEGMENTATION, GAN, SPEECH, SUPER_RESOLUTION, TALL, GROUPS]


def problem(rng):
    """A random problem of few output channels a group."""
    while True:
        groups = rng.choice((1, 1, 1, 2, 3))
        stride = tuple(rng.choice((1, 2, rng.randint(1, 5))) for _ in range(2))
        dilation = tuple(rng.choice((1, 1, rng.randint(1, 4))) for _ in range(2))
        p = Problem(
            batch=rng.choice((1, 1, rng.randint(1, 9))),
            in_channels=groups * rng.choice((rng.randint(1, 24), rng.randint(1, 400))),
            out_channels=groups * rng.choice((rng.randint(1, 4), rng.randint(1, 12))),
            size=(rng.randint(1, 70), rng.choice((rng.randint(1, 40), 4 * rng.randint(1, 20)))),
            kernel=(rng.randint(1, rng.choice((4, 9))), rng.randint(1, rng.choice((4, 9)))),
            stride=stride,
            padding=(rng.randint(0, 4), rng.randint(0, 4)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) > 0:
            return p


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of("few_channels", explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith("few_channels/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Every configuration, type and number of threads an output: float64, accesses, barriers, NaN, infinity."""
    simt_program.run(simt_program.build("few_channels_simt.cpp", tmp_path), 0, 420)


@pytest.mark.parametrize("memory", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", REAL)
def test_every_configuration_takes_real_layers(p, dtype, memory):
    """Whatever the window and the number of sums: what is missing is zero, what is more is done in parts."""
    fitting = [c for c in candidates(p, dtype, memory).values() if c.fits]
    assert len(fitting) == len(NAMES)


def test_channels_are_shared_where_positions_do_not_fill_the_gpu():
    def grid(p):
        return min(candidates(p).values(), key=lambda c: c.estimated_seconds).plan.grid

    # 34 columns of 5 or 9 times 4 or 8 rows, 256 threads a block.
    assert grid(Problem(1, 64, 1, (32, 32), (3, 3), (1, 1), (1, 1))) >= 16
    assert grid(Problem(64, 4, 1, (512, 512), (3, 3), (1, 1), (1, 1))) <= 64 * 64 * 512 // 256


def test_is_chosen_where_rows_begin_anywhere_and_products_are_few():
    x, w = torch.empty(TALL.x_shape, device="meta"), torch.empty(TALL.w_shape, device="meta")
    assert convt.explain(x, w, device="h200", **TALL.arguments).algorithm == "few_channels"
    # Many output channels are tensor cores' work.
    w = torch.empty(90, 64, 7, 1, device="meta")
    assert convt.explain(x, w, device="h200", **TALL.arguments).algorithm != "few_channels"


def test_refusals_say_why():
    larger = torch.empty(8, 2 * 64, 32, 2 * 32, device="meta")
    apart = convt.explain(
        larger[:, ::2, :, ::2], torch.empty(GAN.w_shape, device="meta"), device="h200", **GAN.arguments
    )
    assert {c.refusal for c in candidates_of("few_channels", apart).values()} == {
        "takes inputs whose columns or channels are neighbours in memory"
    }
    odd = Problem(2, 33, 3, (32, 32), (4, 4), (2, 2), (1, 1))
    words = "takes inputs in channels_last whose pixels are whole words of 4 bytes, the first one aligned to 16"
    assert {c.refusal for c in candidates(odd, torch.float16, torch.channels_last).values()} == {words}
    assert all(c.fits for c in candidates(odd, torch.float32, torch.channels_last).values())
    distant = Problem(1, 4, 1, (2, 1), (2, 1), dilation=(1 << 24, 1))
    assert {c.refusal for c in candidates(distant).values()} == {"takes dilations of rows of less than 2^24"}
    far = Problem(1, 4, 1, (2, 1), (2, 1), (1 << 15, 1))
    assert {c.refusal for c in candidates(far).values()} == {"takes strides of less than 2^15"}
    wide = Problem(1, 4, 1, (2, 9), (160, 160), (2, 2))
    assert "bytes of shared memory a block" in candidates(wide)["3x3_n12_r4"].refusal
    assert {c.refusal for c in candidates(GAN, torch.float64).values()} == {"has no float64"}
    # CUDA cores only: any GPU takes it, if inputs need not be copied to shared memory.
    assert all(c.fits for c in candidates(GAN, device="v100").values())
    assert {c.refusal for c in candidates(GAN, memory=torch.channels_last, device="v100").values()} == {
        "needs the asynchronous copies of sm_80 for inputs in channels_last"
    }
    assert all(c.fits for c in candidates(GAN, memory=torch.channels_last, device="rtx3090").values())


# GPU


def takes(p, dtype, memory):
    """Whether pixels, of channels_last, are whole words of 4 bytes."""
    return memory != torch.channels_last or dtype == torch.float32 or p.in_channels // p.groups % 2 == 0


def operands(p, dtype, rng):
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    w = lay_out(w, rng.choice(("contiguous", "contiguous", "channels_last", "offset")))
    last = ["channels_last"] * 2 if takes(p, dtype, torch.channels_last) else []
    x = lay_out(x, rng.choice(("contiguous", "offset", *last)))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, dtype):
    rng = random.Random(f"{configuration} {dtype}")
    for _ in range(problem_count(20)):
        p = problem(rng)
        x, w, b = operands(p, dtype, rng)
        assert check_without_tensor_cores(configuration, p, x, w, b), p


@pytest.mark.gpu
@pytest.mark.parametrize("p", REAL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_layers(p, dtype):
    torch.backends.cudnn.allow_tf32 = False
    x, w, b = operands(p, dtype, random.Random(0))
    assert check_configurations(NAMES, str(dtype), p, x, w, b) == len(NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", FORMATS, ids=str)
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_spread_by_taps_only(configuration, dtype, memory):
    rng = random.Random(configuration)
    for _ in range(4):
        p = problem(rng)
        channels = p.in_channels if takes(p, dtype, memory) else 2 * p.in_channels
        p = Problem(**{**p.__dict__, "batch": 1, "in_channels": channels})
        x, w = (torch.ones(s, dtype=dtype, device="cuda") for s in (p.x_shape, p.w_shape))
        check_spread(configuration, p, rng, x.contiguous(memory_format=memory), w, run=forced)
