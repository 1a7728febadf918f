"""Builds convt._C: with CUDA where a matching nvcc is found, else for the CPU only.

Environment:
    CONVT_CUDA            1: with CUDA or not at all; 0: without; unset: with CUDA if possible
    CONVT_LINEINFO        1: profilers show the source of CUDA code, which takes nvcc 5 % longer; 0 or unset: without
    CUDA_HOME             where to look for nvcc first
    TORCH_CUDA_ARCH_LIST  architectures, as for any torch extension ("8.0;9.0a;9.0+PTX")
    MAX_JOBS              compilers that run at a time
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent.resolve()
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)

# Architectures of a build on a machine without a GPU. sm_80 code runs on every 8.x, 9.0a on H100 and H200, and the PTX
# is compiled by the driver for what comes later.
DEFAULT_ARCHS = "8.0+PTX;9.0a"
# Families whose PTX is the same for all architectures: it is made once, for the oldest one, and machine code for each
# of it. (That for sm_90 is the same, byte for byte, as from PTX for sm_90a.)
ONE_PTX = (
    "column",
    "depthwise",
    "direct",
    "few_channels",
    "few_positions",
    "large_stride",
    "rolling_rows",
    "warp_rows",
)
# Families, by the end of their names, that have code for this architecture alone, where it is one of those built for.
HOPPER, HOPPER_ARCH = "_sm90", "9.0a"
OLDEST_TORCH = (2, 11)
OLDEST_GXX = 11  # C++20 with concepts and defaulted comparison
OLDEST_NVCC = (12, 4)


def stop(message):
    sys.exit(f"convt: cannot build: {message}")


def import_torch():
    try:
        import torch
    except ImportError:
        stop(
            "torch is not installed in this environment. Install it first, then convt with --no-build-isolation, so "
            "that convt is built for the torch that you use"
        )
    version = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())
    if version < OLDEST_TORCH:
        stop(f"torch {torch.__version__} is too old; convt supports {'.'.join(map(str, OLDEST_TORCH))} and later")
    return torch


def source_digest():
    """SHA-256 over the path and the SHA-256 of every file under csrc/, in sorted order of the posix paths."""
    paths = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc").rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def nvcc_version(nvcc):
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"release (\d+)\.(\d+)", text)
    return match and (int(match.group(1)), int(match.group(2)))


def toolkits():
    """(where it was found, CUDA home) of every nvcc in sight: CUDA_HOME, PATH, the PyPI toolkit."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        yield "CUDA_HOME", Path(home)
    on_path = shutil.which("nvcc")
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent
    folders = [sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path]
    for folder in dict.fromkeys(f for f in folders if f):
        for home in sorted(Path(folder).glob("nvidia/cu[0-9]*"), reverse=True):
            yield "the PyPI toolkit", home


def switch(name):
    """What the environment says: 1, 0 or nothing."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        stop(f"{name} is {value!r}; it may be 0, 1 or unset")
    return value


def find_cuda(torch):
    """(CUDA home or None, nvcc's version, a sentence that says where it was found or why there is none)."""
    wanted = switch("CONVT_CUDA")
    if wanted == "0":
        return None, None, "CONVT_CUDA=0"
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} is a build without CUDA"
        return (stop(f"CONVT_CUDA=1, but {reason}")) if wanted == "1" else (None, None, reason)
    torch_major = int(torch.version.cuda.split(".")[0])
    refused = []
    for where, home in toolkits():
        version = nvcc_version(home / "bin" / "nvcc")
        if version is None:
            if where != "the PyPI toolkit":
                refused.append(f"{home} ({where}) has no nvcc that runs")
        elif version[0] != torch_major:
            refused.append(f"{home} ({where}) has CUDA {version[0]}, but torch was built with {torch.version.cuda}")
        elif version < OLDEST_NVCC:
            refused.append(f"{home} ({where}) has nvcc {version[0]}.{version[1]}, too old for C++20 device code")
        else:
            return home, version, f"nvcc {version[0]}.{version[1]} from {where}"
    reason = "; ".join(dict.fromkeys(refused)) or (
        f'no nvcc in CUDA_HOME, on PATH or from PyPI (pip install "cuda-toolkit[nvcc,crt,nvvm,cccl]=={torch_major}.*")'
    )
    if wanted == "1":
        stop(f"CONVT_CUDA=1, but {reason}")
    return None, None, reason


