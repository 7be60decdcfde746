"""`Published`: the place and the columns of a published data set."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_sspo.data.row import Fields, Record, Row, describe_type, row_from_record
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
        """Returns the rows of a split, for a set whose two columns are the question and the answer.

        Args:
            split: see `records`; None: the first of `splits`.
            path: files to read in place of the hub; see `records`.

        Raises:
            UserError: see `records`, or an answer does not have its mark.
        """
        split = self.splits[0] if split is None else split
        question, answer = self.columns
        fields = Fields(question=question, answer=answer, answer_after=self.answer_after)
        return [row_from_record(record, fields) for record in self.records(split, path)]

    def records(self, split: str, path: str | Path = "") -> Iterator[Record]:
        """Yields the rows of a split, from the hub, its cache, or files with the same columns.

        Args:
            split: one of `splits`; from the hub also a part of it, such as "train[:100]".
            path: a .jsonl or .parquet file, which is read whole, or a folder, such as a download of the repository. A
                folder has files named after the split, or one file if the set has one split. If the path is empty, the
                set is read from its folder in the folder that MEGATRON_SSPO_DATA names; without that variable, from
                the hub.

        Raises:
            UserError: there is no such split, file or column, there are no rows, or the hub cannot be reached.
        """
        whole, bracket, _ = split.partition("[")
        if whole not in self.splits:
            raise UserError(f"the set {self.name} has no split {split!r}: choose {' or '.join(self.splits)}")
        path = path or self._data_folder()
        if path and bracket:
            raise UserError(
                f"the split {split!r} of {self.name} is a part, and {path} is read whole: set split to {whole!r}, or "
                "leave the other rows out of the file"
            )
        record = None
        for record in self._read(split, path):
            yield self._checked(record)
        if record is None:
            raise UserError(f"{path or self.repository} has no rows: is it a whole copy of {self.repository}?")

    def _read(self, split: str, path: str | Path) -> Iterator[Record]:
        wanted = self.columns + self.metadata
        if not path:
            yield from huggingface.records(self.repository, split, self.config, wanted)
            return
        for file in self._files(Path(path), split):
            yield from parquet.records(file, wanted) if file.suffix == ".parquet" else jsonl.records(file)

    def _data_folder(self) -> str | Path:
        """Returns the set's folder in the folder that MEGATRON_SSPO_DATA names; "" without that variable."""
        if not (folder := os.environ.get(DATA_FOLDER)):
            return ""
        path = Path(folder) / self.name.replace("-", "_")
        if not path.is_dir():
            raise UserError(
                f"there is no {path}, and {DATA_FOLDER} names {folder} as the folder of all sets: download "
                f"{self.repository} there, or unset the variable to read it from the hub"
            )
        return path

    def _files(self, path: Path, split: str) -> list[Path]:
        if path.suffix in (".jsonl", ".parquet"):
            return [path]
        if not path.is_dir():
            raise UserError(
                f"there is no {path}: the option path of {self.name} is a .jsonl or .parquet file or a folder of them, "
                f"relative to {Path.cwd()}"
            )
        folder = path / self.config if self.config and (path / self.config).is_dir() else path
        found = [file for file in folder.rglob("*") if file.suffix in (".jsonl", ".parquet")]
        files = sorted(file for file in found if file.stem == split or file.stem.startswith(f"{split}-"))
        if not files and len(found) == len(self.splits) == 1:  # a file of any name, such as data/dapo-math-17k.parquet
            return found
        if not files:
            raise UserError(
                f"{folder} has no file of the split {split!r}: name it {split}.jsonl, {split}.parquet or "
                f"{split}-*.parquet, or set the option path to the file itself"
            )
        first = files[0]
        if other := next((file for file in files if (file.parent, file.suffix) != (first.parent, first.suffix)), None):
            raise UserError(
                f"{first} and {other} are of two copies of the split {split!r}, whose questions would come twice: set "
                "the option path to one of them, or remove the other"
            )
        return files

    def _checked(self, record: Record) -> Record:
        if not isinstance(record.values, Mapping):
            raise UserError(f"{record.place}: a record must be an object, and this is {describe_type(record.values)}")
        if missing := [column for column in self.columns if column not in record.values]:
            raise UserError(
                f"{record.place}: there is no column {missing[0]!r}: the set {self.name} has the columns of "
                f"{self.repository}, {' and '.join(self.columns)}; to read a file with other columns, name it as the "
                "source and set the options question and answer"
            )
        wanted = self.columns + self.metadata
        return replace(record, values={name: value for name, value in record.values.items() if name in wanted})
