"""What the binary says of itself, and the arrows between the layers of the source."""

import hashlib
import os
import re
import runpy
import shutil
import subprocess
import venv
from collections import Counter
from pathlib import Path

import pytest
import torch

import convt
from convt import _C

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# An installed package without its source has nothing to check here.
with_source = pytest.mark.skipif(not CSRC.is_dir(), reason="the source is not beside the tests")
REBUILD = "the binary is not built from this tree: run pip install --no-build-isolation -e . again"


def test_build_info():
    info = convt.build_info()
    assert set(info) == {"version", "torch", "cuda", "cuda_note", "archs", "source_digest"}
    assert info["version"] == convt.__version__
    assert info["torch"].split(".")[:2] == torch.__version__.split(".")[:2], REBUILD
    assert re.fullmatch(r"[0-9a-f]{64}", info["source_digest"])
    assert info["cuda_note"]
    if info["cuda"] is None:
        assert info["archs"] == []
    else:
        assert re.fullmatch(r"\d+\.\d+", info["cuda"])
        assert info["cuda"].split(".")[0] == (torch.version.cuda or info["cuda"]).split(".")[0]
        assert info["archs"]
        assert all(re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", arch) for arch in info["archs"])


@with_source
def test_the_version_is_that_of_the_project():
    assert f'version = "{convt.__version__}"' in (ROOT / "pyproject.toml").read_text()


@with_source
def test_the_source_digest_is_that_of_the_tree():
    """SHA-256 over '<path>\\0<sha256 of the file>\\n' of every file under csrc/, in sorted order of the paths."""
    digest = hashlib.sha256()
    paths = sorted(p.relative_to(ROOT).as_posix() for p in CSRC.rglob("*") if p.is_file())
    for path in paths:
        digest.update(f"{path}\0{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}\n".encode())
    assert convt.build_info()["source_digest"] == digest.hexdigest(), REBUILD


def includes(folder):
    for path in sorted((CSRC / folder).rglob("*")):
        if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
            for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M):
                yield path.relative_to(ROOT).as_posix(), name


@with_source
@pytest.mark.parametrize("folder", ("plan", "kernels"))
def test_no_torch_below_ops(folder):
    found = list(includes(folder))
    assert found
    assert [pair for pair in found if re.match(r"(torch|ATen|c10|caffe2|pybind11|Python)\b", pair[1])] == []


@with_source
def test_no_cuda_in_the_planner_and_nothing_above_it():
    found = [pair for pair in includes("plan") if re.search(r"cuda|ops/|bindings", pair[1])]
    # Of a kernel family, the planner sees its table of configurations, how it cuts a problem into blocks and what its
    # model of time is told of a device: host code.
    assert found == []
    kernels = {name for _, name in includes("plan") if "kernels/" in name}
    seen = ("/config.h", "/name.h", "/tiling.h", "/blocking.h", "/params.h")
    assert all(name.endswith(seen) for name in kernels)
    assert [pair for pair in includes("kernels") if "ops/" in pair[1]] == []


COMPILER = os.environ.get("CXX", "g++")
# calibration.inc is a part of calibration.cpp.
PLAN_SOURCES = sorted(
    p.relative_to(CSRC / "plan").as_posix() for p in (CSRC / "plan").rglob("*.*") if p.suffix != ".inc"
)


@with_source
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, and {COMPILER} is not there")
@pytest.mark.parametrize("source", PLAN_SOURCES)
def test_the_planner_compiles_alone(source, tmp_path):
    """With a bare host compiler: no path to torch or CUDA is given."""
    unit = tmp_path / "unit.cpp"  # a header by itself would be warned about
    unit.write_text(f'#include "{(CSRC / "plan" / source).as_posix()}"\n')
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def setup_py(tmp_path):
    """Runs setup.py as on a machine with g++ but no nvcc: there it decides what to build, and stops if it cannot.

    The Python has no packages but stand-ins for setuptools and torch, which have what that decision asks for.
    """
    venv.create(tmp_path / "venv", symlinks=True)
    packages, tools = tmp_path / "packages", tmp_path / "tools"
    packages.mkdir()
    tools.mkdir()
    (tools / "g++").symlink_to(shutil.which("g++"))
    (packages / "setuptools.py").write_text("setup = None\n")

    def run(torch_version="2.11.0", torch_cuda="13.0", **environment):
        (packages / "torch.py").write_text(
            f"import types\n__version__ = {torch_version!r}\nversion = types.SimpleNamespace(cuda={torch_cuda!r})\n"
        )
        return subprocess.run(
            [tmp_path / "venv/bin/python", ROOT / "setup.py", "--version"],
            cwd=ROOT,
            env={
                "PATH": str(tools),
                "HOME": str(tmp_path),
                "PYTHONPATH": str(packages),
                "PYTHONDONTWRITEBYTECODE": "1",  # else a stand-in rewritten within a second would not be read
                **environment,
            },
            capture_output=True,
            text=True,
        )

    return run


