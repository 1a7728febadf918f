"""The warp_rows family: its kernels' own source in the emulator of tests/simt, the planner, the kernels on a GPU."""

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

from convt import _C

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = ("tf32", "ieee", "float16", "bfloat16")
WINDOWS = ("2x2", "3x2", "3x3")
# Those that write rows whole, or whole sectors of them, have no channels_last.
ROWS = tuple(f"warp_rows/{name}" for name in ("2x2_sectors", "3x2_sectors", "2x2_rows", "3x2_rows", "1x1_rows"))
CONFIGURATIONS = (*(f"warp_rows/{window}" for window in WINDOWS), *ROWS)
STRIDES = (1, 2, 3)
LAYOUTS = (torch.contiguous_format, torch.channels_last)
BOTH = tuple((c, memory) for memory in LAYOUTS for c in CONFIGURATIONS if c not in ROWS or memory == LAYOUTS[0])

# Layers of benchmarks/data/cases.csv.
LAYERS = {
    "kb75": Problem(16, 32, 64, (128, 256), (3, 5), (2, 3), (1, 2), (0, 0), 4, (2, 1)),
    "grouped_32": Problem(16, 256, 256, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1), 32),
    "gtcrn.de_conv3": Problem(16, 16, 16, (501, 33), (1, 5), (1, 2), (0, 2), (0, 0), 2),
    "pytorch_wavelets.dwt_inv_nonsep": Problem(8, 12, 3, (129, 129), (4, 4), (2, 2), (2, 2), (0, 0), 3),
}

# Outputs that read one input.
KB81 = Problem(16, 32, 64, (64, 128), (3, 3), (5, 5), (1, 1), (0, 0), 1, (2, 2))


def test_random_problems_in_the_emulator(tmp_path):
    """In buffers of exactly their size, of every alignment, cut in every way, with infinities and NaN."""
    simt_program.run(simt_program.build("warp_rows_simt.cpp", tmp_path), 0, 480)


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    """By the name of the configuration, without the family's."""
    return candidates_of("warp_rows", explained(p, dtype, memory, device=device))


