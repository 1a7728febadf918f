"""PyTorch's own samples for nn.functional.conv_transpose2d and nn.ConvTranspose2d, pointed at convt."""

import itertools
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import COMPLEX, REAL, Reference, assert_parity, tensor_core_of
from torch.testing import assert_close

import convt

# PyTorch's test tools, when imported, forbid the whole process to set the flags in torch.backends.
with mock.patch("torch.backends.disable_global_flags"):
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_utils import noncontiguous_like

OP = next(op for op in op_db if op.name == "nn.functional.conv_transpose2d")
MODULES = {info.module_cls: info for info in module_db}

FORMATS = [torch.contiguous_format, torch.channels_last]
FORMAT_PAIRS = list(itertools.product(FORMATS, FORMATS))


def shapes_of(sample):
    return "-".join("x".join(map(str, t.shape)) for t in (sample.input, *sample.args) if t is not None)


SAMPLES = [
    pytest.param(index, id=shapes_of(sample))
    for index, sample in enumerate(OP.sample_inputs("meta", torch.float32, requires_grad=False))
]
each_sample = pytest.mark.parametrize("index", SAMPLES)


@pytest.fixture(autouse=True)
def full_precision():
    torch.backends.cudnn.allow_tf32 = False


def operands(index, device, dtype, *, requires_grad=False):
    """(input, weight, bias or None), keyword arguments of the sample."""
    # Made in a wide type: make_tensor knows no complex32 on the CPU.
    wide = torch.complex64 if dtype.is_complex else torch.float32
    wide = torch.promote_types(dtype, wide)
    sample = list(OP.sample_inputs(device, wide, requires_grad=False))[index]
    tensors = [t if t is None else t.to(dtype).requires_grad_(requires_grad) for t in (sample.input, *sample.args)]
    return tensors, sample.kwargs


def in_format(tensor, memory_format):
    return tensor.contiguous(memory_format=memory_format) if tensor.dim() == 4 else tensor


def forward_and_gradients(function, tensors, kwargs, grad_output):
    leaves = [t if t is None else t.detach().requires_grad_() for t in tensors]
    output = function(*leaves, **kwargs)
    wanted = [t for t in leaves if t is not None]
    return [output.detach(), *torch.autograd.grad(output, wanted, grad_output.to(output.dtype))]


def assert_accurate(tensors, kwargs):
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = [t if t is None else t.to(wide) for t in tensors]
    grad_output = torch.randn_like(F.conv_transpose2d(*exact, **kwargs)).to(dtype)
    # The sum of the terms' absolute values is the same operation on absolute values.
    sizes = [t if t is None else t.abs() for t in exact]
    values = forward_and_gradients(F.conv_transpose2d, exact, kwargs, grad_output)
    magnitudes = forward_and_gradients(F.conv_transpose2d, sizes, kwargs, grad_output.to(wide).abs())
    # aten has no complex32 on the CPU.
    native = dtype in OP.supported_dtypes(tensors[0].device.type)
    aten = forward_and_gradients(F.conv_transpose2d, tensors, kwargs, grad_output) if native else [None] * len(values)
    results = forward_and_gradients(convt.conv_transpose2d, tensors, kwargs, grad_output)
    # The gradients that follow are not made by tensor cores.
    tensor_cores = [tensor_core_of(*tensors[:2], **kwargs)] + [None] * len(values)
    for result, theirs, value, magnitude, tensor_core in zip(
        results, aten, values, magnitudes, tensor_cores, strict=False
    ):
        assert result.dtype == dtype
        assert_parity(result, theirs, Reference(value.cpu(), magnitude.cpu()), tensor_core)


@each_sample
@pytest.mark.parametrize("dtype", (*REAL, *COMPLEX))
def test_forward_and_gradients(device, dtype, index):
    tensors, kwargs = operands(index, device, dtype)
    assert_accurate(tensors, kwargs)


@each_sample
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_noncontiguous(device, dtype, index):
    tensors, kwargs = operands(index, device, dtype)
    assert_accurate([t if t is None else noncontiguous_like(t) for t in tensors], kwargs)


@each_sample
@pytest.mark.parametrize("view", ["conj", "neg", "conj_neg"])
def test_lazy_views(device, index, view):
    tensors, kwargs = operands(index, device, torch.complex64)
    if "conj" in view:
        tensors = [t if t is None else t.conj() for t in tensors]
    if "neg" in view:
        tensors = [t if t is None else torch._neg_view(t) for t in tensors]
    resolved = [t if t is None else t.resolve_conj().resolve_neg() for t in tensors]
    assert_close(convt.conv_transpose2d(*tensors, **kwargs), convt.conv_transpose2d(*resolved, **kwargs))


