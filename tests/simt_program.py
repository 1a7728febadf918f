"""Programs that run a kernel family's own source on the CPU, in the SIMT emulator of tests/simt or thread by thread."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(source, folder, *more_sources, sanitizers=("alignment",)):
    """Compiles tests/`source` with the planner; without a compiler the test is skipped."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    program = folder / Path(source).stem
    sources = [f"tests/{source}", *more_sources]
    sources += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "csrc/plan").rglob("*.cpp"))
    flags = ["-std=c++20", "-O2", "-Wno-unknown-pragmas", "-Icsrc", "-Itests/simt"]
    flags += [f"-fsanitize={','.join(sanitizers)}", "-fno-sanitize-recover=all"] if sanitizers else []
    built = subprocess.run([compiler, *flags, *sources, "-o", program], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


def run(program, *arguments):
    """What the program printed; it must succeed."""
    ran = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
