"""`megatron-sspo evaluate`: evaluates one model on some sets."""

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
from megatron_sspo.evaluation.answers import format_metrics
from megatron_sspo.evaluation.evaluate import SetEvaluation
from megatron_sspo.evaluation.model import fingerprint, open_model
from megatron_sspo.evaluation.parts import open_held_out_parts
from megatron_sspo.evaluation.record import AnswerFiles, EvaluationRecord
from megatron_sspo.evaluation.sets import check_held_out, held_out_streams, sampling_of, sets_of, settings_of
from megatron_sspo.files.writing import write_atomically
from megatron_sspo.paper import HELD_OUT
from megatron_sspo.plots import lab
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
) -> None:
    """Evaluates a model and prints the table. An interrupted evaluation is resumed: no prompt is answered twice.

    Args:
        run: the run whose evaluation, reward, engine, sampling and seed are used.
        path, config_folder: see `open_model`.
        names: names of sets, of the run or else of the paper; empty takes all sets of the run.
        samples: k, the number of sampled answers per prompt; None takes the run's.
        output: the folder, see `EvaluationRecord`; None takes one in `evaluations/`, named after the path.
        label: the model's name in tables; "" takes the path.
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
            options = {"samples": samples, "tokenizer": tokenizer}
            stores = {
                name: record.open_set(name, streams[name], settings_of(run, held_out), **options)
                for name, held_out in run.evaluation.sets.items()
            }
            _generate_answers(run, folder, streams, stores, record, display)
    head, rows, lines = lab.call("evaluations.one_table", output)
    write_atomically(output / "table.md", lab.call("table.markdown", head, rows))
    display.table("percent, with 95 % intervals over prompts", head, rows)
    for line in lines:
        display.log(line)


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
        parts = stack.enter_context(open_held_out_parts(run))
        engine = open_engine(run, folder.config_folder, record.folder)
        stack.callback(engine.close)

        def sync() -> None:
            engine.load_weights(((name, folder.read(name)) for name in folder.shapes()), 0)

        sync()
        for name, held_out in sets_of(run).items():
            started, store, (reward, environment) = time.monotonic(), stores[name], parts[name]
            store.start_progress(display)
            evaluation = SetEvaluation(
                engine,
                reward,
                streams[name].prompts,
                sampling_of(run, held_out),
                store=store,
                samples=store.samples,
                seed=run.seed,
                environment=environment,
            )
            metrics = evaluation.compute_metrics(sync)
            store.sort()
            record.finish_set(name, held_out.title or name, metrics)
            display.log(f"{name}: {format_metrics(metrics)}  ({time.monotonic() - started:.0f} s)")