@each_sample
def test_copy_on_write_operands_are_not_copied(device, index):
    tensors, kwargs = operands(index, device, torch.float32)
    lazy = [t if t is None else torch._lazy_clone(t) for t in tensors]
    convt.conv_transpose2d(*lazy, **kwargs)
    assert all(torch._C._is_cow_tensor(t) for t in lazy if t is not None)


# Strides


def expected_format(a, b):
    """The rule: channels_last if either suggests it, but never float64 on CUDA."""
    if a.device.type == "cuda" and a.dtype in (torch.float64, torch.complex128):
        return torch.contiguous_format
    suggested = [torch._prims_common.suggest_memory_format(t.unsqueeze(0) if t.dim() == 3 else t) for t in (a, b)]
    return torch.channels_last if torch.channels_last in suggested else torch.contiguous_format


def strides_of(shape, memory_format):
    batched = torch.empty((1, *shape) if len(shape) == 3 else shape, device="meta", memory_format=memory_format)
    return batched.stride()[-len(shape) :]


def aten_keeps_the_format(device, kwargs):
    """On CUDA, aten leaves cuDNN, and with it channels_last, for an output_padding that reaches the stride."""
    stride, output_padding = kwargs.get("stride", 1), kwargs.get("output_padding", 0)
    stride, output_padding = ((v, v) if isinstance(v, int) else v for v in (stride, output_padding))
    return device == "cpu" or all(q < s for q, s in zip(output_padding, stride, strict=True))


def aten_takes_onednn(dtype):
    """Whether ATen's convolutions of this type are oneDNN's on this CPU, which is the side that convt takes."""
    mkldnn = torch.ops.mkldnn
    supported = {
        torch.float32: lambda: True,
        torch.bfloat16: mkldnn._is_mkldnn_bf16_supported,
        torch.float16: mkldnn._is_mkldnn_fp16_supported,
    }
    return torch.backends.mkldnn.is_available() and dtype in supported and supported[dtype]()


def strides_in_memory(t):
    """Without those of dimensions of one element, by which memory is never addressed."""
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1]


@each_sample
@pytest.mark.parametrize("dtype", [*REAL, torch.complex64, torch.complex128])
@pytest.mark.parametrize("formats", FORMAT_PAIRS, ids=str)
def test_strides(device, dtype, index, formats):
    tensors, kwargs = operands(index, device, dtype)
    x, w = (in_format(t, f) for t, f in zip(tensors, formats, strict=False))
    tensors = [x, w, *tensors[2:]]
    expected = expected_format(x, w)
    grad_output = torch.ones_like(F.conv_transpose2d(*tensors, **kwargs))
    results = forward_and_gradients(convt.conv_transpose2d, tensors, kwargs, grad_output)
    assert results[0].stride() == strides_of(results[0].shape, expected)
    if device == "cpu":  # cuDNN's gradients of what is contiguous in both formats follow other tensors
        assert [r.stride() for r in results[1:3]] == [strides_of(r.shape, expected) for r in results[1:3]]
    if not aten_keeps_the_format(device, kwargs):
        return
    aten = forward_and_gradients(F.conv_transpose2d, tensors, kwargs, grad_output)
    assert results[0].stride() == aten[0].stride()
    # On the CPU, aten's backward takes other paths where oneDNN has none for the type: convt gives, on any processor,
    # what it gives for any other dtype. In complex numbers they do not even keep the format.
    if dtype.is_complex:
        return
    if device == "cpu" and not aten_takes_onednn(dtype):
        assert [strides_in_memory(r) for r in results] == [strides_in_memory(a) for a in aten]
    elif dtype != torch.float64:
        assert [r.stride() for r in results] == [a.stride() for a in aten]