def test_the_configurations_tested_are_those_compiled():
    assert tuple(name for name in _C.configuration_names() if name.startswith("warp_rows/")) == CONFIGURATIONS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("memory", LAYOUTS, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers_are_taken(layer, memory, dtype):
    for device in ("h200", "a100", "rtx4090"):
        assert "" in {c.refusal for c in candidates(LAYERS[layer], dtype, memory, device).values()}, device


def test_refusals_say_why():
    takes = Problem(2, 16, 32, (6, 8), (2, 2), (2, 2), (0, 0), (0, 0), 2)
    whole = "takes rows of outputs that are no whole sectors of memory"
    of_each = {name: whole if name.endswith("_sectors") else "" for name in candidates(takes)}
    assert {name: c.refusal for name, c in candidates(takes).items()} == of_each
    refused = {
        "takes at most 8 input channels a group, not 9": Problem(1, 9, 8, (6, 8), (2, 2), (2, 2)),
        "takes strides of a row of 1 to 3, not 4": Problem(1, 8, 8, (6, 8), (2, 4), (2, 4)),
        "takes strides of a column up to 32, not 33": Problem(1, 8, 8, (6, 8), (2, 2), (33, 2)),
        "takes images of less than 2^30 elements": Problem(1, 8, 64, (4096, 2048), (2, 2), (2, 2)),
        "takes outputs that read at most 3 rows of the input beside each other, not 4": Problem(
            1, 8, 8, (6, 8), (4, 1), (1, 1)
        ),
        "takes outputs that read at most 2 columns of the input beside each other, not 3": Problem(
            1, 8, 8, (6, 8), (1, 3), (1, 1)
        ),
    }
    for reason, p in refused.items():
        assert reason in {c.refusal for c in candidates(p).values()}
    odd = Problem(2, 14, 32, (6, 8), (2, 2), (2, 2), (0, 0), (0, 0), 2)
    assert {name: c.refusal for name, c in candidates(odd).items()} == of_each
    assert {c.refusal for c in candidates(odd, memory=torch.channels_last).values()} == {
        "takes inputs in channels_last of pairs of channels, the first one aligned to 16 bytes"
    }
    rows = "2x2_rows"
    refused = {
        "takes rows of outputs of at least 64 bytes, not 28": candidates(
            Problem(1, 8, 8, (6, 7), (2, 2), (2, 2)), torch.float16
        ),
        "takes rows of at most 256 outputs, not 258": candidates(Problem(1, 8, 8, (6, 129), (2, 2), (2, 2))),
        "takes rows of at most 255 outputs, not 256": candidates(Problem(1, 8, 8, (6, 128), (4, 4), (2, 2), (1, 1))),
        "writes rows of channels, takes no channels_last": candidates(takes, memory=torch.channels_last),
        "needs sm_90": candidates(takes, device="a100"),
        "takes strides of a row of 2 to 3, not 1": candidates(Problem(1, 8, 8, (6, 16), (2, 2), (2, 1))),
    }
    for reason, of_layer in refused.items():
        assert of_layer[rows].refusal == reason
    assert candidates(Problem(1, 8, 8, (6, 128), (2, 2), (2, 2)))[rows].fits
    sectors = "2x2_sectors"
    for dtype, width in ((torch.float16, 20), (torch.float32, 18)):
        assert candidates(Problem(1, 8, 8, (6, width), (2, 2), (2, 2)), dtype)[sectors].fits
    refused = {
        whole: Problem(1, 8, 8, (6, 24), (2, 2), (2, 2)),
        "takes rows of outputs of at least 64 bytes, not 56": Problem(1, 8, 8, (6, 7), (2, 2), (2, 2)),
        "takes rows of at most 256 outputs, not 258": Problem(1, 8, 8, (6, 129), (2, 2), (2, 2)),
    }
    for reason, p in refused.items():
        assert candidates(p)[sectors].refusal == reason
    assert candidates(takes, memory=torch.channels_last)[sectors].refusal == (
        "writes rows of channels, takes no channels_last"
    )
    assert candidates(takes, device="a100")[sectors].refusal == "needs sm_90"
    assert "takes at most 32 input channels a group, not 33" in {
        c.refusal for c in candidates(Problem(1, 33, 8, (6, 8), (2, 2), (2, 2))).values()
    }
    assert {c.refusal for c in candidates(takes, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(takes, device="t4").values()} == {"needs tensor cores of sm_80"}
    # Rows of the kernel whose weights no block can hold.
    tall = Problem(1, 8, 8, (6, 8), (96, 9), (32, 3))
    assert "bytes of shared memory, more than the" in "".join(c.refusal for c in candidates(tall).values())


def test_layers_of_its_kind_are_planned_with_it():
    torch.backends.cudnn.allow_tf32 = False
    p = LAYERS["grouped_32"]
    for dtype in DTYPES:
        for memory in LAYOUTS:
            assert explained(p, dtype, memory, device="h200").algorithm == "warp_rows"
    for dtype in DTYPES:
        assert explained(KB81, dtype, device="h200").configuration == "1x1_rows"
    # Rows of 766 columns, every second one without taps.
    for dtype in DTYPES[1:]:
        assert explained(LAYERS["kb75"], dtype, device="h200").configuration == "3x2_sectors"


# GPU


def problem(rng, configuration, most_height=12, most_width=150, memory=torch.contiguous_format):
    """One that a configuration takes."""
    one = "1x1" in configuration  # outputs that read one input
    most_channels = 32 if one else 8
    while True:
        groups = rng.choice((1, 1, 2, 3, 8))
        strides = (2, 3, 4, 5) if one else STRIDES[1:] if configuration in ROWS else STRIDES
        stride = (rng.randint(1, 5), rng.choice(strides))
        dilation = (1, 1) if rng.random() < 0.6 else (rng.randint(1, 3), rng.randint(1, 3))
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.choice((most_channels, rng.randint(1, most_channels))),
            out_channels=groups * rng.choice((8, 16, rng.randint(1, 20))),
            size=(rng.randint(1, most_height), rng.choice((rng.randint(1, most_width), 8 * rng.randint(1, 20)))),
            kernel=tuple(rng.randint(1, s if one else 2 * s + 1) for s in stride),
            stride=stride,
            padding=(rng.randint(0, 4), rng.randint(0, 6)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) <= 0:
            continue
        # In any type: in 16 bits rows are short, in 32 long.
        name = configuration.removeprefix("warp_rows/")
        if all(candidates(p, dtype, memory)[name].fits for dtype in (torch.float16, torch.float32)):
            return p


def operands(p, dtype, rng, memory):
    kinds = ("contiguous", "contiguous", "offset", "expanded")
    if memory == torch.channels_last:
        kinds = ("channels_last",)
    x = lay_out(random_tensor(p.x_shape, dtype, "cuda"), rng.choice(kinds))
    w = lay_out(random_tensor(p.w_shape, dtype, "cuda"), rng.choice(("contiguous", "offset", "permuted")))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


@pytest.mark.gpu
@pytest.mark.parametrize(("configuration", "memory"), BOTH, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems(configuration, precision, memory, seed):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {memory} {seed}")

    def draw():
        p = problem(rng, configuration, memory=memory)
        return p, *operands(p, dtype, rng, memory)

    check_random_problems(configuration, precision, draw, 20)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("offset", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("stride", STRIDES)
def test_misaligned_inputs(precision, offset, stride):
    p = Problem(2, 16, 32, (7, 40), (2, stride), (2, stride), (1, 1), (0, 0), 2)
    configurations = [c for c in CONFIGURATIONS if c not in ROWS or stride > 1]
    check_misaligned(configurations, precision, p, offset)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("memory", LAYOUTS, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers(layer, memory, precision):
    check_against_direct("warp_rows", precision, LAYERS[layer], memory)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_outputs_that_read_one_input(precision):
    check_against_direct("warp_rows", precision, KB81)


@pytest.mark.gpu
@pytest.mark.parametrize(("configuration", "memory"), BOTH, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_inf_spread_by_taps_only(configuration, memory, precision):
    check_spread_in_ones(configuration, precision, lambda rng: problem(rng, configuration, 6, 40, memory), memory)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", LAYOUTS, ids=str)
def test_the_largest_numbers_are_not_lost_in_parts(memory):
    configurations = [c for c, taken in BOTH if taken == memory]
    check_the_largest_numbers(configurations, Problem(1, 8, 8, (5, 41), (2, 2), (2, 2)), memory)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", LAYOUTS, ids=str)
@pytest.mark.parametrize("layer", ("kb75", "grouped_32"))
def test_strict_float32_is_as_accurate_as_torch(layer, memory):
    check_accuracy("warp_rows", Problem(**{**LAYERS[layer].__dict__, "batch": 1}), memory)


@pytest.mark.gpu
def test_strict_float32_of_outputs_that_read_one_input_is_as_accurate_as_torch():
    check_accuracy("warp_rows", Problem(**{**KB81.__dict__, "batch": 1}))


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    p = Problem(70_000, 4, 4, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    check_the_last_image(CONFIGURATIONS[2], p)


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_outputs_beyond_32_bits(dtype):
    check_outputs_beyond_32_bits(CONFIGURATIONS[2], dtype)
