"""The settings of the commands other than imdbattn.train, one class for each command.

A setting of `data` or `trainer` that is None keeps the value that the run was trained with.
"""

import os
from glob import glob
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from imdbattn.errors import UserError
from imdbattn.io.files import with_home
from imdbattn.settings.keys import defaults, overlay
from imdbattn.settings.schema import (
    Amount,
    ClassSettings,
    Count,
    Flag,
    FunctionName,
    InnerShare,
    Lengths,
    Natural,
    Seed,
    SettingsGroup,
    Text,
    TrainerSettings,
    Trust,
    VectorSource,
    validate_as,
)

# --- one run --------------------------------------------------------------------------------------


class LocalVectorSettings(SettingsGroup):
    source: VectorSource | None = None
    dim: Count | None = None
    path: Text | None = None


class LocalDataSettings(SettingsGroup):
    cache_dir: Text | None = None
    vectors: LocalVectorSettings


class RunCommandSettings(SettingsGroup):
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

    def model_post_init(self, context: object) -> None:
        if self.text is not None and (self.file is not None or self.keep):
            raise UserError("text= cannot be combined with file= or keep=: omit one")
        if self.explain and (self.out or isinstance(self.run, list)):
            raise UserError("explain=true cannot be combined with out= or several runs: omit one")
        if self.keep and not (self.file and self.out):
            raise UserError("keep= copies columns of a table into another: add file= and out=")


class ExportSettings(RunCommandSettings):
    out: Text
    vectors: Literal["training", "all"]
    precision: Literal["auto", "float32"]
    graph: Flag
    onnx: Flag


# --- several runs ---------------------------------------------------------------------------------


def folders_in(runs: Any) -> list[str]:
    """Returns the folders in `runs`: one folder, or a list. A pattern such as runs/day* stands for
    the folders that it matches.
    """
    folders: list[str] = []
    for folder in runs if isinstance(runs, list) else [runs]:
        if folder not in (None, ""):
            matching = [] if os.path.exists(with_home(folder)) else glob(os.path.expanduser(folder))
            folders += sorted(matching) or [str(folder)]
    return folders


Folders = Annotated[list[Text], BeforeValidator(folders_in), Field(min_length=1)]


class RunsSettings(SettingsGroup):
    runs: Folders
    out: Text | None


class CompareSettings(RunsSettings):
    by_folder: bool
    split: Literal["test", "validation"] | None
    against: Text | None
    disagreements: Natural
    metric: Literal["accuracy", "macro_f1"] | FunctionName
    words: dict[str, Annotated[list[Text], Field(min_length=1)]]


class ExploreSettings(SettingsGroup):
    runs: Folders
    port: Annotated[Natural, Field(le=65535)]
    open: Flag
    out: Text | None
    words: Count | None
    precision: Literal["float32", "float16"]
    reviews: Annotated[Natural, Field(le=1000)]
    trust: Trust
    data: LocalDataSettings


class AopcSettings(SettingsGroup):
    reviews: Natural
    beam: Count


class FaithfulnessSettings(RunsSettings):
    split: Literal["test", "validation"]
    seed: Seed
    reviews: Count
    # names, which tools/faithfulness/experiment checks, and functions
    attributions: list[Text | ClassSettings]
    shares: Annotated[list[InnerShare], Field(min_length=1)]
    costly_reviews: Count
    search: AopcSettings
    random_reviews: Natural
    pairs_of: Text | None
    trust: Trust
    data: LocalDataSettings


# --- searches and dashboards ----------------------------------------------------------------------


class SearchSettings(SettingsGroup):
    n_trials: Count
    n_jobs: Annotated[Count, Field(le=1024)]
    seed: Seed
    seeds: Annotated[Natural, Field(le=100)]
    pruner: Literal["median", "hyperband", "none"]
    startup_trials: Natural
    warmup_epochs: Natural
    resume: Text | None
    trust: Trust
    train: list[Text]
    space: Annotated[dict[str, object], Field(min_length=1)]


class DashboardSettings(SettingsGroup):
    entity: Text | None
    project: Text
    group: Text | None
    by: Text
    dry_run: Flag
    out: Text


COMMANDS: dict[str, type[SettingsGroup]] = {  # command -> the class of its settings
    "compare": CompareSettings,
    "dashboard": DashboardSettings,
    "evaluate": EvaluateSettings,
    "explore": ExploreSettings,
    "export": ExportSettings,
    "faithfulness": FaithfulnessSettings,
    "predict": PredictSettings,
    "search": SearchSettings,
}


def with_defaults(command: str, **changes: object) -> Any:
    """Returns the settings of a command: those of its file in conf/, except `hydra`, with these
    changes. A change to None keeps the default; in a group, other settings remain.
    """
    return validate_as(COMMANDS[command], overlay(defaults(command), changes))
