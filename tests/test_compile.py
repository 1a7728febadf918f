"""torch.compile, export, AOTInductor, CUDA graphs, fake tensors, FLOP counts and torch.library.opcheck."""

import itertools
import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import convt

KWARGS = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "groups": 2, "dilation": (1, 2)}
FORMATS = [torch.contiguous_format, torch.channels_last]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++ for the CPU, there is none")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.backends.cudnn.allow_tf32 = False


def make(device, dtype=torch.float32, batch=2, size=(5, 6), *, requires_grad=False):
    shapes = (batch, 4, *size), (4, 3, 3, 2), (6,)
    return [torch.randn(s, device=device, dtype=dtype).requires_grad_(requires_grad) for s in shapes]


def function(x, w, b):
    return convt.conv_transpose2d(x.sin(), w, b, **KWARGS).cos()


def forward_backward(f, args):
    y = f(*args)
    return y.detach(), *torch.autograd.grad(y.pow(2).sum(), args)


class Net(torch.nn.Module):
    """Layers whose channels, strides and formats differ."""

    def __init__(self):
        super().__init__()
        self.up = convt.ConvTranspose2d(4, 8, 2, stride=2)
        self.smooth = convt.ConvTranspose2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.last = convt.ConvTranspose2d(8, 3, 4, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        return self.last(self.smooth(self.up(x).relu()))


# torch.compile


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=needs_compiler)],
)
def test_compile(device, backend, dynamic):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
    # Batches and image sizes change; with dynamic shapes one graph has to do for all of them. No two of the first sizes
    # are equal, nor equal to one of the weight's: dynamo would take them for the same one, whatever the operator.
    for batch, size in [(5, (7, 9)), (8, (7, 9)), (8, (9, 8)), (11, (5, 20))][: 4 if dynamic else 1]:
        args = make(device, torch.float64, batch, size, requires_grad=True)
        assert_close(forward_backward(compiled, args), forward_backward(function, args))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_a_module(device, dynamic):
    net = Net().to(device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend=counter)
    for batch, size in [(2, 5), (6, 5), (3, 7)][: 3 if dynamic else 1]:
        x = torch.randn(batch, 4, size, size, device=device)
        for p in net.parameters():
            p.grad = None
        net(x).pow(2).sum().backward()
        expected = [p.grad for p in net.parameters()]
        for p in net.parameters():
            p.grad = None
        compiled(x).pow(2).sum().backward()
        assert_close([p.grad for p in net.parameters()], expected)
    assert counter.frame_count == 1


def test_compile_with_output_size(device):
    module = convt.ConvTranspose2d(2, 3, 3, stride=2, device=device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for size in (5, 6, 9):
        x = torch.randn(2, 2, size, size, device=device)
        output_size = [2 * size + 2, 2 * size + 1]
        assert_close(compiled(x, output_size), module(x, output_size))
    # An int that differs from the last one makes dynamo specialise once; after that it is symbolic.
    assert counter.frame_count <= 2


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "jacrev"])
def test_compile_of_transforms(device, transform):
    args = make(device)
    transformed = {
        "vmap": lambda *a: torch.func.vmap(function, (0, None, None))(*a),
        "grad": torch.func.grad(lambda *a: function(*a).sum(), argnums=(0, 1, 2)),
        "jvp": lambda *a: torch.func.jvp(function, a, a),
        "jacrev": torch.func.jacrev(function, argnums=2),
    }[transform]
    assert_close(torch.compile(transformed, fullgraph=True, backend="aot_eager")(*args), transformed(*args))


@pytest.mark.gpu
def test_compile_reduce_overhead():
    """Inductor's own CUDA graphs."""
    net = Net().cuda().requires_grad_(False)
    compiled = torch.compile(net, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(2, 4, 6, 6, device="cuda")
        assert_close(compiled(x).clone(), net(x))


# Export


def test_export(device):
    net = Net().to(device)
    x = torch.randn(2, 4, 5, 6, device=device)
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 2: torch.export.Dim("height", min=2, max=512)}
    program = torch.export.export(net, (x,), dynamic_shapes=({**sizes, 3: torch.export.Dim.AUTO},))
    targets = [str(n.target) for n in program.graph.nodes if "convt" in str(n.target)]
    assert targets == ["convt.conv_transpose2d.default"] * 3
    for batch, size in [(2, (5, 6)), (1, (9, 4)), (6, (2, 7))]:
        x = torch.randn(batch, 4, *size, device=device)
        assert_close(program.module()(x), net(x))


