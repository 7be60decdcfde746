"""The conversion of SGLang's answers to parts of rollouts."""

import pytest

from megatron_sspo.arrays.convert import log_prob_array, token_array
from megatron_sspo.rollout.requests.format import PartialResponse, RequestFormat

TOKENS = (5, 6, 7, 8)
LOG_PROBS = (-1.0, -2.0, -3.0, -4.0)


@pytest.fixture
def format():
    made = RequestFormat.__new__(RequestFormat)
    made._routes = False
    return made


def answer(kind, tokens=TOKENS, **meta):
    pairs = [[value, token] for value, token in zip(LOG_PROBS, tokens, strict=False)]
    return {
        "output_ids": list(tokens),
        "meta_info": {
            "finish_reason": {"type": kind},
            "output_token_logprobs": pairs,
            "weight_version": "2",
            **meta,
        },
    }


def response(tokens, log_probs, *others):
    return PartialResponse(token_array(tokens), log_prob_array(log_probs), *others)


def test_a_complete_response(format):
    assert format.parse(answer("length")) == response(TOKENS, LOG_PROBS, ((2, 4),), "length")


@pytest.mark.parametrize(
    ("versions", "spans"),
    [
        (None, ((2, 3),)),
        ([{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 4}], ((1, 2), (2, 1))),
        ([{"version": "1", "start": 0, "end": 3}, {"version": "2", "start": 3, "end": 4}], ((1, 3),)),
    ],
)
def test_the_last_token_of_an_aborted_response_is_dropped(format, versions, spans):
    """Checks that the last token is dropped: SGLang has not yet checked whether it ends the response."""
    found = format.parse(answer("abort", **({"weight_versions": versions} if versions else {})))
    assert found == response(TOKENS[:-1], LOG_PROBS[:-1], spans, None)


@pytest.mark.parametrize("tokens", [(), (5,)])
def test_an_aborted_response_of_one_token_is_empty(format, tokens):
    assert format.parse(answer("abort", tokens)) == PartialResponse()
