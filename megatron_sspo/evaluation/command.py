"""`megatron-sspo evaluate` and `table`: evaluate one model on some sets, and compare several evaluations."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from megatron_sspo.config.naming import one_line
from megatron_sspo.data.fit import check_prompts_fit
from megatron_sspo.data.open import describe_sources
from megatron_sspo.data.row import count_dropped
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.differences import find_differences
from megatron_sspo.evaluation.evaluate import SetEvaluation
from megatron_sspo.evaluation.model import fingerprint, open_model
from megatron_sspo.evaluation.record import AnswerFiles, EvaluationRecord, read_result
from megatron_sspo.evaluation.sets import (
    check_held_out,
    held_out_streams,
    open_environments,
    open_rewards,
    sampling_of,
    sets_of,
    settings_of,
)
from megatron_sspo.evaluation.table import Result, format_metrics, left_out, markdown, paper_table
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.paper import HELD_OUT
from megatron_sspo.processes.console import Display
from megatron_sspo.rollout.open_engine import check_engine, open_engine
from megatron_sspo.run import Evaluation, Run, check
from megatron_sspo.weights.conversion.progress import check_content
from megatron_sspo.weights.formats.model_folder import ModelFolder

FOLDER = Path("evaluations")  # parent of the folders that are not named on the command line


def evaluate_model(
    run: Run,
    path: Path,
    *,
    names: Sequence[str] = (),
    samples: int | None = None,
    output: Path | None = None,
    label: str = "",
    config_folder: Path | None = None,
) -> Result:
    """Evaluates a model and prints the table. An interrupted evaluation is resumed: no prompt is answered twice.

    Args:
        run: the run whose evaluation, reward, engine, sampling and seed are used.
        path: the folder of the model; see `open_model`.
        names: names of sets, of the run or else of the paper; empty takes all sets of the run.
        samples: k, the number of sampled answers per prompt; None takes the run's.
        output: the folder, see `EvaluationRecord`; None takes one in `evaluations/`, named after the path.
        label: the model's name in tables; "" takes the path.
        config_folder: see `open_model`.

    Raises:
        UserError: a set, model, engine or reward is missing or wrong, or the folder belongs to another evaluation.
    """
    run = _with_sets(run, names)
    assert run.evaluation is not None
    samples = run.evaluation.samples if samples is None else samples
    check(replace(run, evaluation=replace(run.evaluation, samples=samples)))
    check_engine(run)
    label = one_line(label or str(path))
    parts = [part for part in path.parts if part not in ("/", ".", "..")]
    output = output or FOLDER / ("-".join(parts) or "model")
    display = Display(silent=False)
    with open_model(path, config_folder) as folder:
        tokenizer = load_tokenizer(folder.config_folder)
        streams = held_out_streams(run, tokenizer)
        for stream in streams.values():
            check_prompts_fit(stream.prompts, folder.config)
        check_held_out(run, streams, tokenizer)
        with EvaluationRecord(output, model=label, weights=fingerprint(folder)) as record:
            display.log(f"{label}: {', '.join(streams)}, into {output}")
            for line in describe_sources(streams):
                display.log(line)
            for name, stream in streams.items():
                if stream.dropped:
                    display.log(f"{name}: {len(stream.prompts):,} prompts; dropped {count_dropped(stream.dropped)}")
            stores = {
                name: record.open_set(
                    name, streams[name], settings_of(run, held_out), samples=samples, tokenizer=tokenizer
                )
                for name, held_out in run.evaluation.sets.items()
            }
            _generate_answers(run, folder, streams, stores, record, display)
    result = read_result(output)
    head, rows = paper_table([result])
    write_atomically(output / "table.md", markdown(head, rows))
    display.table("percent, with 95 % intervals over prompts", head, rows)
    for line in left_out([result]):
        display.log(line)
    return result


def print_table(folders: Sequence[str]) -> None:
    """Prints the paper's table of evaluations in Markdown; the first evaluation is the base of comparison.

    A line below the table names each model without a row, and each set whose evaluations have other prompts, rewards or
    settings.

    Args:
        folders: folders of evaluations, each as `folder` or, to rename its model, as `name=folder`. The runs of a sweep
            have `=` in their names, so a text that is an existing folder has no name before it.

    Raises:
        UserError: a folder has no results, or its files cannot be read.
    """
    results = []
    for text in folders:
        name, equals, folder = ("", "", text) if Path(text).is_dir() else text.partition("=")
        result = read_result(Path(folder if equals else text))
        results.append(replace(result, model=name) if equals else result)
    differences = find_differences(results)
    print(markdown(*paper_table(results, unlike=[other for other, _ in differences])), end="")
    if lines := [*left_out(results), *(text for _, text in differences)]:
        print("", *map(one_line, lines), sep="\n")


def _with_sets(run: Run, names: Sequence[str]) -> Run:
    """Returns the run with the sets of these names, the run's own or the paper's; all sets of the run by default."""
    if not names and run.evaluation is None:
        raise UserError(f"the recipe {run.name} has no evaluation: name sets of the paper with --sets")
    known = {**HELD_OUT, **sets_of(run)}
    names = [name if name in known else name.replace("_", "-") for name in names or sets_of(run)]
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"there is no evaluation set {unknown[0]!r}: choose one of {', '.join(known)}, or give the recipe "
            "evaluation=Evaluation(sets=...) with one"
        )
    return replace(run, evaluation=replace(run.evaluation or Evaluation(sets={}), sets={n: known[n] for n in names}))


def _generate_answers(
    run: Run,
    folder: ModelFolder,
    streams: Mapping[str, PromptStream],
    stores: Mapping[str, AnswerFiles],
    record: EvaluationRecord,
    display: Display,
) -> None:
    """Generates the missing answers, set by set."""
    check_content(folder)
    with ExitStack() as stack:
        stack.callback(display.end)
        rewards, environments = open_rewards(run, stack), open_environments(run, stack)
        engine = open_engine(run, folder.config_folder, record.folder)
        stack.callback(engine.close)

        def sync() -> None:
            engine.load_weights(((name, folder.read(name)) for name in folder.shapes()), 0)

        sync()
        for name, held_out in sets_of(run).items():
            started, store = time.monotonic(), stores[name]
            store.start_progress(display)
            evaluation = SetEvaluation(
                engine,
                rewards[name],
                streams[name].prompts,
                sampling_of(run, held_out),
                store=store,
                samples=store.samples,
                seed=run.seed,
                environment=environments[name],
            )
            metrics = evaluation.compute_metrics(sync)
            store.sort()
            record.finish_set(name, held_out.title or name, metrics)
            display.log(f"{name}: {format_metrics(metrics)}  ({time.monotonic() - started:.0f} s)")