def test_export_survives_decomposition_and_saving(tmp_path):
    net, x = Net(), torch.randn(2, 4, 5, 6)
    program = torch.export.export(net, (x,)).run_decompositions()
    torch.export.save(program, tmp_path / "net.pt2")
    assert_close(torch.export.load(tmp_path / "net.pt2").module()(x), net(x))


LOAD_AND_CALL = """
import sys
import torch
import convt

torch.backends.cudnn.allow_tf32 = False
loaded = torch._inductor.aoti_load_package(sys.argv[1])
for x, y in zip(*torch.load(sys.argv[2])):
    torch.testing.assert_close(loaded(x), y)
"""


def load_and_call_package(net, device, folder):
    """Compiles `net` ahead of time, and calls what was compiled in a process of its own: that is what a package is made
    for, and what it does to its process is seen as a status and a message."""
    x = torch.randn(2, 4, 5, 6, device=device)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    # Which vector instructions there are takes a minute to find out, and convt's kernels do not depend on it.
    options = {"cpp.vec_isa_ok": False}
    path = str(folder / f"{type(net).__name__}.pt2")
    package = torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
    inputs = [torch.randn(n, 4, 5, 6, device=device) for n in (2, 5)]
    torch.save((inputs, [net(x) for x in inputs]), folder / "calls.pt")
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOAD_AND_CALL, package, folder / "calls.pt"],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHINDUCTOR_VEC_ISA_OK": "0"},
    )


@needs_compiler
def test_aot_inductor(device, tmp_path):
    ran = load_and_call_package(Net().to(device).requires_grad_(False), device, tmp_path)
    if ran.returncode < 0 and load_and_call_package(torch.nn.ReLU(), device, tmp_path).returncode < 0:
        pytest.skip(f"torch cannot load a package of a ReLU for {device} here: status {ran.returncode}")
    assert ran.returncode == 0, f"status {ran.returncode}\n{ran.stdout}{ran.stderr}"


