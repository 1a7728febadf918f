"""Devices, skips that say why, and hypothesis without deadlines."""

import os

import hypothesis
import pytest
import torch
from forced import runs_hopper_code

import convt

hypothesis.settings.register_profile("convt", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
# The problems here are small: a second thread would only be waited for.
torch.set_num_threads(1)

hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "convt"))

NO_GPU = "needs a CUDA GPU"
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def _gpu_problem() -> str:
    """Why GPU tests cannot run here; empty if they can. A GPU that convt cannot use is a failure, not a skip."""
    return "" if torch.cuda.is_available() else f"{NO_GPU}: torch sees none here"


def pytest_collection_modifyitems(items):
    problem = _gpu_problem()
    memory = 0 if problem else torch.cuda.get_device_properties(0).total_memory / 2**30
    for item in items:
        large = item.get_closest_marker("large")
        if large is not None and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") is None:
            continue
        if problem:
            item.add_marker(pytest.mark.skip(reason=problem))
        elif large is not None:
            needed = large.kwargs.get("gib", 40)
            if memory < needed:
                reason = f"needs {needed} GiB of GPU memory, this GPU has {memory:.0f}"
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if NO_GPU in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} GPU tests were skipped because there is no GPU here; run them where there is one.",
            yellow=True,
        )


def pytest_report_header():
    info = convt.build_info()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"convt {info['version']}, torch {torch.__version__}, CUDA build: {info['cuda_note']}, GPU: {gpu}"


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    """ "cpu", and "cuda" marked gpu."""
    return request.param


@pytest.fixture
def hopper():
    if not runs_hopper_code():
        pytest.skip("needs sm_90, and a build for 9.0a")


@pytest.fixture(autouse=True)
def _fresh_state(request):
    """The same random numbers whatever ran before, and no setting left behind.

    On a GPU float32 is float32: tests of TF32, which torch allows by default, say so themselves.
    """
    torch.manual_seed(0)
    tf32 = torch.backends.cudnn.allow_tf32
    if request.node.get_closest_marker("gpu") is not None:
        torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    if torch.cuda.is_available():
        convt._C.force_configuration("")
