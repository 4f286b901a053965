"""`--help`: the settings with their comments from the files in conf/."""

import io
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from imdbattn.settings.keys import conf_dir

LINE = re.compile(r"( *)(\w+):(?: .*?)?(?:\s+# (.*))?")  # YAML: indentation, key, comment
COLUMN = 36  # column of the comments


def print_help(run_hydra: Callable[[], object], config_name: str) -> None:
    """Prints Hydra's help with the comments of conf/."""
    # Hydra exits after its help
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        run_hydra()
    text = commented(printed.getvalue(), config_name, HydraConfig.get().runtime.choices)
    # flushed, so that a closed pipe is noticed here and not when Python exits
    print(text, flush=True)


def commented(text: str, config_name: str, choices: Mapping[str, str]) -> str:
    """Returns the help text with a comment after each setting. choices: config group -> option.

    A file that sets values of other groups explains these values, so its comments come last.
    """
    comments: dict[str, str] = {}
    names = (*(f"{group}/{option}" for group, option in choices.items()), config_name)
    files = (file for name in names for file in with_bases(conf_dir() / f"{name}.yaml"))
    for file in sorted(files, key=is_global):
        comments = dict(comments_in(file)) | comments
    before, title, settings = text.partition("\nSettings")
    lines = []
    for line, name, _ in named_lines(settings.rstrip().splitlines()):
        if comment := comments.get(name):
            line = textwrap.fill(
                comment,
                max(shutil.get_terminal_size((120, 24)).columns, 2 * COLUMN),
                initial_indent=f"{line}  ".ljust(COLUMN) + "# ",
                subsequent_indent=" " * COLUMN + "# ",
            )
        lines.append(line)
    return before + title + "\n".join(lines)


def with_bases(file: Path) -> Iterator[Path]:
    """Yields the file, if it exists, and the files of its group that its defaults list names."""
    if file.exists():
        yield file
        for base in OmegaConf.select(OmegaConf.load(file), "defaults") or ():
            if isinstance(base, str) and base != "_self_":
                yield from with_bases(file.with_name(f"{base}.yaml"))


def is_global(file: Path) -> bool:
    return file.read_text(encoding="utf-8").startswith("# @package _global_")


def comments_in(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the dotted name and comment of the settings in a file."""
    group = () if is_global(file) else file.relative_to(conf_dir()).parts[:-1]
    for _, name, comment in named_lines(file.read_text(encoding="utf-8").splitlines()):
        if comment:
            yield ".".join([*group, name]), comment


def named_lines(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yields each line of YAML, the dotted name of its setting or "", and its comment or ""."""
    path: list[str] = []
    for line in lines:
        if match := LINE.fullmatch(line):
            path = [*path[: len(match[1]) // 2], match[2]]
        yield line, ".".join(path) if match else "", match[3] or "" if match else ""
