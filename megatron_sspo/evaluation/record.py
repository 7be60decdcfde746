"""The folder of an evaluation: its settings, and every answer as soon as it is generated."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from megatron_sspo.data.stream import PromptStream, digest_of
from megatron_sspo.errors import UserError, os_errors_as_user_errors, short_repr
from megatron_sspo.evaluation.answers import Answers
from megatron_sspo.evaluation.evaluate import AnswerStore, Kind
from megatron_sspo.evaluation.table import MEASURE, Result
from megatron_sspo.files.reading import parse_json, read_bytes, read_json
from megatron_sspo.files.writing import open_to_append, write_atomically, write_rows
from megatron_sspo.processes.console import Display
from megatron_sspo.run_folder.lock import RunLock
from megatron_sspo.types import Prompt, RolloutGroup

_EVALUATION, _RESULTS = "evaluation.json", "results.json"
_MAX_BYTES = 64 * 1024**3  # bytes
_AGAIN = "remove it, and evaluate again: answers that are in the folder are kept"


class EvaluationRecord:
    """A context manager for the folder, which holds answers of one model, with fixed settings for each set.

    ```
    evaluation.json        the model; for each set: prompts, number of dropped rows, reward, sampling, seed, engine
    <set>/greedy.jsonl     one line per prompt, written as answers complete
    <set>/sampled.jsonl    the same with k answers
    results.json           the metrics of the completed sets
    ```

    Args:
        folder: the folder; it is created if missing.
        model: the model's name in tables.
        weights: a fingerprint of the model's tensors and configuration.

    Raises:
        UserError: the folder holds other files or answers of another model, or another process writes to it.
    """

    def __init__(self, folder: Path, *, model: str, weights: str) -> None:
        self.folder = folder
        self._model = {"name": model, "weights": weights}
        self._sets: dict[str, dict[str, Any]] = {}

    @os_errors_as_user_errors()
    def __enter__(self) -> "EvaluationRecord":
        _check_content(self.folder)
        with ExitStack() as stack:
            stack.enter_context(RunLock(self.folder, what="another evaluation", option="--output"))
            self._sets = self._read_sets()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()

    @os_errors_as_user_errors()
    def open_set(
        self, name: str, stream: PromptStream, settings: Mapping[str, Any], *, samples: int, tokenizer: Any
    ) -> "AnswerFiles":
        """Opens the answers to a set: reads the answers of earlier attempts, and accepts new ones.

        Args:
            stream: the set's prompts and dropped rows.
            settings: everything that the answers depend on besides model and prompts.
            samples: k, the number of sampled answers per prompt; 0 takes the k of earlier attempts.
            tokenizer: the tokenizer that decodes prompts.

        Raises:
            UserError: the folder holds answers to the set under other settings, or to other prompts.
        """
        prompts = stream.prompts
        new = {"prompts": _fingerprint(prompts), **settings}
        known = self._sets.get(name)
        if known is not None:
            known_samples = known["samples"]
            fixed = {key: value for key, value in known.items() if key not in ("samples", "dropped")}
            _check_settings(self.folder, name, fixed, new)
            if samples and known_samples and samples != known_samples:
                raise _settings_error(self.folder, name, "samples", known_samples, samples)
            samples = samples or known_samples
        dropped = Counter(row.reason for row in stream.dropped)
        self._sets[name] = {**new, "samples": samples, "dropped": dropped}
        content = {"model": self._model, "sets": self._sets}
        write_atomically(self.folder / _EVALUATION, json.dumps(content, indent=1) + "\n")
        (self.folder / name).mkdir(exist_ok=True)
        return AnswerFiles(self.folder / name, prompts, tokenizer, samples)

    @os_errors_as_user_errors()
    def finish_set(self, name: str, title: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a set to results.json."""
        path = self.folder / _RESULTS
        sets = _read_results(path)["sets"] if path.exists() else {}
        sets[name] = {"title": title, **metrics}
        write_atomically(path, json.dumps({"model": self._model["name"], "sets": sets}, indent=1) + "\n")

    def _read_sets(self) -> dict[str, dict[str, Any]]:
        elsewhere = f"remove {self.folder}, or choose another --output"
        known, sets = _read_evaluation(self.folder / _EVALUATION, remedy=elsewhere)
        if not known:
            return {}
        if known["weights"] != self._model["weights"]:
            raise UserError(
                f"{self.folder} holds the answers of {known['name']}, whose weights are not those of "
                f"{self._model['name']}: choose another --output, or remove it"
            )
        return sets


