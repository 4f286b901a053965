"""The command line: hydra.main with conf/, and each error in one line.

Imports nothing slow: `--help` must not wait for torch or pydantic.
"""

import difflib
import functools
import gc
import importlib.util
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError, in_line, naming, print_any_text
from imdbattn.settings.keys import NAME, conf_dir, digest, flat, no_setting
from imdbattn.settings.safety import refuse_credentials, visible

# environment variables: the number of this process on its machine
RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
# environment variable: the imdbattn process that started this one
PARENT_PID = "IMDBATTN_PARENT_PID"
# environment variable: the process of the sweep that this one belongs to
SWEEP_PID = "IMDBATTN_SWEEP_PID"
# Paths among the settings of imdbattn.train
PATHS = ("data.path", "data.extra", "data.glove.path", "data.cache_dir", "init", "resume")
COLUMNS = ("data.text_column", "data.label_column")
# text as typed, also if Hydra would read a number, true, false or null
NAMES = (*COLUMNS, "data.label_names")
QUOTED = (*PATHS, *COLUMNS)  # settings of imdbattn.train that `command` quotes
COMPOSING = threading.Lock()  # Hydra has one state per process
VERSION = {"version_base": "1.3"}


def command(
    config_name: str, *paths: str, schema: str | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], Any]]:
    """hydra.main with conf/. Any exception ends in one line and exit status 2, see `fail`.

    paths: settings whose values are quoted before Hydra parses them, because , { [ ( and = are
    special there. In a sweep they are not, because there a comma separates values. See also
    `quote`.
    schema: a class in imdbattn; the command receives an object of it, else the config.
    """

    def decorate(task: Callable[[Any], Any]) -> Callable[[], Any]:
        @functools.wraps(task)
        def run(cfg: DictConfig) -> Any:
            job = HydraConfig.get()
            # also with hydra.job.chdir: paths are relative to where the command was typed
            os.chdir(job.runtime.cwd)
            try:
                result = task(validated(schema, plain_dict(cfg)) if schema else cfg)
                sys.stdout.flush()
                return result
            except Exception as error:
                if in_sweep():  # run_job has recorded the error of a job
                    raise
                # Hydra would print more lines
                fail(error, config_name, Path(job.runtime.output_dir))

        run_hydra = hydra.main(config_path=str(conf_dir()), config_name=config_name, **VERSION)(run)

        def main() -> Any:
            print_any_text()
            # a log whose reader has ended, as after `| head`, prints no traceback
            logging.raiseExceptions = False
            # Hydra then raises its exceptions instead of printing them
            os.environ["HYDRA_FULL_ERROR"] = "1"
            # Hydra does not accept a flag between two settings.
            words = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))
            sweep = words and words[0] in ("-m", "--multirun")
            sys.argv[1:] = [quote(word, () if sweep else paths) for word in words]
            try:
                refuse_typed_credentials(words)  # the message of another error would quote them
                return (
                    print_help(run_hydra, config_name, words)
                    if {"-h", "--help"} & {*words}
                    else run_hydra()
                )
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
            except Exception as error:
                fail(explain(error, config_name, words), config_name)

        return main

    return decorate


def print_help(run_hydra: Callable[[], Any], config_name: str, words: Sequence[str]) -> None:
    """Hydra's help with the comments of conf/."""
    from imdbattn.launch.help import commented

    choices = composed(
        config_name, [word for word in words if not word.startswith("-")]
    ).hydra.runtime.choices
    # Hydra exits after its help
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        run_hydra()
    print(commented(printed.getvalue(), config_name, choices))


def refuse_typed_credentials(words: Sequence[str]) -> None:
    refuse_credentials(
        {name: value for name, _, value in (word.lstrip("+~").partition("=") for word in words)}
    )


