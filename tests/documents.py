"""The commands in README and docs/, and how they run on small data."""

import itertools
import re
import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from imdbattn.data.sources.pairs import PACKAGED
from imdbattn.settings.keys import conf_dir
from tests.processes import ROOT

PAGES = {
    page: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
TEXT = "\n".join(PAGES.values())
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
LINES = [
    line.split("  #")[0].strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
]
COMMANDS = [
    line for line in dict.fromkeys(LINES) if re.match(r"(echo .*\| *)?python -m imdbattn\.", line)
]
SWEEPS = [line for line in COMMANDS if "imdbattn.train -m " in line or "experiment=" in line]
RESUMED = next(line for line in SWEEPS if "resume=" in line)


def words_of(command: str) -> list[str]:
    """The command's name and its arguments."""
    return shlex.split(command.partition("python -m imdbattn.")[2], comments=True)


def section(page: str, heading: str) -> str:
    """The text below a heading of a page of docs/, up to the next one."""
    text = PAGES[ROOT / "docs" / page].partition(f"\n{heading}\n")[2]
    return re.split(r"\n##+ ", text)[0]


def code(text: str, language: str) -> str:
    """The one block of a language in a text."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


def train_command(heading: str, word: str) -> list[str]:
    """The arguments of the train command in a section of docs/own_data.md that contains a word."""
    lines = section("own_data.md", heading).splitlines()
    (line,) = [one for one in lines if one.startswith("python -m imdbattn.train") and word in one]
    return words_of(line)[1:]


SINGLE = [line for line in COMMANDS if line not in SWEEPS]


def shrunk(arguments: list[str], small: list[str], folder: Path) -> list[str]:
    """Arguments with which the model trains for one epoch on little data."""
    pairs = ("seq2seq", "data=translation", "data=reverse")
    if any(name in a for a in arguments for name in pairs):  # they have their own data
        common = ("logger=", "trainer", "threads=", "pictures=")
        small = [word for word in small if word.startswith(common)]
        small += ["model.net.hidden=8", "model.net.width=8"]
        if not any("translation" in a for a in arguments):
            small += ["data.train=60", "data.validation=10", "data.test=10"]
        pairs = (PACKAGED.read_text().splitlines()[row] for row in range(0, 900, 3))
        (folder / "fra.txt").write_text("\n".join(pairs))
    if any("order_probe" in a for a in arguments):  # it has its own reviews
        small = [a for a in small if not a.startswith("data.path=")]
        small += ["data.probe.train=40", "data.probe.validation=10", "data.probe.test=10"]
        small.append("data.min_known=0")  # the small vectors lack most of its words
    mine = {argument.split("=")[0] for argument in arguments}
    small = [argument for argument in small if argument.split("=")[0] not in mine]
    other = ("data.source=", "data.vectors", "data.tokenizer=torchtext", "init=")
    kept = [argument for argument in arguments if not argument.startswith(other)]
    return [*kept, *small, "trainer.max_epochs=1"]


FILES = sorted(file.relative_to(conf_dir()) for file in conf_dir().rglob("*.yaml"))
EXPERIMENTS = [file.stem for file in FILES if file.parent.name == "experiment"]


def choices_of(override: str) -> list[str]:
    """The overrides of single jobs that an override of a sweep stands for."""
    parsed = OverridesParser.create().parse_override(override)
    if not parsed.is_sweep_override():
        return [override]
    return [f"{parsed.key_or_group}={value}" for value in parsed.sweep_string_iterator()]


def jobs_of(experiment: str) -> list[tuple[str, ...]]:
    """The overrides of each of its jobs."""
    params = OmegaConf.load(conf_dir() / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    assert [key for key in params if key == "seed"]
    choices = [choices_of(f"{key}={values}") for key, values in params.items()]
    return list(itertools.product(*choices))
