"""Reports on the prompts of a run, at its start."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from megatron_sspo.data.open import describe_sources
from megatron_sspo.data.row import count_dropped
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.files.writing import write_rows
from megatron_sspo.processes import agree
from megatron_sspo.processes.console import Display


def report_prompts(display: Display, folder: Path, prompts: PromptStream, held_out: Mapping[str, PromptStream]) -> None:
    """Reports what columns became, dropped prompts, which a file lists, and prompts both trained on and evaluated."""
    named = {"prompts": prompts, **{f"evaluation set {name}": held_out[name] for name in held_out}}
    for line in describe_sources(named):
        display.log(line)
    if prompts.dropped:
        dropped = f"dropped {count_dropped(prompts.dropped)} (dropped_prompts.jsonl)"
        display.log(f"{len(prompts.prompts):,} prompts; {dropped}")
        if agree.is_main():
            with os_errors_as_user_errors(folder):
                write_rows(folder / "dropped_prompts.jsonl", map(asdict, prompts.dropped))
    trained = {prompt.tokens for prompt in prompts.prompts}
    for name, stream in held_out.items():
        of = f"{len(stream.prompts):,} prompts of the evaluation set {name}"
        if stream.dropped:
            display.log(f"{of}; dropped {count_dropped(stream.dropped)}")
        if shared := sum(prompt.tokens in trained for prompt in stream.prompts):
            display.log(f"{shared:,} of the {of} are also trained on: prompts.without leaves them out")
