"""The SIMT emulator finds the faults that it is there to find."""

import subprocess

import pytest
import simt_program

FAULTS = {
    "barrier": None,  # wrong numbers, in some order of the threads
    "wait": None,
    "beyond": "access outside an operand",
    "shared": "access outside an operand or shared memory",
    "misaligned": "is not aligned",
    "diverging": "the lanes of a warp diverge",
    "deadlock": "deadlock",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return simt_program.build("simt_faults.cpp", tmp_path_factory.mktemp("simt"))


def test_a_kernel_without_faults_passes(program):
    for seed in range(20):
        simt_program.run(program, "none", seed)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(program, fault):
    runs = [subprocess.run([program, fault, str(seed)], capture_output=True, text=True) for seed in range(20)]
    assert any(run.returncode == 1 for run in runs)
    if FAULTS[fault] is not None:
        assert all(run.returncode == 1 and FAULTS[fault] in run.stderr for run in runs)
