"""The arithmetic of one axis against the definition, by enumeration."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convt import _C


def landings(size, out, k, s, p, d):
    """Every (input, tap, output) of an axis, straight from o + p = i * s + t * d."""
    return [
        (i, t, i * s + t * d - p)
        for i in range(size)
        for t in range(k)
        if 0 <= i * s + t * d - p < out
    ]  # fmt: skip


def legal_output_paddings(s, d, most):
    return range(min(max(s, d), most))


def check_axis(size, k, s, p, d, q):
    out = (size - 1) * s - 2 * p + d * (k - 1) + q + 1
    assert _C.output_size(size, k, s, p, q, d) == out
    if out <= 0:
        return 0
    triples = landings(size, out, k, s, p, d)
    by_output, by_input, by_tap = ({} for _ in range(3))
    for i, t, o in triples:
        by_output.setdefault(o, set()).add((t, i))
        by_input.setdefault(i, set()).add((t, o))
        by_tap.setdefault(t, set()).add((i, o))
    axis = (size, out, k, s, p, d)
    for found, wanted, positions in (
        (_C.transposed_taps, by_output, out),
        (_C.convolution_taps, by_input, size),
        (_C.reduction_range, by_tap, k),
    ):
        for position in range(positions):
            got = found(*axis, position)
            assert len(set(got)) == len(got), (found, axis, position)
            assert set(got) == wanted.get(position, set()), (found, axis, position)
    assert _C.useful_pairs(*axis) == len(triples)
    return 1


@pytest.mark.parametrize("d", range(1, 5))
@pytest.mark.parametrize("s", range(1, 6))
def test_every_small_axis(s, d):
    checked = 0
    for k, p, size in itertools.product(range(1, 6), range(4), range(1, 7)):
        for q in legal_output_paddings(s, d, 3):
            checked += check_axis(size, k, s, p, d, q)
    assert checked > 50  # of 120 or more; the others have no output


small = st.integers(1, 40)


@given(small, small, small, st.integers(0, 60), small, st.integers(0, 39))
def test_larger_axes(size, k, s, p, d, q):
    check_axis(size, k, s, p, d, q % max(s, d))


@given(st.integers(1, 5), st.integers(1, 4), *[st.integers(1, 2**40)] * 2, st.integers(0, 2**40))
def test_strides_and_dilations_of_any_size(size, k, s, d, p):
    """Few positions but huge steps: nothing may depend on the steps being small."""
    out = (size - 1) * s - 2 * p + d * (k - 1) + 1
    assert _C.output_size(size, k, s, p, 0, d) == out
    if out <= 0:
        return
    triples = landings(size, out, k, s, p, d)
    axis = (size, out, k, s, p, d)
    assert _C.useful_pairs(*axis) == len(triples)
    for i, t, o in triples:
        assert (t, i) in _C.transposed_taps(*axis, o)
        assert (t, o) in _C.convolution_taps(*axis, i)
        assert (i, o) in _C.reduction_range(*axis, t)
    for o in {0, out - 1, *(o + 1 for _, _, o in triples if o + 1 < out)}:
        assert sorted(_C.transposed_taps(*axis, o)) == sorted((t, i) for i, t, at in triples if at == o)


@pytest.mark.parametrize(
    "arguments",
    [
        (2**62, 1, 2**62, 0, 0, 1),  # (in - 1) * stride
        (2, 2**40, 1, 0, 0, 2**40),  # dilation * (kernel - 1)
        (2, 1, 1, 2**63 - 1, 0, 1),  # 2 * padding
        (2**62, 3, 1, 0, 2**62, 2**61),  # the sum
    ],
)
def test_overflow_raises(arguments):
    with pytest.raises(_C.SizeOverflowError, match="does not fit in a 64-bit integer"):
        _C.output_size(*arguments)


def test_negative_and_zero_sizes_are_reported_as_they_are():
    assert _C.output_size(1, 1, 1, 1, 0, 1) == -1
    assert _C.output_size(2, 1, 1, 1, 0, 1) == 0
