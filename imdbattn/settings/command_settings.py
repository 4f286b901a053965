"""The settings of commands that read runs, imdbattn.evaluate and imdbattn.predict among them.

A setting that is None keeps the value that the run was trained with.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from imdbattn.errors import UserError
from imdbattn.settings.schema import (
    Amount,
    ClassSettings,
    Count,
    Flag,
    Group,
    Lengths,
    Text,
    TrainerSettings,
    Trust,
    VectorSource,
)


class LocalVectorSettings(Group):
    source: VectorSource | None = None
    dim: Count | None = None
    path: Text | None = None


class LocalDataSettings(Group):
    cache_dir: Text | None = None
    vectors: LocalVectorSettings


class RunCommandSettings(Group):
    run: Text
    trust: Trust
    data: LocalDataSettings


class EvaluationDataSettings(LocalDataSettings):
    path: Text | None
    source: Literal["auto", "hub", "packaged", "path"] | ClassSettings | None
    text_column: Text | None
    label_column: Text | None
    label_names: Annotated[list[Text], Field(min_length=2)] | None
    max_tokens: Count | None
    test_lengths: Lengths | None


class EvaluateSettings(RunCommandSettings):
    split: Literal["train", "validation", "test"]
    data: EvaluationDataSettings
    trainer: TrainerSettings


class PredictSettings(RunCommandSettings):
    run: Text | Annotated[list[Text], Field(min_length=1)]  # type: ignore[assignment]
    text: Any
    file: Text | None
    column: Text | None = None
    keep: Text | list[Text] | None = None
    out: Text | None = None
    explain: Flag
    beams: Annotated[Count, Field(le=100)]
    length_penalty: Annotated[Amount, Field(le=10)]

    def check(self) -> None:
        both = {
            "text= and file=": self.text is not None and self.file is not None,
            "explain=true and out=": self.explain and self.out,
            "keep= and text=": self.keep and self.text is not None,
            "explain=true and several runs": self.explain and isinstance(self.run, list),
        }
        if given := [names for names, are_given in both.items() if are_given]:
            raise UserError(f"{given[0]} cannot be combined: omit one")
        if self.keep and not (self.file and self.out):
            raise UserError("keep= copies columns of a table into another: add file= and out=")
