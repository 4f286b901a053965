"""Where things lie, what settings may be, which of them a result depends on, and how a command starts and ends.

Imported by the entry points before anything slow: `--help` must not wait for torch.
"""

import argparse
import difflib
import functools
import gc
import hashlib
import importlib.util
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError
from imdbattn.settings.machine import slots
from imdbattn.settings.safety import read_settings, refuse_credentials, refuse_untrusted, visible

PACKAGE = Path(__file__).parents[1]
RUNGS = (  # conf/model, in the order in which the ladder is built
    "mean",
    "learned_query",
    "text_query",
    "base",
    "base_pe",
    "residual",
    "residual_pe",
    "residual_learned",
    "residual_cls",
    "residual_pe_cls",
)
BEYOND = (  # conf/model, with trained vectors and what training reviews say of words: no longer GloVe alone
    "tuned_mean",
    "log_counts_mean",
    "tuned",
    "convolved",
    "bigrams",
    "log_counts",
    "wide",
    "pretrained",
)
WRITERS = (  # conf/model, the encoder-decoders
    "seq2seq",
    "seq2seq_attention",
    "seq2seq_attention_dot",
    "seq2seq_attention_scaled",
    "seq2seq_attention_additive",
    "seq2seq_bahdanau",
)
NO_EFFECT = (  # settings that no number of a result depends on
    "hydra",
    "logger",
    "resume",
    "save_minutes",
    "threads",
    "trust",
    "test",
    "pictures",
    "data.cache_dir",
    "data.hub_timeout",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
    "trainer.log_every_n_steps",
    "trainer.profiler",
)
NAME = r"\w[\w.-]{0,99}"  # of a model: part of a folder's name
RANKS = ("LOCAL_RANK", "SLURM_LOCALID")  # environment variables: which of a machine's processes this one is
PARENT_PID = "IMDBATTN_PARENT_PID"  # environment variable: the process of ours that started this one
SWEEP_PID = "IMDBATTN_SWEEP_PID"  # environment variable: the process of the sweep that this one belongs to
OPEN = ("hydra", "trainer", "optim", "model", "position_scale", "words")  # what else may stand in them, others say
OPTIONAL = ("model.phrases", "model.convolution", "model.layer.distances")  # groups of settings that may be null
PHRASES = ("longest", "min_reviews", "folds")  # what model.phrases holds, where it is not null
WHERE = (
    "init",
    "data.path",
    "data.source",
    "data.glove.path",
    "data.glove.source",
)  # what was found there has fingerprints


ALIASES = {  # what other programs call a setting: the last part of its key here
    "learning_rate": "lr",
    "wd": "weight_decay",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "batch_size": "batch_tokens",
    "max_length": "max_tokens",
    "gpus": "devices",
    "optimizer": "optim",
}


def conf_dir() -> Path:
    """conf/ inside the installed package, or beside it in a checkout."""
    return next(folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if (folder / "train.yaml").exists())


