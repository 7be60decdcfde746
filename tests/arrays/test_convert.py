"""Arrays from lists, tuples and other arrays, and the rollouts that are made of them."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from megatron_sspo.arrays.convert import log_prob_array, route_array, token_array
from megatron_sspo.errors import UserError
from tests.responses import response

GIVEN = [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.array([1, 2, 3], dtype=np.uint8), torch.tensor([1, 2, 3])]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(
    ("convert", "dtype"), [(token_array, np.int32), (log_prob_array, np.float32), (route_array, np.uint8)]
)
def test_what_arrays_are_made_of(given, convert, dtype):
    found = convert(given)
    assert found.dtype == dtype and found.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 7
    assert np.shares_memory(convert(found), found), "what has its form already is not copied"


@pytest.mark.parametrize("convert", [token_array, log_prob_array, route_array])
def test_nothing_is_an_empty_array(convert):
    assert [convert(given).shape for given in ((), [], np.zeros(0))] == [(0,)] * 3


def test_the_callers_array_is_left_alone():
    given = np.array([1, 2, 3], dtype=np.int32)
    found = token_array(given)
    given[0] = 7
    assert found.tolist() == [1, 2, 3]


def test_many_experts_need_two_bytes():
    assert route_array(np.array([[[0, 255]]])).dtype == np.uint8
    found = route_array(np.array([[[0, 256], [511, 3]]]))
    assert found.dtype == np.uint16 and found.tolist() == [0, 256, 511, 3]


@pytest.mark.parametrize(
    ("convert", "given", "message"),
    [
        (token_array, [1.5], "tokens: they are float64 of shape [1], and must be integers in one dimension"),
        (token_array, [[1], [2]], "tokens: they are int64 of shape [2, 1], and must be integers in one dimension"),
        (token_array, [2**31], "tokens: they are 2147483648 to 2147483648, and must fit into int32"),
        (token_array, ["a"], "tokens: they are <U1 of shape [1]"),
        (token_array, [[1], [2, 3]], "tokens: setting an array element with a sequence"),
        (log_prob_array, ["a"], "log-probs: they are <U1 of shape [1], and must be numbers in one dimension"),
        (log_prob_array, [None], "log-probs: they are object of shape [1]"),
        (route_array, [-1], "routes: they are -1 to -1, and must fit into uint8"),
        (route_array, [70_000], "routes: they are 70000 to 70000, and must fit into uint16"),
    ],
)
def test_what_no_array_is_made_of(convert, given, message):
    with pytest.raises(ValueError) as error:
        convert(given)
    assert str(error.value).startswith(message)


def test_a_log_prob_out_of_range_is_infinite():
    assert log_prob_array([-1e300, float("nan")]).tolist()[0] == -np.inf


def rollout(**more):
    return response(**{"tokens": [5, 6, 7], "rollout_log_probs": [-1.0, -2.0, -3.0], **more})


def test_a_rollout_of_lists():
    found = rollout(old_log_probs=(-1, -2, -3), routes=[1, 2])
    assert [found.tokens.dtype, found.rollout_log_probs.dtype, found.old_log_probs.dtype, found.routes.dtype] == [
        np.int32,
        np.float32,
        np.float32,
        np.uint8,
    ]
    assert found.reference_log_probs is None
    assert found.response_mask().tolist() == [True] * 3
    assert replace(found, observed=((1, 2),)).response_mask().tolist() == [True, False, True]


def test_equal_rollouts():
    assert rollout() == rollout(tokens=np.array([5, 6, 7], dtype=np.int64))
    assert rollout(routes=[1, 2]) == rollout(routes=(1, 2))
    for more in ({"tokens": [5, 6, 8]}, {"text": "y"}, {"old_log_probs": [0, 0, 0]}, {"routes": [1]}):
        assert rollout() != rollout(**more) and rollout(**more) != rollout()
    assert rollout() != "x"


def test_a_sent_rollout_stays_read_only():
    found = pickle.loads(pickle.dumps(rollout(routes=[1, 2])))
    assert found == rollout(routes=[1, 2])
    assert not found.tokens.flags.writeable and not found.routes.flags.writeable


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": [0.5, 1, 2]}, "Rollout.tokens has wrong tokens: they are float64"),
        ({"old_log_probs": ["a"]}, "Rollout.old_log_probs has wrong log-probs: they are <U1"),
        ({"rollout_log_probs": [-1.0]}, "Rollout.rollout_log_probs has 1 values for 3 tokens: there must be one"),
    ],
)
def test_a_rollout_that_an_engine_should_not_return(fields, message):
    with pytest.raises(UserError) as error:
        rollout(**fields)
    assert str(error.value).startswith(message)