@each_sample
@pytest.mark.parametrize("dtype", (*REAL, *COMPLEX))
@pytest.mark.parametrize("formats", FORMAT_PAIRS, ids=str)
def test_meta(dtype, index, formats):
    tensors, kwargs = operands(index, "cpu", dtype)
    x, w = (in_format(t, f) for t, f in zip(tensors, formats, strict=False))
    tensors = [x, w, *tensors[2:]]
    on_meta = [
        t if t is None else torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="meta") for t in tensors
    ]
    grad_output = convt.conv_transpose2d(*tensors, **kwargs)
    real = forward_and_gradients(convt.conv_transpose2d, tensors, kwargs, grad_output)
    meta = forward_and_gradients(convt.conv_transpose2d, on_meta, kwargs, torch.empty_like(grad_output, device="meta"))
    for r, m in zip(real, meta, strict=True):
        assert m.is_meta
        assert (m.shape, m.stride(), m.dtype) == (r.shape, r.stride(), r.dtype)


# Differentiation


@each_sample
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradcheck(device, dtype, index):
    tensors, kwargs = operands(index, device, dtype, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *tensors: convt.conv_transpose2d(*tensors, **kwargs),
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
        fast_mode=OP.gradcheck_fast_mode,
        nondet_tol=0,
    )


@each_sample
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradgradcheck(device, dtype, index):
    tensors, kwargs = operands(index, device, dtype, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda *tensors: convt.conv_transpose2d(*tensors, **kwargs),
        tensors,
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
        check_undefined_grad=True,
        fast_mode=OP.gradcheck_fast_mode,
        nondet_tol=0,
    )


@each_sample
def test_exhaustive_gradcheck(device, index):
    """Every element of the Jacobian, where gradcheck's fast mode takes one random projection of it."""
    tensors, kwargs = operands(index, device, torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *tensors: convt.conv_transpose2d(*tensors, **kwargs), tensors, check_forward_ad=True
    )


# vmap


@each_sample
def test_vmap(device, index):
    tensors, kwargs = operands(index, device, torch.float64)
    batch = 3
    # None: not mapped; otherwise where the mapped dimension stands, the last dimension included.
    for in_dims in itertools.product(*[[None] if t is None else [None, *range(t.dim() + 1)] for t in tensors]):
        if all(d is None for d in in_dims):
            continue
        mapped = [
            t if d is None else torch.stack([t * (i + 1) for i in range(batch)]).movedim(0, d)
            for t, d in zip(tensors, in_dims, strict=True)
        ]
        result = torch.vmap(lambda *a: convt.conv_transpose2d(*a, **kwargs), in_dims=in_dims)(*mapped)
        one_by_one = [
            F.conv_transpose2d(
                *[m if d is None else m.select(d, i) for m, d in zip(mapped, in_dims, strict=True)], **kwargs
            )
            for i in range(batch)
        ]
        assert_close(result, torch.stack(one_by_one), msg=lambda m, d=in_dims: f"in_dims={d}: {m}")


# Errors


ERRORS = list(OP.error_inputs("meta")) if OP.error_inputs_func else []


@pytest.mark.skipif(not ERRORS, reason=f"torch {torch.__version__} has no error inputs for conv_transpose2d")
def test_error_inputs(device):
    for error in OP.error_inputs(device):
        sample = error.sample_input
        with pytest.raises(error.error_type, match=error.error_regex):
            convt.conv_transpose2d(sample.input, *sample.args, **sample.kwargs)


# Modules


MODULE_PAIRS = [(torch.nn.ConvTranspose2d, "ConvTranspose2d"), (torch.nn.LazyConvTranspose2d, "LazyConvTranspose2d")]
each_module = pytest.mark.parametrize(("theirs", "ours"), MODULE_PAIRS, ids=[name for _, name in MODULE_PAIRS])


def module_cases(theirs, device, dtype, training=True):
    """Of every sample: constructor's and forward's (args, kwargs); the input in a type that make_tensor knows."""
    info = MODULES[theirs]
    wide = torch.promote_types(dtype, torch.float32)
    for case in info.module_inputs_func(info, device, wide, requires_grad=False, training=training):
        call = replace_dtype(case.forward_input, dtype)
        yield (case.constructor_input.args, case.constructor_input.kwargs), call


def replace_dtype(call, dtype):
    return tuple(a.to(dtype).requires_grad_() for a in call.args), call.kwargs


def build(module_class, constructor, device, dtype, first_call=None):
    """From the same seed; a lazy module has its parameters only after a first call."""
    args, kwargs = constructor
    torch.manual_seed(0)
    module = module_class(*args, **kwargs, device=device, dtype=dtype)
    if first_call is not None:
        module(*first_call[0], **first_call[1])
    return module


