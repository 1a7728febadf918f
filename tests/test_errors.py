"""Every fault is a RuntimeError that says what was expected and what came; the same on every device."""

import pytest
import torch

import convt

X, W, DY = (2, 4, 5, 6), (4, 3, 3, 2), (2, 3, 7, 7)


def tensor(shape, dtype=torch.float32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


# name: (arguments of the forward besides the defaults, message)
FORWARD = {
    "stride 0": ({"stride": 0}, "non-positive stride is not supported"),
    "stride of one axis": ({"stride": (1, -1)}, "non-positive stride is not supported"),
    "padding": ({"padding": -1}, "negative padding is not supported"),
    "padding of one axis": ({"padding": (0, -2)}, "negative padding is not supported"),
    "output_padding": ({"output_padding": -1}, "negative output_padding is not supported"),
    "dilation": ({"dilation": 0}, "dilation should be greater than zero.*0"),
    "dilation of one axis": ({"dilation": (1, -3)}, "dilation should be greater than zero.*-3"),
    "output_padding = stride": (
        {"stride": 2, "output_padding": 2},
        "output padding must be smaller than either stride or dilation.*output_padding_height: 2.*stride_height: 2",
    ),
    "output_padding of one axis": (
        {"stride": (3, 2), "output_padding": (2, 2), "dilation": (3, 2)},
        "output padding must be smaller than either stride or dilation.*output_padding_width: 2",
    ),
    "stride of 3": ({"stride": (1, 1, 1)}, r"expected stride to be .*2 values.*stride=\[1, 1, 1\]"),
    "padding of 3": ({"padding": (1, 1, 1)}, r"expected padding to be .*2 values.*padding=\[1, 1, 1\]"),
    "output_padding of 3": ({"output_padding": (0, 0, 0)}, "expected output_padding to be .*2 values"),
    "dilation of 3": ({"dilation": (1, 1, 1)}, "expected dilation to be .*2 values"),
    "empty stride": ({"stride": ()}, r"expected stride to be .*2 values.*stride=\[\]"),
    "no groups": ({"groups": 0}, "non-positive groups is not supported"),
    "negative groups": ({"groups": -2}, "non-positive groups is not supported"),
    "groups that do not divide": ({"groups": 3}, r"groups=3.*divisible by 3.*\[4, 3, 3, 2\]"),
    "more groups than channels": ({"groups": 8}, r"groups=8.*at least 8.*\[4, 3, 3, 2\]"),
    "channels": ({"input": (2, 3, 5, 6)}, r"expected input\[2, 3, 5, 6\] to have 4 channels, but got 3"),
    "input of rank 2": ({"input": (5, 6)}, r"Expected 3D \(unbatched\) or 4D \(batched\) input.*\[5, 6\]"),
    "input of rank 5": ({"input": (1, *X)}, r"Expected 3D \(unbatched\) or 4D \(batched\) input.*\[1, 2, 4, 5, 6\]"),
    "weight of rank 3": ({"weight": W[1:]}, r"weight.*\[3, 3, 2\]"),
    "weight of rank 5": ({"weight": (1, *W)}, r"weight.*\[1, 4, 3, 3, 2\]"),
    "short bias": ({"bias": (2,)}, r"expected bias to be 1-dimensional with 3 elements, but got bias of size \[2\]"),
    "bias of rank 2": ({"bias": (3, 1)}, r"expected bias to be 1-dimensional with 3.*\[3, 1\]"),
    "bias of rank 0": ({"bias": ()}, "expected bias to be 1-dimensional with 3"),
    "kernel of height 0": ({"weight": (4, 3, 0, 2)}, "kernel size should be greater than zero.*kernel_height: 0"),
    "kernel of width 0": ({"weight": (4, 3, 3, 0)}, "kernel size should be greater than zero.*kernel_width: 0"),
    "no rows": ({"input": (2, 4, 0, 6)}, r"shape: \[2, 4, 0, 6\]"),
    "no columns": ({"input": (2, 4, 5, 0)}, r"shape: \[2, 4, 5, 0\]"),
    "no input channels": ({"input": (2, 0, 5, 6), "weight": (0, 3, 3, 2)}, r"groups=1.*at least 1.*\[0, 3, 3, 2\]"),
    "padding eats the output": (
        {"padding": (9, 0)},
        r"input size per channel: \[5, 6\].*output size per channel: \[-11, 7\].*too small",
    ),
    "stride overflows": ({"stride": 2**62}, "overflow"),
    "dilation overflows": ({"dilation": 2**62}, "overflow"),
    "padding overflows": ({"padding": 2**63 - 1}, "overflow"),
    "output overflows": ({"stride": 2**40}, "overflow"),
    "double weight": (
        {"weight_dtype": torch.float64},
        r"Input type \(.*Float.*\) and weight type \(.*Double.*\)",
    ),
    "half weight": ({"weight_dtype": torch.float16}, r"Input type \(.*Float.*\) and weight type \(.*Half.*\)"),
    "double bias": (
        {"bias": (3,), "bias_dtype": torch.float64},
        r"Input type \(.*Float.*\) and bias type \(.*Double.*\)",
    ),
    "integers": ({"dtype": torch.int32}, "not implemented for 'Int'"),
    "long integers": ({"dtype": torch.int64}, "not implemented for 'Long'"),
    "bytes": ({"dtype": torch.uint8}, "not implemented for 'Byte'"),
    "booleans": ({"dtype": torch.bool}, "not implemented for 'Bool'"),
    "eight bits": ({"dtype": torch.float8_e4m3fn}, "not implemented for 'Float8_e4m3fn'"),
}


def call_forward(device, input=X, weight=W, bias=None, dtype=torch.float32, weight_dtype=None, bias_dtype=None, **rest):
    x = tensor(input, dtype, device)
    w = tensor(weight, weight_dtype or dtype, device)
    b = None if bias is None else tensor(bias, bias_dtype or dtype, device)
    return convt.conv_transpose2d(x, w, b, **rest)


WITH_META = ("cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu))


def assert_usable(device):
    if device != "cuda":
        return
    torch.cuda.synchronize()
    y = convt.conv_transpose2d(torch.ones(X, device=device), torch.ones(W, device=device))
    assert y[0, 0, 2, 1].item() == 4 * 3 * 2


@pytest.mark.parametrize("device", WITH_META)
@pytest.mark.parametrize("fault", FORWARD)
def test_faults_of_the_forward(fault, device):
    arguments, message = FORWARD[fault]
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        call_forward(device, **arguments)
    assert_usable(device)


@pytest.mark.parametrize("fault", FORWARD)
def test_the_operator_and_the_function_fail_alike(fault):
    """torch.ops is another way in; so is a call that builds a graph for autograd."""
    arguments, message = FORWARD[fault]
    pairs = {k: v for k, v in arguments.items() if k in ("stride", "padding", "output_padding", "dilation")}
    pairs = {k: [v] if isinstance(v, int) else list(v) for k, v in pairs.items()}
    dtype = arguments.get("dtype", torch.float32)
    x, w = (
        tensor(arguments.get("input", X), dtype),
        tensor(arguments.get("weight", W), arguments.get("weight_dtype", dtype)),
    )
    b = tensor(arguments["bias"], arguments.get("bias_dtype", dtype)) if "bias" in arguments else None
    groups = {"groups": arguments["groups"]} if "groups" in arguments else {}
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        torch.ops.convt.conv_transpose2d(x, w, b, **pairs, **groups)
    if dtype.is_floating_point and dtype != torch.float8_e4m3fn:
        with pytest.raises(RuntimeError, match=f"(?s){message}"):
            convt.conv_transpose2d(x, w.requires_grad_(), b, **{**pairs, **groups})


@pytest.mark.parametrize("fault", [name for name, (arguments, _) in FORWARD.items() if set(arguments) == {"input"}])
def test_the_module_fails_alike(fault):
    arguments, message = FORWARD[fault]
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        convt.ConvTranspose2d(4, 3, (3, 2))(tensor(arguments["input"]))


INPUT_GRAD = {
    "channels": ({"grad_output": (2, 4, 7, 7)}, r"expected grad_output\[2, 4, 7, 7\] to have 3 channels, but got 4"),
    "rank": ({"grad_output": (7, 7)}, r"Expected 3D \(unbatched\) or 4D \(batched\) grad_output.*\[7, 7\]"),
    "weight's rank": ({"weight": W[1:]}, r"weight.*\[3, 3, 2\]"),
    "a size that no output_padding gives": (
        {"input_size": (5, 7)},
        r"grad_output of spatial size \[7, 8\].*\[2, 3, 7, 7\]",
    ),
    "a size too small": ({"input_size": (4, 6)}, r"grad_output of spatial size \[6, 7\]"),
    "an empty size": ({"input_size": (0, 6)}, "0, 6"),
    "a size of 3": ({"input_size": (5, 6, 7)}, "expected input_size to be .*2 values"),
    "stride": ({"stride": 0}, "non-positive stride is not supported"),
    "padding": ({"padding": -1}, "negative padding is not supported"),
    "dilation": ({"dilation": 0}, "dilation should be greater than zero"),
    "groups": ({"groups": 3}, "divisible by 3"),
    "overflow": ({"input_size": (2**62, 6), "stride": 4}, "overflow"),
    "mixed dtypes": ({"weight_dtype": torch.float64}, r"type \(.*Float.*\) and weight type \(.*Double.*\)"),
    "integers": ({"dtype": torch.int32}, "not implemented for 'Int'"),
}


@pytest.mark.parametrize("device", WITH_META)
@pytest.mark.parametrize("fault", INPUT_GRAD)
def test_faults_of_the_input_gradient(fault, device):
    arguments, message = INPUT_GRAD[fault]
    arguments = {"grad_output": DY, "weight": W, "input_size": (5, 6), "dtype": torch.float32, **arguments}
    dtype = arguments.pop("dtype")
    w = tensor(arguments.pop("weight"), arguments.pop("weight_dtype", dtype), device)
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        convt.conv_transpose2d_input_grad(tensor(arguments.pop("grad_output"), dtype, device), w, **arguments)
    assert_usable(device)


WEIGHT_GRAD = {
    "ranks": ({"grad_output": DY[1:]}, r"same batch.*\[2, 4, 5, 6\].*\[3, 7, 7\]"),
    "batches": ({"grad_output": (3, 3, 7, 7)}, r"same batch.*\[2, 4, 5, 6\].*\[3, 3, 7, 7\]"),
    "input's rank": ({"input": (5, 6)}, r"Expected 3D \(unbatched\) or 4D \(batched\) input"),
    "a kernel that no output_padding gives": ({"kernel_size": (3, 3)}, r"grad_output of spatial size \[7, 8\]"),
    "an empty kernel": ({"kernel_size": (0, 2)}, "kernel size should be greater than zero.*kernel_height: 0"),
    "a kernel of 3": ({"kernel_size": (3, 2, 1)}, "expected kernel_size to be .*2 values"),
    "stride": ({"stride": 0}, "non-positive stride is not supported"),
    "padding": ({"padding": -1}, "negative padding is not supported"),
    "dilation": ({"dilation": 0}, "dilation should be greater than zero"),
    "groups of the input": ({"groups": 3}, r"divisible by groups=3.*\[2, 4, 5, 6\]"),
    "groups of the output": ({"groups": 2}, r"divisible by groups=2.*\[2, 3, 7, 7\]"),
    "overflow": ({"kernel_size": (2**62, 2), "dilation": 4}, "overflow"),
    "mixed dtypes": ({"grad_dtype": torch.float64}, r"type \(.*Float.*\) and grad_output type \(.*Double.*\)"),
    "integers": ({"dtype": torch.int32}, "not implemented for 'Int'"),
}


@pytest.mark.parametrize("device", WITH_META)
@pytest.mark.parametrize("fault", WEIGHT_GRAD)
def test_faults_of_the_weight_gradient(fault, device):
    arguments, message = WEIGHT_GRAD[fault]
    arguments = {"input": X, "grad_output": DY, "kernel_size": (3, 2), "dtype": torch.float32, **arguments}
    dtype = arguments.pop("dtype")
    dy = tensor(arguments.pop("grad_output"), arguments.pop("grad_dtype", dtype), device)
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        convt.conv_transpose2d_weight_grad(tensor(arguments.pop("input"), dtype, device), dy, **arguments)
    assert_usable(device)


@pytest.mark.parametrize("other", ("meta", pytest.param("cuda", marks=pytest.mark.gpu)))
@pytest.mark.parametrize("moved", ("input", "weight", "bias"))
def test_mixed_devices(moved, other):
    x, w, b, dy = (tensor(s) for s in (X, W, (3,), DY))
    operands = {"input": x, "weight": w, "bias": b}
    operands[moved] = operands[moved].to(other)
    with pytest.raises(RuntimeError, match=f"same device.*{other}|device.*{other}.*cpu|{other}.*cpu|cpu.*{other}"):
        convt.conv_transpose2d(**operands)
    with pytest.raises(RuntimeError, match=f"{other}"):
        convt.conv_transpose2d_input_grad(dy, w.to(other), (5, 6))
    with pytest.raises(RuntimeError, match=f"{other}"):
        convt.conv_transpose2d_weight_grad(x, dy.to(other), (3, 2))
    assert_usable(other)


@pytest.mark.gpu
def test_two_gpus_are_two_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with pytest.raises(RuntimeError, match=r"same device.*cuda:0.*cuda:1"):
        convt.conv_transpose2d(tensor(X, device="cuda:0"), tensor(W, device="cuda:1"))


def test_sparse_tensors_are_refused():
    with pytest.raises(RuntimeError, match=r"[Ss]parse"):
        convt.conv_transpose2d(tensor(X).to_sparse(), tensor(W))
    with pytest.raises(RuntimeError, match=r"[Ss]parse"):
        convt.conv_transpose2d(tensor(X), tensor(W).to_sparse())


@pytest.mark.parametrize("arguments", ({"stride": 1.5}, {"stride": "2"}, {"groups": None}, {"kernel": 3}), ids=str)
def test_arguments_of_the_wrong_type_are_type_errors_as_in_torch(arguments):
    for function in (torch.nn.functional.conv_transpose2d, convt.conv_transpose2d):
        with pytest.raises(TypeError):
            function(tensor(X), tensor(W), **arguments)


def test_a_gpu_is_refused_by_a_build_without_cuda():
    """The message has to say how to rebuild."""
    if convt.build_info()["cuda"] is not None:
        pytest.skip("this build has CUDA")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU: torch sees none here")
    with pytest.raises(RuntimeError, match=r"built without CUDA.*CONVT_CUDA=1"):
        convt.conv_transpose2d(tensor(X, device="cuda"), tensor(W, device="cuda"))


@pytest.mark.parametrize(
    "arguments",
    (
        {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2},
        {"stride": [2], "padding": [1], "output_padding": [1], "dilation": [2]},
        {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1), "dilation": (2, 2)},
        {"stride": torch.Size((2, 2)), "padding": torch.tensor(1), "output_padding": 1, "dilation": 2},
    ),
    ids=str,
)
def test_pairs_in_every_form(arguments):
    x, w = torch.randn(X), torch.randn(W)
    y = convt.conv_transpose2d(x, w, None, **arguments)
    assert torch.equal(y, convt.conv_transpose2d(x, w, None, (2, 2), (1, 1), (1, 1), 1, (2, 2)))