def command(config_name: str, *paths: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], Any]]:
    """hydra.main over our conf/; a UserError, or what Hydra cannot compose, ends in one line and exit status 2.

    A folder that Hydra made for a run is not left behind empty then.
    paths: settings whose values are quoted on the way through Hydra's grammar, in which , { [ ( and = have a meaning.
    In a sweep they are not (a comma separates values there), and a UserError ends its job, not the sweep.
    """

    def decorate(task: Callable[[DictConfig], Any]) -> Callable[[], Any]:
        typed, begun = list(sys.argv), list[bool]()

        @functools.wraps(task)
        def guarded(cfg: DictConfig) -> Any:
            sys.argv[:] = typed  # DDP starts further processes with these words
            begun.append(True)
            folder = Path(HydraConfig.get().runtime.output_dir)
            fresh = folder != Path.cwd() and not any(folder.iterdir())
            try:
                return task(cfg)
            except UserError as error:
                complain(error)
                if in_sweep():
                    raise
                if fresh:
                    remove_empty(folder, f"{HydraConfig.get().job.name}.log")
                sys.exit(2)

        run = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(guarded)

        def main() -> Any:
            typed[:] = sys.argv
            begun.clear()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # lets Hydra's exceptions reach us; our other processes say so, too
            try:
                overrides = (argument.lstrip("+~").partition("=") for argument in typed[1:])
                refuse_credentials({name: value for name, _, value in overrides})
                refuse_missing_launchers(typed)
                options = options_of(typed[1:])
                refuse_strangers(config_name, typed[1:])
                words = options.overrides if options.multirun else [quoted(word, paths) for word in options.overrides]
                # Options first, for argparse takes no further words behind one that stands between two.
                sys.argv[1:] = [*(word for word in typed[1:] if word not in options.overrides), *words]
                return run()
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
            except UserError as error:
                if not begun:  # else it is said
                    complain(error)
                sys.exit(2)
            except (HydraException, OmegaConfBaseException, ValueError) as error:
                if begun:  # a mistake of ours
                    raise
                complain(complaint(error, config_name, typed[1:]))
                sys.exit(2)
            except OSError as error:  # Hydra makes the folders, and writes multirun.yaml
                if begun:
                    raise
                place = f"{error.filename or 'the sweep folder'} cannot be written ({error.strerror})"
                complain(f"{place}: make room, or choose another hydra.run.dir or hydra.sweep.dir")
                sys.exit(2)

        return main

    return decorate


def complain(reason: object) -> None:
    """Says what is wrong in one line, once for all processes of a machine, also where it quotes control characters."""
    if all(os.environ.get(name, "0") == "0" for name in RANKS):
        print(f"error: {visible(str(reason))}".replace("\n", " "), file=sys.stderr)


def digest_of_root(*, _root_: DictConfig) -> str:
    """`digest` for YAML: of the config that the interpolation stands in."""
    try:
        return digest(plain(OmegaConf.masked_copy(_root_, [str(key) for key in _root_ if key != "hydra"])))
    except UserError:
        return "invalid"  # the job itself will say why


def folder_name(name: str) -> str:
    """`name`, where it is the name of one folder."""
    return name if re.fullmatch(NAME, name) else "invalid"  # the job itself will say why


def run_name(now: str, name: str, digest: str) -> str:
    """Of a run's folder: when and what; in a SLURM job what all its tasks, and each new start of it, agree on."""
    name = folder_name(name)
    job = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{job}-{name}-{digest}" if job and not os.environ.get(SWEEP_PID) else f"{now}-{name}"


# For `--help` Hydra copies its one store of schemas 85 times, a third of a second, though it copies what it reads, too.
ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]

OmegaConf.register_new_resolver("either", lambda first, second: first or second, replace=True)
OmegaConf.register_new_resolver("run_name", run_name, replace=True)  # ${run_name:...}
OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)  # ${folder_name:...}
OmegaConf.register_new_resolver("digest", digest_of_root, replace=True)  # ${digest:}
OmegaConf.register_new_resolver("slots", slots, replace=True)  # ${slots:}, jobs that run well side by side here


@contextmanager
def many_imports() -> Iterator[None]:
    """For torch and Lightning: their 4,000 modules are no garbage, and looking for some there takes a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's options among the words of a command line, and its other words as `overrides`.

    Raises UserError for a word that looks like an option and is none; argparse would print eight lines.
    """

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}: write settings as name=value, without dashes; --help lists them")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        refuse(f"{unknown[0].partition('=')[0]} is not an option")
    return options