def refusal(done):
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def fake_nvcc(home, version):
    (home / "bin").mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
    nvcc.chmod(0o755)
    return str(home)


needs_setup = pytest.mark.skipif(
    not (ROOT / "setup.py").exists() or shutil.which("g++") is None, reason="needs setup.py and g++"
)


@needs_setup
def test_a_cuda_build_that_is_impossible_stops_with_the_reason(setup_py, tmp_path):
    assert "cannot build: CONVT_CUDA=1, but no nvcc in CUDA_HOME, on PATH or from PyPI" in refusal(
        setup_py(CONVT_CUDA="1")
    )
    assert "CONVT_CUDA=1, but torch 2.11.0 is a build without CUDA" in refusal(
        setup_py(CONVT_CUDA="1", torch_cuda=None)
    )
    assert f"{tmp_path} (CUDA_HOME) has no nvcc that runs" in refusal(setup_py(CONVT_CUDA="1", CUDA_HOME=str(tmp_path)))
    home = fake_nvcc(tmp_path / "old", "11.8")
    message = refusal(setup_py(CONVT_CUDA="1", CUDA_HOME=home))
    assert re.search(r"has (CUDA|nvcc) 11.*, but torch was built with (CUDA )?13.0", message)
    home = fake_nvcc(tmp_path / "early", "12.1")
    message = refusal(setup_py(CONVT_CUDA="1", CUDA_HOME=home, torch_cuda="12.6"))
    assert re.search(r"nvcc 12\.1, .*too old", message)


@needs_setup
@pytest.mark.parametrize("value", ("2", "x", "yes"))
@pytest.mark.parametrize("name", ("CONVT_CUDA", "CONVT_LINEINFO"))
def test_a_switch_may_be_0_or_1(setup_py, name, value):
    assert f"{name} is '{value}'; it may be 0, 1 or unset" in refusal(setup_py(**{name: value}))


@needs_setup
def test_a_torch_that_is_too_old_is_refused(setup_py):
    assert "torch 2.3.1 is too old" in refusal(setup_py(torch_version="2.3.1"))


@needs_setup
@pytest.mark.parametrize(
    ("archs", "family", "codes"),
    [
        ("8.0+PTX;9.0a", "grouped", None),  # as torch says
        ("8.0+PTX;9.0a", "depthwise", ["80:sm_80", "80:sm_90", "80:compute_80"]),
        ("8.6;9.0+PTX", "depthwise", ["86:sm_86", "86:sm_90", "86:compute_86"]),
        ("8.0+PTX;9.0a", "implicit_gemm_sm90", ["90a:sm_90a"]),
        ("8.0;9.0", "implicit_gemm_sm90", None),
        ("Ampere;9.0a", "depthwise", None),
        ("9.0a", "depthwise", None),
    ],
)
def test_a_family_is_compiled_for_its_own_architectures(archs, family, codes, tmp_path):
    setup = runpy.run_path(str(ROOT / "setup.py"))
    command = setup["write_nvcc"](tmp_path, "echo", archs)
    # As torch calls it.
    torchs = "-gencode=arch=compute_80,code=sm_80"
    call = f"{command} -MD -c -c /src/csrc/kernels/{family}/launch.cu -o launch.o -O3 {torchs}"
    ran = subprocess.run(call, shell=True, capture_output=True, text=True, check=True)
    expected = [torchs] if codes is None else ["-gencode=arch=compute_{},code={}".format(*c.split(":")) for c in codes]
    options = ran.stdout.split()
    assert [word for word in options if word.startswith("-gencode")] == expected
    assert options[:6] == ["-MD", "-c", "-c", f"/src/csrc/kernels/{family}/launch.cu", "-o", "launch.o"]


@needs_setup
def test_an_absent_compiler_is_named(setup_py):
    assert "'no-such-compiler' does not run" in refusal(setup_py(CONVT_CUDA="0", CXX="no-such-compiler"))


