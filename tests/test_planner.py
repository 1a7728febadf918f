"""Problem -> plan, without a GPU: tensors on the meta device, named devices."""

import itertools
import re

import pytest
import torch

import convt
from benchmarks.cases import load_cases
from convt import _C

FIRST_AND_SECOND = {
    "forward": ((2, 8, 16, 16), (8, 4, 3, 3)),
    "input_grad": ((2, 4, 33, 33), (8, 4, 3, 3)),
    "weight_grad": ((2, 8, 16, 16), (2, 4, 33, 33)),
}
SIZES = {"forward": {}, "input_grad": {"input_size": 16}, "weight_grad": {"kernel_size": 3}}


def meta(shape, dtype=torch.float16, **options):
    return torch.empty(shape, dtype=dtype, device="meta", **options)


def plan(operation="forward", dtype=torch.float16, device="h200", shapes=None, **arguments):
    a, b = (meta(shape, dtype) for shape in shapes or FIRST_AND_SECOND[operation])
    if shapes is None:
        arguments = {"stride": 2, **SIZES[operation], **arguments}
    return convt.explain(a, b, device=device, operation=operation, **arguments)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


@pytest.mark.parametrize("operation", FIRST_AND_SECOND)
@pytest.mark.parametrize("device", convt.device_names())
def test_every_named_device_has_a_plan(device, operation):
    for dtype in DTYPES:
        p = plan(operation, dtype, device)
        assert p.device == device
        assert f"{p.algorithm}/{p.configuration}" in _C.configuration_names()
        if p.algorithm != "aten":
            assert p.block > 0
            assert p.grid > 0
        # Packed weights, the only workspace there is, are those of the implicit GEMMs.
        assert p.workspace_bytes == 0 or p.algorithm.startswith("implicit_gemm")


@pytest.mark.parametrize("operation", FIRST_AND_SECOND)
def test_the_same_problem_has_the_same_plan(operation):
    for device, dtype in itertools.product(convt.device_names(), DTYPES):
        first = plan(operation, dtype, device)
        plan("forward", torch.float32, "t4")  # another one in between
        again = plan(operation, dtype, device)
        assert first == again
        assert str(first) == str(again)


def test_another_problem_or_device_is_another_plan():
    base = plan()
    for other in (
        plan(device="a100"),
        plan(dtype=torch.float32),
        plan(stride=3),
        plan(padding=1),
        plan(dilation=2),
        plan(output_padding=1),
        plan(bias=meta(4)),
        plan("input_grad"),
    ):
        assert other != base


@pytest.mark.parametrize("operation", FIRST_AND_SECOND)
def test_each_configuration_is_a_candidate_with_a_cost_or_a_reason(operation):
    for device, dtype in itertools.product(("v100", "h200"), DTYPES):
        p = plan(operation, dtype, device)
        names = [f"{c.algorithm}/{c.configuration}" for c in p.candidates]
        assert sorted(names) == sorted(_C.configuration_names())
        for candidate in p.candidates:
            assert candidate.fits == (candidate.refusal == "")
            if candidate.fits:
                assert candidate.estimated_seconds > 0
            else:
                assert len(candidate.refusal) > 10
        cheapest = min((c for c in p.candidates if c.fits and not c.reservation), key=lambda c: c.estimated_seconds)
        assert (cheapest.algorithm, cheapest.configuration) == (p.algorithm, p.configuration)


def test_the_text_names_the_choice_and_the_case_against_each_other_candidate():
    for operation in FIRST_AND_SECOND:
        p = plan(operation)
        text = str(p)
        assert f"chosen: {p.algorithm}/{p.configuration}" in text
        assert "on h200 (sm_90" in text
        for candidate in p.candidates:
            name = f"{candidate.algorithm}/{candidate.configuration}"
            if name != f"{p.algorithm}/{p.configuration}":
                assert f"not {name}: " in text
                assert candidate.refusal in text


def test_every_configuration_is_chosen_for_some_problem():
    chosen = set()
    for p in (
        plan("forward", torch.float64),
        plan("input_grad"),
        plan("weight_grad", shapes=((1, 64, 4, 4), (1, 64, 6, 6)), kernel_size=3),
        plan("weight_grad", torch.float32, shapes=((8, 1, 64, 64), (8, 1, 66, 66)), kernel_size=3),
        plan("weight_grad", shapes=((64, 256, 64, 64), (64, 256, 66, 66)), kernel_size=3),
    ):
        chosen.add(f"{p.algorithm}/{p.configuration}")
    # Families with a test file of their own are not looked at here.
    own = ("direct/", "aten/")
    assert chosen == {name for name in _C.configuration_names() if name.startswith(own)}


def test_the_forward_never_leaves_convt():
    for shapes in (((64, 512, 64, 64), (512, 512, 3, 3)), ((1, 1, 1, 1), (1, 1, 1, 1))):
        for dtype in DTYPES:
            p = plan("forward", dtype, shapes=shapes)
            assert p.algorithm != "aten"
            (aten,) = (c for c in p.candidates if c.algorithm == "aten")
            assert aten.refusal


def test_useful_work_counts_only_what_lands_inside_the_output():
    p = plan(shapes=((2, 3, 4, 5), (3, 7, 1, 1)))
    assert p.useful_flops == 2 * (2 * 3 * 4 * 5) * 7
    assert p.compulsory_bytes == 2 * (2 * 3 * 4 * 5 + 3 * 7 + 2 * 7 * 4 * 5)
    # The padding cuts the first and last row and column of the input off a 1x1 kernel.
    assert plan(shapes=((2, 3, 4, 5), (3, 7, 1, 1)), padding=1).useful_flops == 2 * (2 * 3 * 2 * 3) * 7


def test_nothing_to_compute_is_an_empty_plan():
    for shapes in (((0, 8, 4, 4), (8, 4, 3, 3)), ((1, 8, 4, 4), (8, 0, 3, 3))):
        p = plan(shapes=shapes)
        assert p.algorithm == "empty"
        assert p.grid == 0
        assert "chosen: empty" in str(p)


def image(height):
    return plan(dtype=torch.float64, shapes=((1, 1, height, 2**16), (1, 1, 1, 1)))


def test_indices_widen_at_2_to_the_31():
    assert image(2**14).index_bits == 32
    assert image(2**15 - 1).index_bits == 32
    assert image(2**15).index_bits == 64


def test_indices_widen_for_strides_of_memory():
    """Few elements, but far apart; a kernel that the direct family computes."""
    wide = torch.empty_strided((2, 1, 4, 4), (2**31, 16, 4, 1), device="meta", dtype=torch.float64)
    narrow = torch.empty_strided((2, 1, 4, 4), (2**30, 16, 4, 1), device="meta", dtype=torch.float64)
    weight = meta((1, 1, 3, 1), torch.float64)
    assert convt.explain(wide, weight, device="h200").index_bits == 64
    assert convt.explain(narrow, weight, device="h200").index_bits == 32
    far_bias = torch.empty_strided((3,), (2**31,), device="meta", dtype=torch.float64)
    near = meta((2, 1, 4, 4), torch.float64)
    assert convt.explain(near, meta((1, 3, 3, 1), torch.float64), far_bias, device="h200").index_bits == 64


def test_indices_widen_for_huge_steps():
    """A dilation or a padding beyond 32 bits, with small tensors."""
    p = plan(dtype=torch.float64, shapes=((1, 1, 2, 2), (1, 1, 1, 1)), dilation=2**33)
    assert p.index_bits == 64
    p = plan(shapes=((1, 1, 1, 1), (1, 1, 3, 3)), dilation=2**32, padding=2**32 - 1)
    assert p.index_bits == 64


def test_a_grid_that_no_gpu_has_is_refused_with_a_reason():
    with pytest.raises(RuntimeError, match="no kernel of convt takes this problem"):
        plan(shapes=((1, 1, 2**21, 2**21), (1, 1, 1, 1)))


@pytest.mark.parametrize(
    ("shapes", "arguments"),
    [
        (((1, 1, 2**20, 2**20), (1, 2**21, 3, 3)), {}),
        (((1, 1, 2, 2), (1, 1, 3, 3)), {"stride": 2**62}),
        (((1, 1, 2, 2), (1, 1, 3, 3)), {"stride": 2**40}),
        (((1, 1, 2, 2), (1, 1, 3, 3)), {"dilation": 2**62}),
        (((1, 1, 2, 2), (1, 1, 3, 3)), {"padding": 2**63 - 1}),
    ],
    ids=str,
)
def test_overflow_is_a_runtime_error(shapes, arguments):
    with pytest.raises(RuntimeError, match="overflow"):
        plan(shapes=shapes, **arguments)


def test_overflow_of_an_offset_in_memory_is_a_runtime_error():
    far = torch.empty_strided((2, 1, 4, 4), (2**60, 2**59, 2**59, 1), dtype=torch.float16, device="meta")
    with pytest.raises(RuntimeError, match=r"overflow|does not fit in a 64-bit integer"):
        convt.explain(far.as_strided((4, 1, 4, 4), (2**61, 1, 2**61, 1)), meta((1, 1, 3, 3)), device="h200")


def test_unknown_names_are_value_errors_that_list_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown device \"gtx\".*h200"):
        plan(device="gtx")
    with pytest.raises(ValueError, match=r"unknown operation 'sideways'.*forward.*input_grad.*weight_grad"):
        convt.explain(meta((1, 1, 2, 2)), meta((1, 1, 2, 2)), device="h200", operation="sideways")


@pytest.mark.skipif(torch.cuda.is_available(), reason="only without a GPU is there no default device")
def test_without_a_gpu_the_device_must_be_named():
    with pytest.raises(ValueError, match="name a device"):
        plan(device=None)


@pytest.mark.gpu
def test_the_default_device_is_the_current_gpu():
    assert plan(device=None).device == torch.cuda.get_device_name()


@pytest.mark.gpu
def test_the_name_h200_has_the_plans_of_an_h200():
    if torch.cuda.get_device_name() != "NVIDIA H200":
        pytest.skip(f"an H200's plans were measured, and this is {torch.cuda.get_device_name()}")
    for case, dtype in itertools.product(load_cases(), DTYPES[:3]):
        x, w = meta(case.x_shape, dtype), meta(case.w_shape, dtype)
        arguments = (None, case.stride, case.padding, case.output_padding, case.groups, case.dilation)
        here, named = (convt.explain(x, w, *arguments, device=device) for device in (None, "h200"))
        assert (here.algorithm, here.configuration) == (named.algorithm, named.configuration), case


def test_arguments_are_checked_as_the_call_checks_them():
    with pytest.raises(RuntimeError, match="non-positive stride"):
        plan(stride=0)


def test_the_precision_of_float32_is_part_of_the_problem():
    torch.backends.cudnn.allow_tf32 = True
    with_tf32 = plan(dtype=torch.float32)
    torch.backends.cudnn.allow_tf32 = False
    without = plan(dtype=torch.float32)
    assert "float32 (tf32)" in str(with_tf32)
    assert "float32 (ieee)" in str(without)
    assert with_tf32 != without


def test_strict_float32_of_few_terms_is_not_split_into_two_parts():
    """Two TF32 parts of an operand are off by more than float32 sums of few terms: only a forced plan uses them."""
    torch.backends.cudnn.allow_tf32 = False
    shapes = ((4, 16, 64, 64), (16, 32, 2, 2))
    few = plan("forward", torch.float32, shapes=shapes, stride=2)
    reserved = {c.algorithm for c in few.candidates if c.fits and c.reservation}
    assert {"implicit_gemm_sm80", "column"} & reserved
    # Three parts, of rows that a block can write whole; float32 instructions where they are longer.
    assert (few.algorithm, few.configuration) == ("warp_rows", "1x1_rows")
    wider = plan("forward", torch.float32, shapes=((4, 16, 64, 129), shapes[1]), stride=2)
    assert wider.algorithm == "few_channels"
    assert "is less accurate than float32 in sums of so few terms" in str(few)
    many = plan("forward", torch.float32, shapes=((4, 64, 64, 64), (64, 32, 2, 2)), stride=2)
    assert many.algorithm != "direct"
    torch.backends.cudnn.allow_tf32 = True
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        candidates = plan("forward", dtype, shapes=shapes, stride=2).candidates
        assert not any(c.reservation for c in candidates)


