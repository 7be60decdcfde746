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
from megatron_sspo.files.reading import parse_json, read_bytes, read_json
from megatron_sspo.files.writing import write_atomically, write_rows
from megatron_sspo.processes.console import Display
from megatron_sspo.run_folder.lock import RunLock
from megatron_sspo.types import Prompt, RolloutGroup
from sspo_lab.folder import flat

_EVALUATION, _RESULTS = "evaluation.json", "results.json"
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
        model, weights: the model's name in tables, and a fingerprint of its tensors and configuration.

    Raises:
        UserError: the folder holds other files or answers of another model, or another process writes to it.
    """

    def __init__(self, folder: Path, *, model: str, weights: str) -> None:
        self.folder = folder
        self._model = {"name": model, "weights": weights}
        self._sets: dict[str, dict[str, Any]] = {}

    @os_errors_as_user_errors()
    def __enter__(self) -> "EvaluationRecord":
        names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        if _EVALUATION not in names and not all(name.startswith(".") for name in names):
            raise UserError(f"{self.folder} exists and is not the folder of an evaluation: choose another --output")
        with ExitStack() as stack:
            stack.enter_context(RunLock(self.folder, what="another evaluation", option="--output"))
            known = _read_evaluation(self.folder)
            if known["model"].get("weights", self._model["weights"]) != self._model["weights"]:
                raise UserError(
                    f"{self.folder} holds the answers of {known['model']['name']}, whose weights are not those of "
                    f"{self._model['name']}: choose another --output, or remove it"
                )
            self._sets = known["sets"]
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
            settings: everything that the answers depend on besides model and prompts.
            samples: k, the number of sampled answers per prompt; 0 takes the k of earlier attempts.
        """
        prompts, known = stream.prompts, self._sets.get(name)
        new = {"prompts": f"{len(prompts)} prompts, sha256 {digest_of(prompts)}", **settings}
        if known is not None:
            samples = samples or known["samples"]
            before = flat({**known, "samples": known["samples"] or samples})
            now = flat({**new, "samples": samples, "dropped": known["dropped"]})
            for key in {**before, **now}:
                if before.get(key) != now.get(key):
                    raise UserError(
                        f"{self.folder} holds answers to {name} with {key} {before.get(key)!r}, and this evaluation "
                        f"has {now.get(key)!r}: choose another --output, or remove it"
                    )
        self._sets[name] = {**new, "samples": samples, "dropped": Counter(row.reason for row in stream.dropped)}
        content = {"model": self._model, "sets": self._sets}
        write_atomically(self.folder / _EVALUATION, json.dumps(content, indent=1) + "\n")
        (self.folder / name).mkdir(exist_ok=True)
        return AnswerFiles(self.folder / name, prompts, tokenizer, samples)

    @os_errors_as_user_errors()
    def finish_set(self, name: str, title: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a set to results.json."""
        path = self.folder / _RESULTS
        sets = read_json(path, remedy=_AGAIN)["sets"] if path.exists() else {}
        sets[name] = {"title": title, **metrics}
        write_atomically(path, json.dumps({"model": self._model["name"], "sets": sets}, indent=1) + "\n")


class AnswerFiles(AnswerStore):
    """The answers to a set, appended to files as they complete. The answers of earlier attempts are read first.

    Answers to other prompts are ignored. `samples` is k, the number of sampled answers per prompt.
    """

    @os_errors_as_user_errors()
    def __init__(self, folder: Path, prompts: Sequence[Prompt], tokenizer: Any, samples: int) -> None:
        super().__init__(tokenizer)
        self.samples = samples
        self._folder, self._prompts = folder, prompts
        ids = {prompt.id for prompt in prompts}
        for kind in ("greedy", "sampled"):
            self.by_id(kind).update((a.id, a) for a in _read_rows(self._path(kind)) if a.id in ids)

    def start_progress(self, display: Display) -> None:
        """Starts the display of progress: a bar on a terminal, otherwise a line for every tenth of the set."""
        name, total, done = self._folder.name, len(self._prompts) * (2 if self.samples else 1), self._num_done
        if 0 < done < total:
            display.log(f"{name}: {done} of {total} are answered already")
        display.begin(name, total, done)
        self._display, self._total = display, total

    @os_errors_as_user_errors()
    def save(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Appends groups to their file and flushes it to disk."""
        before, name = self._num_done, self._folder.name
        self.add(kind, groups)
        with self._path(kind).open("a", encoding="utf-8") as file:
            for group in groups:
                file.write(json.dumps(self.by_id(kind)[group.prompt.id].to_row()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for _ in range(before, self._num_done):
            self._display.advance(name)
        if not self._display.console.is_terminal and 10 * before // self._total < 10 * self._num_done // self._total:
            self._display.log(f"{name}: {self._num_done} of {self._total} answered")

    @os_errors_as_user_errors()
    def sort(self) -> None:
        """Rewrites the files with their lines in the order of the prompts."""
        for kind in ("greedy", "sampled"):
            if known := self.by_id(kind):
                write_rows(self._path(kind), (known[prompt.id].to_row() for prompt in self._prompts))

    @property
    def _num_done(self) -> int:
        return len(self.by_id("greedy")) + len(self.by_id("sampled"))

    def _path(self, kind: Kind) -> Path:
        return self._folder / f"{kind}.jsonl"


def _read_evaluation(folder: Path) -> dict[str, Any]:
    """Returns the model and the settings of each set; both are empty if the folder is new."""
    path = folder / _EVALUATION
    if not path.exists():
        return {"model": {}, "sets": {}}
    return read_json(path, remedy=f"remove {folder}, or choose another --output")


def _read_rows(path: Path) -> list[Answers]:
    """Reads the complete lines of a file, and truncates an incomplete last line, which a killed process may leave."""
    if not path.exists():
        return []
    content = read_bytes(path)
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
