"""Large strides on Hopper: the family's source in the SIMT emulator, the planner's row, the kernels on a GPU."""

import random

import pytest
import simt_program
import torch
from forced import (
    FORMATS,
    candidates_of,
    check_configurations,
    check_spread_in_ones,
    check_those_taken,
    dtype_of,
    explained,
    forced,
    precise,
    random_operands,
)
from large_strides import BDCN, CLIPSEG, FCN8S, FCN16S, FCN32S, problem
from reference import Problem

from convt import _C

FAMILY = "large_stride_sm90"
# Words of K, 4 bytes of channels, times taps: 16 bytes of channels are its unit.
WORDS = {"k48": 48, "k96": 96}
NAMES = [f"{FAMILY}/{name}" for name in WORDS]
PRECISIONS = ("tf32", "float16", "bfloat16")
LAYERS = [FCN32S, FCN16S, FCN8S, CLIPSEG, BDCN]


@pytest.fixture(autouse=True)
def tf32(_fresh_state):
    torch.backends.cudnn.allow_tf32 = True


def candidates(p, dtype=torch.float32, memory=torch.contiguous_format, device="h200"):
    return candidates_of(FAMILY, explained(p, dtype, memory, torch.contiguous_format, device))


def test_the_configurations_tested_are_those_compiled():
    assert [name for name in _C.configuration_names() if name.startswith(f"{FAMILY}/")] == NAMES


def test_random_problems_in_the_emulator(tmp_path):
    """Any number of warpgroups and blocks of rows: values against float64, accesses, barriers, NaN and infinity."""
    simt_program.run(simt_program.build("large_stride_sm90_simt.cpp", tmp_path), 0, 400)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("p", LAYERS)
def test_real_layers_fit(p, precision, layout):
    assert candidates(p, precise(precision), FORMATS[layout])["k96"].fits


@pytest.mark.parametrize("p", [FCN32S, FCN16S])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_phases_are_its(p, precision):
    chosen = explained(p, precise(precision), device="h200")
    assert chosen.algorithm == FAMILY
    assert chosen.grid == 112  # blocks of three warpgroups


def test_refusals_say_why():
    refused = {
        "takes strides of 8 or more, not 7": Problem(1, 4, 5, (8, 8), (8, 8), (7, 2)),
        "takes dilation 1 only": Problem(1, 4, 1, (8, 8), (8, 8), (8, 8), (0, 0), (0, 0), 1, (1, 2)),
        "takes at most 96 input channels, padded to 4, times taps of a phase, not 256": Problem(
            1, 64, 64, (8, 8), (12, 12), (8, 8)
        ),
    }
    for reason, p in refused.items():
        assert reason in {c.refusal for c in candidates(p).values()}
    assert candidates(FCN32S)["k48"].refusal.endswith("not 96")
    assert (
        "bytes of shared memory for one row" in candidates(Problem(1, 8, 1, (1, 20_000), (1, 8), (1, 8)))["k96"].refusal
    )
    assert {c.refusal for c in candidates(FCN32S, torch.float64).values()} == {"has no float64"}
    assert {c.refusal for c in candidates(FCN32S, device="a100").values()} == {"needs sm_90"}
    torch.backends.cudnn.allow_tf32 = False
    assert {c.refusal for c in candidates(FCN32S).values()} == {"has no strict float32"}


# GPU


def fitting_problem(rng, configuration, dtype):
    """A random problem that the configuration takes."""
    words, of_word = WORDS[configuration.split("/")[1]], 4 // dtype.itemsize
    while True:
        p = problem(rng, words, of_word)
        if candidates(p, dtype)[configuration.split("/")[1]].fits:
            return p


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("configuration", NAMES)
def test_random_problems(configuration, precision, layout, hopper):
    dtype, rng = precise(precision), random.Random(f"{configuration} {precision} {layout}")

    def draw():
        p = fitting_problem(rng, configuration, dtype)
        return p, *random_operands(p, dtype, rng, layout)

    assert check_those_taken(configuration, precision, draw, 20) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("p", LAYERS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layout", FORMATS)
def test_real_layers(p, precision, layout, hopper):
    p = Problem(**{**p.__dict__, "batch": min(p.batch, 2)})
    x, w, b = random_operands(p, precise(precision), random.Random(0), layout)
    check_configurations(NAMES, precision, p, x, w, b)


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", NAMES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_and_inf_spread_by_taps_only(configuration, precision, hopper):
    check_spread_in_ones(configuration, precision, lambda rng: fitting_problem(rng, configuration, dtype_of(precision)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_bits_on_repeat(precision, hopper):
    x, w, b = random_operands(FCN32S, precise(precision), random.Random(0), "nchw")
    first = forced(NAMES[-1], x, w, b, FCN32S)
    for _ in range(100):
        assert torch.equal(forced(NAMES[-1], x, w, b, FCN32S), first)


@pytest.mark.gpu
def test_more_images_than_a_grid_is_high(hopper):
    many = Problem(70_000, 3, 1, (2, 2), (8, 8), (8, 8), (1, 1))
    last = Problem(**{**many.__dict__, "batch": 1})
    x, w, b = random_operands(many, torch.float16, random.Random(0), "nchw")
    assert torch.equal(forced(NAMES[0], x, w, b, many)[-1:], forced(NAMES[0], x[-1:], w, b, last))
