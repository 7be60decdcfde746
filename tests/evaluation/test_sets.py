"""The prompts of a run's held-out sets."""

from pathlib import Path

from megatron_sspo.evaluation.sets import held_out_streams
from megatron_sspo.run import Evaluation, HeldOut, Model, Prompts, Run
from tests.data.char_tokenizer import char_tokenizer

GSM8K = str(Path(__file__).parents[1] / "fixtures" / "gsm8k")


def test_a_set_without_the_prompts_of_another() -> None:
    test = Prompts(source="gsm8k", options={"path": GSM8K, "split": "test"}, template="{question}")
    train = Prompts(source="gsm8k", options={"path": GSM8K}, template="{question}", without=(test,))
    run = Run(
        name="a",
        model=Model(path="m"),
        prompts=train,
        num_updates=1,
        evaluation=Evaluation(sets={"train": HeldOut(prompts=train), "test": HeldOut(prompts=test)}),
    )
    streams = held_out_streams(run, char_tokenizer())
    assert [dropped.id for dropped in streams["train"].dropped] == ["train.jsonl:3"]
    assert {prompt.id for prompt in streams["train"].prompts} == {"train.jsonl:1", "train.jsonl:2"}
    assert streams["test"].dropped == []