def find_nvcc():
    """As setup.py looks for it: CUDA_HOME, PATH, the toolkit from PyPI; None if there is none."""
    homes = [Path(os.environ["CUDA_HOME"]) / "bin/nvcc"] if "CUDA_HOME" in os.environ else []
    homes += [Path(found)] if (found := shutil.which("nvcc")) else []
    homes += sorted(Path(torch.__file__).parent.parent.glob("nvidia/cu[0-9]*/bin/nvcc"))
    return next((nvcc for nvcc in homes if nvcc.is_file()), None)


def run_nvcc(*arguments):
    """The compiler, which must succeed, and what it said; without one the test is skipped."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc")
    environment = {**os.environ, "CUDA_HOME": str(nvcc.resolve().parent.parent)}
    done = subprocess.run([nvcc, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return nvcc, done.stdout + done.stderr


def compile_for_hopper(source, tmp_path, instruction=lambda arguments: "HGMMA"):
    """The template's arguments of the kernels of `source`'s family, as the compiler writes them.

    No kernel of `source` spills or waits for each product (C7508, C7514, C7517, C7520), and the family's all have the
    instruction that their arguments name.
    """
    options = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-arch=sm_90a", "-cubin", "-Xptxas", "-v"]
    nvcc, said = run_nvcc(*options, CSRC / "kernels" / source, "-o", tmp_path / "kernels.cubin")
    assert not re.search(r"C75(08|14|17|20)\b|serialized", said)
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert spills and set(spills) == {("0", "0", "0")}
    kernel = rf"\S*\d{source.partition('/')[0]}_kernel"
    kernels = re.findall(rf"Compiling entry function '{kernel}(\S*)'", said)
    disassembler = nvcc.with_name("cuobjdump")
    if disassembler.exists():
        ran = subprocess.run([disassembler, "-sass", tmp_path / "kernels.cubin"], capture_output=True, text=True)
        functions = re.findall(rf"Function : {kernel}(\S*)(.*?)(?=Function : |\Z)", ran.stdout, re.S)
        assert sorted(arguments for arguments, _ in functions) == sorted(kernels)
        assert [arguments for arguments, code in functions if instruction(arguments) not in code] == []
        # An empty group follows one whose end the compiler did not see, and leaves nothing in flight.
        assert not re.search(r"HGMMA\S* RZ", ran.stdout)
    return kernels


def count(kernels, arguments):
    """How many kernels have each of what the pattern finds in their template's arguments: all of them have it."""
    return Counter(re.match(arguments, kernel)[1] for kernel in kernels)


def fitting(algorithm, dtype, kernel, way="", **arguments):
    """How many configurations of a family take a layer on Hopper, in whatever way, or in this one."""
    x, w = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((4, 64, 32, 32), (64, 64, kernel, kernel)))
    candidates = convt.explain(x, w, stride=2, device="h200", **arguments).candidates
    names = [c.configuration for c in candidates if c.algorithm == algorithm and c.fits and way in c.configuration]
    return len({name.partition("+")[0] for name in names})


def configurations(family):
    return len([name for name in _C.configuration_names() if name.startswith(f"{family}/")])


@with_source
@pytest.mark.parametrize("mode", ("tf32", "ieee", "float16", "bfloat16"))
def test_the_compiler_keeps_wgmma_in_flight(mode, tmp_path, monkeypatch):
    kernels = compile_for_hopper(f"implicit_gemm_sm90/instantiations/{mode}.cu", tmp_path)
    # Their variant is the last argument of the template.
    variants = count(kernels, r"\S*VariantE(\d)")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", mode == "tf32")
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(mode, torch.float32)
    # Inputs are gathered by two variants, of which each configuration that takes them has one: threads bring x in all
    # configurations of float32 without TF32, and in one of the other types.
    gathering = fitting("implicit_gemm_sm90", dtype, 4, "+gathered", padding=1)
    assert variants["0"] + variants["4"] == gathering
    assert variants["4"] == (gathering if mode == "ieee" else 1)
    assert len(kernels) >= fitting("implicit_gemm_sm90", dtype, 4, padding=1)
    assert all((variants[variant] > 0) == (mode != "ieee") for variant in "123")
    # Float32 without TF32 alone shares out steps evenly; 16-bit types alone write rows that begin anywhere in vectors.
    assert (variants["5"] > 0) == (mode == "ieee")
    assert (variants["6"] > 0) == (mode in ("float16", "bfloat16"))


