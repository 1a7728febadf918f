"""Programs that run a kernel family's own source on the CPU, in the SIMT emulator of tests/simt or thread by thread."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _compile(sanitizers, *arguments):
    flags = ["-std=c++20", "-O2", "-Wno-unknown-pragmas", "-Icsrc", "-Itests/simt"]
    flags += [f"-fsanitize={','.join(sanitizers)}", "-fno-sanitize-recover=all"] if sanitizers else []
    built = subprocess.run(["g++", *flags, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


@functools.cache
def planner(sanitizers):
    """The folder of the planner's objects, compiled once for all programs of this process."""
    folder = tempfile.TemporaryDirectory(prefix="convt-planner-")  # until the process ends
    for source in sorted((ROOT / "csrc/plan").rglob("*.cpp")):
        _compile(sanitizers, "-c", source, "-o", f"{folder.name}/{source.stem}.o")
    return folder


def build(source, folder, *more_sources, sanitizers=("alignment",)):
    """Compiles tests/`source` with the planner; without a compiler the test is skipped."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = folder / Path(source).stem
    objects = sorted(Path(planner(sanitizers).name).glob("*.o"))
    _compile(sanitizers, f"tests/{source}", *more_sources, *objects, "-o", program)
    return program


def run(program, *arguments):
    """What the program printed; it must succeed."""
    ran = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
