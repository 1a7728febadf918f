"""The general tensor-core family: its kernels in the SIMT emulator, its plans, and the kernels on a GPU."""

import random

import pytest
import simt_program
import torch
import torch.nn.functional as F
from reference import MEMORY, Problem, assert_parity, lay_out, poison_allocator, random_problem, random_tensor, reference

import convt
from convt import _C

NAMES = [name for name in _C.configuration_names() if name.startswith("implicit_gemm_sm80/")]
# float32 with TF32 and without, and the 16-bit types.
MODES = ("tf32", "ieee", "float16", "bfloat16")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def dtype_of(mode):
    return DTYPES.get(mode, torch.float32)


@pytest.fixture
def precision(request):
    """Sets the mode's precision of float32 convolutions, and gives the mode."""
    mode = request.param
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    yield mode
    torch.backends.cudnn.allow_tf32 = allowed


modes = pytest.mark.parametrize("precision", MODES, indirect=True)


def takes(configuration, mode):
    """Sums that are promoted need registers that the largest tiles do not have."""
    return mode != "ieee" or configuration.split("/")[1] not in ("64x256", "128x128")


def explain(p, mode, device="h200"):
    x, w = (torch.empty(shape, dtype=dtype_of(mode), device="meta") for shape in (p.x_shape, p.w_shape))
    return convt.explain(x, w, device=device, **p.arguments)


def candidates(plan):
    return {c.configuration: c for c in plan.candidates if c.algorithm == "implicit_gemm_sm80"}


@pytest.mark.parametrize("seed", range(4))
def test_random_problems_in_the_emulator(seed, tmp_path_factory):
    program = tmp_path_factory.getbasetemp() / "implicit_gemm_sm80_simt"
    if not program.exists():
        simt_program.build("implicit_gemm_sm80_simt.cpp", tmp_path_factory.getbasetemp())
    assert "100 problems" in simt_program.run(program, 100 * seed, 100)


@modes
def test_every_configuration_fits_a_dense_layer(precision):
    found = candidates(explain(Problem(4, 64, 64, (32, 32), (4, 4), (2, 2), (1, 1)), precision))
    assert {f"implicit_gemm_sm80/{name}" for name in found} == set(NAMES)
    for name, candidate in found.items():
        assert candidate.fits == takes(f"implicit_gemm_sm80/{name}", precision)


@modes
@pytest.mark.parametrize(
    "refused",
    [
        ("needs sm_80 or later", Problem(1, 8, 8, (8, 8), (3, 3)), "t4"),
        ("takes kernels of at most 128 taps", Problem(1, 8, 8, (8, 8), (16, 16), (8, 8)), "h200"),
        ("takes strides of at most 16", Problem(1, 8, 8, (8, 8), (3, 3), (17, 17)), "h200"),
    ],
    ids=lambda r: r[0],
)
def test_refusals_say_why(precision, refused):
    reason, p, device = refused
    found = candidates(explain(p, precision, device))
    assert {c.refusal for c in found.values()} == {reason}


def test_a_small_layer_is_split_over_its_channels():
    # 16 positions and 512 channels: without splits one block for every 16 to 64 output channels.
    found = candidates(explain(Problem(1, 512, 256, (4, 4), (4, 4), (2, 2), (1, 1)), "float16"))
    best = min((c for c in found.values() if c.fits), key=lambda c: c.estimated_seconds)
    assert best.plan.tile.splits > 1
    assert best.plan.grid >= 64


def test_a_large_layer_takes_large_tiles_whole():
    found = candidates(explain(Problem(64, 64, 128, (128, 256), (3, 5)), "tf32"))
    best = min((c for c in found.values() if c.fits), key=lambda c: c.estimated_seconds)
    assert best.configuration in ("64x256", "128x128")
    tile = best.plan.tile
    assert tile.splits == 1
    assert tile.images * tile.rows * tile.columns > 200


# GPU


def forced(configuration, x, w, b, p):
    _C.force_configuration(configuration)
    try:
        return convt.conv_transpose2d(x, w, b, **p.arguments)
    finally:
        _C.force_configuration("")


