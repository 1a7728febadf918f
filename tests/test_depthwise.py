"""The depthwise family: the threads' function on the CPU for every configuration, and the kernels on a GPU."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reference import Problem, assert_parity, lay_out, poison_allocator, random_tensor, reference

import convt
from convt import _C

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# (kernel, stride, padding) of either axis, by the configuration that takes them.
SHAPES = {
    "3x3_s1": ((3, 3), (1, 1), (1, 1)),
    "5x5_s1": ((5, 5), (1, 1), (2, 2)),
    "7x7_s1": ((7, 7), (1, 1), (3, 3)),
    "1x5_s1": ((1, 5), (1, 1), (0, 2)),
    "2x2_s2_p0": ((2, 2), (2, 2), (0, 0)),
    "3x3_s2_p0": ((3, 3), (2, 2), (0, 0)),
    "3x3_s2_p1": ((3, 3), (2, 2), (1, 1)),
    "4x4_s2_p0": ((4, 4), (2, 2), (2, 2)),
    "4x4_s2_p1": ((4, 4), (2, 2), (1, 1)),
    "5x5_s2_p0": ((5, 5), (2, 2), (2, 2)),
    "6x6_s2_p0": ((6, 6), (2, 2), (2, 2)),
    "7x7_s2_p1": ((7, 7), (2, 2), (3, 3)),
    "1x3_s1_s2_p1": ((1, 3), (1, 2), (0, 1)),
    "2x3_s1_s2_p1": ((2, 3), (1, 2), (1, 1)),
    "6x1_s2_s1_p0": ((6, 1), (2, 1), (4, 0)),
    "3x3_s3_p0": ((3, 3), (3, 3), (0, 0)),
    "5x5_s3_p1": ((5, 5), (3, 3), (1, 1)),
    "4x4_s4_p0": ((4, 4), (4, 4), (0, 0)),
    "7x7_s4_p2": ((7, 7), (4, 4), (2, 2)),
    "8x8_s4_p2": ((8, 8), (4, 4), (2, 2)),
}
NAMES = {shape: f"depthwise/nchw_{shape}" for shape in SHAPES}


def problem(shape, rng, most_height=12, most_width=40):
    """A random problem that the configuration takes; every second one has rows that vectors fit."""
    kernel, stride, padding = SHAPES[shape]
    while True:
        groups = rng.randint(1, 3)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups,
            out_channels=groups * rng.choice((1, 1, 2, 3)),
            size=(rng.randint(1, most_height), rng.choice((rng.randint(1, most_width), 8 * rng.randint(1, 5)))),
            kernel=kernel,
            stride=stride,
            # Any padding of the same remainder is taken; the one of the configuration loads fastest.
            padding=tuple(
                q if rng.random() < 0.6 else q % s + s * rng.randint(0, 8 // s)
                for q, s in zip(padding, stride, strict=True)
            ),
            output_padding=tuple(rng.randrange(s) for s in stride),
            groups=groups,
        )
        if min(p.y_shape) > 0:
            return p


def operands(p, dtype, rng, device="cpu"):
    memory = rng.choice(("contiguous", "contiguous", "offset"))
    x, w = (lay_out(random_tensor(s, dtype, device), m) for s, m in ((p.x_shape, memory), (p.w_shape, "contiguous")))
    return x, w, random_tensor((p.out_channels,), dtype, device) if rng.random() < 0.5 else None


def on_host(p, shape, x, w, bias=None):
    pairs = [list(pair) for pair in (p.stride, p.padding, p.output_padding)]
    return _C.run_on_host(
        _C.Operation.forward, x, w, bias, [], *pairs, p.groups, list(p.dilation), NAMES.get(shape, shape), None
    )


def explanation(p, dtype=torch.float32, memory=torch.contiguous_format):
    x = torch.empty(p.x_shape, dtype=dtype, device="meta").contiguous(memory_format=memory)
    w = torch.empty(p.w_shape, dtype=dtype, device="meta")
    return convt.explain(x, w, device="h200", **p.arguments)


def refusals(plan):
    return {c.refusal for c in plan.candidates if c.algorithm == "depthwise"}


def test_the_configurations_tested_are_those_compiled():
    assert {name for name in _C.configuration_names() if name.startswith("depthwise/")} == set(NAMES.values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_problems_on_the_host(shape, dtype):
    rng = random.Random(f"{shape} {dtype}")
    for _ in range(10):
        p = problem(shape, rng)
        x, w, b = operands(p, dtype, rng)
        result = on_host(p, shape, x, w, b)
        assert_parity(result, F.conv_transpose2d(x, w, b, **p.arguments), reference(p, "forward", x=x, w=w, bias=b))


def test_no_access_outside_a_tensor(tmp_path):
    """Random problems under AddressSanitizer and UBSan, in buffers of exactly their size and of every alignment."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = tmp_path / "depthwise_host"
    sources = ["tests/depthwise_host.cpp", "csrc/kernels/depthwise/host.cpp"]
    sources += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc/plan").rglob("*.cpp"))
    flags = ["-std=c++20", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Icsrc"]
    build = [compiler, *flags, *sources, "-o", program]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    run = subprocess.run([program, "0", "6000"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def check_spread(p, shape, forward, device="cpu", dtype=torch.float32):
    """NaN and infinities in single elements reach exactly the outputs that a tap connects with them."""
    rng = random.Random(0)
    ones = torch.ones(p.x_shape, dtype=dtype, device=device), torch.ones(p.w_shape, dtype=dtype, device=device)
    for spoilt in (0, 1):
        for value in (float("nan"), float("inf")):
            for _ in range(4):
                pair = [t.clone() for t in ones]
                # Corners too: their neighbours lie outside the tensor.
                at = tuple(rng.choice((0, n - 1, rng.randrange(n))) for n in pair[spoilt].shape)
                pair[spoilt][at] = value
                marks = [torch.zeros(t.shape, dtype=torch.float64) for t in pair]
                marks[spoilt][at] = 1
                marks[1 - spoilt] += 1
                reached = reference(p, "forward", x=marks[0], w=marks[1]).value != 0
                result = forward(p, shape, *pair).cpu()
                assert torch.equal(~result.isfinite(), reached), (p, spoilt, value, at)


@pytest.mark.parametrize("shape", SHAPES)
def test_nan_and_inf_spread_by_taps_only_on_the_host(shape):
    rng = random.Random(shape)
    for _ in range(3):
        check_spread(problem(shape, rng, 6, 16), shape, on_host)


def test_outputs_without_taps_are_the_bias():
    p = Problem(1, 2, 2, (3, 5), (1, 3), (1, 2), (0, 1), (0, 1), 2)
    x, w, b = random_tensor(p.x_shape, torch.float32), torch.zeros(p.w_shape), random_tensor((2,), torch.float32)
    assert torch.equal(on_host(p, "1x3_s1_s2_p1", x, w, b), b.view(1, 2, 1, 1).expand(p.y_shape))


def test_views_of_the_input_are_taken():
    p = Problem(2, 3, 3, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 3)
    x, w = random_tensor((2, 3, 9, 17), torch.float32)[:, :, 1:7, 3:11], random_tensor(p.w_shape, torch.float32)
    assert torch.equal(on_host(p, "4x4_s2_p1", x, w), on_host(p, "4x4_s2_p1", x.contiguous(), w))
    rows = x[:, :1, :1].expand(p.x_shape)
    assert torch.equal(on_host(p, "4x4_s2_p1", rows, w), on_host(p, "4x4_s2_p1", rows.contiguous(), w))
    with pytest.raises(ValueError, match="takes kernels that are contiguous in memory"):
        on_host(p, "4x4_s2_p1", x, w.transpose(2, 3))


@pytest.mark.parametrize(
    ("p", "configuration"),
    [
        (Problem(16, 64, 64, (128, 128), (4, 4), (2, 2), (1, 1), (0, 0), 64), "nchw_4x4_s2_p1"),
        (Problem(16, 256, 256, (56, 56), (5, 5), (2, 2), (2, 2), (1, 1), 256), "nchw_5x5_s2_p0"),
        (Problem(64, 256, 256, (16, 16), (2, 2), (2, 2), (0, 0), (0, 0), 256), "nchw_2x2_s2_p0"),
        (Problem(16, 64, 64, (1000, 8), (1, 3), (1, 2), (0, 1), (0, 1), 64), "nchw_1x3_s1_s2_p1"),
        (Problem(8, 3, 6, (50, 50), (8, 8), (4, 4), (6, 2), (0, 0), 3), "nchw_8x8_s4_p2"),
        (Problem(70_000, 2, 2, (3, 3), (3, 3), (1, 1), (1, 1), (0, 0), 2), "nchw_3x3_s1"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_real_layers_are_planned(p, configuration, dtype):
    plan = explanation(p, dtype)
    assert (plan.algorithm, plan.configuration) == ("depthwise", configuration)
    assert plan.block == 256


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_is_chosen_for_its_problems(dtype):
    for shape in SHAPES:
        for seed in range(5):
            plan = explanation(problem(shape, random.Random(seed)), dtype)
            assert f"{plan.algorithm}/{plan.configuration}" == NAMES[shape]


def test_refusals_say_why():
    takes = Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 4)
    refused = {
        "takes 1 input channel a group, not 2": Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 2),
        "takes dilation 1 only": Problem(2, 4, 4, (6, 8), (4, 4), (2, 2), (1, 1), (0, 0), 4, (1, 2)),
        "has kernel 8 along the height, not 9": Problem(2, 4, 4, (6, 8), (9, 9), (2, 2), (1, 1), (0, 0), 4),
        "has padding modulo stride 0 along the width, not 1": Problem(
            2, 4, 4, (6, 8), (2, 2), (2, 2), (0, 1), (0, 0), 4
        ),
        "has stride 2 along the height, not 5": Problem(2, 4, 4, (6, 8), (4, 4), (5, 5), (1, 1), (0, 0), 4),
        "takes images of less than 2^30 elements a channel": Problem(
            1, 2, 2, (2**15, 2**14), (2, 2), (2, 2), (0, 0), (0, 0), 2
        ),
    }
    assert "" in refusals(explanation(takes))
    for reason, p in refused.items():
        plan = explanation(p)
        assert plan.algorithm == "direct"
        assert reason in refusals(plan)
        assert "" not in refusals(plan)
    assert refusals(explanation(takes, torch.float64)) == {"has no float64"}
    last = explanation(takes, memory=torch.channels_last)
    assert refusals(last) == {"takes input rows that are contiguous in memory"}
    assert last.algorithm == "direct"


# GPU


def forced(configuration, x, w, b, p):
    _C.force_configuration(configuration)
    try:
        return convt.conv_transpose2d(x, w, b, **p.arguments)
    finally:
        _C.force_configuration("")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_problems(shape, dtype):
    rng = random.Random(f"{shape} {dtype} gpu")
    for _ in range(10):
        p = problem(shape, rng, 16, 96)
        x, w, b = operands(p, dtype, rng, "cuda")
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced(NAMES[shape], x, w, b, p)
        ref = reference(p, "forward", x=x, w=w, bias=b)
        direct = forced("direct/thread_per_output", x, w, b, p)
        assert_parity(result, direct, ref)
        for _ in range(2):
            poison_allocator(p.y_shape, dtype=dtype)
            assert torch.equal(forced(NAMES[shape], x, w, b, p), result)
        assert_parity(on_host(p, shape, *(None if t is None else t.cpu() for t in (x, w, b))), direct, ref)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", range(9))
def test_misaligned_inputs(dtype, offset):
    p = Problem(2, 3, 3, (7, 32), (4, 4), (2, 2), (1, 1), (0, 0), 3)
    w = random_tensor(p.w_shape, dtype, "cuda")
    flat = random_tensor((2 * 3 * 7 * 32 + offset,), dtype, "cuda")
    x = flat[offset:].view(p.x_shape)
    expected = forced(NAMES["4x4_s2_p1"], x.clone(), w, None, p)
    assert torch.equal(forced(NAMES["4x4_s2_p1"], x, w, None, p), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_spread_by_taps_only(shape, dtype):
    rng = random.Random(shape)

    def forward(p, shape, x, w):
        return forced(NAMES[shape], x, w, None, p)

    check_spread(problem(shape, rng, 6, 16), shape, forward, "cuda", dtype)


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high():
    p = Problem(70_000, 2, 2, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    x, w = random_tensor(p.x_shape, torch.float32, "cuda"), random_tensor(p.w_shape, torch.float32, "cuda")
    assert convt.explain(x, w, **p.arguments).algorithm == "depthwise"
    last = Problem(1, 2, 2, (3, 4), (3, 3), (1, 1), (1, 1), (0, 0), 2)
    result = convt.conv_transpose2d(x, w, **p.arguments)
    assert_parity(result[-1:], None, reference(last, "forward", x=x[-1:], w=w))


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32), ids=str)
def test_outputs_beyond_32_bits(dtype):
    p = Problem(34, 64, 64, (512, 512), (4, 4), (2, 2), (1, 1), (0, 0), 64)
    x, w = torch.randn(p.x_shape, dtype=dtype, device="cuda"), random_tensor(p.w_shape, dtype, "cuda")
    result = forced(NAMES["4x4_s2_p1"], x, w, None, p)
    assert result.numel() > 2**31
    one = Problem(1, 1, 1, (512, 512), (4, 4), (2, 2), (1, 1))
    for n, c in ((0, 0), (33, 63)):
        ref = reference(one, "forward", x=x[n : n + 1, c : c + 1], w=w[c : c + 1])
        assert_parity(result[n : n + 1, c : c + 1], None, ref)
