"""`Published`: the place and the columns of a published data set."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_sspo.data.row import Fields, Record, Row, checked_values, row_from_record
from megatron_sspo.data.sources import huggingface, jsonl, parquet
from megatron_sspo.errors import UserError

DATA_FOLDER = "MEGATRON_SSPO_DATA"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A data set as it is published on the Hugging Face hub."""

    name: str  # in this package
    repository: str  # on the hub
    splits: tuple[str, ...]
    columns: tuple[str, ...]  # required columns
    metadata: tuple[str, ...] = ()  # optional columns that are kept in the rows' metadata; all others are ignored
    config: str | None = None
    answer_after: str = ""  # mark in the answer's column, after whose last occurrence the gold answer is

    def rows(self, split: str | None = None, path: str | Path = "") -> list[Row]:
        """Returns the rows of a split, by default the first, of a set whose columns are the question and the answer."""
        split = self.splits[0] if split is None else split
        question, answer = self.columns
        fields = Fields(question=question, answer=answer, answer_after=self.answer_after)
        return [row_from_record(record, fields) for record in self.records(split, path)]

    def records(self, split: str, path: str | Path = "") -> Iterator[Record]:
        """Yields the rows of a split, from the hub, its cache, or files with the same columns.

        Args:
            split: one of `splits`; from the hub also a part of it, such as "train[:100]".
            path: a .jsonl or .parquet file, or a folder with files named after the split, or with one file if the set
                has one split; by default the set's folder in the one that MEGATRON_SSPO_DATA names, or else the hub.
        """
        if split.partition("[")[0] not in self.splits:
            raise UserError(f"the set {self.name} has no split {split!r}: choose {' or '.join(self.splits)}")
        if not path and (folder := os.environ.get(DATA_FOLDER)):
            path = Path(folder) / self.name
        wanted = self.columns + self.metadata
        for record in self._read(split, path, wanted):
            values = checked_values(record)
            if missing := [column for column in self.columns if column not in values]:
                raise UserError(
                    f"{record.place}: there is no column {missing[0]!r}: the set {self.name} has the columns of "
                    f"{self.repository}, {' and '.join(self.columns)}; to read a file with other columns, name it as "
                    "the source and set the options question and answer"
                )
            yield replace(record, values={name: value for name, value in values.items() if name in wanted})

    def _read(self, split: str, path: str | Path, wanted: tuple[str, ...]) -> Iterator[Record]:
        if not path:
            yield from huggingface.records(self.repository, split, self.config, wanted)
            return
        for file in self._files(Path(path), split):
            yield from parquet.records(file, wanted) if file.suffix == ".parquet" else jsonl.records(file)

    def _files(self, path: Path, split: str) -> list[Path]:
        if path.suffix in (".jsonl", ".parquet"):
            return [path]
        folder = path / self.config if self.config and (path / self.config).is_dir() else path
        found = sorted(file for file in folder.rglob("*") if file.suffix in (".jsonl", ".parquet"))
        files = [file for file in found if file.stem == split or file.stem.startswith(f"{split}-")]
        if not files and len(found) == len(self.splits) == 1:  # a file of any name, such as data/dapo-math-17k.parquet
            return found
        if not files:
            raise UserError(
                f"{folder} has no file of the split {split!r} of {self.name}: name it {split}.jsonl, {split}.parquet "
                f"or {split}-*.parquet (a part such as [:100] is for the hub alone), set the option path to the file "
                f"itself, or unset {DATA_FOLDER} to read {self.repository} from the hub"
            )
        # another folder or format has another copy of the same questions
        return [file for file in files if (file.parent, file.suffix) == (files[0].parent, files[0].suffix)]
