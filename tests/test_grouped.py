"""The grouped family: its kernels' own source in the emulator of tests/simt, the planner, and the kernels on a GPU."""

import random
from pathlib import Path

import pytest
import simt_program
import torch
from forced import check_outputs_beyond_32_bits, check_the_last_image, forced, forced_if_it_fits, precise
from reference import (
    Problem,
    lay_out,
    poison_allocator,
    problem_count,
    random_tensor,
    round_to_tf32,
    rule_of_forward,
    spoilt_operands,
)

import convt
from convt import _C

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRECISIONS = ("tf32", "ieee", "float16", "bfloat16")
CONFIGURATIONS = ("grouped/mma_n8", "grouped/mma_n16")
FORMATS = (torch.contiguous_format, torch.channels_last)

# Layers of benchmarks/data/cases.csv.
LAYERS = {
    "kb75": Problem(16, 32, 64, (128, 256), (3, 5), (2, 3), (1, 2), (0, 0), 4, (2, 1)),
    "kb81": Problem(16, 32, 64, (64, 128), (3, 3), (5, 5), (1, 1), (0, 0), 1, (2, 2)),
    "grouped_32": Problem(16, 256, 256, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1), 32),
    "erfnet.output_conv": Problem(6, 16, 20, (256, 512), (2, 2), (2, 2)),
    "gtcrn.de_conv3": Problem(16, 16, 16, (501, 33), (1, 5), (1, 2), (0, 2), (0, 0), 2),
    "sfmlearner.upconv1": Problem(4, 32, 16, (64, 208), (3, 3), (2, 2), (1, 1), (1, 1)),
    "hifigan_v1.up3": Problem(1, 64, 32, (1, 55040), (1, 4), (1, 2), (0, 1)),
}


def test_random_problems_in_the_emulator(tmp_path):
    """In buffers of exactly their size, of every alignment, cut in every way, with infinities and NaN."""
    simt_program.run(simt_program.build("grouped_simt.cpp", tmp_path), 0, 160)


