"""Configurations of the planner's, without a GPU; and the forward by one, whatever the planner would choose."""

import math
import random

import torch
from reference import (
    Problem,
    assert_parity,
    lay_out,
    poison_allocator,
    problem_count,
    random_tensor,
    reference,
    round_to_tf32,
    rule_of_forward,
    spoilt_operands,
)

import convt
from convt import _C

# Of what the tensor cores of Hopper multiply in one part.
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32}


def dtype_of(precision):
    """Of float32 with TF32 ("tf32") and without ("ieee"), and of the 16-bit types."""
    return DTYPES.get(precision, torch.float32)


def precise(precision):
    """The dtype of a precision, with float32 products as it says."""
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return dtype_of(precision)


FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def random_operands(p, dtype, rng, layout):
    """x, w and, of every second problem, a bias on the GPU; in NCHW x may begin anywhere."""
    x, w = (random_tensor(s, dtype, "cuda") for s in (p.x_shape, p.w_shape))
    x = lay_out(x, rng.choice(("contiguous", "contiguous", "offset"))) if layout == "nchw" else x
    if layout == "nhwc":
        x = x.contiguous(memory_format=torch.channels_last)
        w = w.contiguous(memory_format=rng.choice(tuple(FORMATS.values())))
    return x, w, random_tensor((p.out_channels,), dtype, "cuda") if rng.random() < 0.5 else None


def runs_hopper_code():
    """Whether the GPU and the build have what Hopper's own families need."""
    return torch.cuda.get_device_capability() == (9, 0) and any("9.0a" in arch for arch in convt.build_info()["archs"])


def explained(p, dtype, memory=torch.contiguous_format, w_memory=None, device="h200"):
    """The planner's explanation of a problem.

    Args:
        w_memory: the weight's memory format, if it is not x's.
    """
    x = torch.empty(p.x_shape, dtype=dtype, device="meta").contiguous(memory_format=memory)
    w = torch.empty(p.w_shape, dtype=dtype, device="meta").contiguous(memory_format=w_memory or memory)
    return convt.explain(x, w, device=device, **p.arguments)


def candidates_of(family, plan):
    """A family's candidates in an explanation, by the name of the configuration."""
    return {c.configuration: c for c in plan.candidates if c.algorithm == family}


