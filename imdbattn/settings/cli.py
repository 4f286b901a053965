"""The command line: hydra.main with conf/, and each error in one line.

Imports nothing slow: `--help` must not wait for torch or pydantic.
"""

import argparse
import difflib
import functools
import gc
import importlib.util
import inspect
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError, in_line, print_any_text
from imdbattn.settings.keys import NAME, conf_dir, digest, flat, within
from imdbattn.settings.machine import slots
from imdbattn.settings.safety import refuse_credentials, visible

RANKS = ("LOCAL_RANK", "SLURM_LOCALID")  # environment variables: the number of this process on its machine
PARENT_PID = "IMDBATTN_PARENT_PID"  # environment variable: the imdbattn process that started this one
SWEEP_PID = "IMDBATTN_SWEEP_PID"  # environment variable: the process of the sweep that this one belongs to
# Paths among the settings of imdbattn.train
PATHS = ("data.path", "data.extra", "data.glove.path", "data.cache_dir", "init", "resume")
COLUMNS = ("data.text_column", "data.label_column")
NAMES = (*COLUMNS, "data.label_names")  # text as typed, also if Hydra would read a number, true, false or null
QUOTED = (*PATHS, *COLUMNS)  # settings of imdbattn.train that `command` quotes
OPEN = ("hydra", "trainer", "optim", "model", "position_scale", "words")  # groups that accept further keys
COMPOSING = threading.Lock()  # Hydra has one state per process
# Hydra's options; hydra.main itself prints their help.
FLAGS = "--help -h, --hydra-help, --version, --resolve, --run -r, --multirun -m, --shell-completion -sc"
WITH_VALUE = "--package -p, --config-path -cp, --config-name -cn, --config-dir -cd, --experimental-rerun"
INFO = ("all", "aliases", "config", "defaults", "defaults-tree", "plugins", "searchpath")
# Arguments of hydra.main and initialize_config_dir: Hydra 1.4 replaces version_base by a list of what its own group of
# settings may create.
VERSION = {"version_base": "1.3"}
ALLOWED: dict[str, Any] = {}
if "execution_whitelist" in inspect.signature(hydra.main).parameters:
    VERSION, ALLOWED = {}, {"execution_whitelist": ["imdbattn.*", "hydra.*", "hydra_plugins.*", "logging.*"]}
ALIASES = {  # names of settings in other programs -> the last part of their key here
    "learning_rate": "lr",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "batch_size": "batch_tokens",
}


def command(
    config_name: str, *paths: str, schema: str | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], Any]]:
    """hydra.main with conf/. Any exception ends in one line and exit status 2, see `fail`.

    An empty folder that Hydra created for the run is then removed.
    paths: settings whose values are quoted before Hydra parses them, because , { [ ( and = are special there. In a
    sweep they are not (a comma separates values), and a UserError ends its job, not the sweep. See also `quote`.
    schema: class of settings.schema; the command receives an object of it, else the config.
    """

    def decorate(task: Callable[[Any], Any]) -> Callable[[], Any]:
        typed, begun = list(sys.argv), list[bool]()

        @functools.wraps(task)
        def guarded(cfg: DictConfig) -> Any:
            sys.argv[:] = typed  # DDP starts further processes with these arguments
            begun.append(True)
            job = HydraConfig.get()
            os.chdir(job.runtime.cwd)
            folder = Path(job.runtime.output_dir)
            fresh = folder != Path.cwd() and not any(folder.iterdir())
            try:
                refuse_chdir(job)
                result = task(validated(schema, plain_dict(cfg)) if schema else cfg)
                sys.stdout.flush()
                return result
            except BrokenPipeError:
                exit_without_reader()
            except Exception as error:
                if in_sweep():  # run_job has recorded the error of a job
                    raise
                if fresh:
                    remove_empty(folder, f"{job.job.name}.log")
                fail(error, job.job.name, folder)

        run = hydra.main(config_path=str(conf_dir()), config_name=config_name, **VERSION, **ALLOWED)(guarded)

        def main() -> Any:
            print_any_text()
            typed[:] = sys.argv
            begun.clear()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its exceptions instead of printing them
            try:
                check_arguments(config_name, typed[1:])
                options = parse_options(typed[1:])
                words = [quote(word, () if options.multirun else paths) for word in options.overrides]
                # Options first: argparse does not accept an option between two overrides.
                sys.argv[1:] = [*(word for word in typed[1:] if word not in options.overrides), *words]
                return run()
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
            except BrokenPipeError:  # while it prints its help
                exit_without_reader()
            except Exception as error:
                fail(error if begun else explain(error, config_name, typed[1:]), config_name)

        return main

    return decorate


