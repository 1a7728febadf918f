"""The forward by one configuration of the planner's, whatever the planner would choose."""

import torch
from reference import poison_allocator, problem_count, rule_of_forward, spoilt_operands

import convt
from convt import _C


def forced(configuration, x, w, b, p):
    _C.force_configuration(configuration)
    try:
        return convt.conv_transpose2d(x, w, b, **p.arguments)
    finally:
        _C.force_configuration("")


def forced_if_it_fits(configuration, x, w, b, p):
    """The result, or None where the configuration does not take the problem."""
    try:
        return forced(configuration, x, w, b, p)
    except RuntimeError as error:
        assert configuration in str(error), error
        return None


def check_random_problems(configuration, precision, draw, usual):
    """A configuration's results: right, and the same bits again.

    Args:
        draw: makes a problem and its operands: p, x, w, b. One that the configuration does not take is left out.
        usual: how many problems, see problem_count().
    """
    taken = 0
    for _ in range(problem_count(usual)):
        p, x, w, b = draw()
        poison_allocator(p.y_shape, dtype=x.dtype)
        result = forced_if_it_fits(configuration, x, w, b, p)
        if result is None:
            continue
        taken += 1
        rule_of_forward(p, x, w, b, precision)(result)
        poison_allocator(p.y_shape, dtype=x.dtype)
        assert torch.equal(forced(configuration, x, w, b, p), result)
    # The sanitizer has few problems a test.
    assert taken > 3 or problem_count(usual) < usual


def check_spread(configuration, p, rng, x, w):
    """One element that is not finite reaches the outputs that a tap connects with it; how many results there were."""
    ran = 0
    for pair, reached, _, where in spoilt_operands(p, rng, x, w):
        result = forced_if_it_fits(configuration, *pair, None, p)
        if result is not None:
            ran += 1
            assert torch.equal(~result.cpu().isfinite(), reached), where
    return ran