def check_compiler():
    compiler = os.environ.get("CXX", "g++")
    try:
        text = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        stop(f"the C++ compiler {compiler!r} does not run; install g++ {OLDEST_GXX} or later, or name one in CXX")
    if "clang" not in compiler and int(text.split(".")[0]) < OLDEST_GXX:
        stop(f"{compiler} is version {text.strip()}; C++20 needs g++ {OLDEST_GXX} or later")


def architectures(torch):
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if listed:
        return listed.replace(" ", ";")
    if not torch.cuda.is_available():
        return DEFAULT_ARCHS
    present = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" + ("a" if major >= 9 else "") for major, minor in sorted(present))


def flags_of_one_ptx(archs):
    """Machine code of all architectures from PTX for the oldest, and that PTX if one is for later."""
    numbers = [re.match(r"(\d+)\.(\d)", arch).groups() for arch in archs.split(";")]
    oldest = "".join(min(numbers, key=lambda n: tuple(map(int, n))))
    kinds = dict.fromkeys(f"sm_{major}{minor}" for major, minor in numbers)
    flags = [f"-gencode=arch=compute_{oldest},code={kind}" for kind in kinds]
    return flags + [f"-gencode=arch=compute_{oldest},code=compute_{oldest}"] * ("+PTX" in archs)


def flags_of_families(archs):
    """The flags of those families that are compiled for other architectures than nvcc is told."""
    if ";" not in archs or not all(re.match(r"\d+\.\d", arch) for arch in archs.split(";")):
        return {}  # nothing to share, or names of architectures, which torch knows
    flags = {family: flags_of_one_ptx(archs) for family in ONE_PTX}
    if HOPPER_ARCH in archs.replace("+PTX", "").split(";"):
        families = [folder.name for folder in (ROOT / "csrc/kernels").iterdir() if folder.name.endswith(HOPPER)]
        arch = HOPPER_ARCH.replace(".", "")
        flags |= {family: [f"-gencode=arch=compute_{arch},code=sm_{arch}"] for family in families}
    return flags


def write_if_new(path, text):
    """`path`; what has not changed is not compiled again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def write_nvcc(folder, nvcc, archs):
    """A command that runs nvcc with a family's own architectures: torch has the same flags for all files."""
    text = f"""import os
import sys

FLAGS = {json.dumps(flags_of_families(archs), indent=4, sort_keys=True)}
command = sys.argv[1:]
source = next(word for word in command if word.endswith(".cu"))
family = next((f for f in FLAGS if f"/kernels/{{f}}/" in source), None)
if family is not None:
    command = [word for word in command if not word.startswith("-gencode")] + FLAGS[family]
os.execvp(command[0], command)
"""
    path = write_if_new(folder / "nvcc.py", text)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))} {nvcc}"


def banner(lines):
    width = max(map(len, lines)) + 4
    print("\n".join(["*" * width, *(f"* {line.ljust(width - 4)} *" for line in lines), "*" * width]), flush=True)


def write_build_info(folder, torch, cuda_version, note, archs):
    """A translation unit of its own, so that a new digest does not recompile everything."""
    quoted = json.dumps
    text = f"""#include "build_info.h"

const convt::BuildInfo& convt::build_info() {{
  static const BuildInfo info{{{quoted(VERSION)}, {quoted(torch.__version__)}, {quoted(cuda_version)}, {quoted(note)},
                              {{{", ".join(map(quoted, archs))}}}, {quoted(source_digest())}}};
  return info;
}}
"""
    return write_if_new(folder / "build_info.cpp", text)