def validated(kind: str, settings: dict[str, Any]) -> Any:
    """The settings as an object of a class of settings.schema. Raises UserError."""
    from imdbattn.settings import schema  # pydantic, which is slow to import

    return schema.validate_as(getattr(schema, kind), settings)


def exit_without_reader() -> NoReturn:
    """Exits as after SIGPIPE, when the reader of a pipe has closed it, such as `| head -1`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more at exit
    sys.exit(128 + signal.SIGPIPE)


def first_on_machine() -> bool:
    """Whether this is the first process of a run on its machine."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def print_error(reason: object) -> None:
    """Prints an error in one line without control characters, in one process per machine."""
    if first_on_machine():
        print(f"error: {visible(in_line(reason, None))}", file=sys.stderr)


def fail(error: Exception, command: str, folder: Path | None = None) -> NoReturn:
    """Prints an error in one line and exits with status 2. Only a UserError was written for its reader.

    The traceback of any other exception goes into error.log of the folder if it has an unfinished run, else into a
    temporary file.
    """
    if isinstance(error, UserError):
        print_error(error)
    else:
        unfinished = folder and (folder / "config.yaml").exists() and not (folder / "metrics.json").exists()
        if folder and unfinished and first_on_machine():
            file = os.path.relpath(folder / "error.log")
        else:
            file = tempfile.mkstemp(prefix=f"imdbattn-{command}-", suffix=".log")[1]
        Path(file).write_text("".join(traceback.format_exception(error)))
        line = in_line(f"{command}: {type(error).__name__}: {error}", 500)
        print(f"error: {visible(line)} (traceback: {file})", file=sys.stderr)
    sys.exit(2)


def plain_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as nested dicts, without `hydra`.

    Raises UserError for a missing value, a broken interpolation, or a setting that looks like a credential.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    try:
        settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except Exception as error:
        raise UserError(f"config: {str(error).splitlines()[0]}") from error
    refuse_credentials(settings)
    return settings