def affordable(draw):
    """The first problem drawn that has outputs, and whose reference the CPU computes soon."""
    while True:
        p = draw()
        products = math.prod((p.batch, p.in_channels, p.out_channels // p.groups, *p.size, *p.kernel))
        if min(p.y_shape) > 0 and products < 3e8:
            return p


def forced(configuration, x, w, b, p):
    _C.force_configuration(configuration)
    try:
        return convt.conv_transpose2d(x, w, b, **p.arguments)
    finally:
        _C.force_configuration("")


def forced_if_it_fits(configuration, x, w, b, p):
    """The result, or None where the configuration does not take the problem."""
    try:
        return forced(configuration, x, w, b, p)
    except RuntimeError as error:
        assert configuration in str(error), error
        return None


def check_every_stream(configuration, precision, p, memory=torch.contiguous_format):
    """A configuration's results: the same bits in a hundred runs on each of eight streams, side by side."""
    dtype = precise(precision)
    x, w = (random_tensor(shape, dtype, "cuda").contiguous(memory_format=memory) for shape in (p.x_shape, p.w_shape))
    expected = forced(configuration, x, w, None, p)
    streams = [torch.cuda.Stream() for _ in range(8)]
    for _ in range(100):
        results = []
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(forced(configuration, x, w, None, p))
        torch.cuda.synchronize()
        assert all(torch.equal(r, expected) for r in results)


def check_those_taken(configuration, precision, draw, usual):
    """A configuration's results: right, and the same bits again; how many problems it took.

    Args:
        draw: makes a problem and its operands: p, x, w, b. One that the configuration does not take is left out.
        usual: how many problems, see problem_count().
    """
    taken = 0
    for _ in range(problem_count(usual)):
        p, x, w, b = draw()
        poison_allocator(p.y_shape, dtype=x.dtype)
        result = forced_if_it_fits(configuration, x, w, b, p)
        if result is None:
            continue
        taken += 1
        rule_of_forward(p, x, w, b, precision)(result)
        for _ in range(2):
            poison_allocator(p.y_shape, dtype=x.dtype)
            assert torch.equal(forced(configuration, x, w, b, p), result)
    return taken


def check_without_tensor_cores(configuration, p, x, w, b):
    """A configuration's results: right, and the same bits whether TF32 is allowed or not. Whether there were any."""
    torch.backends.cudnn.allow_tf32 = False
    poison_allocator(p.y_shape, dtype=x.dtype)
    result = forced_if_it_fits(configuration, x, w, b, p)
    if result is None:
        return False
    rule_of_forward(p, x, w, b, str(x.dtype))(result)
    for allowed in (False, True):
        torch.backends.cudnn.allow_tf32 = allowed
        poison_allocator(p.y_shape, dtype=x.dtype)
        assert torch.equal(forced(configuration, x, w, b, p), result)
    return True


def check_random_problems(configuration, precision, draw, usual):
    """The same, of a configuration that takes most problems."""
    # The sanitizer has few problems a test.
    assert check_those_taken(configuration, precision, draw, usual) > 3 or problem_count(usual) < usual


def check_configurations(configurations, precision, p, x, w, b):
    """Results of all that take the problem are right; how many there were."""
    assert_right = rule_of_forward(p, x, w, b, precision)
    ran = 0
    for configuration in configurations:
        poison_allocator(p.y_shape, dtype=x.dtype)
        result = forced_if_it_fits(configuration, x, w, b, p)
        if result is not None:
            ran += 1
            assert_right(result)
    return ran


def check_spread(configuration, p, rng, x, w, run=forced_if_it_fits):
    """One element that is not finite reaches the outputs that a tap connects with it, as infinity if it is one.

    All of `x` and `w` have one sign. `run` gives a result, or None. Returns how many results there were.
    """
    ran = 0
    for pair, reached, value, where in spoilt_operands(p, rng, x, w):
        result = run(configuration, *pair, None, p)
        if result is not None:
            ran += 1
            assert torch.equal(~result.cpu().isfinite(), reached), where
            if value == float("inf"):
                assert not bool(result.isnan().any()), where
    return ran


def check_spread_in_ones(configuration, precision, draw, memory=torch.contiguous_format):
    """The same of eight problems of ones, all of which the configuration takes."""
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision}")
    for _ in range(8):
        p = draw(rng)
        x = torch.ones(p.x_shape, dtype=dtype, device="cuda").contiguous(memory_format=memory)
        check_spread(configuration, p, rng, x, torch.ones(p.w_shape, dtype=dtype, device="cuda"), run=forced)


def check_misaligned(configurations, precision, p, offset, memory=torch.contiguous_format, same_bits=True):
    """Inputs that begin `offset` elements behind a multiple of 16 bytes give right results.

    Args:
        same_bits: those of aligned inputs, too: a configuration adds up in one order, wherever inputs begin.
    """
    dtype = precise(precision)
    x = random_tensor(p.x_shape, dtype, "cuda").contiguous(memory_format=memory)
    w = random_tensor(p.w_shape, dtype, "cuda")
    flat = torch.full((x.numel() + offset,), float("nan"), dtype=dtype, device="cuda")
    shifted = torch.as_strided(flat, x.shape, x.stride(), offset)
    shifted.copy_(x)
    assert_right = rule_of_forward(p, x, w, None, precision)
    for configuration in configurations:
        result = forced(configuration, shifted, w, None, p)
        assert_right(result)
        assert not same_bits or torch.equal(result, forced(configuration, x, w, None, p))


def check_against_direct(family, precision, p, memory=torch.contiguous_format):
    """The results of all of a family's configurations that take the problem, of layers too large for the CPU."""
    dtype = precise(precision)
    x, w = random_tensor(p.x_shape, dtype, "cuda"), random_tensor(p.w_shape, dtype, "cuda")
    b = random_tensor((p.out_channels,), dtype, "cuda")
    if precision == "tf32":
        x, w = round_to_tf32(x), round_to_tf32(w)
    x = x.contiguous(memory_format=memory)
    direct = forced("direct/thread_per_output", x, w, b, p)
    # Both round once to the output's dtype and sum in float32 in another order.
    limit = direct.float().abs().max().item() * (3 * torch.finfo(dtype).eps if dtype != torch.float32 else 2e-5)
    ran = 0
    for configuration, candidate in candidates_of(family, explained(p, dtype, memory)).items():
        if not candidate.fits:
            continue
        ran += 1
        poison_allocator(p.y_shape, dtype=dtype)
        result = forced(f"{family}/{configuration}", x, w, b, p)
        assert result.is_contiguous(memory_format=memory)
        assert (result.float() - direct.float()).abs().max().item() <= limit
    assert ran > 0


def check_the_largest_numbers(configurations, p, memory=torch.contiguous_format):
    """Strict float32: the first of an element's three parts is rounded, and would be infinite. Kernels are 2x2."""
    torch.backends.cudnn.allow_tf32 = False
    x = torch.full(p.x_shape, torch.finfo(torch.float32).max, device="cuda").contiguous(memory_format=memory)
    w = torch.full(p.w_shape, 2.0**-2 / p.in_channels, device="cuda")
    for configuration in configurations:
        result = forced(configuration, x, w, None, p)
        torch.testing.assert_close(result, torch.full_like(result, torch.finfo(torch.float32).max / 4))


def check_accuracy(family, p, memory=torch.contiguous_format):
    """Strict float32: no configuration of the family errs more than 1.25 times as much as torch."""
    torch.backends.cudnn.allow_tf32 = False
    x = random_tensor(p.x_shape, torch.float32, "cuda").contiguous(memory_format=memory)
    w = random_tensor(p.w_shape, torch.float32, "cuda")
    call = torch.nn.functional.conv_transpose2d
    exact = call(x.double(), w.double(), None, **p.arguments)
    theirs = torch.linalg.vector_norm(call(x, w, None, **p.arguments).double() - exact)
    for configuration, candidate in candidates_of(family, explained(p, torch.float32, memory)).items():
        if candidate.fits:
            result = forced(f"{family}/{configuration}", x, w, None, p)
            ours = torch.linalg.vector_norm(result.double() - exact)
            assert ours <= 1.25 * theirs, (configuration, (ours / theirs).item())


def check_the_last_image(configuration, p):
    """Of more images than a grid is high; float32 without TF32."""
    x, w = random_tensor(p.x_shape, torch.float32, "cuda"), random_tensor(p.w_shape, torch.float32, "cuda")
    torch.backends.cudnn.allow_tf32 = False
    result = forced(configuration, x, w, None, p)
    last = Problem(**{**p.__dict__, "batch": 1})
    assert_parity(result[-1:], None, reference(last, "forward", x=x[-1:], w=w))


def check_outputs_beyond_32_bits(configuration, dtype):
    """The first group of the first image and the last one of the last, of groups of 8 channels; needs 40 GiB."""
    p = Problem(34, 64, 64, (512, 512), (4, 4), (2, 2), (1, 1), (0, 0), 8)
    x, w = torch.randn(p.x_shape, dtype=dtype, device="cuda"), random_tensor(p.w_shape, dtype, "cuda")
    result = forced(configuration, x, w, None, p)
    assert result.numel() > 2**31
    one = Problem(1, 8, 8, (512, 512), (4, 4), (2, 2), (1, 1))
    for n, g in ((0, 0), (33, 7)):
        ref = reference(one, "forward", x=x[n : n + 1, 8 * g : 8 * g + 8], w=w[8 * g : 8 * g + 8])
        tensor_core = "ieee" if dtype == torch.float32 else None
        assert_parity(result[n : n + 1, 8 * g : 8 * g + 8], None, ref, tensor_core)