def sizes_of_problem(x_shape, w_shape, memory_format=torch.channels_last, **arguments):
    x = meta(x_shape).contiguous(memory_format=memory_format)
    w = meta(w_shape).contiguous(memory_format=memory_format)
    text = str(convt.explain(x, w, device="h200", **arguments))
    return re.search(r"input (\S+)", text)[1], re.search(r"output (\S+)", text)[1]


def test_images_and_rows_that_share_no_output_are_coalesced():
    assert sizes_of_problem((6, 16, 14, 10), (16, 8, 2, 2), stride=2) == ("1x16x84x10", "1x8x168x20")
    # A kernel of one element has no rows of its own either.
    assert sizes_of_problem((6, 16, 14, 10), (16, 8, 1, 1)) == ("1x16x1x840", "1x8x1x840")
    assert sizes_of_problem((1, 16, 14, 10), (16, 8, 1, 1), torch.contiguous_format) == ("1x16x1x140", "1x8x1x140")
    # Halves, until they have few enough rows.
    assert sizes_of_problem((1024, 16, 14, 10), (16, 8, 2, 2), stride=2) == ("2x16x7168x10", "2x8x14336x20")


def stride_of_problem(x_shape, kernel, **arguments):
    text = str(convt.explain(meta(x_shape), meta((x_shape[1], 8, *kernel)), meta((8,)), device="h200", **arguments))
    return re.search(r"stride (\(.*?\)),", text)[1]


def test_one_position_has_the_stride_of_its_kernel():
    """No other position is a stride away: the layer is one whose outputs have inputs of one position."""
    assert stride_of_problem((6, 16, 1, 1), (3, 5)) == "(3, 5)"
    assert stride_of_problem((6, 16, 1, 4), (3, 5), stride=2) == "(3, 2)"
    # Not where something is cut, padded, or between the taps.
    for arguments in ({"padding": 1}, {"output_padding": 1}, {"dilation": 2}):
        assert stride_of_problem((6, 16, 1, 1), (3, 5), stride=2, **arguments) == "(2, 2)"


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_of_one_position_are_a_product_of_matrices(memory_format):
    """Each tap of an output channel is a channel, if y has them in the order of w."""
    merged = ("1x16x1x6", "1x120x1x6")
    assert sizes_of_problem((6, 16, 1, 1), (16, 8, 3, 5), memory_format, stride=2) == merged
    # Not where something is cut, or the taps of a group are not in one piece.
    apart = sizes_of_problem((6, 16, 1, 1), (16, 8, 3, 5), memory_format, stride=2, padding=1)
    assert apart == ("6x16x1x1", "6x8x1x3")
    groups = sizes_of_problem((6, 16, 1, 1), (16, 8, 3, 5), memory_format, groups=2)[1]
    assert groups == ("1x240x1x6" if memory_format == torch.contiguous_format else "6x16x3x5")
    # Nor where channels would share a bias.
    assert "1x120x" not in str(convt.explain(meta((6, 16, 1, 1)), meta((16, 8, 3, 5)), meta((8,)), device="h200"))


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        ((3, 2), {"stride": 2}),
        ((2, 2), {"stride": 2, "padding": (1, 0)}),
        ((2, 2), {"stride": (3, 2)}),
        ((2, 2), {"stride": 2, "dilation": (2, 1)}),
        ((2, 2), {"stride": 2, "output_padding": (1, 0)}),
    ],
)
def test_images_that_meet_in_an_output_or_not_in_memory_stay_apart(kernel, arguments):
    assert sizes_of_problem((6, 16, 14, 10), (16, 8, *kernel), **arguments)[0] == "6x16x14x10"
    # Channels lie between images.
    assert sizes_of_problem((6, 16, 14, 10), (16, 8, 2, 2), torch.contiguous_format, stride=2)[0] == "6x16x14x10"
