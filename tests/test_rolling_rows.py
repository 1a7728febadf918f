"""The rolling_rows family: its kernels' own source in the emulator of tests/simt, the planner, the kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
    candidates_of,
    check_accuracy,
    check_against_direct,
    check_misaligned,
    check_outputs_beyond_32_bits,
    check_random_problems,
    check_spread_in_ones,
    check_the_largest_numbers,
    check_the_last_image,
    explained,
    precise,
)
from reference import (
    Problem,
    lay_out,
    random_tensor,
)

import convt
from convt import _C

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = ("tf32", "ieee", "float16", "bfloat16")
CONFIGURATIONS = tuple(f"rolling_rows/{c}" for c in ("2x2_n8", "2x2_n16", "2x2_n32", "3x3_n8", "3x3_n16"))
# Of x that a row and a column of outputs read, and outputs of them.
MOST = {"2x2_n8": (2, 8), "2x2_n16": (2, 16), "2x2_n32": (2, 32), "3x3_n8": (3, 8), "3x3_n16": (3, 16)}
MEMORY = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}

# Layers of benchmarks/data/cases.csv.
LAYERS = {
    "dreamerv3.d32_3": Problem(64, 32, 3, (32, 32), (4, 4), (2, 2), (1, 1)),
    "planet.conv4": Problem(64, 32, 3, (30, 30), (6, 6), (2, 2)),
    "slot_attention.conv6": Problem(2, 64, 4, (128, 128), (3, 3), (1, 1), (1, 1)),
    "dccrn.dec5_re": Problem(1, 16, 1, (128, 483), (5, 2), (2, 1), (2, 0)),
    "ifrnet.decoder1": Problem(1, 96, 8, (112, 112), (4, 4), (2, 2), (1, 1)),
    "fsrcnn_x4": Problem(1, 56, 1, (60, 80), (9, 9), (4, 4), (4, 4), (3, 3)),
}


def test_random_problems_in_the_emulator(tmp_path):
    """In buffers of exactly their size, of every alignment, cut in every way, with infinities and NaN."""
    simt_program.run(simt_program.build("rolling_rows_simt.cpp", tmp_path), 0, 400)


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    """By the name of the configuration, without the family's."""
    return candidates_of("rolling_rows", explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert tuple(name for name in _C.configuration_names() if name.startswith("rolling_rows/")) == CONFIGURATIONS


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers_are_taken(layer, dtype, memory):
    for device in ("h200", "a100", "rtx4090"):
        found = {c.refusal for c in candidates(LAYERS[layer], dtype, MEMORY[memory], device).values()}
        assert "" in found, device


def test_refusals_say_why():
    takes = Problem(2, 16, 2, (6, 8), (2, 2), (2, 2))
    assert {c.refusal for c in candidates(takes).values()} == {""}
    refused = {
        "takes at most 3 rows of the input beside each other for a row, not 4": Problem(
            1, 8, 1, (6, 8), (4, 1), (1, 1)
        ),
        "takes at most 2 columns of the input beside each other for a column, not 3": Problem(
            1, 8, 1, (6, 8), (1, 3), (1, 1)
        ),
        "takes at most 32 output channels times strides of a group, not 36": Problem(1, 8, 9, (6, 8), (2, 2), (2, 2)),
        "takes images of less than 2^30 elements": Problem(1, 8, 64, (4096, 2048), (2, 2), (2, 2)),
        "bytes of shared memory, more than the": Problem(1, 4096, 1, (6, 8), (2, 2), (2, 2)),
    }
    for reason, p in refused.items():
        assert any(reason in c.refusal for c in candidates(p).values()), reason
    assert {c.refusal for c in candidates(takes, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(takes, device="t4").values()} == {"needs tensor cores of sm_80"}
    grouped = Problem(1, 16, 4, (6, 8), (2, 2), (2, 2), groups=2)
    assert {c.refusal for c in candidates(grouped, memory=torch.channels_last).values()} == {
        "takes several groups only where rows are contiguous in memory"
    }
    x = torch.empty(2, 32, 6, 8, device="meta").contiguous(memory_format=torch.channels_last)[:, ::2]
    neither = convt.explain(x, torch.empty(takes.w_shape, device="meta"), device="h200", **takes.arguments)
    assert {c.refusal for c in candidates_of("rolling_rows", neither).values()} == {
        "takes inputs whose rows or channels are contiguous in memory"
    }


def test_layers_of_its_kind_are_planned_with_it():
    torch.backends.cudnn.allow_tf32 = False
    p = LAYERS["planet.conv4"]
    p = Problem(2450, p.in_channels, p.out_channels, p.size, p.kernel, p.stride)
    for dtype, memory in ((torch.float16, torch.contiguous_format), (torch.float32, torch.channels_last)):
        assert explained(p, dtype, memory, device="h200").algorithm == "rolling_rows"


# GPU


def problem(rng, configuration, most_height=12, most_width=150):
    """One that a configuration takes in NCHW, and in channels_last if it has one group."""
    most, outputs = MOST[configuration.removeprefix("rolling_rows/")]
    while True:
        groups = rng.choice((1, 1, 1, 2, 3))
        stride = (rng.randint(1, 4), rng.randint(1, 4))
        dilation = (1, 1) if rng.random() < 0.7 else (rng.randint(1, 3), rng.randint(1, 3))
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.choice((8 * rng.randint(1, 12), rng.randint(1, 70))),
            out_channels=groups * rng.randint(1, 8),
            size=(rng.randint(1, most_height), rng.choice((rng.randint(1, most_width), 8 * rng.randint(1, 20)))),
            kernel=tuple(rng.randint(1, most * s) for s in stride),
            stride=stride,
            padding=(rng.randint(0, 4), rng.randint(0, 9)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) <= 0 or p.out_channels // groups * stride[0] * stride[1] > outputs:
            continue
        if candidates(p)[configuration.removeprefix("rolling_rows/")].fits:
            return p


def operands(p, dtype, rng):
    if p.groups == 1 and rng.random() < 0.5:
        layouts = ("channels_last",)
    else:
        layouts = ("contiguous", "contiguous", "offset", "expanded")
    x = lay_out(random_tensor(p.x_shape, dtype, "cuda"), rng.choice(layouts))
    w = lay_out(random_tensor(p.w_shape, dtype, "cuda"), rng.choice(("contiguous", "offset", "permuted")))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems(configuration, precision, seed):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {seed}")

    def draw():
        p = problem(rng, configuration)
        return p, *operands(p, dtype, rng)

    check_random_problems(configuration, precision, draw, 20)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("offset", (1, 2, 3, 4, 8))
def test_misaligned_inputs(precision, offset, memory):
    p = Problem(2, 32, 2, (7, 40), (2, 2), (2, 2), (1, 1))
    # Rows that the copy engine cannot bring are cut in another way, and added up in another order.
    aligned = offset * torch.finfo(precise(precision)).bits // 8 % 16 == 0
    check_misaligned(CONFIGURATIONS, precision, p, offset, MEMORY[memory], same_bits=memory == "nhwc" or aligned)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers(layer, precision, memory):
    check_against_direct("rolling_rows", precision, LAYERS[layer], MEMORY[memory])


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_inf_spread_by_taps_only(configuration, precision):
    check_spread_in_ones(configuration, precision, lambda rng: problem(rng, configuration, 6, 40))


@pytest.mark.gpu
def test_the_largest_numbers_are_not_lost_in_parts():
    check_the_largest_numbers(CONFIGURATIONS, Problem(1, 8, 2, (5, 40), (2, 2), (2, 2)))


@pytest.mark.gpu
@pytest.mark.parametrize("layer", LAYERS)
def test_strict_float32_is_as_accurate_as_torch(layer):
    check_accuracy("rolling_rows", LAYERS[layer])


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    check_the_last_image(CONFIGURATIONS[3], Problem(70_000, 4, 2, (3, 4), (3, 3), (1, 1), (1, 1)))


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_outputs_beyond_32_bits(dtype):
    check_outputs_beyond_32_bits(CONFIGURATIONS[2], dtype)