def run(module, call):
    (x, *rest), kwargs = call
    x = x.detach().requires_grad_()
    output = module(x, *rest, **kwargs)
    grad_output = torch.linspace(-1, 1, output.numel(), device=x.device).view_as(output).to(x.dtype)
    return output, *torch.autograd.grad(output, (x, *module.parameters()), grad_output)


@each_module
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [*REAL, torch.complex64, torch.complex128])
def test_module(device, theirs, ours, dtype, training):
    for constructor, call in module_cases(theirs, device, dtype, training):
        modules = [build(c, constructor, device, dtype, call) for c in (theirs, getattr(convt, ours))]
        expected, results = (run(m.train(training), call) for m in modules)
        assert type(modules[1]) is convt.ConvTranspose2d
        assert modules[1].training == training
        # The same seed gives the same parameters, lazy or not.
        assert_close(modules[1].state_dict(), modules[0].state_dict(), rtol=0, atol=0)
        assert repr(modules[1]) == repr(modules[0])
        for result, wanted in zip(results, expected, strict=True):
            tolerance = {}
            if dtype in (torch.float16, torch.bfloat16):
                # torch rounds once more, before it adds the bias; what cancels keeps the error of what it was the
                # difference of.
                tolerance = {"rtol": 0, "atol": 2 * torch.finfo(dtype).eps * wanted.abs().max().item()}
            assert_close(result, wanted, **tolerance)


@each_module
def test_module_state_dict_goes_both_ways(device, theirs, ours):
    for constructor, call in module_cases(theirs, device, torch.float32):
        their = build(theirs, constructor, device, torch.float32, call)
        our = getattr(convt, ours)(*constructor[0], **constructor[1], device=device)
        our.load_state_dict(their.state_dict())
        assert_close(our(*call[0]), their(*call[0]))
        fresh = build(theirs, constructor, device, torch.float32)
        fresh.load_state_dict(our.state_dict())
        assert_close(fresh(*call[0]), their(*call[0]))


@pytest.mark.parametrize("module_format", FORMATS)
@pytest.mark.parametrize("input_format", FORMATS)
def test_module_memory_format(device, module_format, input_format):
    for constructor, call in module_cases(torch.nn.ConvTranspose2d, device, torch.float32):
        x = in_format(call[0][0].detach(), input_format)
        modules = [
            build(c, constructor, device, torch.float32) for c in (torch.nn.ConvTranspose2d, convt.ConvTranspose2d)
        ]
        expected, results = (run(m.to(memory_format=module_format), ((x,), {})) for m in modules)
        assert_close(results, expected)
        assert [r.stride() for r in results] == [e.stride() for e in expected]


def test_module_gradcheck(device):
    for constructor, call in module_cases(torch.nn.ConvTranspose2d, device, torch.float64):
        module = build(convt.ConvTranspose2d, constructor, device, torch.float64)
        parameters = dict(module.named_parameters())

        def function(x, *values, module=module, names=tuple(parameters)):
            return torch.func.functional_call(module, dict(zip(names, values, strict=True)), x)

        tensors = (*call[0], *parameters.values())
        assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, tensors, check_fwd_over_rev=True, fast_mode=True)


# Arguments


PAIRS = {
    "int": 2,
    "list of one": [2],
    "tuple": (2, 2),
    "torch.Size": torch.Size([2, 2]),
    "numpy": np.int64(2),
    "pair of numpy": (np.int64(2), np.int32(2)),
    "0-d tensor": torch.tensor(2),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("how", ["position", "keyword"])
def test_what_stands_for_a_pair(kind, how):
    x, w = torch.randn(1, 2, 4, 4), torch.randn(2, 3, 3, 3)
    value = PAIRS[kind]
    args, kwargs = ((None, value), {}) if how == "position" else ((), {"stride": value})
    ours, theirs = (f(x, w, *args, **kwargs) for f in (convt.conv_transpose2d, F.conv_transpose2d))
    assert ours.shape == (1, 3, 9, 9)
    assert_close(ours, theirs)


def test_names_of_arguments():
    x, w, b = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3), torch.randn(4)
    kwargs = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "dilation": 1}
    by_name = convt.conv_transpose2d(input=x, weight=w, bias=b, **kwargs)
    assert_close(by_name, convt.conv_transpose2d(x, w, b, *kwargs.values()))
    assert_close(by_name, F.conv_transpose2d(input=x, weight=w, bias=b, **kwargs))
