"""Types, ranges and valid combinations of all settings, as one class per group of settings in conf/.

To add a task, add a subclass of Training to `Settings`. Imports pydantic, which `--help` must not wait for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from imdbattn.errors import UserError
from imdbattn.settings.keys import NAME, WRITERS, as_text, flat
from imdbattn.settings.safety import read_settings, refuse_untrusted


class Group(BaseModel):
    """A group of settings. Values are not converted; keys that have no field are errors.

    model_dump() returns the settings as they were given: the same keys in the same order, without defaults, which are
    for runs of earlier versions.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True, defer_build=True
    )
    _given: tuple[str, ...] = ()

    @model_validator(mode="wrap")
    @classmethod
    def remember_order(cls, values: Any, handler: Callable[[Any], Self]) -> Self:
        group = handler(values)
        group._given = tuple(values) if isinstance(values, Mapping) else group._given
        return group

    @model_serializer(mode="wrap")
    def in_given_order(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        values = {**(self.model_extra or {}), **handler(self)}  # pydantic omits extra keys where they are forbidden
        return {key: values[key] for key in dict.fromkeys([*self._given, *self.model_fields_set]) if key in values}

    @model_validator(mode="after")
    def check_all(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raises UserError for values that do not fit together."""

    @field_validator("*", mode="wrap")
    @classmethod
    def describe_error(cls, value: Any, handler: Callable[[Any], Any], info: Any) -> Any:
        field = cls.model_fields[info.field_name]
        try:
            return handler(value)
        except ValidationError as error:
            if holds_groups(field.annotation) and error.errors()[0]["loc"]:
                raise  # the error is that of a field in the group
            raise PydanticCustomError("described", "{words}", {"words": describe(field)}) from None


@dataclass(frozen=True)
class Must:
    """A condition on a value that is not None. words: the values that the field accepts."""

    words: str
    holds: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def check(self, value: Any) -> Any:
        if value is not None and not self.holds(value):
            raise ValueError
        return value


LIMITS = ("gt", "ge", "lt", "le")


def holds_groups(annotation: Any) -> bool:
    is_group = isinstance(annotation, type) and issubclass(annotation, Group)
    return is_group or any(map(holds_groups, get_args(annotation)))


def describe(field: FieldInfo) -> str:
    """The values that a field accepts: the words of its condition, or what its type and limits say."""
    union = get_origin(field.annotation) in (Union, UnionType)
    kinds = get_args(field.annotation) if union else (field.annotation,)
    limits = {name: getattr(one, name) for one in field.metadata for name in LIMITS if hasattr(one, name)}
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    metadata = [*field.metadata, *(one for kind in kinds for one in get_args(kind))]
    if conditions := [one for one in metadata if isinstance(one, Must)]:
        words = conditions[0].words
    elif choices := [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]:
        words = f"one of {', '.join(choices)}"
    elif bool in kinds:
        words = "true or false"
    elif float in kinds:
        below = "below " * ("lt" in limits and "ge" in limits)
        words = f"a number of at least {low}" if high is None else f"a number from {low} to {below}{high}"
        words += " (exclusive)" * ("gt" in limits)
    elif int in kinds:
        words = f"a whole number of at least {low}" + (f" and at most {high}" if high is not None else "")
    elif str in kinds:
        words = "text of at least one character"
    else:
        part = any(isinstance(kind, type) and issubclass(kind, Part) for kind in kinds)
        words = "settings of a part, with a _target_" if part else "a group of settings"
    return words + ", or null" * (NoneType in kinds)


Text = Annotated[str, Field(pattern=r"\S")]
OptionalText = Annotated[str | None, Field(pattern=r"\S")]
Count = Annotated[int, Field(ge=1)]
OptionalCount = Annotated[int | None, Field(ge=1)]
Amount = Annotated[int | float, Field(ge=0)]
OptionalAmount = Annotated[int | float | None, Field(ge=0)]
Share = Annotated[int | float, Field(ge=0, le=1)]
InnerShare = Annotated[int | float, Field(gt=0, lt=1)]
DropShare = Annotated[int | float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Errors = Literal["strict", "replace"]
Trust = Annotated[str | list[str] | None, Must("the name of a package, or a list of names", bool)]
ModelName = Annotated[  # part of a folder's name
    str, Must("at most 100 letters, digits, _ . and -, the first a letter, digit or _", re.compile(NAME).fullmatch)
]


# --- parts: classes that hydra.utils.instantiate calls, possibly the user's own ---------------------------------------


class Part(Group):
    model_config = ConfigDict(extra="allow")
    target: Text = Field(alias="_target_")


class Optimizer(Part):
    lr: Amount = 0.001
    weight_decay: Amount = 0.0


class Trainer(Part):
    """Lightning's Trainer. Checks those arguments for which Lightning itself fails late or trains nothing."""

    precision: Any
    strategy: Annotated[
        Any,
        Must(
            "a strategy whose processes are started by commands, such as ddp: not spawn, fork, notebook",
            lambda name: not (isinstance(name, str) and re.search("spawn|fork|notebook", name)),
        ),
    ] = "auto"
    num_nodes: Count = 1
    max_epochs: OptionalCount = None
    max_steps: Annotated[int, Must("-1, or a whole number of at least 1", lambda n: n == -1 or n > 0)] = -1
    val_check_interval: Annotated[
        int | float | str | None,
        Must(
            "a share of an epoch above 0 and at most 1, or a number of batches of at least 1",
            lambda every: isinstance(every, str) or (every > 0 if isinstance(every, int) else 0 < every <= 1),
        ),
    ] = None
    check_val_every_n_epoch: OptionalCount = 1
    accumulate_grad_batches: Count = 1
    gradient_clip_val: OptionalAmount = None
    log_every_n_steps: Count = 50
    enable_progress_bar: bool = True
    enable_model_summary: bool = False
    detect_anomaly: bool = False
    callbacks: Annotated[
        list[Any] | None,
        Must(
            "a list of callbacks, each with a _target_",
            lambda parts: all(isinstance(part, dict) and isinstance(part.get("_target_"), str) for part in parts),
        ),
    ] = None

    def check(self) -> None:
        for name, value in (self.model_extra or {}).items():
            if re.fullmatch("limit_(train|val|test)_batches", name) and value == 0:
                raise UserError(f"trainer.{name}=0 leaves no batches; test=false leaves the test split untouched")


class TrainerToScore(Trainer):
    precision: Any = None  # the run's own


class Distances(Part):
    waves: Count = 8
    places: Annotated[list[int | None], Must("a list of whole numbers, or null, such as [null,-1,1]", bool)] = [None]
    strength: Amount = 1.5


class Layer(Part):
    heads: Count = 1
    dropout: Share = 0.0
    score: Part | None = None
    distances: Distances | None = None


class Convolution(Part):
    kernel: Annotated[int, Must("an odd number of at least 1", lambda size: size > 0 and size % 2)] = 3


class Channel(Part):
    buckets: Count = 65536
    dropout: DropShare = 0.5


class Positions(Part):
    length: OptionalCount = None


# --- models -----------------------------------------------------------------------------------------------------------


class Embedding(Group):
    trainable: bool
    standardize: bool
    mixout: DropShare = 0.0


class Phrases(Group):
    longest: Annotated[int, Field(ge=1, le=3)]
    min_reviews: Count
    folds: Annotated[int, Field(ge=2)]


class Classifier(Part):
    name: ModelName
    after: OptionalText = None
    word_dropout: DropShare = 0.0
    embedding: Embedding
    phrases: Phrases | None = None
    channels: dict[str, Channel] | None = None
    convolution: Convolution | None = None
    positions: Positions
    layers: Annotated[int, Field(ge=0, le=1000)]
    layer: Layer
    pooling: Part
    width: OptionalCount
    dropout: Share

    def check(self) -> None:
        if self.phrases and not self.channels:
            raise UserError("model.phrases has no effect without model.channels: set it to null")
        for name, channel in (self.channels or {}).items():
            if not self.phrases:
                raise UserError(f"model.channels.{name} needs model.phrases")
            if channel.target.endswith(".PhraseVectors") and self.phrases.longest < 2:
                raise UserError(
                    f"model.channels.{name} needs phrases of two words or more: set model.phrases.longest=2"
                )


class EncoderDecoder(Part):
    name: ModelName
    after: OptionalText = None
    width: Count
    hidden: Count
    layers: Annotated[int, Field(ge=1, le=1000)]
    cell: Literal["gru", "lstm"]
    dropout: Share
    score: Part | None


# --- data -------------------------------------------------------------------------------------------------------------


class Glove(Group):
    source: Literal["auto", "wheel", "official", "torchtext"]
    dim: Count
    path: OptionalText

    def check(self) -> None:
        if self.path and self.source != "auto":
            raise UserError(
                f"data.glove.path is given, so data.glove.source={self.source} has no effect: leave it at auto"
            )
        if self.source == "wheel" and self.dim != 50:
            raise UserError(f"data.glove.source=wheel has 50 dimensions, not data.glove.dim={self.dim}: use official")
        if not self.path and self.dim not in (50, 100, 200, 300):
            raise UserError(f"data.glove.dim={self.dim}: choose one of 50, 100, 200, 300, or give data.glove.path")


Even = Annotated[  # because reviews come in pairs
    int, Must("an even number of at least 2", lambda size: size > 0 and size % 2 == 0)
]


class Probe(Group):
    """A generated corpus whose labels depend on word order alone."""

    seed: Annotated[int, Field(ge=0)]
    train: Even
    validation: Even
    test: Even

    def check(self) -> None:
        if (size := self.train + self.validation + self.test) > 20_480_000:
            raise UserError(
                f"data.probe.train, validation and test add up to {size:,} reviews, but only 20,480,000 exist"
            )


def check_shares(validation: float, test: float) -> None:
    if validation + test >= 1:
        raise UserError(
            f"data.validation_share={validation} and data.test_share={test} leave nothing for training: together they "
            "must be below 1"
        )


class ReviewData(Group):
    source: Literal["auto", "hub", "packaged", "path", "order_probe"]
    path: OptionalText
    text_column: Text
    label_column: Text
    label_names: Annotated[
        list[Any] | None,
        Must(
            "a list of different names, such as [neg,pos]",
            lambda names: 1 < len(names) == len({str(name) for name in names}),
        ),
    ]
    unlabelled: OptionalText = None
    encoding_errors: Errors
    hub_timeout: Annotated[int | float, Field(ge=0, le=60)] = 3
    validation_share: InnerShare
    test_share: InnerShare
    tokenizer: Literal["ptb", "basic_english", "whitespace", "torchtext"]
    cache_dir: OptionalText = None
    glove: Glove
    max_tokens: OptionalCount
    head_share: Share
    batch_tokens: OptionalCount
    eval_batch_tokens: Count
    word_dropout: DropShare
    pad_to: Count = 1
    probe: Probe | None = None

    def check(self) -> None:
        if self.path and self.source not in ("auto", "path"):
            raise UserError(f"data.path is given, so data.source={self.source} has no effect: leave it at auto")
        if self.source == "path" and not self.path:
            raise UserError(
                "data.source=path needs data.path=<a folder like aclImdb, or a file: csv, tsv, jsonl, parquet>"
            )
        if self.source == "order_probe" and not self.probe:
            raise UserError("data.source=order_probe needs data.probe: use data=order_probe")
        check_shares(self.validation_share, self.test_share)


Lengths = Annotated[
    list[int],
    Must(
        "the shortest and the longest length, from 1 to 1000, in ascending order, such as [1,20]",
        lambda bounds: len(bounds) == 2 and 1 <= bounds[0] <= bounds[1] <= 1000,
    ),
]
Strings = Annotated[int, Field(ge=1, le=10_000_000)]


class Reverse(Group):
    source: Literal["reverse"]
    seed: Annotated[int, Field(ge=0)]
    letters: Annotated[int, Field(ge=2, le=26)]
    lengths: Lengths
    test_lengths: Lengths | None = None
    train: Strings
    validation: Strings
    test: Strings
    batch_tokens: Count
    eval_batch_tokens: Count


class Translation(Group):
    source: Literal["auto", "path", "hub", "packaged"]
    path: OptionalText
    hub: Annotated[
        str | None,
        Must("owner/name of a dataset at the hub", re.compile(r"\w[\w.-]*/\w[\w.-]*").fullmatch),
    ]
    hub_config: OptionalText
    languages: Annotated[
        list[str],
        Must("a list of two different names, such as [en,fr]", lambda names: len(names) == len(set(names)) == 2),
    ]
    lower: bool
    min_frequency: Count
    max_tokens: OptionalCount
    limit: OptionalCount
    encoding_errors: Errors
    validation_share: InnerShare
    test_share: InnerShare
    batch_tokens: Count
    eval_batch_tokens: Count

    def check(self) -> None:
        given = [name for name in ("path", "hub") if getattr(self, name)]
        kind = self.source if self.source != "auto" else (given or ["packaged"])[0]
        if len(given) == 2:
            raise UserError(f"data.path={self.path} and data.hub={self.hub} are both given: leave one at null")
        if given and given != [kind]:
            raise UserError(f"data.{given[0]} is given, so data.source={kind} has no effect: leave it at auto")
        if kind in ("path", "hub") and not given:
            example = "a text file with source TAB target a line" if kind == "path" else "owner/name of a dataset"
            raise UserError(f"data.source={kind} needs data.{kind}=<{example}>")
        if kind == "packaged" and sorted(self.languages) != ["en", "fr"]:
            raise UserError(
                f"data.languages={self.languages}, but the packaged pairs have [en,fr]: use these, or give a data.path"
            )
        check_shares(self.validation_share, self.test_share)


PairData = Annotated[
    Annotated[Reverse, Tag("Reverse")] | Annotated[Translation, Tag("Translation")],
    Discriminator(lambda data: "Reverse" if dict(data).get("source") == "reverse" else "Translation"),
]


# --- training ---------------------------------------------------------------------------------------------------------


class Logger(Group):
    name: Literal["wandb", "tensorboard", "csv", "none"]
    project: Text = "imdbattn"
    entity: OptionalText = None
    group: OptionalText = None
    mode: Literal["online", "offline", "disabled"] | None = None
    timeout: Amount = 10
    table_rows: Annotated[int, Field(ge=0, le=10_000)] = 200
    table_characters: Count = 500


class Training(Group):
    """The settings of conf/train.yaml that all tasks have."""

    seed: Seed
    threads: Annotated[int | None, Field(ge=1, le=1024)] = None
    compile: Literal["inductor", "aot_eager"] | None = None
    test: bool = True
    optim: Optimizer
    embedding_lr: OptionalAmount
    warmup: Share
    decay: Literal["cosine", "linear", "none"]
    init: OptionalText = None
    label_smoothing: Share
    pictures: bool = True
    resume: OptionalText = None
    trust: Trust = None
    save_minutes: OptionalAmount = None
    patience: OptionalCount
    trainer: Trainer
    logger: Logger
    position_scale: Any = None  # read by conf/model alone

    @model_validator(mode="before")
    @classmethod
    def kinds_fit(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and (has_pairs(values) or is_encoder_decoder(values)):
            raise UserError("this model or data is for encoder-decoders: add task=seq2seq")
        return values


def has_pairs(settings: Mapping[str, Any]) -> bool:
    data = settings.get("data")
    return isinstance(data, Mapping) and ("letters" in data or "languages" in data)


def is_encoder_decoder(settings: Mapping[str, Any]) -> bool:
    model = settings.get("model")
    return isinstance(model, Mapping) and "hidden" in model


class ReviewSettings(Training):
    task: Literal["reviews"] = "reviews"
    choose_by: Literal["accuracy", "loss"] = "accuracy"
    data: ReviewData
    model: Classifier

    def check(self) -> None:
        check_positions(self.model.positions, self.data.max_tokens)
        if self.data.unlabelled:
            raise UserError("data.unlabelled has no effect without task=masked_words: omit it")


def check_positions(positions: Positions, max_tokens: int | None) -> None:
    """Raises UserError if positions are learned for shorter reviews than those of `max_tokens`."""
    if not positions.target.endswith(".Learned"):
        return
    if positions.length is None:
        raise UserError("learned positions need a last position: set data.max_tokens or model.positions.length")
    if max_tokens is None or max_tokens > positions.length:
        raise UserError(
            f"model.positions.length={positions.length} is too short for data.max_tokens={as_text(max_tokens)}"
        )


class Masked(Group):
    share: InnerShare
    words: Annotated[int, Field(ge=2)]


class MaskedWordSettings(Training):
    task: Literal["masked_words"]
    choose_by: Literal["accuracy", "loss"] = "accuracy"
    masked: Masked
    data: ReviewData
    model: Classifier

    def check(self) -> None:
        check_positions(self.model.positions, self.data.max_tokens)
        if self.init:
            raise UserError("init has no effect with task=masked_words: set init=null")


class Seq2SeqSettings(Training):
    task: Literal["seq2seq"]
    choose_by: Literal["accuracy", "loss", "bleu"] = "accuracy"
    data: PairData
    model: EncoderDecoder

    @model_validator(mode="before")
    @classmethod
    def kinds_fit(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and isinstance(values.get("data"), Mapping):
            source, model = values["data"].get("source"), values.get("model")
            if isinstance(model, Mapping) and not is_encoder_decoder(values):
                name = f"model={model.get('name')}"
            elif not has_pairs(values):
                name = f"data.source={source}"
            elif (source == "reverse") != ("letters" in values["data"]):
                needed = "reverse" if source == "reverse" else "translation"
                raise UserError(f"data.source={source} needs settings that data={needed} brings")
            else:
                return values
            raise UserError(
                f"task=seq2seq cannot use {name}: its data are reverse and translation, its models {', '.join(WRITERS)}"
            )
        return values

    def check(self) -> None:
        if self.init:
            raise UserError("init has no effect with task=seq2seq: set init=null")
        if self.choose_by == "bleu" and isinstance(self.data, Reverse):
            raise UserError("choose_by=bleu needs words: use data=translation")


Settings = ReviewSettings | MaskedWordSettings | Seq2SeqSettings


# --- the other commands -----------------------------------------------------------------------------------------------


class GloveHere(Group):
    source: Literal["auto", "wheel", "official", "torchtext"] | None = None
    dim: OptionalCount = None
    path: OptionalText = None


class DataHere(Group):
    """Locations of files on this machine. None is the run's own."""

    cache_dir: OptionalText = None
    glove: GloveHere


class OtherData(DataHere):
    path: OptionalText
    source: Literal["auto", "hub", "packaged", "path"] | None
    text_column: OptionalText
    label_column: OptionalText
    encoding_errors: Errors | None
    max_tokens: OptionalCount
    test_lengths: Lengths | None


class Evaluate(Group):
    run: OptionalText
    split: Literal["train", "validation", "test"]
    trust: Trust
    data: OtherData
    trainer: TrainerToScore


class Predict(Group):
    run: OptionalText
    text: Any
    file: OptionalText
    trust: Trust
    explain: bool
    beams: Annotated[int, Field(ge=1, le=100)]
    length_penalty: Annotated[int | float, Field(ge=0, le=10)]
    data: DataHere

    def check(self) -> None:
        if self.text is not None and self.file is not None:
            raise UserError("give text= or file=, not both")


class Picture(Group):
    picture: Literal["positions", "attention", "scaling"]
    run: OptionalText
    text: Any
    row: Annotated[int | None, Field(ge=0)]
    words: Annotated[int, Field(ge=1, le=200)]
    out: OptionalText
    trust: Trust
    data: DataHere

    def check(self) -> None:
        if self.picture == "attention" and (self.text is None) == (self.row is None):
            raise UserError("picture=attention needs text=... or row=<row of a test review>, one of them")


class Compare(Group):
    runs: Any
    out: OptionalText
    split: Literal["test", "validation"] | None
    against: OptionalText
    resamples: Annotated[int, Field(ge=100, le=1_000_000)]
    seed: Seed
    disagreements: Annotated[int, Field(ge=0)]
    words: Annotated[
        dict[str, list[Text]],
        Must(
            "names (other than length) with a list of words each, such as {not: [not, n't]}",
            lambda words: "length" not in words and all(words.values()),
        ),
    ]


class Dashboard(Group):
    entity: OptionalText
    project: Text
    group: OptionalText
    by: Text
    timeout: Amount
    dry_run: bool
    out: Text

    def check(self) -> None:
        if not self.dry_run and not self.entity:
            raise UserError("entity=<W&B user or team> is needed, or dry_run=true writes the workspace as JSON")


# --- validation -------------------------------------------------------------------------------------------------------

AnyGroup = TypeVar("AnyGroup", bound=Group)


def validate(settings: Mapping[str, Any], extra: Literal["allow"] | None = None) -> Settings:
    """The settings of a training run as objects. extra: whether unknown keys are allowed.

    Raises UserError that names the first setting with a wrong value, and what it must be.
    """
    tasks = {kind.model_fields["task"].annotation: kind for kind in get_args(Settings)}
    names = {get_args(annotation)[0]: kind for annotation, kind in tasks.items()}
    task = settings.get("task", "reviews")
    if not isinstance(task, str) or task not in names:
        raise UserError(f"task={as_text(task)} must be one of {', '.join(names)}")
    return validate_as(names[task], settings, extra)


def validate_as(kind: type[AnyGroup], settings: Mapping[str, Any], extra: Literal["allow"] | None = None) -> AnyGroup:
    """The settings as an object of that class. Raises UserError as `validate` does."""
    for key, value in flat(settings).items():
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):  # bytes of a file name
            raise UserError(f"{key}={value!a} is not UTF-8: rename the file or folder")
    try:
        return kind.model_validate(settings, extra=extra)
    except ValidationError as error:
        raise UserError(in_one_line(error, settings)) from None


def in_one_line(errors: ValidationError, settings: Any) -> str:
    """The first error, as `key=value must be ...`."""
    error, keys = errors.errors()[0], []
    for part in error["loc"]:  # which also names members of unions
        if isinstance(settings, Mapping) and part in settings:
            settings = settings[part]
            keys.append(str(part))
    if error["type"] == "missing":
        return f"{'.'.join([*keys, str(error['loc'][-1])])} is missing"
    if error["type"] == "extra_forbidden":
        return f"there is no setting {'.'.join(keys)}"
    words = error["msg"] if error["type"] == "described" else "a group of settings"
    return f"{'.'.join(keys)}={as_text(settings)} must be {words}"


def read_run(file: Path, trust: Any = None, own: Mapping[str, Any] | None = None) -> Settings:
    """The settings in a run's config.yaml, which may come from anywhere. trust, own: see `refuse_untrusted`.

    Raises UserError for wrong or missing values, and for a class that is not trusted.
    """
    settings = read_settings(file)
    refuse_untrusted(settings, file, trust, own)
    try:
        return validate(settings, extra="allow")
    except UserError as error:
        way_out = ": copy the run folder again, or train again" if str(error).endswith("is missing") else ""
        raise UserError(f"{file}: {error}{way_out}") from None