def explanation(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    x = torch.empty(p.x_shape, dtype=dtype, device="meta").contiguous(memory_format=memory)
    return convt.explain(x, torch.empty(p.w_shape, dtype=dtype, device="meta"), device=device, **p.arguments)


def candidates(p, **kwargs):
    return [c for c in explanation(p, **kwargs).candidates if c.algorithm == "grouped"]


def test_the_configurations_tested_are_those_compiled():
    assert tuple(name for name in _C.configuration_names() if name.startswith("grouped/")) == CONFIGURATIONS


@pytest.mark.parametrize("memory", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers_are_taken(layer, dtype, memory):
    for device in ("h200", "a100", "rtx4090"):
        found = candidates(LAYERS[layer], dtype=dtype, memory=memory, device=device)
        assert "" in {c.refusal for c in found}, device


def test_refusals_say_why():
    takes = Problem(2, 8, 32, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 2)
    assert {c.refusal for c in candidates(takes, memory=torch.channels_last)} == {""}
    assert {c.refusal for c in candidates(takes)} == {"", "takes inputs whose channels are contiguous in memory"}
    refused = {
        "takes at most 128 input channels a group, not 129": Problem(1, 129, 8, (6, 8), (4, 4)),
        "takes at most 128 output channels a group, not 130": Problem(1, 8, 130, (6, 8), (4, 4)),
        "takes strides up to 32, not 33": Problem(1, 8, 8, (6, 8), (4, 4), (33, 2)),
        "takes images of less than 2^30 elements": Problem(1, 8, 64, (4096, 2048), (2, 2), (2, 2)),
    }
    for reason, p in refused.items():
        assert reason in {c.refusal for c in candidates(p)}
    few = Problem(1, 8, 8, (6, 8), (4, 4))
    assert "takes more than 8 output channels a group, not 8" in {
        c.refusal for c in candidates(few, memory=torch.channels_last)
    }
    # A window of rows that no block can hold.
    tall = Problem(1, 64, 64, (4000, 400), (40, 1), (1, 1), (0, 0), (0, 0), 1, (50, 1))
    assert all(
        "bytes of shared memory, more than the" in c.refusal for c in candidates(tall, memory=torch.channels_last)
    )
    assert {c.refusal for c in candidates(takes, dtype=torch.float64)} == {"has no float64"}
    assert {c.refusal for c in candidates(takes, device="t4")} == {"needs tensor cores of sm_80"}


def test_the_model_scales_memory_and_instructions_apart():
    """An H100 has the instructions of an H200, and less bandwidth."""

    def seconds(p, device):
        return min(c.modelled_seconds for c in candidates(p, dtype=torch.float16, device=device) if c.fits)

    # Five taps of 56 channels for an output; and two or none of 32.
    taps = Problem(1, 56, 1, (128, 128), (9, 9), (4, 4), (4, 4), (3, 3))
    assert seconds(taps, "h100") < 1.02 * seconds(taps, "h200")
    outputs = LAYERS["kb81"]
    assert 1.2 < seconds(outputs, "h100") / seconds(outputs, "h200") < 4.8 / 3.35 + 0.01


def test_weights_beyond_the_model_are_a_last_resort():
    fewer, more = (Problem(4, 64, 64, (64, 64), (k, k), (8, 8), (2, 2)) for k in (8, 12))
    of_weights = [
        {c.reservation for c in candidates(p, dtype=torch.float16) if c.configuration == "mma_n8"}
        for p in (fewer, more)
    ]
    assert of_weights[0] == {""}
    assert "has a model for at most 98304 bytes of a block's weights, not 147456" in of_weights[1]


def test_what_warp_rows_takes_is_left_to_it():
    """Rows innermost, up to 8 channels a group: only a forced plan uses grouped there."""
    reason = "is slower than warp_rows, which takes the problem"
    reserved = {layer: {c.reservation for c in candidates(p) if c.fits} for layer, p in LAYERS.items()}
    assert reserved["kb75"] == reserved["grouped_32"] == reserved["gtcrn.de_conv3"] == {reason}
    assert reserved["kb81"] == reserved["erfnet.output_conv"] == {""}
    memory = torch.channels_last
    assert {c.reservation for c in candidates(LAYERS["kb75"], memory=memory) if c.fits} == {""}


# GPU


def problem(rng, most_height=12, most_width=90):
    while True:
        groups = rng.choice((1, 1, 2, 3, 8))
        most = 48 // groups + 2
        stride, dilation = ((rng.randint(1, 5), rng.randint(1, 5)) for _ in range(2))
        if rng.random() < 0.6:
            dilation = (1, 1)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.choice((8, rng.randint(1, most))),
            out_channels=groups * rng.choice((8, 16, rng.randint(1, most))),
            size=(rng.randint(1, most_height), rng.choice((rng.randint(1, most_width), 8 * rng.randint(1, 12)))),
            kernel=(rng.randint(1, 5), rng.randint(1, 5)),
            stride=stride,
            padding=(rng.randint(0, 6), rng.randint(0, 6)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) > 0:
            return p


def operands(p, dtype, rng, configuration):
    memory = rng.choice(("contiguous", "contiguous", "channels_last", "offset", "expanded"))
    if configuration == "grouped/mma_n16":
        memory = "channels_last"
    x = lay_out(random_tensor(p.x_shape, dtype, "cuda"), memory)
    w = lay_out(random_tensor(p.w_shape, dtype, "cuda"), rng.choice(("contiguous", "channels_last", "permuted")))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


def torch_result(p, x, w, b):
    return torch.nn.functional.conv_transpose2d(x, w, b, **p.arguments)


def fitting(p, configuration, x):
    """mma_n16 has two tiles of 8 output channels, and takes x whose channels are neighbours."""
    rows_innermost = p.size[1] == 1 or x.stride(3) == 1
    return configuration == "grouped/mma_n8" or (p.out_channels // p.groups > 8 and not rows_innermost)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems(configuration, precision, seed):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {seed}")
    ran = 0
    for _ in range(problem_count(15)):
        p = problem(rng)
        x, w, b = operands(p, dtype, rng, configuration)
        if not fitting(p, configuration, x):
            continue
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced_if_it_fits(configuration, x, w, b, p)
        if result is None:  # too much for shared memory
            continue
        ran += 1
        rule_of_forward(p, x, w, b, precision)(result)
        for _ in range(2):
            poison_allocator(p.y_shape, dtype=dtype)
            assert torch.equal(forced(configuration, x, w, b, p), result)
    assert ran > 0 or problem_count(15) < 15


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("offset", (1, 2, 3, 4, 8))
@pytest.mark.parametrize("memory", FORMATS, ids=str)
def test_misaligned_inputs(precision, offset, memory):
    dtype = precise(precision)
    p = Problem(2, 16, 32, (7, 32), (4, 4), (2, 2), (1, 1), (0, 0), 2)
    w = random_tensor(p.w_shape, dtype, "cuda")
    x = random_tensor(p.x_shape, dtype, "cuda").contiguous(memory_format=memory)
    flat = torch.full((x.numel() + offset,), float("nan"), dtype=dtype, device="cuda")
    shifted = torch.as_strided(flat, x.shape, x.stride(), offset)
    shifted.copy_(x)
    for configuration in CONFIGURATIONS:
        if not fitting(p, configuration, x):
            continue
        assert torch.equal(forced(configuration, shifted, w, None, p), forced(configuration, x, w, None, p))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("memory", FORMATS, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_real_layers(layer, precision, memory):
    """The first and last image of each, which cut the problem as it will be cut."""
    dtype = precise(precision)
    p = LAYERS[layer]
    x = random_tensor(p.x_shape, dtype, "cuda").contiguous(memory_format=memory)
    w, b = random_tensor(p.w_shape, dtype, "cuda"), random_tensor((p.out_channels,), dtype, "cuda")
    if precision == "tf32":
        x, w = (round_to_tf32(t).contiguous(memory_format=m) for t, m in ((x, memory), (w, torch.contiguous_format)))
    for configuration in CONFIGURATIONS:
        if not fitting(p, configuration, x):
            continue
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced(configuration, x, w, b, p)
        direct = forced("direct/thread_per_output", x, w, b, p)
        assert not bool(result.isnan().any())
        scale = direct.float().abs().max().item()
        # Both round once to the output's dtype and sum in float32 in another order.
        limit = scale * (3 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5)
        assert (result.float() - direct.float()).abs().max().item() <= limit


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_inf_spread_by_taps_only(configuration, precision):
    dtype, rng = precise(precision), random.Random(precision)
    ran = 0
    for _ in range(6):
        p = problem(rng, 6, 16)
        memory = torch.channels_last if configuration == "grouped/mma_n16" else torch.contiguous_format
        ones = [
            torch.ones(s, dtype=dtype, device="cuda").contiguous(memory_format=m)
            for s, m in ((p.x_shape, memory), (p.w_shape, torch.contiguous_format))
        ]
        if not fitting(p, configuration, ones[0]):
            continue
        for pair, reached, value, where in spoilt_operands(p, rng, *ones):
            result = forced_if_it_fits(configuration, *pair, None, p)
            if result is None:  # too much for shared memory
                continue
            ran += 1
            result = result.cpu()
            assert torch.equal(~result.isfinite(), reached), where
            if value == float("inf"):
                assert not bool(result.isnan().any())
    assert ran > 0


@pytest.mark.gpu
def test_strict_float32_is_as_accurate_as_torch():
    torch.backends.cudnn.allow_tf32 = False
    for layer in ("kb75", "grouped_32"):
        p = LAYERS[layer]
        p = Problem(1, p.in_channels, p.out_channels, p.size, *(getattr(p, f) for f in (
            "kernel", "stride", "padding", "output_padding", "groups", "dilation")))  # fmt: skip
        x, w = random_tensor(p.x_shape, torch.float32, "cuda"), random_tensor(p.w_shape, torch.float32, "cuda")
        exact = torch_result(p, x.double(), w.double(), None)
        theirs = torch.linalg.vector_norm(torch_result(p, x, w, None).double() - exact)
        for configuration, memory in zip(CONFIGURATIONS, FORMATS, strict=True):
            x = x.contiguous(memory_format=memory)
            if fitting(p, configuration, x):
                ours = torch.linalg.vector_norm(forced(configuration, x, w, None, p).double() - exact)
                assert ours <= 1.25 * theirs, (layer, configuration, (ours / theirs).item())


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    p = Problem(70_000, 4, 4, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    check_the_last_image(CONFIGURATIONS[0], p)


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_outputs_beyond_32_bits(dtype):
    check_outputs_beyond_32_bits(CONFIGURATIONS[0], dtype)