def write_unit(folder, name, sources):
    """A translation unit of several sources: torch's headers, which take longer than what these do, are read once."""
    return write_if_new(
        folder / f"{name}.cpp", "".join(f"#include {json.dumps(source.as_posix())}\n" for source in sources)
    )


def extension(torch, build_folder):
    home, version, note = find_cuda(torch)
    lineinfo = switch("CONVT_LINEINFO") == "1"
    check_compiler()
    archs = ""
    if home is not None:
        archs = os.environ["TORCH_CUDA_ARCH_LIST"] = architectures(torch)
        # Read by torch.utils.cpp_extension when it is imported.
        os.environ["CUDA_HOME"] = str(home)
        nvcc = os.environ.get("PYTORCH_NVCC", shlex.quote(str(home / "bin" / "nvcc")))  # as torch has it: "ccache nvcc"
        os.environ["PYTORCH_NVCC"] = write_nvcc(build_folder, nvcc, archs)
        banner([f"convt {VERSION}: with CUDA for {archs}", note, f"torch {torch.__version__}"])
    else:
        banner(
            [
                f"convt {VERSION}: WITHOUT CUDA, for the CPU only: CUDA tensors will be refused.",
                f"Reason: {note}.",
                "Set CONVT_CUDA=1 to make this an error.",
            ]
        )
    from torch.utils import cpp_extension

    # A family's launch.cpp calls what only nvcc compiles.
    without = ("no_cuda.cpp",) if home is not None else ("cuda.cpp", "launch.cpp")
    ops, plan, kernels = (
        [source for source in sorted((ROOT / "csrc" / folder).rglob("*.cpp")) if source.name not in without]
        for folder in ("ops", "plan", "kernels")
    )
    sources = [write_unit(build_folder, "module", [ROOT / "csrc/bindings.cpp", *ops]), *plan, *kernels]
    cuda_version = f"{version[0]}.{version[1]}" if version else ""
    sources.append(write_build_info(build_folder, torch, cuda_version, note, [a for a in archs.split(";") if a]))
    cxx = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wno-unknown-pragmas"]
    kind, args = cpp_extension.CppExtension, {"cxx": cxx}
    if home is not None:
        sources += sorted((ROOT / "csrc/kernels").rglob("*.cu"))
        kind = cpp_extension.CUDAExtension
        args["nvcc"] = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xcompiler=-fvisibility=hidden"]
        if lineinfo:
            args["nvcc"].append("-lineinfo")
    module = kind(
        name="convt._C",
        sources=[os.path.relpath(s, ROOT) for s in sources],
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=args,
    )
    if sys.platform == "linux":
        # Some g++ link a libstdc++ of their own into what they make. With two of them in a process, the first error
        # message that has a number in it crashes. Named ahead of g++'s own, the one that torch uses too is taken.
        module.libraries.append(":libstdc++.so.6")
    if home is not None:
        link_runtime(module, home, version[0])
    return module, cpp_extension.BuildExtension


def link_runtime(module, home, major):
    """The PyPI toolkit has libcudart.so.13 but no libcudart.so to link with: name the file."""
    libraries = [home / "lib64", home / "lib"]
    module.library_dirs += [str(folder) for folder in libraries if folder.is_dir()]
    if not any((folder / "libcudart.so").exists() for folder in libraries):
        module.libraries = [f":libcudart.so.{major}" if name == "cudart" else name for name in module.libraries]


def main():
    torch = import_torch()
    build_folder = (
        ROOT / "build" / f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}-torch{torch.__version__}"
    )
    module, build_extension = extension(torch, build_folder)

    class BuildExt(build_extension):
        def finalize_options(self):
            super().finalize_options()
            # An editable install builds in a temporary folder; a fixed one keeps what need not be compiled again.
            self.build_temp = str(build_folder)

    major, minor = torch.__version__.split(".")[:2]
    setup(
        ext_modules=[module],
        cmdclass={"build_ext": BuildExt},
        # The C++ ABI of torch changes from one minor version to the next.
        install_requires=[f"torch=={major}.{minor}.*", "rich>=13"],
    )


if __name__ == "__main__":
    main()