def composed(config_name: str, overrides: Sequence[str] = (), paths: Sequence[str] = ()) -> DictConfig:
    """The config of a command with its settings in Python instead of sys.argv; `hydra` is a part of it.

    paths: see `command`. Raises UserError where the command prints one.
    """
    words = [quote(word, paths) for word in overrides]
    check_arguments(config_name, words)
    with COMPOSING:
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None  # of a caller that uses Hydra itself
        try:
            with hydra_in_conf():
                return hydra.compose(config_name, words, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise explain(error, config_name, words) from error
        finally:
            GlobalHydra.instance().hydra = outer


# --- resolvers for conf/; the job itself reports what is invalid ------------------------------------------------------


def digest_of_root(*, _root_: DictConfig) -> str:
    try:
        return digest(plain_dict(_root_))
    except UserError:
        return "invalid"


def folder_name(name: str) -> str:
    return name if re.fullmatch(NAME, name) else "invalid"


def fold_suffix(*, _root_: DictConfig) -> str:
    """-fold3 in a cross-validation, else nothing."""
    fold = OmegaConf.select(_root_, "data.fold")
    return f"-fold{fold}" if fold else ""


def run_name(now: str, name: str, digest: str) -> str:
    """The name of a run's folder: time and model; in a SLURM job the same in all its tasks and after a requeue."""
    name = folder_name(name)
    job = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{job}-{name}-{digest}" if job and not os.environ.get(SWEEP_PID) else f"{now}-{name}"


# Renamed in OmegaConf 2.4; in 2.3 another function has this name.
register: Any = OmegaConf.register_resolver
if "replace" not in inspect.signature(register).parameters:
    register = OmegaConf.register_new_resolver
register("either", lambda first, second: first or second, replace=True)
register("run_name", run_name, replace=True)
register("folder_name", folder_name, replace=True)
register("fold_suffix", fold_suffix, replace=True)
register("digest", digest_of_root, replace=True)
register("slots", slots, replace=True)


# --- command-line arguments -------------------------------------------------------------------------------------------


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's options, and the other arguments as `overrides`.

    Raises UserError for an unknown option, for which argparse would print eight lines.
    """

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}: write settings as name=value, without dashes; --help lists them")

    parser = argparse.ArgumentParser(add_help=False)
    parser.error = refuse  # type: ignore[method-assign]
    for names in FLAGS.split(", "):
        parser.add_argument(*names.split(), action="store_true")
    for names in WITH_VALUE.split(", "):
        parser.add_argument(*names.split())
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
    parser.add_argument("overrides", nargs="*")
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
    """Raises UserError for a launcher or sweeper that is not installed; Hydra's message does not name its package."""
    for launcher, extra in (("local", "joblib"), ("slurm", "submitit"), ("ray_cluster", "ray")):
        if f"hydra/launcher={launcher}" in arguments and not has_plugin(f"hydra_{extra}_launcher"):
            raise UserError(f"hydra/launcher={launcher} needs an extra: pip install 'imdbattn[{extra}]'")
    if "hydra/launcher=slurm" in arguments and shutil.which("srun") is None:
        raise UserError("hydra/launcher=slurm needs srun, which is not on this machine: use hydra/launcher=local")
    for argument in arguments:
        if match := re.match(r"\+*hydra\.launcher=(\w+)", argument):
            launcher = {"joblib": "local", "submitit_slurm": "slurm", "ray": "ray_cluster"}.get(match[1], match[1])
            raise UserError(f"{argument}: a launcher is chosen with hydra/launcher={launcher}")
    if "hydra/sweeper=optuna" in arguments and not has_plugin("hydra_optuna_sweeper"):
        remedy = "pip install 'imdbattn[search]', then pip install --no-deps hydra-optuna-sweeper==1.3.0"
        raise UserError(f"hydra/sweeper=optuna is not installed: use imdbattn.search, or {remedy}")


def refuse_chdir(job: Any) -> None:
    """Raises UserError if Hydra changes the working folder. job: the settings of the group `hydra`."""
    if job.job.chdir:
        raise UserError("hydra.job.chdir=true would look up relative paths in the run folder: omit it")


def check_arguments(config_name: str, arguments: Sequence[str]) -> None:
    """Raises UserError for a credential, a launcher that is not installed, and for keys that Hydra would add or remove.

    The message does not contain the value, which may be a credential.
    """
    settings = (argument.lstrip("+~").partition("=") for argument in arguments)
    refuse_credentials({name: value for name, _, value in settings})
    refuse_missing_launchers(arguments)
    if any(argument.startswith(("--config-dir", "-cd", "hydra.searchpath=")) for argument in arguments):
        return  # the user's own files may have further keys
    for argument in arguments:
        match = re.match(r"(\+\+?|~)([\w./]+)", argument)
        if not match or within(match[2], *OPEN) or (conf_dir() / match[2]).is_dir():
            continue
        if match[1] == "~":
            raise UserError(f"{argument}: a setting cannot be removed; give it another value, {match[2]}=...")
        if match[2] not in keys_of(config_name, arguments):
            raise UserError(no_setting(match[2], config_name, arguments))


def explain(error: Exception, config_name: str, arguments: Sequence[str]) -> Exception:
    """An error before the command starts; one of Hydra's as a UserError with the nearest valid key or choice."""
    if isinstance(error, (HydraException, OmegaConfBaseException, ValueError, OSError)):
        return UserError(explanation(error, config_name, arguments))
    return error


def explanation(error: Exception, config_name: str, arguments: Sequence[str]) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = [option for option in error.options or () if option != choice]
        near = difflib.get_close_matches(choice, options, 1) or [""]
        nearest = f"{group}={near[0]} is the nearest of" if near[0] else "choose one of"
        return f"{group}={choice} is not a choice: {nearest} {', '.join(options)}" if options else text
    if isinstance(error, FileNotFoundError) and os.sep not in str(error.filename):  # a program that a launcher starts
        return f"{error.filename} is not installed on this machine: install it, or choose another hydra/launcher"
    if isinstance(error, OSError):  # Hydra creates the folders and writes multirun.yaml
        place = f"{error.filename or 'the sweep folder'} cannot be written ({error.strerror})"
        return f"{place}: free some space, or choose another hydra.run.dir or hydra.sweep.dir"
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read as a setting: write name=value, quoted where special: \"name='a, b'\""
    if match := re.match(r"Could not delete from config\. '(\S+?)'", text):
        return f"there is no setting {match[1]} to remove"
    if match := re.match(r"Could not override '(\S+?)'", text):
        argument = next((a for a in arguments if a.lstrip("+").startswith(match[1])), match[1])
        if (conf_dir() / match[1]).is_dir():
            return f"{argument}: the group {match[1]} is not in the defaults: add it, +{argument.lstrip('+')}"
        return no_setting(match[1], config_name, arguments)
    if match := re.match(r"Could not append to config\. An item is already at '(\S+?)'", text):
        return f"+{match[1]}: {match[1]} is already a setting: omit the +"
    if match := re.match(r"Ambiguous value for argument '(.*?)' 1\.", text):
        return f"{match[1]} has several values: add -m for a sweep over them"
    return f"settings: {text}; --help lists them all"


def no_setting(key: str, config_name: str, arguments: Sequence[str]) -> str:
    """A message that there is no such setting, with the one whose last part is most similar."""
    parts = {known: known.rpartition(".")[2] for known in keys_of(config_name, arguments)}
    parent, _, last = key.rpartition(".")
    open_group = within(key, "model", "optim", "trainer")  # the key may be right, for another class
    similar = difflib.get_close_matches(ALIASES.get(last, last), parts.values(), 1, cutoff=0.8 if open_group else 0.6)
    if not open_group and key in keys_of(config_name, []):
        return f"there is no setting {key} with these choices of task and data: omit it"
    near = difflib.get_close_matches(key, [known for known in parts if parts[known] in similar], 1, cutoff=0)
    near = [name for name in near if name != key]
    if near or (parent in parts and not open_group):
        return f"there is no setting {key}; the nearest is {near[0] if near else parent}"
    remedy = f"+{key}=... passes it to the class" if open_group else "--help lists them all"
    return f"there is no setting {key}; {remedy}"


def keys_of(config_name: str, arguments: Sequence[str]) -> list[str]:
    """The dotted keys of the config, with its groups, composed with the group choices in `arguments` if possible."""
    chosen = [a for a in arguments if (conf_dir() / a.lstrip("+").partition("=")[0]).is_dir() and "," not in a]
    for overrides in (chosen, []):
        with suppress(Exception), nullcontext() if GlobalHydra().is_initialized() else hydra_in_conf():
            cfg = OmegaConf.to_container(hydra.compose(config_name, overrides))
            leaves = list(flat(cfg))  # type: ignore[arg-type]
            groups = {key.rpartition(".")[0] for key in leaves} | {key.partition(".")[0] for key in leaves}
            return sorted(groups - {""}) + leaves
    return []


def hydra_in_conf() -> AbstractContextManager[None]:
    return hydra.initialize_config_dir(str(conf_dir()), **VERSION)


def quote(argument: str, names: Collection[str]) -> str:
    """`name=value` with the value quoted for Hydra's grammar, if `name` is in `names` and it is not quoted yet.

    For the other settings in NAMES, each word in the value is quoted: those in [false,true], or in a sweep over 0,1.
    """
    name, equals, value = argument.partition("=")
    if not equals or value == "null":
        return argument
    if name not in names and name.lstrip("+") in NAMES and "${" not in value:
        return f"{name}={WORD.sub(quoted_word, value)}"
    if name not in names or value[:1] in ("'", '"'):
        return argument
    # Backslashes are special only before a quote: one in the value, or the closing one.
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"{name}='{value}'"


WORD = re.compile(r"""'(\\.|[^'])*'|"(\\.|[^"])*"|(\\.|[^][(),'"\\])+""")  # of Hydra's grammar


def quoted_word(match: re.Match[str]) -> str:
    """A word of a list or sweep in quotes, unless it has quotes or backslashes, or is the name of a function."""
    word, before, after = match[0].strip(), match.string[: match.start()], match.string[match.end() :]
    unset = word == "null" and before.count("[") == before.count("]")  # in a list, null is a name
    return match[0] if not word or re.search(r"['\"\\]", word) or after[:1] == "(" or unset else f"'{word}'"


def take_argument(name: str) -> str | None:
    """Removes `name=value` from sys.argv and returns the value: for text that may contain even ${...}."""
    given = [argument for argument in sys.argv[1:] if argument.startswith(f"{name}=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    return given[-1].removeprefix(f"{name}=") if given else None


# --- start and end ----------------------------------------------------------------------------------------------------


@contextmanager
def without_gc() -> Iterator[None]:
    """No garbage collection during the import of torch and Lightning, where it would take a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def in_sweep() -> bool:
    """Whether this is a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def remove_empty(folder: Path, log: str) -> None:
    """Removes a folder that contains at most the file `log`, and its parents below the working directory if empty."""
    if {file.name for file in folder.iterdir()} <= {log}:
        (folder / log).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            for place in (folder, *folder.parents):
                if place in (Path.cwd(), *Path.cwd().parents):
                    break
                place.rmdir()
