"""The conversion of SGLang's answers to parts of rollouts."""

import base64

import numpy as np
import pytest

from megatron_sspo.arrays.convert import log_prob_array, token_array
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.requests.format import PartialResponse, RequestFormat

TOKENS = (5, 6, 7, 8)
LOG_PROBS = (-1.0, -2.0, -3.0, -4.0)


@pytest.fixture
def format():
    made = RequestFormat.__new__(RequestFormat)
    made._run, made._routes, made._num_dense = "run", False, 0
    return made


def answer(kind, tokens=TOKENS, **meta):
    pairs = [[value, token] for value, token in zip(LOG_PROBS, tokens, strict=False)]
    return {
        "output_ids": list(tokens),
        "meta_info": {
            "finish_reason": {"type": kind},
            "output_token_logprobs": pairs,
            "weight_version": "run-2",
            **meta,
        },
    }


def response(tokens, log_probs, *others):
    return PartialResponse(token_array(tokens), log_prob_array(log_probs), *others)


def test_a_complete_response(format):
    assert format.parse(answer("length"), 3) == response(TOKENS, LOG_PROBS, ((2, 4),), "length")


@pytest.mark.parametrize(
    ("versions", "spans"),
    [
        (None, ((2, 3),)),
        ([{"version": "run-1", "start": 0, "end": 2}, {"version": "run-2", "start": 2, "end": 4}], ((1, 2), (2, 1))),
        ([{"version": "run-1", "start": 0, "end": 3}, {"version": "run-2", "start": 3, "end": 4}], ((1, 3),)),
    ],
)
def test_the_last_token_of_an_aborted_response_is_dropped(format, versions, spans):
    """Checks that the last token is dropped: SGLang has not yet checked whether it ends the response."""
    found = format.parse(answer("abort", **({"weight_versions": versions} if versions else {})), 3)
    assert found == response(TOKENS[:-1], LOG_PROBS[:-1], spans, None)


def test_experts_that_the_server_has_not_recorded(format):
    """Covers kernels of SGLang that choose the experts themselves: its recorder then reports its zeros."""
    format._routes, format._num_experts, format._experts_per_token = True, 4, 2
    recorded = np.array([[1, 0], [3, 2]] * 3, dtype=np.int32)
    found = format.parse(answer("length", routed_experts=base64.b64encode(recorded.tobytes()).decode()), 3)
    assert found.routes.tolist() == recorded.reshape(-1).tolist()
    nothing = base64.b64encode(np.zeros_like(recorded).tobytes()).decode()
    with pytest.raises(UserError, match="expert 0 alone"):
        format.parse(answer("length", routed_experts=nothing), 3)
    format._experts_per_token = 1  # one expert each may well be expert 0
    assert not format.parse(answer("length", routed_experts=nothing), 3).routes.any()


def test_first_layers_without_experts_have_no_routes(format):
    """SGLang reports zeros for them: here of six tokens, one of three layers, and two experts each."""
    format._routes, format._num_experts, format._experts_per_token, format._num_dense = True, 4, 2, 1
    recorded = np.array([[[0, 0], [3, 2], [1, 0]]] * 6, dtype=np.int32)
    found = format.parse(answer("length", routed_experts=base64.b64encode(recorded.tobytes()).decode()), 3)
    assert found.routes.tolist() == [3, 2, 1, 0] * 6


@pytest.mark.parametrize("recorded", [[3, 2], [3, 2] * 2, []])
def test_experts_of_other_tokens(format, recorded):
    """Checks six tokens that the model has processed, with two experts each."""
    format._routes, format._num_experts, format._experts_per_token = True, 4, 2
    experts = base64.b64encode(np.array(recorded, np.int32).tobytes()).decode()
    with pytest.raises(ValueError, match=r"malformed.*experts"):
        format.parse(answer("length", routed_experts=experts), 3)


@pytest.mark.parametrize("tokens", [(), (5,)])
def test_an_aborted_response_of_one_token_is_empty(format, tokens):
    assert format.parse(answer("abort", tokens), 3) == PartialResponse()


def damaged(**changes):
    """Returns a sound answer with changes; those of `meta_info` replace its entries."""
    found = answer("stop")
    return {**found, **changes, "meta_info": {**found["meta_info"], **changes.get("meta_info", {})}}


def rows(*pairs):
    return {"output_token_logprobs": [list(pair) for pair in pairs]}


PAIRS = tuple(zip(LOG_PROBS, TOKENS, strict=True))


@pytest.mark.parametrize(
    "damaged",
    [
        {"output_ids": [5]},
        damaged(output_ids=[5, 6, 7]),
        damaged(meta_info={"finish_reason": {"type": "tired"}}),
        damaged(meta_info=rows(*PAIRS[:3], (float("nan"), 8))),
        *(damaged(meta_info={"weight_version": name}) for name in ("default", "other-2")),
    ],
)
def test_an_answer_that_no_model_gives_is_an_error_of_the_server(format, damaged):
    """A number that is not finite would spread to all weights."""
    with pytest.raises(ValueError, match=r"malformed|unknown finish_reason|has not sent"):
        format.parse(damaged, 3)