class AnswerFiles(AnswerStore):
    """The answers to a set, appended to files as they complete. The answers of earlier attempts are read first.

    Args:
        folder: the set's folder.
        prompts: the set's prompts; answers to other prompts are ignored.
        tokenizer: the tokenizer that decodes prompts.
        samples: k, the number of sampled answers per prompt.

    Raises:
        UserError: a complete line cannot be read, or has another number of sampled answers.
    """

    @os_errors_as_user_errors()
    def __init__(self, folder: Path, prompts: Sequence[Prompt], tokenizer: Any, samples: int) -> None:
        super().__init__(tokenizer)
        self.samples = samples
        self._folder = folder
        ids = {prompt.id for prompt in prompts}
        for kind in ("greedy", "sampled"):
            known = {answers.id: answers for answers in _read_rows(self._path(kind))}
            self.by_id(kind).update((id, answers) for id, answers in known.items() if id in ids)
        for id, answers in self.by_id("sampled").items() if samples else ():
            if len(answers.answers) != samples:
                raise UserError(
                    f"{self._path('sampled')} has {len(answers.answers)} answers to {short_repr(id)}, and the "
                    f"evaluation samples {samples}: remove the line"
                )

    def start_progress(self, name: str, num_prompts: int, display: Display) -> None:
        """Starts the display of progress: a bar on a terminal, otherwise a line for every tenth of the set."""
        total = num_prompts * (2 if self.samples else 1)
        done = self._num_done
        if 0 < done < total:
            display.log(f"{name}: {done} of {total} are answered already")
        display.begin(name, total, done)
        self._display, self._name, self._total = display, name, total

    @os_errors_as_user_errors()
    def save(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Appends groups to their file and flushes it to disk."""
        before = self._num_done
        self.add(kind, groups)
        with open_to_append(self._path(kind)) as file:
            for group in groups:
                file.write(json.dumps(self.by_id(kind)[group.prompt.id].to_row()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._show_progress(before, self._num_done)

    @os_errors_as_user_errors()
    def sort(self, prompts: Sequence[Prompt]) -> None:
        """Rewrites the files with their lines in the order of the prompts."""
        for kind in ("greedy", "sampled"):
            if known := self.by_id(kind):
                write_rows(self._path(kind), (known[prompt.id].to_row() for prompt in prompts))

    @property
    def _num_done(self) -> int:
        return len(self.by_id("greedy")) + len(self.by_id("sampled"))

    def _show_progress(self, before: int, now: int) -> None:
        for _ in range(before, now):
            self._display.advance(self._name)
        if not self._display.console.is_terminal and 10 * before // self._total < 10 * now // self._total:
            self._display.log(f"{self._name}: {now} of {self._total} answered")

    def _path(self, kind: Kind) -> Path:
        return self._folder / f"{kind}.jsonl"


@os_errors_as_user_errors()
def read_result(folder: Path) -> Result:
    """Reads the metrics and the settings of an evaluation.

    Raises:
        UserError: the folder has no metrics, or they or the settings cannot be read.
    """
    path = folder / _RESULTS
    if not path.exists():
        raise UserError(
            f"{folder} has no {_RESULTS}: it is not an evaluation's folder, or no set of it is complete; name what "
            "megatron-sspo evaluate MODEL --output has written"
        )
    content = _read_results(path)
    sets = {name: {k: v for k, v in found.items() if k != "title"} for name, found in content["sets"].items()}
    titles = {name: found["title"] for name, found in content["sets"].items()}
    _, settings = _read_evaluation(folder / _EVALUATION, remedy="remove the folder, and evaluate again")
    return Result(model=content["model"], sets=sets, titles=titles, settings=settings)


def _read_evaluation(path: Path, *, remedy: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the model and the settings of each set; both are empty if the file does not exist."""
    if not path.exists():
        return {}, {}
    content = read_json(path, remedy=remedy)
    known: Any = content.get("model")
    sets: Any = content.get("sets")
    if not _is_object(known, ("name", "weights")) or not _is_object(sets):
        raise UserError(f"{path} does not say what was evaluated: {remedy}")
    for name, settings in sets.items():
        if not _is_object(settings, ("samples", "prompts")) or not _is_count(settings["samples"]):
            raise UserError(f"{path} is damaged in {short_repr(name)}: {remedy}")
    return known, sets


def _read_results(path: Path) -> dict[str, Any]:
    content = read_json(path, remedy=_AGAIN)
    if not isinstance(content.get("model"), str) or not _is_object(content.get("sets")):
        raise UserError(f"{path} has no metrics of an evaluation; {_AGAIN}")
    for name, metrics in content["sets"].items():
        if not _is_object(metrics, ("title",)) or not isinstance(metrics["title"], str):
            raise UserError(f"{path} is damaged in {short_repr(name)}; {_AGAIN}")
        for measure, value in metrics.items():
            is_right = isinstance(value, (int, float)) and not isinstance(value, bool)
            if measure != "title" and not (is_right and abs(value) < 1e300):
                raise UserError(f"{path} has {short_repr(measure)} {short_repr(value)} of {short_repr(name)}; {_AGAIN}")
            ends = [f"{measure}{end}" for end in ("/low", "/high")]
            if MEASURE.fullmatch(measure) and not _is_object(metrics, ends):
                raise UserError(f"{path} has {measure} of {short_repr(name)} without its interval; {_AGAIN}")
    return content


def _is_object(value: Any, names: Sequence[str] = ()) -> bool:
    return isinstance(value, dict) and all(name in value for name in names)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _read_rows(path: Path) -> list[Answers]:
    """Reads the complete lines of a file, and truncates an incomplete last line, which a killed process may leave."""
    if not path.exists():
        return []
    content = read_bytes(path, at_most=_MAX_BYTES, remedy="remove it, and evaluate again")
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    found = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found.append(Answers.from_row(parse_json(line)))
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path}, line {number} is damaged ({short_repr(error)}): remove the line") from error
    return found


def _fingerprint(prompts: Sequence[Prompt]) -> str:
    return f"{len(prompts)} prompts, sha256 {digest_of(prompts)}"


def _check_content(folder: Path) -> None:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    is_other = _EVALUATION not in names and not all(name.startswith(".") for name in names)
    if folder.is_file() or is_other:
        raise UserError(f"{folder} exists and is not the folder of an evaluation: choose another --output")


def _check_settings(folder: Path, name: str, known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in (*known, *new):
        before, now = known.get(key), new.get(key)
        if before != now and isinstance(before, Mapping) and isinstance(now, Mapping):
            _check_settings(folder, name, before, now)
        if before != now:
            raise _settings_error(folder, name, key, before, now)


def _settings_error(folder: Path, name: str, key: str, before: Any, now: Any) -> UserError:
    return UserError(
        f"{folder} holds answers to {name} with {key} {before!r}, and this evaluation has {now!r}: choose another "
        "--output, or remove it"
    )