@with_source
def test_the_compiler_keeps_wgmma_in_flight_where_both_operands_are_as_they_are(tmp_path):
    kernels = compile_for_hopper("gemm_scatter_sm90/launch.cu", tmp_path)
    # One for each layout, and one more where the copy engine writes y: in NCHW only if warpgroups take turns.
    alternate = sum(name.startswith("gemm_scatter_sm90/") and "pingpong" in name for name in _C.configuration_names())
    assert count(kernels, r"INS_\d+(\w*Float16)E") == {
        "Float16": 3 * fitting("gemm_scatter_sm90", torch.float16, 2) + alternate,
        "BFloat16": 3 * fitting("gemm_scatter_sm90", torch.bfloat16, 2) + alternate,
    }


@with_source
def test_the_compiler_keeps_wgmma_in_flight_whose_inputs_stay(tmp_path):
    kernels = compile_for_hopper("gemm_scatter_rows_sm90/launch.cu", tmp_path)
    types = ("NS_7Float16E", "NS_8BFloat16E")
    assert count(kernels, r"I(NS_\w+Float16E)E") == dict.fromkeys(types, configurations("gemm_scatter_rows_sm90"))


@with_source
def test_the_compiler_keeps_wgmma_in_flight_that_reads_registers(tmp_path):
    kernels = compile_for_hopper("gemm_scatter_tf32_sm90/launch.cu", tmp_path)
    # By whether x is channels_last, and a lane's outputs of a position: lanes have neighbouring positions, or none.
    one = configurations("gemm_scatter_tf32_sm90")
    assert count(kernels, r"I(Lb\dELi\d)E") == {"Lb0ELi1": 2 * one, "Lb0ELi2": 2 * one, "Lb0ELi4": one, "Lb1ELi4": one}


@with_source
def test_the_compiler_keeps_wgmma_in_flight_whose_sums_are_shuffled(tmp_path):
    kernels = compile_for_hopper("gemm_fold_rows_sm90/launch.cu", tmp_path)
    both = dict.fromkeys(("NS_7Float16E", "NS_8BFloat16E"), configurations("gemm_fold_rows_sm90"))
    assert count(kernels, r"I(NS_\w+Float16E)Li\d") == both


@with_source
def test_the_compiler_keeps_wgmma_in_flight_whose_weights_are_registers(tmp_path):
    kernels = compile_for_hopper("large_stride_sm90/launch.cu", tmp_path)
    # By whether weights of neighbouring phases are loaded at once, and whether rows of x are copied.
    all_of_them = 4 * configurations("large_stride_sm90")
    types = ("f", "NS_7Float16E", "NS_8BFloat16E")
    assert count(kernels, r"I(f|NS_\w+Float16E)Lb\d") == dict.fromkeys(types, all_of_them)


@with_source
@pytest.mark.parametrize("family", ("implicit_gemm_nchw_sm90", "implicit_gemm_nhwc_sm90"))
def test_the_compiler_keeps_wgmma_in_flight_at_any_shift(family, tmp_path):
    kernels = compile_for_hopper(f"{family}/launch.cu", tmp_path)
    # Of all modes but ieee, which is 1.
    assert count(kernels, r"\S*ModeE(\d)E") == dict.fromkeys("023", configurations(family))


@with_source
def test_the_compiler_keeps_products_in_flight_that_are_summed_in_shared_memory(tmp_path):
    def instruction(arguments):
        return "HMMA" if arguments.startswith("IfLb") else "HGMMA"

    kernels = compile_for_hopper("gemm_fold_sm90/launch.cu", tmp_path, instruction)
    # And whether it is strict float32, which one of them has no registers for, and another one of channels_last.
    both_layouts = 2 * configurations("gemm_fold_sm90")
    all_of_them = dict.fromkeys(("fLb0", "NS_7Float16ELb0", "NS_8BFloat16ELb0"), both_layouts)
    assert count(kernels, r"I((?:f|NS_\w+Float16E)Lb\d)E") == all_of_them | {"fLb1": both_layouts - 3}


@with_source
def test_the_program_that_times_cuts_compiles(tmp_path):
    program = ROOT / "benchmarks/cuts.cpp"
    run_nvcc("-std=c++20", f"-I{CSRC}", "-c", program, "-o", tmp_path / "cuts.o")