def has_plugin(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    except ModuleNotFoundError:
        return False


def refuse_missing_launchers(arguments: Collection[str]) -> None:
    """Raises UserError where a launcher is asked for whose extra is not installed; Hydra's words name no way out."""
    for launcher, extra in (("local", "joblib"), ("slurm", "submitit"), ("ray_cluster", "ray")):
        if f"hydra/launcher={launcher}" in arguments and not has_plugin(f"hydra_{extra}_launcher"):
            raise UserError(f"hydra/launcher={launcher} needs an extra: pip install 'imdbattn[{extra}]'")


def refuse_strangers(config_name: str, arguments: Sequence[str]) -> None:
    """Raises UserError for `+key=` of a key that nothing reads, which Hydra adds, and for `~key`, which it takes out.

    The lines say no value, which may be a credential.
    """
    if any(argument.startswith(("--config-dir", "-cd", "hydra.searchpath=")) for argument in arguments):
        return  # what is read there, nobody knows here
    for argument in arguments:
        found = re.match(r"(\+\+?|~)([\w./]+)", argument)
        if not found or within(found[2], *OPEN) or (conf_dir() / found[2]).is_dir():
            continue
        if found[1] == "~":
            raise UserError(f"{argument}: a setting cannot be taken out; give it another value, {found[2]}=...")
        if found[2] not in keys_of(config_name, arguments):
            raise UserError(no_setting(found[2], config_name, arguments))


def complaint(error: Exception, config_name: str, arguments: Sequence[str]) -> str:
    """What Hydra says of settings that it cannot compose, in one line, with the nearest right key or choice."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = [option for option in error.options or () if option != choice]
        near = difflib.get_close_matches(choice, options, 1) or [""]
        nearest = f"{group}={near[0]} is the nearest of" if near[0] else "choose one of"
        return f"{group}={choice} is no choice: {nearest} {', '.join(options)}" if options else text
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read as a setting: write name=value, quoted where special: \"name='a, b'\""
    if found := re.match(r"Could not (?:override|delete from config\.) '(\S+?)'", text):
        argument = next((a for a in arguments if a.lstrip("+~").startswith(found[1])), found[1])
        if (conf_dir() / found[1]).is_dir():
            return f"{argument}: {found[1]} is left out unless it is added: +{argument.lstrip('+~')}"
        return no_setting(found[1], config_name, arguments)
    if found := re.match(r"Could not append to config\. An item is already at '(\S+?)'", text):
        return f"+{found[1]}: {found[1]} is a setting already: leave the + away"
    if found := re.match(r"Ambiguous value for argument '(.*?)' 1\.", text):
        return f"{found[1]} has several values: -m makes a sweep of them"
    return f"settings: {text}; --help shows them all"


def no_setting(key: str, config_name: str, arguments: Sequence[str]) -> str:
    """That there is no such setting, and which one is the nearest: by its last part, else by the whole key."""
    keys = keys_of(config_name, arguments)
    last = key.rpartition(".")[2]
    parts = {one: one.rpartition(".")[2] for one in keys}
    like = difflib.get_close_matches(ALIASES.get(last, last), parts.values(), 1)
    near = difflib.get_close_matches(key, [one for one in keys if parts[one] in like], 1, cutoff=0)
    near = near or difflib.get_close_matches(key, keys, 1)
    return f"there is no setting {key}; {f'the nearest is {near[0]}' if near else '--help lists them all'}"


def keys_of(config_name: str, arguments: Sequence[str]) -> list[str]:
    """The dotted keys of the config, groups included, with the choices of `arguments` where these compose."""
    chosen = [a for a in arguments if (conf_dir() / a.lstrip("+").partition("=")[0]).is_dir() and "," not in a]
    for overrides in (chosen, []):
        with suppress(Exception), hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = OmegaConf.to_container(hydra.compose(config_name, overrides))
            leaves = list(flat(cfg))  # type: ignore[arg-type]
            groups = {key.rpartition(".")[0] for key in leaves} | {key.partition(".")[0] for key in leaves}
            return sorted(groups - {""}) + leaves
    return []


def remove_empty(folder: Path, log: str) -> None:
    """Removes a folder that holds nothing but that log, and the folders above it that are empty then, up to here."""
    if {file.name for file in folder.iterdir()} <= {log}:
        (folder / log).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            for place in (folder, *folder.parents):
                if place in (Path.cwd(), *Path.cwd().parents):
                    break
                place.rmdir()


def in_sweep() -> bool:
    """Whether this is a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def quoted(argument: str, names: Collection[str]) -> str:
    """`name=anything` with its value quoted for Hydra's grammar, if `name` is among `names` and it is not yet."""
    name, equals, value = argument.partition("=")
    if name not in names or not equals or value[:1] in ("'", '"') or value == "null":
        return argument
    # Backslashes count only where a quote follows: one of the value's own, or the closing one.
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"{name}='{value}'"


def take_argument(name: str) -> str | None:
    """Takes `name=anything` out of sys.argv and returns what stood behind it: for text that may hold even ${...}."""
    found = [argument for argument in sys.argv[1:] if argument.startswith(f"{name}=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in found]
    return found[-1].removeprefix(f"{name}=") if found else None


Rule = tuple[str, Callable[[Any], bool]]  # in words, and as a test


def whole(least: int, most: int = sys.maxsize) -> Rule:
    words = f"a whole number of at least {least}" + (f" and at most {most}" if most < sys.maxsize else "")
    return words, lambda v: type(v) is int and least <= v <= most


def number(low: float, high: float = float("inf"), open_end: bool = False) -> Rule:
    words = f"a number of at least {low:g}" if high == float("inf") else f"a number from {low:g} to {high:g}"
    words += " (exclusive)" if open_end else ""
    return (
        words,
        lambda v: (
            type(v) in (int, float) and math.isfinite(v) and low <= v <= high and not (open_end and v in (low, high))
        ),
    )


def maybe(rule: Rule) -> Rule:
    return f"{rule[0]}, or null", lambda v: v is None or rule[1](v)


def one_of(*choices: str) -> Rule:
    return f"one of {', '.join(choices)}", lambda v: v in choices


def names(value: Any) -> bool:
    return isinstance(value, list) and 1 < len(value) == len({str(name) for name in value})


def places(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(v is None or type(v) is int for v in value)


def part(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("_target_"), str)


def parts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(part, value.values()))


YES_OR_NO: Rule = ("true or false", lambda v: isinstance(v, bool))
TEXT: Rule = ("text of at least one character", lambda v: isinstance(v, str) and bool(v.strip()))
PART: Rule = ("settings of a part, with a _target_", part)
BELOW_ONE: Rule = ("a number from 0 to below 1", lambda v: type(v) in (int, float) and 0 <= v < 1)
RULES = {
    "task": one_of("reviews", "seq2seq", "masked_words"),
    "seed": whole(0, 2**32 - 1),
    "threads": maybe(whole(1, 1024)),
    "patience": maybe(whole(1)),
    "choose_by": one_of("accuracy", "loss", "bleu"),
    "save_minutes": maybe(number(0)),
    "init": maybe(TEXT),
    "resume": maybe(TEXT),
    "masked.share": number(0, 1, open_end=True),
    "masked.words": whole(2),
    "data.unlabelled": maybe(TEXT),
    "compile": maybe(one_of("inductor", "aot_eager")),
    "data.path": maybe(TEXT),
    "data.text_column": TEXT,
    "data.label_column": TEXT,
    "data.cache_dir": maybe(TEXT),
    "data.label_names": maybe(("a list of different names, such as [neg,pos]", names)),
    "data.validation_share": number(0, 1, open_end=True),
    "data.test_share": number(0, 1, open_end=True),
    "data.hub_timeout": number(0, 60),
    "data.encoding_errors": one_of("strict", "replace"),
    "data.max_tokens": maybe(whole(1)),
    "data.head_share": number(0, 1),
    "data.batch_tokens": maybe(whole(1)),
    "data.eval_batch_tokens": whole(1),
    "data.pad_to": whole(1),
    "data.word_dropout": BELOW_ONE,
    "data.glove.dim": whole(1),
    "data.glove.path": maybe(TEXT),
    "data.seed": whole(0),
    "data.lower": YES_OR_NO,
    "data.min_frequency": whole(1),
    "data.limit": maybe(whole(1)),
    "data.hub": maybe(TEXT),
    "data.hub_config": maybe(TEXT),
    "data.languages": ("a list of two different names, such as [en,fr]", lambda v: names(v) and len(v) == 2),
    "model.name": (
        "at most 100 letters, digits, _ . and -, the first a letter, digit or _",
        lambda v: isinstance(v, str) and bool(re.fullmatch(NAME, v)),
    ),
    "model.positions": PART,
    "model.embedding.trainable": YES_OR_NO,
    "model.embedding.standardize": YES_OR_NO,
    "model.embedding.mixout": BELOW_ONE,
    "model.channels": maybe(("settings of parts by name, each with a _target_", parts)),
    "model.convolution": maybe(PART),
    "model.phrases.longest": whole(1, 3),
    "model.phrases.min_reviews": whole(1),
    "model.phrases.folds": whole(2),
    "model.convolution.kernel": whole(1),
    "model.layers": whole(0, 1000),
    "model.hidden": whole(1),
    "model.cell": one_of("gru", "lstm"),
    "model.width": maybe(whole(1)),
    "model.dropout": number(0, 1),
    "model.layer.heads": whole(1),
    "model.layer.dropout": number(0, 1),
    "model.layer.distances": maybe(PART),
    "model.layer.distances.waves": whole(1),
    "model.layer.distances.places": ("a list of whole numbers, or null for everywhere, such as [null,-1,1]", places),
    "model.layer.distances.strength": number(0),
    "optim.lr": number(0),
    "optim.weight_decay": number(0),
    "embedding_lr": maybe(number(0)),
    "label_smoothing": number(0, 1),
    "warmup": number(0, 1),
    "decay": one_of("cosine", "linear", "none"),
    "test": YES_OR_NO,
    "pictures": YES_OR_NO,
    "logger.name": one_of("wandb", "tensorboard", "csv", "none"),
    "logger.project": TEXT,
    "logger.entity": maybe(TEXT),
    "logger.group": maybe(TEXT),
    "logger.mode": maybe(one_of("online", "offline", "disabled")),
    "logger.timeout": number(0),
    "logger.table_rows": whole(0, 10_000),
    "logger.table_characters": whole(1),
    # Of the Trainer's arguments those that Lightning takes, to fail late or to train nothing.
    "trainer.strategy": (
        "a strategy whose processes are commands of their own, such as ddp: not spawn, fork or notebook",
        lambda v: not (isinstance(v, str) and re.search("spawn|fork|notebook", v)),
    ),
    "trainer.num_nodes": whole(1),
    "trainer.max_epochs": maybe(whole(1)),
    "trainer.max_steps": ("-1, or a whole number of at least 1", lambda v: type(v) is int and (v == -1 or v > 0)),
    "trainer.val_check_interval": (
        "a share of an epoch above 0 and at most 1, a number of batches of at least 1, or null",
        lambda v: v is None or (type(v) is int and v > 0) or (type(v) is float and 0 < v <= 1) or isinstance(v, str),
    ),
    "trainer.check_val_every_n_epoch": maybe(whole(1)),
    "trainer.accumulate_grad_batches": whole(1),
    "trainer.gradient_clip_val": maybe(number(0)),
    "trainer.log_every_n_steps": whole(1),
    "trainer.enable_progress_bar": YES_OR_NO,
    "trainer.enable_model_summary": YES_OR_NO,
    "trainer.detect_anomaly": YES_OR_NO,
    "trainer.callbacks": maybe(
        ("a list of callbacks, each with a _target_", lambda v: isinstance(v, list) and all(map(part, v)))
    ),
}
WRITER_RULES = {  # where an encoder-decoder's are stricter
    "model.layers": whole(1, 1000),
    "model.width": whole(1),
    "data.batch_tokens": whole(1),
}


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain dicts.

    Raises UserError for a missing value, a broken interpolation, or what looks like a credential.
    """
    try:
        settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except Exception as error:
        raise UserError(f"config: {str(error).splitlines()[0]}") from error
    refuse_credentials(settings)
    return settings


def obey(settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raises UserError naming the first key (dotted) whose value breaks its rule; an absent key breaks none."""
    for key, (words, holds) in rules.items():
        node: Any = settings
        name = ""
        for part in key.split("."):
            if node is None and name in OPTIONAL:
                node = KeyError
                break
            if not isinstance(node, dict):
                raise UserError(f"{name}={shown(node)} must hold settings, as {key} is one")
            node, name = node.get(part, KeyError), f"{name}.{part}".strip(".")
            if node is KeyError:
                break
        if node is not KeyError and not holds(node):
            raise UserError(f"{key}={shown(node)} must be {words}")


def shown(value: Any) -> str:
    return "null" if value is None else str(value)


def checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a training run, if every value is of its type and in its range.

    Raises UserError naming the first key whose value is not, and what it must be.
    """
    for key, value in flat(settings).items():  # a name that is typed, as the system hands it on
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise UserError(f"{key}={value!a} is not UTF-8: rename the file or folder")
    obey(settings, RULES)
    task, data = settings.get("task", "reviews"), settings["data"]
    writes, paired = "hidden" in settings["model"], "letters" in data or "languages" in data
    if task == "seq2seq" and not (writes and paired):
        name = f"model={settings['model']['name']}" if not writes else f"data.source={data['source']}"
        raise UserError(
            f"task=seq2seq cannot use {name}: its data are reverse and translation, its models {', '.join(WRITERS)}"
        )
    if task != "masked_words" and data.get("unlabelled"):
        raise UserError("data.unlabelled has no meaning without task=masked_words: leave it away")
    if task != "reviews" and settings.get("init"):
        raise UserError(f"init has no meaning with task={task}: set init=null")
    if task != "seq2seq" and (writes or paired):
        raise UserError("this model or data is an encoder-decoder's: add task=seq2seq")
    if settings.get("choose_by") == "bleu" and "languages" not in data:
        raise UserError("choose_by=bleu needs words: data=translation")
    if task == "seq2seq":
        obey(settings, WRITER_RULES)
        return settings
    phrases = settings["model"].get("phrases")
    for key in PHRASES if phrases is not None else ():
        if key not in phrases:
            raise UserError(f"model.phrases.{key} is missing: give {', '.join(PHRASES)}, or null for none")
    positions = settings["model"]["positions"]
    if data["validation_share"] + data["test_share"] >= 1:
        raise UserError(
            "data.validation_share and data.test_share leave nothing for training: together they must be below 1"
        )
    longest, length = data["max_tokens"], positions.get("length")
    if positions["_target_"].endswith("Learned") and length is not None and (longest is None or longest > length):
        raise UserError(f"model.positions.length={length} is too short for data.max_tokens={longest or 'null'}")
    return settings


def read_run(file: Path, trust: Any = None, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A run's config.yaml, which may come from anywhere. trust, own: see `refuse_untrusted`.

    Raises UserError for a value of another type or range, and for a class that is not trusted.
    """
    settings = read_settings(file)
    refuse_untrusted(settings, file, trust, own)
    try:
        obey(settings, RULES)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    return settings


def words_before(settings: Mapping[str, Any]) -> int:
    """How many words in front of each token the model reads with it: those of its longest phrase."""
    phrases = settings["model"].get("phrases")  # runs of earlier versions have none
    return phrases["longest"] - 1 if phrases and settings.get("task") != "masked_words" else 0


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dict with dotted keys; lists stay values."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {prefix + key: value}
    return found


def without(settings: Mapping[str, Any], *skipped: str) -> dict[str, Any]:
    """The settings, flat, without the keys and groups that are named."""
    return {key: value for key, value in flat(settings).items() if not within(key, *skipped)}


def within(key: str, *names: str) -> bool:
    """Whether a dotted key is one of `names`, or lies in a group of that name."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def variant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What runs have in common that differ in nothing but their seed and the place of their files: settings, flat."""
    return without(settings, "seed", *NO_EFFECT, *WHERE)


def digest(settings: Mapping[str, Any]) -> str:
    """Six hex digits that name all settings with an effect but the seed, as part of a folder's name."""
    return hashlib.sha256(json.dumps(without(settings, "seed", *NO_EFFECT), default=str).encode()).hexdigest()[:6]


def overlay(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`settings` with the values of `changes` that are not None, down through nested dicts."""
    merged = dict(settings)
    for key, value in changes.items():
        if isinstance(value, dict):
            merged[key] = overlay(settings.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged
