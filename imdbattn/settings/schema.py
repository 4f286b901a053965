"""Checks the types, ranges and combinations of all settings, with one class per group of settings in conf/.

A training run uses the composed settings themselves, as an OmegaConf DictConfig; the classes only check them. Other
commands use objects of their class. Not imported for `--help`, because pydantic is slow to import.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from imdbattn.errors import UserError
from imdbattn.settings.keys import ENCODER_DECODERS, NAME, as_dict, as_text, flat
from imdbattn.settings.safety import read_settings, refuse_untrusted


class Group(BaseModel):
    """A group of settings. Keys that have no field are errors; those with a default here may be missing."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True, defer_build=True
    )

    @model_validator(mode="after")
    def combinations(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raises UserError for values that contradict each other."""


def must_be(description: str, condition: Callable[[Any], Any]) -> AfterValidator:
    """A condition on a value that is not None. description: the values that meet it, for the error message."""

    def check(value: Any) -> Any:
        if value is not None and not condition(value):
            raise PydanticCustomError("condition", "must be {description}", {"description": description})
        return value

    return AfterValidator(check)


Text = Annotated[str, must_be("text of at least one character", str.strip)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
InnerShare = Annotated[float, Field(gt=0, lt=1)]
DropShare = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Resamples = Annotated[int, Field(ge=100, le=1_000_000)]
Errors = Literal["strict", "replace"]
Trust = str | list[str] | None
Odd = Annotated[int, must_be("an odd number of at least 1", lambda words: words > 0 and words % 2)]
ModelName = Annotated[  # part of a folder's name
    str, must_be("at most 100 letters, digits, _ . and -, the first a letter, digit or _", re.compile(NAME).fullmatch)
]


# --- parts: classes named by `_target_`, possibly the user's own ------------------------------------------------------


class Part(Group):
    model_config = ConfigDict(extra="allow")
    target: Text = Field(alias="_target_")


class Optimizer(Part):
    lr: Amount = 0.001
    weight_decay: Amount = 0.0


class Trainer(Part):
    """Lightning's Trainer. Checks arguments for which Lightning would fail late or not train."""

    precision: Any
    strategy: Annotated[
        Any,
        must_be(
            "a strategy whose processes are started by commands, such as ddp: not spawn, fork, notebook",
            lambda name: not re.search("spawn|fork|notebook", str(name)),
        ),
    ] = "auto"
    num_nodes: Count = 1
    max_epochs: Count | None = None
    max_steps: Annotated[int, must_be("-1, or an integer of at least 1", lambda steps: steps == -1 or steps > 0)] = -1
    check_val_every_n_epoch: Count | None = 1
    accumulate_grad_batches: Count = 1
    gradient_clip_val: Amount | None = None
    log_every_n_steps: Count = 50
    enable_progress_bar: bool = True
    enable_model_summary: bool = False
    detect_anomaly: bool = False
    callbacks: list[Part] | None = None

    def check(self) -> None:
        for name, value in (self.model_extra or {}).items():
            if re.fullmatch("limit_(train|val|test)_batches|val_check_interval", name) and value == 0:
                raise UserError(f"trainer.{name}=0 leaves no batches; use test=false to skip the test split")
            if name in ("min_epochs", "min_steps") and not (value is None or isinstance(value, int)):
                raise UserError(f"trainer.{name}={value} must be an integer")
            if name == "max_time" and value and self.max_epochs is None and self.max_steps == -1:
                raise UserError("trainer.max_time needs trainer.max_epochs or max_steps too, for the learning rate")


class Distances(Part):
    waves: Count = 8
    places: Annotated[list[int | None], Field(min_length=1)] = [None]
    strength: Amount = 1.5


class Layer(Part):
    heads: Count = 1
    dropout: Share = 0.0
    score: Part | None = None
    distances: Distances | None = None


class Convolution(Part):
    kernel: Odd = 3


class Positions(Part):
    length: Count | None = None


# --- models -----------------------------------------------------------------------------------------------------------


class Embedding(Group):
    trainable: bool
    standardize: bool
    mixout: DropShare


class Phrases(Group):
    longest: Annotated[int, Field(ge=1, le=3)]
    min_reviews: Count
    folds: Annotated[int, Field(ge=2)]


class Classifier(Part):
    name: ModelName
    after: Text | None = None
    word_dropout: DropShare = 0.0
    embedding: Embedding
    phrases: Phrases | None = None
    channels: dict[str, Part] | None = None
    convolution: Convolution | None = None
    positions: Positions
    layers: Annotated[Natural, Field(le=1000)]
    layer: Layer
    pooling: Part
    width: Count | None
    dropout: Share

    def check(self) -> None:
        if self.phrases and not self.channels:
            raise UserError("model.phrases has no effect without model.channels: set it to null")
        for name in self.channels or ():
            if not self.phrases:
                raise UserError(f"model.channels.{name} needs model.phrases")


class EncoderDecoder(Part):
    name: ModelName
    after: Text | None = None
    width: Count
    hidden: Count
    layers: Annotated[Count, Field(le=1000)]
    cell: Literal["gru", "lstm"]
    dropout: Share
    score: Part | None


# --- data -------------------------------------------------------------------------------------------------------------


GloveSource = Literal["auto", "wheel", "official", "torchtext"]
Zero = Annotated[int | float, Field(ge=0, le=0)]  # word_dropout of pairs: debug=overfit sets it for all tasks


class Glove(Group):
    source: GloveSource
    dim: Count
    path: Text | None

    def check(self) -> None:
        if self.path and self.source != "auto":
            raise UserError(f"data.glove.source={self.source} has no effect with data.glove.path: set it to auto")
        if self.source == "wheel" and self.dim != 50:
            raise UserError(f"data.glove.source=wheel has 50 dimensions, not data.glove.dim={self.dim}: use official")
        if not self.path and self.dim not in (50, 100, 200, 300):
            raise UserError(f"data.glove.dim={self.dim}: choose one of 50, 100, 200, 300, or give data.glove.path")


Even = Annotated[Count, Field(multiple_of=2)]  # reviews come in pairs


class Probe(Group):
    """A generated corpus whose labels depend on word order alone."""

    seed: Natural
    train: Even
    validation: Even
    test: Even

    def check(self) -> None:
        if (size := self.train + self.validation + self.test) > 20_480_000:
            raise UserError(f"data.probe.train, validation and test add up to {size:,} reviews, but 20,480,000 exist")


def check_shares(validation: float, test: float, setting: str) -> None:
    """Raises UserError if validation and test are all of the data. setting: the one that test is from."""
    if validation + test >= 1:
        raise UserError(f"data.validation_share={validation} and {setting} leave nothing for training: change one")


def all_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


LabelNames = Annotated[
    list[Any],
    must_be("a list of names, such as [neg,pos]; in YAML and Python with quotes: ['0', '1']", all_text),
    must_be("a list of different names, such as [neg,pos]", lambda names: 1 < len(names) == len(set(names))),
]


class ReviewData(Group):
    source: Literal["auto", "hub", "packaged", "path", "order_probe"]
    path: Text | None
    text_column: Text
    label_column: Text
    label_names: LabelNames | None
    extra: Text | None = None
    encoding_errors: Errors
    hub_timeout: Annotated[Amount, Field(le=60)]
    validation_share: InnerShare
    test_share: InnerShare
    folds: Annotated[int | None, Field(ge=2)]
    fold: Count | None
    tokenizer: Literal["ptb", "basic_english", "whitespace", "torchtext"]
    cache_dir: Text | None
    glove: Glove
    max_tokens: Count | None
    head_share: Share
    limit: Count | None
    batch_tokens: Count | None
    eval_batch_tokens: Count
    word_dropout: DropShare
    pad_to: Count
    padded_lengths: Count | None
    probe: Probe | None = None

    def check(self) -> None:
        if self.path and self.source not in ("auto", "path"):
            raise UserError(f"data.source={self.source} has no effect with data.path: set it to auto")
        if self.source == "path" and not self.path:
            raise UserError("data.source=path needs data.path=<folder like aclImdb; csv, tsv, jsonl or parquet file>")
        if self.source == "order_probe" and not self.probe:
            raise UserError("data.source=order_probe needs data.probe: use data=order_probe")
        if self.folds and self.limit:
            raise UserError(f"data.limit={self.limit} cannot be combined with data.folds={self.folds}: omit one")
        if self.fold and not self.folds:
            raise UserError(f"data.fold={self.fold} needs the number of folds, such as data.folds=10")
        if self.folds and not self.fold:
            raise UserError(
                f"data.folds={self.folds} needs data.fold: data.fold=1 tests one fold, "
                f"-m 'data.fold=range(1,{self.folds + 1})' or +experiment=folds trains a run for each"
            )
        if self.fold and self.folds and self.fold > self.folds:
            raise UserError(f"data.fold={self.fold} must be at most data.folds={self.folds}")
        setting, test_share = ("folds", 1 / self.folds) if self.folds else ("test_share", self.test_share)
        check_shares(self.validation_share, test_share, f"data.{setting}={getattr(self, setting)}")


Lengths = Annotated[
    list[int],
    must_be(
        "the shortest and the longest length, from 1 to 1000, such as [1,20]",
        lambda bounds: len(bounds) == 2 and 1 <= bounds[0] <= bounds[1] <= 1000,
    ),
]
Strings = Annotated[int, Field(ge=1, le=10_000_000)]


class Reverse(Group):
    source: Literal["reverse"]
    seed: Natural
    letters: Annotated[int, Field(ge=2, le=26)]
    lengths: Lengths
    test_lengths: Lengths | None
    train: Strings
    validation: Strings
    test: Strings
    batch_tokens: Count
    eval_batch_tokens: Count
    word_dropout: Zero = 0


class Translation(Group):
    source: Literal["auto", "path", "hub", "packaged"]
    path: Text | None
    hub: Annotated[
        str | None, must_be("owner/name of a dataset on the hub", re.compile(r"\w[\w.-]*/\w[\w.-]*").fullmatch)
    ]
    hub_config: Text | None
    languages: Annotated[
        list[str],
        must_be("a list of two different names, such as [en,fr]", lambda names: len(names) == len(set(names)) == 2),
    ]
    lower: bool
    min_frequency: Count
    max_tokens: Count | None
    limit: Count | None
    encoding_errors: Errors
    validation_share: InnerShare
    test_share: InnerShare
    batch_tokens: Count
    eval_batch_tokens: Count
    word_dropout: Zero = 0

    def check(self) -> None:
        given = [name for name in ("path", "hub") if getattr(self, name)]
        kind = self.source if self.source != "auto" else (given or ["packaged"])[0]
        if len(given) == 2:
            raise UserError(f"data.path={self.path} and data.hub={self.hub} are both given: set one to null")
        if given and given != [kind]:
            raise UserError(f"data.source={kind} has no effect with data.{given[0]}: set it to auto")
        if kind in ("path", "hub") and not given:
            example = "a text file with source TAB target per line" if kind == "path" else "owner/name of a dataset"
            raise UserError(f"data.source={kind} needs data.{kind}=<{example}>")
        if kind == "packaged" and sorted(self.languages) != ["en", "fr"]:
            raise UserError(
                f"data.languages={self.languages}, but the packaged pairs have [en,fr]: use these, or give a data.path"
            )
        check_shares(self.validation_share, self.test_share, f"data.test_share={self.test_share}")


PairData = Annotated[
    Annotated[Reverse, Tag("reverse")] | Annotated[Translation, Tag("translation")],
    Discriminator(lambda data: "reverse" if "letters" in dict(data) else "translation"),
]


# --- training ---------------------------------------------------------------------------------------------------------


class Logger(Group):
    name: Literal["wandb", "tensorboard", "csv", "none"]
    project: Text = "imdbattn"
    entity: Text | None = None
    group: Text | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    timeout: Amount = 10
    table_rows: Annotated[int, Field(ge=0, le=10_000)] = 200
    table_characters: Count = 500


class Training(Group):
    """The settings of conf/train.yaml that all tasks have."""

    task: str
    seed: Seed
    threads: Annotated[int | None, Field(ge=1, le=1024)]
    compile: Literal["inductor", "reduce-overhead", "aot_eager"] | None
    test: bool
    optim: Optimizer
    embedding_lr: Amount | None
    warmup: Share
    decay: Literal["cosine", "linear", "none"]
    init: Text | None
    label_smoothing: Share
    pictures: bool
    resume: Text | None
    trust: Trust
    save_minutes: Amount | None
    patience: Count | None
    trainer: Trainer
    logger: Logger
    position_scale: Any = None  # read only in conf/model
    digest: Text | None = None  # of settings.keys.variant; a run records it
    overrides: list[Text] = []  # settings.keys.named_overrides of the command line
    data: Any  # a class for each task


class ClassifierSettings(Training):
    choose_by: Literal["accuracy", "loss"]
    data: ReviewData
    model: Classifier

    def check(self) -> None:
        positions, max_tokens = self.model.positions, self.data.max_tokens
        if positions.target in ("imdbattn.nn.Learned", "imdbattn.nn.ladder.Learned"):
            if positions.length is None:
                raise UserError("learned positions need a length: set data.max_tokens or model.positions.length")
            if max_tokens is None or max_tokens > positions.length:
                length = f"model.positions.length={positions.length}"
                raise UserError(f"{length} is too short for data.max_tokens={as_text(max_tokens)}")


class ReviewSettings(ClassifierSettings):
    task: Literal["reviews"]


class Masked(Group):
    share: InnerShare
    words: Annotated[int, Field(ge=2)]


class MaskedWordSettings(ClassifierSettings):
    task: Literal["masked_words"]
    masked: Masked


class Seq2SeqSettings(Training):
    task: Literal["seq2seq"]
    choose_by: Literal["accuracy", "loss", "bleu"]
    data: PairData
    model: EncoderDecoder

    def check(self) -> None:
        if self.choose_by == "bleu" and isinstance(self.data, Reverse):
            raise UserError("choose_by=bleu needs words: use data=translation")


TASKS: dict[str, type[Training]] = {
    "reviews": ReviewSettings,
    "masked_words": MaskedWordSettings,
    "seq2seq": Seq2SeqSettings,
}


def check_task(settings: Mapping[str, Any]) -> str:
    """Returns the task. Raises UserError if it is unknown, or if the data or the model are those of another task."""
    if (task := settings.get("task")) is None:
        raise UserError("task is missing")
    if (task := str(task)) not in TASKS:
        raise UserError(f"task={task} must be one of {', '.join(TASKS)}")
    data, model = (keys if isinstance(keys := settings.get(group), Mapping) else () for group in ("data", "model"))
    for_pairs = ("letters" in data or "languages" in data, "hidden" in model)
    if task == "seq2seq" and not all(for_pairs):
        raise UserError(
            f"task=seq2seq needs data=reverse or translation, and one of the models {', '.join(ENCODER_DECODERS)}"
        )
    if task != "seq2seq" and any(for_pairs):
        raise UserError("this model or data is for encoder-decoders: add task=seq2seq")
    return task


# --- the other commands; None is the run's own setting ----------------------------------------------------------------


class LocalGlove(Group):
    source: GloveSource | None = None
    dim: Count | None = None
    path: Text | None = None


class LocalData(Group):
    """Locations of files on this machine."""

    cache_dir: Text | None = None
    glove: LocalGlove


class OtherData(LocalData):
    path: Text | None
    source: Literal["auto", "hub", "packaged", "path"] | None
    text_column: Text | None
    label_column: Text | None
    label_names: LabelNames | None
    encoding_errors: Errors | None
    max_tokens: Count | None
    test_lengths: Lengths | None


class OfRun(Group):
    run: Text | None
    trust: Trust
    data: LocalData


class Evaluate(OfRun):
    split: Literal["train", "validation", "test"]
    data: OtherData
    trainer: Trainer


class Predict(OfRun):
    run: Text | Annotated[list[Text], Field(min_length=1)] | None  # type: ignore[assignment]
    text: Any
    file: Text | None
    column: Text | None = None
    out: Annotated[
        Text | None,
        must_be(
            "a file that ends in .csv, .tsv, .jsonl or .parquet",
            re.compile(r"(?i).*[^/]\.(csv|tsv|jsonl|parquet)").fullmatch,
        ),
    ] = None
    explain: bool
    beams: Annotated[Count, Field(le=100)]
    length_penalty: Annotated[Amount, Field(le=10)]

    def check(self) -> None:
        if self.text is not None and self.file is not None:
            raise UserError("give text= or file=, not both")
        if self.column and not self.file:
            raise UserError(f"column={self.column} is for a table: add file=reviews.csv, or omit it")
        if self.out and self.explain:
            raise UserError("give out= or explain=true, not both")
        if self.explain and isinstance(self.run, list):
            raise UserError("explain=true is for one run: give run=<run folder>")


class Export(OfRun):
    out: Text | None
    vectors: Literal["training", "all"]
    precision: Literal["auto", "float32"]
    graph: bool
    onnx: bool


class Compare(Group):
    runs: Any
    out: Text | None
    split: Literal["test", "validation"] | None
    against: Text | None
    resamples: Resamples
    seed: Seed
    disagreements: Natural
    words: Annotated[
        dict[str, Annotated[list[Text], Field(min_length=1)]],
        must_be("lists of words with names other than length", lambda words: "length" not in words),
    ]


ScoreName = Literal[
    "rollout",
    "last_layer",
    "all_layers",
    "norms",
    "norm_rollout",
    "value_zeroing",
    "value_zeroing_rollout",
    "gradient",
    "integrated_gradients",
    "leave_one_out",
    "random",
]


class Adversary(Group):
    reviews: Natural
    epsilon: InnerShare
    steps: Count
    restarts: Count


class AopcSearch(Group):
    reviews: Natural
    beam: Count


class Faithfulness(Group):
    runs: Any
    out: Text | None
    split: Literal["test", "validation"]
    reviews: Count
    scores: Annotated[
        list[ScoreName | Part],
        must_be("a list with random, with which the others are compared", lambda names: "random" in names),
    ]
    shares: Annotated[list[InnerShare], Field(min_length=1)]
    costly_reviews: Count
    search: AopcSearch
    random_reviews: Natural
    permutations: Count
    adversary: Adversary
    epoch_reviews: Natural
    pairs_of: Text | None
    margin: Share
    resamples: Resamples
    seed: Seed
    trust: Trust
    data: LocalData


class Explore(Group):
    runs: Any
    port: Annotated[Natural, Field(le=65535)]
    open: bool
    trust: Trust
    data: LocalData


class Search(Group):
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
    space: dict[str, Any]


class Dashboard(Group):
    entity: Text | None
    project: Text
    group: Text | None
    by: Text
    timeout: Amount
    dry_run: bool
    out: Text

    def check(self) -> None:
        if not self.dry_run and not self.entity:
            raise UserError("entity=<W&B user or team> is needed, or dry_run=true writes the workspace as JSON")


# --- validation -------------------------------------------------------------------------------------------------------

AnyGroup = TypeVar("AnyGroup", bound=Group)


def validate(settings: Mapping[str, Any]) -> DictConfig:
    """The settings of a training run, read-only.

    Raises UserError that names the first setting with a wrong value, and what it must be.
    """
    values = as_dict(settings)
    validate_as(TASKS[check_task(values)], values)
    cfg = OmegaConf.create(values)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def validate_as(kind: type[AnyGroup], settings: Mapping[str, Any]) -> AnyGroup:
    """The settings as an object of that class. Raises UserError as `validate` does."""
    for key, value in flat(settings).items():
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):  # bytes of a file name
            raise UserError(f"{key}={value!a} is not UTF-8: rename the file or folder, or write the text in UTF-8")
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise UserError(in_one_line(error, settings)) from None


