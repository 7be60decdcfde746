"""Contradictions in a configuration."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from megatron_sspo.config.overrides import config_to_json, override
from megatron_sspo.errors import UserError
from megatron_sspo.job.warm_start import warm_start
from megatron_sspo.preflight.unread import unread_settings
from megatron_sspo.run import (
    Evaluation,
    HeldOut,
    Model,
    Optimizer,
    Parallel,
    Prompts,
    Rollouts,
    Run,
    Teacher,
    WarmStart,
    check,
    in_layout_for,
    layouts_of,
)
from megatron_sspo.types import Sampling

PROMPTS = Prompts(source="x.jsonl")
RUN = Run(
    name="a",
    model=Model(path="m"),
    prompts=PROMPTS,
    num_updates=2,
    warm_start=WarmStart(prompts=PROMPTS, updates=1, batch_size=1, optimizer=Optimizer()),
    evaluation=Evaluation(sets={"a": HeldOut(prompts=PROMPTS)}),
)


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["warm_start=none", "evaluation=none"],
        ["parallel.data=4", "parallel.tensor=2", "parallel.expert=8", "parallel.sequence=true"],
        ["parallel.pipeline=2", "parallel.virtual_pipeline=2"],
        ["rollouts.sampling.top_p=0.9"],
        ["prompts.max_tokens=16384", "rollouts.sampling.max_tokens=512", "tokens_per_microbatch=16896"],
    ],
)
def test_what_is_right_passes(assignments) -> None:
    run = override(RUN, assignments)
    assert check(run) == run


BY_SIZE = replace(
    RUN,
    parallel=Parallel(data=4, expert=2),
    layouts={2: Parallel(data=2, expert=2), 8: Parallel(tensor=2, sequence=True, data=4)},
)


def test_a_run_takes_its_layout_by_the_number_of_processes() -> None:
    assert check(BY_SIZE) == BY_SIZE
    assert in_layout_for(BY_SIZE, 4) == BY_SIZE
    assert in_layout_for(BY_SIZE, 8) == replace(BY_SIZE, parallel=BY_SIZE.layouts[8])
    assert check(in_layout_for(BY_SIZE, 2)).parallel == Parallel(data=2, expert=2)
    assert in_layout_for(RUN, 16) == RUN  # which is refused where the processes join
    with pytest.raises(UserError, match=r"16 processes were started, .* for 2, 4, 8: add layouts\[16\]"):
        in_layout_for(BY_SIZE, 16)
    assert [run.parallel.num_processes for run in layouts_of(BY_SIZE).values()] == [4, 2, 8]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["layouts.2.data=4"], r"layouts\[2\] is a layout of 4 processes .data 4, expert 2., and parallel one of 4"),
        (["layouts.2.expert=3"], r"layouts\[2\].expert × layouts\[2\].expert_tensor = 3 does not divide"),
        (["layouts.8.tensor=0"], r"layouts\[8\].tensor is 0: it must be greater than or equal to 1"),
        (["parallel.tensor=2"], r"layouts\[8\] is a layout of 8 processes .data 4, tensor 2, sequence., and parallel"),
        (["layouts.3.data=3"], r"there is no 'layouts.3.data': .*the fields here are 2, 8"),
        (["layouts.2.datum=3"], r"did you mean 'data'"),
    ],
)
def test_a_layout_by_size_that_is_wrong_is_named(assignments, message) -> None:
    with pytest.raises(UserError, match=message):
        check(override(BY_SIZE, assignments))


def test_the_key_of_a_layout_is_a_number_of_processes() -> None:
    assert override(BY_SIZE, ["layouts=8"]).layouts == {8: BY_SIZE.layouts[8]}
    assert list(config_to_json(BY_SIZE)["layouts"]) == ["2", "8"]


@pytest.mark.parametrize("stop", [("</a>",), ["</a>"], "</a>"])
def test_lists_and_a_single_text_are_tuples(stop) -> None:
    run = replace(RUN, rollouts=Rollouts(sampling=Sampling(stop=stop)))
    other = Prompts(source="b.jsonl")
    run = check(replace(run, prompts=replace(run.prompts, without=[other])))  # pyright: ignore
    assert run.rollouts.sampling.stop == ("</a>",) and run.prompts.without == (other,)


@pytest.mark.parametrize(
    ("assignments", "lines"),
    [
        ([], []),
        (["optimizer.min_lr=1e-7"], ["optimizer.min_lr is 1e-07, and not used: optimizer.schedule is 'constant'"]),
        (["optimizer.min_lr=1e-7", "optimizer.schedule=linear"], []),
        (["correction.cap=3"], ["correction.cap is 3.0, and not used: correction.mode is 'none'"]),
        (["correction.cap=3", "correction.mode=truncated"], []),
        (["penalties.kl_estimator=k2"], ["penalties.kl_estimator is 'k2', and not used: penalties.kl_coef is 0.0"]),
        (
            ["rollouts.overlong_penalty=2", "rollouts.endpoint.max_turns=3"],
            ["rollouts.overlong_penalty is 2.0, and not used", "rollouts.endpoint.max_turns is 3, and not used"],
        ),
        (["rollouts.options={'quantize': 'fp8'}"], ["rollouts.options.quantize is 'fp8', and nothing corrects"]),
        (["rollouts.options={'quantize': 'fp8'}", "correction.mode=truncated"], []),
        (["routing_replay=R2"], []),
        (["routing_replay=R2", "updates_per_sync=1"], ["routing_replay is 'R2', and not used: updates_per_sync is 1"]),
    ],
)
def test_settings_that_nothing_reads_are_found(assignments, lines) -> None:
    found = list(unread_settings(check(override(RUN, assignments))))
    assert len(found) == len(lines) and all(map(str.startswith, found, lines))


@pytest.mark.parametrize(
    ("fields", "temperature", "message"),
    [
        ({}, 1.0, "teacher needs either path, .*, or urls"),
        ({"path": "t", "urls": ["http://h:1"]}, 1.0, "teacher needs either path, .*, or urls"),
        ({"urls": ["http://h:1"], "server": {}}, 1.0, "leave it out beside teacher.urls"),
        ({"urls": ["http://h:1"]}, 0.7, "temperature is 0.7, .* those of temperature 1"),
        ({"path": "t", "server": {}}, 0.7, "temperature is 0.7, .* those of temperature 1"),
        ({"path": "t", "server": {}}, 1.0, ""),
        ({"path": "t"}, 0.7, ""),
        ({"path": "t", "beta": 0.5}, 1.0, "teacher.beta is 0.5, and the sampled token alone .* set teacher.top_k"),
        ({"path": "t", "beta": 0.5, "top_k": 8}, 1.0, ""),
    ],
)
def test_who_holds_a_teacher(fields, temperature, message) -> None:
    run = replace(RUN, teacher=Teacher(**fields), rollouts=Rollouts(sampling=Sampling(temperature=temperature)))
    if message:
        with pytest.raises(UserError, match=message):
            check(run)
    else:
        assert check(run).held_teacher == ("" if "server" in fields else "t")


def test_a_warm_start_has_the_share_of_the_run_on_the_host() -> None:
    own = WarmStart(prompts=PROMPTS, updates=3, batch_size=1, optimizer=Optimizer(lr=1e-3, offload=1))
    run = replace(RUN, warm_start=own, optimizer=Optimizer(offload=0.5))
    policy, other = Mock(run=run), Mock()  # a stop is requested
    warm_start(policy, own, other, None, stop=other, display=other)
    policy.set_optimizer.assert_called_once_with(Optimizer(lr=1e-3, offload=0.5), 3)
    assert [*unread_settings(run)] == [
        "warm_start.optimizer.offload is 1, and not used: a warm start has optimizer.offload"
    ]