def check(p, configuration, x, w, b):
    dtype = x.dtype
    poison_allocator(p.y_shape, dtype=dtype)
    result = forced(configuration, x, w, b, p)
    assert_parity(result, F.conv_transpose2d(x, w, b, **p.arguments), reference(p, "forward", x=x, w=w, bias=b))
    for _ in range(2):
        poison_allocator(p.y_shape, dtype=dtype)
        assert torch.equal(forced(configuration, x, w, b, p), result)


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_random_problems(configuration, precision, seed):
    if not takes(configuration, precision):
        pytest.skip("this configuration has no registers for promoted sums")
    rng = random.Random(f"{configuration} {precision} {seed}")
    dtype = dtype_of(precision)
    for _ in range(15):
        p = random_problem(rng, most_channels=rng.choice((6, 24, 80)), most_size=rng.choice((7, 20)))
        x, w = (
            lay_out(random_tensor(shape, dtype, "cuda"), rng.choice(MEMORY[:5])) for shape in (p.x_shape, p.w_shape)
        )
        b = random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None
        check(p, configuration, x, w, b)


# Layers of published models, as large as float64 on the CPU allows.
LAYERS = {
    "3x3": Problem(2, 64, 64, (24, 40), (3, 3), (1, 1), (1, 1)),
    "3x5": Problem(1, 64, 128, (16, 64), (3, 5)),
    "4x4 s2": Problem(2, 256, 128, (16, 12), (4, 4), (2, 2), (1, 1)),
    "3x3 s2": Problem(2, 128, 64, (16, 16), (3, 3), (2, 2), (1, 1), (1, 1)),
    "2x2 s2": Problem(2, 128, 64, (16, 16), (2, 2), (2, 2)),
    "5x5 s2": Problem(2, 64, 32, (16, 16), (5, 5), (2, 2), (2, 2), (1, 1)),
    "one pixel": Problem(16, 100, 512, (1, 1), (4, 4)),
    "many channels": Problem(4, 1024, 256, (8, 6), (4, 4), (2, 2), (1, 1)),
    "vocoder": Problem(2, 256, 128, (1, 40), (1, 16), (1, 8), (0, 4)),
}


@pytest.mark.gpu
@modes
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last), ids=("nchw", "nhwc"))
def test_layers(layer, layout, precision):
    p, dtype = LAYERS[layer], dtype_of(precision)
    x, w = (
        random_tensor(shape, dtype, "cuda").contiguous(memory_format=layout) for shape in (p.x_shape, p.w_shape)
    )
    b = random_tensor((p.out_channels,), dtype, "cuda")
    for configuration in NAMES:
        if takes(configuration, precision):
            check(p, configuration, x, w, b)


@pytest.mark.gpu
@modes
def test_the_same_bits_on_every_stream(precision):
    p, dtype = LAYERS["many channels"], dtype_of(precision)
    x, w = (random_tensor(shape, dtype, "cuda") for shape in (p.x_shape, p.w_shape))
    expected = forced("implicit_gemm_sm80/64x128", x, w, None, p)
    streams = [torch.cuda.Stream() for _ in range(8)]
    for _ in range(20):
        results = []
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(forced("implicit_gemm_sm80/64x128", x, w, None, p))
        torch.cuda.synchronize()
        assert all(torch.equal(r, expected) for r in results)


@pytest.mark.gpu
@modes
def test_nan_and_inf_spread_by_taps_only(precision):
    p, dtype = Problem(1, 8, 16, (6, 9), (3, 4), (2, 1), (1, 2)), dtype_of(precision)
    rng = random.Random(0)
    ones = torch.ones(p.x_shape, dtype=dtype, device="cuda"), torch.ones(p.w_shape, dtype=dtype, device="cuda")
    for spoilt in (0, 1):
        for value in (float("nan"), float("inf")):
            for _ in range(6):
                pair = [t.clone() for t in ones]
                at = tuple(rng.choice((0, n - 1, rng.randrange(n))) for n in pair[spoilt].shape)
                pair[spoilt][at] = value
                marks = [torch.zeros(t.shape, dtype=torch.float64) for t in pair]
                marks[spoilt][at] = 1
                marks[1 - spoilt] += 1
                reached = reference(p, "forward", x=marks[0], w=marks[1]).value != 0
                result = forced("implicit_gemm_sm80/64x128", *pair, None, p).cpu()
                assert torch.equal(~result.isfinite(), reached), (spoilt, value, at)


@pytest.mark.large(gib=40)
def test_outputs_beyond_32_bits():
    p = Problem(34, 16, 64, (512, 512), (2, 2), (2, 2))
    x, w = torch.randn(p.x_shape, dtype=torch.float16, device="cuda"), random_tensor(p.w_shape, torch.float16, "cuda")
    result = forced("implicit_gemm_sm80/64x256", x, w, None, p)
    assert result.numel() > 2**31
    one = Problem(1, 16, 64, (512, 512), (2, 2), (2, 2))
    for n in (0, 33):
        assert_parity(result[n : n + 1], None, reference(one, "forward", x=x[n : n + 1], w=w))