def in_one_line(errors: ValidationError, settings: Any) -> str:
    """The first error, as `key=value must be ...`."""
    error, keys = errors.errors()[0], []
    for part in error["loc"]:
        with suppress(KeyError, IndexError, TypeError):  # the name of a union's member is not a key
            settings = settings[part]
            keys.append(str(part))
    key = ".".join(keys)
    if error["type"] == "missing":
        return ".".join([*keys, str(error["loc"][-1])]) + " is missing"
    if error["type"] == "extra_forbidden":
        return f"there is no setting {key}"
    if error["type"] == "model_type":
        return f"{key}={as_text(settings)} must be a group of settings"
    return f"{key}={as_text(settings)} {re.sub(r'^(Input|List) should', 'must', error['msg'])}"


def read_run(file: Path, trust: Any = None, own: Mapping[str, Any] | None = None) -> DictConfig:
    """The settings in a run's config.yaml, which may be untrusted. trust, own: see `refuse_untrusted`.

    Raises UserError for wrong or missing values, and for a class that is not trusted.
    """
    return check_run(read_settings(file), file, trust, own)


def check_run(settings: Mapping[str, Any], file: Path, trust: Any, own: Mapping[str, Any] | None = None) -> DictConfig:
    """The settings of a run that were read from `file`. Raises UserError as `read_run` does."""
    refuse_untrusted(settings, file, trust, own)
    try:
        return validate(settings)
    except UserError as error:
        remedy = ": copy the run folder again, or train again" if str(error).endswith("is missing") else ""
        raise UserError(f"{file}: {error}{remedy}") from None