# CUDA graphs


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", FORMATS)
def test_cuda_graph(memory_format):
    """Capture of forward and backward from a side stream, replayed with new numbers."""
    args = make("cuda", requires_grad=True)
    static = [a.detach().contiguous(memory_format=memory_format) if a.dim() == 4 else a.detach() for a in args]
    static = [s.requires_grad_() for s in static]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            forward_backward(function, static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = forward_backward(function, static)
    for _ in range(2):
        with torch.no_grad():
            for s in static:
                s.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert_close(results, forward_backward(function, static))


@pytest.mark.gpu
def test_no_synchronisation():
    args = make("cuda", requires_grad=True)
    forward_backward(function, args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward_backward(function, args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (torch.float16, torch.float64), ids=str)
def test_allocates_its_output_and_the_workspace_of_its_plan(dtype):
    x, w, b = (t.to(dtype) for t in make("cuda", batch=4, size=(32, 32)))
    workspace = convt.explain(x, w, b, **KWARGS).workspace_bytes
    assert workspace == 0 or dtype == torch.float16  # packed weights of an implicit GEMM, and its partial sums
    y = convt.conv_transpose2d(x, w, b, **KWARGS)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    used, before = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]
    y = convt.conv_transpose2d(x, w, b, **KWARGS)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 1 + (workspace > 0)
    rounded = -(-y.nbytes // 512) * 512 + -(-workspace // 512) * 512
    assert torch.cuda.max_memory_allocated() - used <= rounded


# opcheck


def adjoint_kwargs():
    return {k: list(v) if isinstance(v, tuple) else v for k, v in KWARGS.items() if k != "output_padding"}


def forward_arguments(device, dtype, memory_format=torch.contiguous_format, *, requires_grad=True):
    x, w, b = make(device, dtype)
    x = x.contiguous(memory_format=memory_format)
    kwargs = {k: list(v) if isinstance(v, tuple) else v for k, v in KWARGS.items()}
    return tuple(t.requires_grad_(requires_grad) for t in (x, w, b)), kwargs


def calls(device, dtype, memory_format=torch.contiguous_format):
    """Operator: (arguments, keyword arguments)."""
    (x, w, b), kwargs = forward_arguments(device, dtype, memory_format)
    y = torch.randn_like(F.conv_transpose2d(x, w, b, **KWARGS)).requires_grad_()
    return {
        "conv_transpose2d": ((x, w, b), kwargs),
        "conv_transpose2d_input_grad": ((y, w, [5, 6]), adjoint_kwargs()),
        "conv_transpose2d_weight_grad": ((x, y, [3, 2]), adjoint_kwargs()),
    }


OPERATORS = ["conv_transpose2d", "conv_transpose2d_input_grad", "conv_transpose2d_weight_grad"]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_opcheck(device, name, dtype, memory_format):
    args, kwargs = calls(device, dtype, memory_format)[name]
    # Static and dynamic shapes are two of opcheck's own tests, which all run.
    outcome = torch.library.opcheck(getattr(torch.ops.convt, name).default, args, kwargs, rtol=1e-2, atol=1e-2)
    assert set(outcome.values()) == {"SUCCESS"}
    assert len(outcome) == 4


@pytest.mark.parametrize("drop", ["bias", "batch", "defaults"])
def test_opcheck_of_optional_parts(device, drop):
    x, w, _ = make(device, requires_grad=True)
    args = {"bias": (x, w), "batch": (x.detach()[0].requires_grad_(), w), "defaults": (x, w)}[drop]
    kwargs = {} if drop == "defaults" else {"groups": 2}
    torch.library.opcheck(torch.ops.convt.conv_transpose2d.default, args, kwargs)


# Fake tensors


def cases():
    """Shapes of input and weight, groups: plain, and those whose memory format is ambiguous."""
    yield "plain", (2, 4, 5, 6), (4, 3, 3, 2), 2
    yield "unbatched", (4, 5, 6), (4, 3, 3, 2), 2
    yield "one input channel", (2, 1, 5, 6), (1, 3, 3, 2), 1
    yield "1x1 image", (2, 4, 1, 1), (4, 3, 3, 2), 1
    yield "1x1 kernel", (2, 4, 5, 6), (4, 3, 1, 1), 1
    yield "one of all", (1, 1, 1, 1), (1, 1, 1, 1), 1
    yield "empty batch", (0, 4, 5, 6), (4, 3, 3, 2), 2


def results_of(operators, x, w, groups):
    y = operators.conv_transpose2d(x, w, None, [2, 2], [0, 0], [1, 1], groups)
    dx = operators.conv_transpose2d_input_grad(y, w, x.shape[-2:], [2, 2], [0, 0], groups)
    dw = operators.conv_transpose2d_weight_grad(x, y, w.shape[-2:], [2, 2], [0, 0], groups)
    return y, dx, dw


def with_format(shape, memory_format, device, dtype):
    t = torch.randn((1, *shape) if len(shape) == 3 else shape, device=device).to(dtype)
    t = t.contiguous(memory_format=memory_format)
    return t[0] if len(shape) == 3 else t


each_case = pytest.mark.parametrize(("x_shape", "w_shape", "groups"), [pytest.param(*c, id=n) for n, *c in cases()])


@each_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("formats", list(itertools.product(FORMATS, FORMATS)), ids=str)
def test_fake_strides_are_the_real_ones(device, x_shape, w_shape, groups, dtype, formats):
    x, w = (with_format(s, f, device, dtype) for s, f in zip((x_shape, w_shape), formats, strict=True))
    real = results_of(torch.ops.convt, x, w, groups)
    mode = FakeTensorMode()
    with mode:
        fake = results_of(torch.ops.convt, mode.from_tensor(x), mode.from_tensor(w), groups)
    for f, r in zip(fake, real, strict=True):
        assert (f.shape, f.stride(), f.dtype, f.device) == (r.shape, r.stride(), r.dtype, r.device)


@each_case
@pytest.mark.parametrize("formats", list(itertools.product(FORMATS, FORMATS)), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fake_cuda_tensors_without_a_gpu(x_shape, w_shape, groups, dtype, formats):
    """On CUDA, float64 is contiguous whatever the operands are; the rest is as on the CPU."""
    x, w = (with_format(s, f, "cpu", torch.float32) for s, f in zip((x_shape, w_shape), formats, strict=True))
    real = results_of(torch.ops.convt, x, w, groups)
    with FakeTensorMode():
        on_cuda = [torch.empty_strided(t.shape, t.stride(), dtype=dtype, device="cuda") for t in (x, w)]
        fake = results_of(torch.ops.convt, *on_cuda, groups)
    for f, r in zip(fake, real, strict=True):
        assert f.device.type == "cuda"
        expected = torch.empty(r.shape).stride() if dtype == torch.float64 else r.stride()
        assert (f.shape, f.stride()) == (r.shape, expected)


# FLOPs


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [3, 4])
def test_flop_counts_are_those_of_aten(device, groups, rank):
    def count(f):
        x = torch.randn((2, 4, 5, 6)[4 - rank :], device=device, requires_grad=True)
        w = torch.randn(4, 3, 3, 2, device=device, requires_grad=True)
        with FlopCounterMode(display=False) as forward:
            y = f(x, w, stride=2, groups=groups)
        with FlopCounterMode(display=False) as backward:
            y.sum().backward()
        return forward.get_total_flops(), backward.get_total_flops()

    (forward, backward), aten = count(convt.conv_transpose2d), count(F.conv_transpose2d)
    assert forward == aten[0] > 0
    assert backward == 2 * forward
    # aten's formula takes a grouped weight gradient for a dense one.
    if groups == 1:
        assert backward == aten[1]


# The older tracers


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_jit_trace(tmp_path):
    net, x = Net(), torch.randn(2, 4, 5, 6)
    torch.jit.save(torch.jit.trace(net, x), tmp_path / "net.pt")
    loaded = torch.jit.load(tmp_path / "net.pt")
    assert_close(loaded(x), net(x))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("arguments", "output_size"),
    [
        ({"kernel_size": 3, "stride": 2}, None),
        ({"kernel_size": 3, "stride": 2}, [12, 13]),
        ({"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "bias": False}, None),
    ],
)
def test_jit_script(arguments, output_size, tmp_path):
    module = convt.ConvTranspose2d(4, 6, **arguments)
    x = torch.randn(2, 4, 5, 6, requires_grad=True)
    torch.jit.save(torch.jit.script(module), tmp_path / "module.pt")
    scripted = torch.jit.load(tmp_path / "module.pt")
    expected = module(x, output_size)
    assert "convt::conv_transpose2d" in str(scripted.inlined_graph)
    assert torch.equal(scripted(x, output_size), expected)
    grad = torch.randn_like(expected)
    actual = torch.autograd.grad(scripted(x, output_size), [x, *scripted.parameters()], grad)
    for a, b in zip(actual, torch.autograd.grad(expected, [x, *module.parameters()], grad), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="expected input"):
        scripted(x[:, :3])


def _functional(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> list[torch.Tensor]:
    return [
        convt.conv_transpose2d(x, w, b, 2, padding=[1, 0], output_padding=1),
        convt.conv_transpose2d(x, w, stride=[2, 1], groups=2, dilation=2),
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_jit_script_of_the_function():
    x, w, b = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(3)
    scripted = torch.jit.script(_functional)
    for actual, expected in zip(scripted(x, w, b), _functional(x, w, b), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_jit_script_of_a_swapped_model():
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 6, 3, stride=2), torch.nn.ReLU())
    x = torch.randn(2, 4, 5, 6)
    convt.replace_(model)
    scripted = torch.jit.script(model)
    assert "convt::conv_transpose2d" in str(scripted.inlined_graph)
    assert torch.equal(scripted(x), model(x))


def test_fx():
    net, x = Net(), torch.randn(2, 4, 5, 6)
    traced = torch.fx.symbolic_trace(net)
    assert_close(traced(x), net(x))
    assert_close(traced(x[:1]), net(x[:1]))