def validated(kind: str, settings: dict[str, Any]) -> Any:
    """The settings as an object of the class with this dotted path in imdbattn. Raises
    UserError.
    """
    from imdbattn.settings.schema import validate_as  # pydantic, which is slow to import

    module, _, name = kind.rpartition(".")
    return validate_as(getattr(importlib.import_module(f"imdbattn.{module}"), name), settings)


def plain_dict(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as nested dicts, without `hydra`.

    Raises UserError for a missing value, a broken interpolation, or a setting that looks like a
    credential.
    """
    cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise UserError(
            f"these settings are required: {', '.join(f'{key}=' for key in missing)}; see --help"
        )
    with naming("config"):
        settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    refuse_credentials(settings)
    return settings


def composed(
    config_name: str, overrides: Sequence[str] = (), paths: Sequence[str] = ()
) -> DictConfig:
    """A command's config, with `hydra`, of these words instead of sys.argv. paths: see `command`.
    Raises UserError.
    """
    words = [quote(word, paths) for word in overrides]
    refuse_typed_credentials(words)
    with COMPOSING:
        # of a caller that uses Hydra itself
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with hydra.initialize_config_dir(str(conf_dir()), **VERSION):
                return hydra.compose(config_name, words, return_hydra_config=True)
        except Exception as error:
            raise explain(error, config_name, words) from error
        finally:
            GlobalHydra.instance().hydra = outer


# --- errors ---------------------------------------------------------------------------------------


def first_on_machine() -> bool:
    """Whether this is the first process of a run on its machine."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def print_error(reason: object) -> None:
    """Prints an error in one line without control characters, in one process per machine."""
    if first_on_machine():
        print(f"error: {visible(in_line(reason, None))}", file=sys.stderr)


def fail(error: Exception, command: str, folder: Path | None = None) -> NoReturn:
    """Prints an error in one line and exits with status 2. Only a UserError was written for its
    reader.

    The traceback of any other exception goes into error.log of the folder if it has an unfinished
    run, else into a temporary file. A folder that contains nothing but a log is removed.
    """
    if isinstance(error, BrokenPipeError):  # as after SIGPIPE, for example of `| head -1`
        # Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    if isinstance(error, UserError):
        print_error(error)
    else:  # perhaps in one process only, so each prints its own
        unfinished = (
            folder and (folder / "config.yaml").exists() and not (folder / "metrics.json").exists()
        )
        if folder and unfinished and first_on_machine():
            file = os.path.relpath(folder / "error.log")
        else:
            file = tempfile.mkstemp(prefix=f"imdbattn-{command}-", suffix=".log")[1]
        Path(file).write_text("".join(traceback.format_exception(error)))
        line = in_line(f"{command}: {type(error).__name__}: {error}", 500)
        print(f"error: {visible(line)} (traceback: {file})", file=sys.stderr)
    if folder and folder != Path.cwd():
        remove_empty(folder, f"{command}.log")
    sys.exit(2)


def explain(error: Exception, config_name: str, arguments: Sequence[str]) -> Exception:
    """An error of Hydra as a UserError, of an unknown setting or choice with the nearest one; other
    errors as given.
    """
    text = in_line(error, None)
    if "hydra/launcher" in text or "hydra/sweeper" in text:
        return UserError(
            f"{text}; others are extras: pip install -e '.[joblib]', [submitit], [ray] or [search]"
        )
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        near = difflib.get_close_matches(choice, options := sorted({*error.options} - {choice}), 1)
        remedy = f"{group}={near[0]} is the nearest of" if near else "choose one of"
        return UserError(f"{group}={choice} is not a choice: {remedy} {', '.join(options)}")
    match = re.match(r"Could not override '(\S+?)'", text)
    if match and "defaults list" not in text:  # else it is a group, which Hydra explains
        return UserError(no_setting(match[1], keys_of(config_name, arguments)))
    return (
        UserError(text)
        if isinstance(error, (HydraException, OmegaConfBaseException, ValueError))
        else error
    )


def keys_of(config_name: str, arguments: Sequence[str]) -> list[str]:
    """The dotted keys of the config, composed with the group choices in `arguments` if possible."""
    chosen = [
        word for word in arguments if (conf_dir() / word.lstrip("+").partition("=")[0]).is_dir()
    ]
    for overrides in (chosen, []):
        running = GlobalHydra().is_initialized()
        with (
            suppress(Exception),
            nullcontext() if running else hydra.initialize_config_dir(str(conf_dir()), **VERSION),
        ):
            return [*flat(OmegaConf.to_container(hydra.compose(config_name, overrides)))]  # type: ignore[arg-type]
    return []


# --- text in settings -----------------------------------------------------------------------------


def quote(argument: str, names: Collection[str]) -> str:
    """`name=value` with the value quoted for Hydra's grammar, if `name` is in `names` and it is not
    quoted yet.

    For the other settings in NAMES, each word in the value is quoted: those in [false,true], or in
    a sweep over 0,1.
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
    """A word of a list or sweep in quotes, unless it has quotes or backslashes, or is the name of a
    function.
    """
    word, before, after = (
        match[0].strip(),
        match.string[: match.start()],
        match.string[match.end() :],
    )
    unset = word == "null" and before.count("[") == before.count("]")  # in a list, null is a name
    return (
        match[0]
        if not word or re.search(r"['\"\\]", word) or after[:1] == "(" or unset
        else f"'{word}'"
    )


def take_argument(name: str) -> str | None:
    """Removes `name=value` from sys.argv and returns the value: for text that may contain even
    ${...}.
    """
    given = [argument for argument in sys.argv[1:] if argument.startswith(f"{name}=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    return given[-1].removeprefix(f"{name}=") if given else None


# --- CPU cores and GPUs of this machine, found without importing torch ----------------------------


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    ).stdout
    return [str(number) for number in range(listed.count("GPU "))]


def slots() -> int:
    """How many jobs to run in parallel: one per GPU, or one per core without a GPU."""
    return len(gpus()) or cores()


def threads_of(launcher: Mapping[str, Any]) -> int:
    """CPU threads per job: its CPUs in Ray, else its share of the cores; n_jobs=-1 is one job per
    core.
    """
    if "ray" in launcher:
        return max(1, int(launcher["ray"]["remote"].get("num_cpus") or 1))
    jobs = launcher.get("n_jobs") or 1
    return max(1, cores() // jobs) if jobs > 0 else 1


# --- resolvers for conf/; the job itself reports what is invalid ----------------------------------


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
    """The name of a run's folder: time and model; in a SLURM job the same in all its tasks and
    after a requeue.
    """
    job = os.environ.get("SLURM_JOB_ID")
    in_slurm = job and not os.environ.get(SWEEP_PID)
    return f"slurm-{job}-{folder_name(name)}-{digest}" if in_slurm else f"{now}-{folder_name(name)}"


RESOLVERS: dict[str, Callable[..., Any]] = {
    "digest": digest_of_root,
    "either": lambda first, second: first or second,
}
RESOLVERS |= {
    "folder_name": folder_name,
    "fold_suffix": fold_suffix,
    "run_name": run_name,
    "slots": slots,
}
for name, resolver in RESOLVERS.items():
    OmegaConf.register_new_resolver(name, resolver, replace=True)


# --- start and end --------------------------------------------------------------------------------


@contextmanager
def without_gc() -> Iterator[None]:
    """No garbage collection during the import of torch and Lightning, where it would take a
    second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def has_plugin(name: str) -> bool:
    """Whether a package of Hydra's plugins is installed."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    return False


def in_sweep() -> bool:
    """Whether this is a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def remove_empty(folder: Path, log: str) -> None:
    """Removes a folder that contains at most the file `log`, and its parents below the working
    directory if empty.
    """
    if folder.is_dir() and {file.name for file in folder.iterdir()} <= {log}:
        (folder / log).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            for place in (folder, *folder.parents):
                if place in (Path.cwd(), *Path.cwd().parents):
                    break
                place.rmdir()
