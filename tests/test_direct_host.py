"""The direct kernels' per-element functions, compiled for the CPU: the index arithmetic that a GPU runs."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference import (
    MEMORY,
    Problem,
    assert_parity,
    lay_out,
    random_problem,
    random_tensor,
    reference,
    torch_gradients,
)

from convt import _C

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
CONFIGURATIONS = {
    "forward": ("direct/thread_per_output",),
    "input_grad": ("direct/thread_per_input",),
    "weight_grad": ("direct/warp_per_weight", "direct/block_per_weight"),
}


def on_host(p, role, a, b, bias=None, configuration=None, bits=None):
    size = {"forward": (), "input_grad": p.size, "weight_grad": p.kernel}[role]
    return _C.run_on_host(
        getattr(_C.Operation, role),
        a,
        b,
        bias,
        list(size),
        list(p.stride),
        list(p.padding),
        list(p.output_padding) if role == "forward" else [],
        p.groups,
        list(p.dilation),
        configuration or CONFIGURATIONS[role][0],
        bits,
    )


def operands(p, dtype, memory=("contiguous",) * 3, bias=True):
    shapes = p.x_shape, p.w_shape, p.y_shape
    x, w, y = (lay_out(random_tensor(s, dtype), m) for s, m in zip(shapes, memory, strict=True))
    return x, w, y, random_tensor((p.out_channels,), dtype) if bias else None


def check_all(p, dtype, memory=("contiguous",) * 3, bias=True, widths=(32, 64)):
    x, w, y, b = operands(p, dtype, memory, bias)
    # torch.grad of a complex product conjugates the other operand; convt's adjoints are linear and do not.
    expected_x, expected_w = torch_gradients(p, x.conj(), w.conj(), y)
    cases = {
        "forward": (x, w, b, F.conv_transpose2d(x, w, b, **p.arguments), {"x": x, "w": w, "bias": b}),
        "input_grad": (y, w, None, expected_x, {"y": y, "w": w}),
        "weight_grad": (x, y, None, expected_w, {"x": x, "y": y}),
    }
    for role, (first, second, role_bias, expected, named) in cases.items():
        ref = reference(p, role, **named)
        for configuration in CONFIGURATIONS[role]:
            for bits in widths:
                result = on_host(p, role, first, second, role_bias, configuration, bits)
                assert result.dtype == dtype
                assert_parity(result, expected, ref)


def test_the_configurations_tested_are_those_compiled():
    compiled = {name for name in _C.configuration_names() if name.startswith("direct/")}
    assert compiled == {name for names in CONFIGURATIONS.values() for name in names}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(seed=st.integers(0, 2**32))
def test_random_problems(dtype, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    memory = [rng.choice(MEMORY) for _ in range(3)]
    check_all(random_problem(rng, most_size=5, most_kernel=4), dtype, memory, bias=rng.random() < 0.5)


TARGETS = {
    "kb69": Problem(2, 6, 8, (9, 11), (3, 5)),
    "kb75": Problem(2, 8, 16, (9, 11), (3, 5), (2, 3), (1, 2), (0, 0), 4, (2, 1)),
    "kb65": Problem(2, 5, 4, (9, 8), (3, 7)),
    "kb81": Problem(1, 4, 5, (6, 7), (3, 3), (5, 5), (1, 1), (0, 0), 1, (2, 2)),
    "k = s": Problem(2, 8, 4, (5, 6), (2, 2), (2, 2)),
    "fcn": Problem(1, 3, 3, (4, 4), (16, 16), (8, 8)),
    "depthwise": Problem(2, 8, 8, (5, 6), (4, 4), (2, 2), (1, 1), (0, 0), 8),
    "narrowing groups": Problem(2, 12, 4, (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), 4),
    "widening groups": Problem(2, 4, 12, (4, 5), (3, 3), (2, 2), (1, 1), (1, 0), 4),
    "output_padding beyond the stride": Problem(2, 2, 3, (4, 5), (2, 3), (1, 2), (0, 1), (3, 2), 1, (4, 3)),
    "many channels": Problem(1, 200, 3, (3, 3), (3, 3), (2, 2), (1, 1)),
    "many images": Problem(40, 2, 2, (5, 6), (3, 3), (2, 2), (1, 1)),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layers_as_they_occur(name, dtype):
    check_all(TARGETS[name], dtype)


@pytest.mark.parametrize("first", MEMORY)
@pytest.mark.parametrize("second", MEMORY)
def test_every_memory_of_the_operands(first, second):
    p = Problem(2, 4, 6, (4, 5), (3, 2), (2, 1), (1, 0), (1, 0), 2, (1, 3))
    check_all(p, torch.float64, (first, second, first))


def test_strides_of_the_result():
    p = Problem(2, 4, 6, (4, 5), (3, 2), (2, 1))
    for memory, format in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        x, w, y, _ = operands(p, torch.float32, (memory,) * 3)
        results = (
            on_host(p, "forward", x, w),
            on_host(p, "input_grad", y, w),
            on_host(p, "weight_grad", x, y),
        )
        assert all(r.is_contiguous(memory_format=format) for r in results)


def test_unbatched():
    p = Problem(1, 4, 6, (4, 5), (3, 2), (2, 1), (1, 0), (1, 0), 2)
    x, w, y, b = operands(p, torch.float64)
    assert torch.equal(on_host(p, "forward", x[0], w, b), on_host(p, "forward", x, w, b)[0])
    assert torch.equal(on_host(p, "input_grad", y[0], w), on_host(p, "input_grad", y, w)[0])
    assert torch.equal(on_host(p, "weight_grad", x[0], y[0]), on_host(p, "weight_grad", x, y))


def test_batch_of_zero_reduces_to_zero():
    p = Problem(0, 4, 6, (4, 5), (3, 2))
    x, _, y, _ = operands(p, torch.float32)
    for configuration in CONFIGURATIONS["weight_grad"]:
        dw = on_host(p, "weight_grad", x, y, configuration=configuration)
        assert dw.shape == p.w_shape
        assert not dw.any()


def test_a_bias_with_a_stride():
    p = Problem(1, 2, 4, (3, 3), (2, 2), (2, 2))
    x, w, _, b = operands(p, torch.float64)
    assert torch.equal(on_host(p, "forward", x, w, b.repeat_interleave(3)[::3]), on_host(p, "forward", x, w, b))
    expanded = b[:1].expand(4)
    assert torch.equal(on_host(p, "forward", x, w, expanded), on_host(p, "forward", x, w, expanded.contiguous()))


def test_both_index_widths_give_the_same_bits():
    p = TARGETS["kb75"]
    x, w, y, b = operands(p, torch.float32)
    for role, a, second, bias in (("forward", x, w, b), ("input_grad", y, w, None), ("weight_grad", x, y, None)):
        for configuration in CONFIGURATIONS[role]:
            narrow, wide = (on_host(p, role, a, second, bias, configuration, bits) for bits in (32, 64))
            assert torch.equal(narrow, wide)


def test_a_configuration_of_another_operation_is_refused():
    p = Problem(1, 1, 1, (2, 2), (2, 2))
    x, w, _, _ = operands(p, torch.float32)
    with pytest.raises(ValueError, match="computes input_grad, not forward"):
        on_host(p, "forward", x, w, configuration="direct/thread_per_input")
    with pytest.raises(ValueError, match="no configuration named"):
        on_host(p, "forward", x, w, configuration="direct/none")


@pytest.mark.parametrize(
    "p",
    [
        Problem(5, 4, 6, (3, 4), (2, 3), (2, 3)),
        Problem(3, 4, 6, (5, 7), (1, 1)),
        Problem(5, 4, 6, (1, 1), (3, 5), (2, 1)),
        Problem(5, 4, 6, (1, 1), (3, 5), groups=2),
        Problem(5, 4, 1, (1, 1), (1, 5)),
        Problem(2, 4, 6, (1, 4), (3, 2), (1, 2), (0, 1)),
        Problem(2, 4, 6, (1, 1), (3, 3), (1, 2), (0, 1), (0, 1)),
    ],
)
@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("bias", [True, False])
def test_coalesced_images_and_rows(p, memory, bias):
    """The problem has fewer images and rows than the tensors, and another stride where an image has one position; or,
    without a bias, one output a channel."""
    check_all(p, torch.float64, memory=(memory,) * 3, bias=bias)
