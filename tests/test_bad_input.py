"""Wrong input gives one clear line that names the cause and a remedy, and exit status 2, and leaves nothing behind.

A table of cases, each through the `main` of a command, as a user would start it; a dozen also in separate processes.
"""

import gzip
import importlib
import io
import json
import logging
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hydra._internal.hydra import Hydra
from hydra.types import RunMode

from imdbattn.data.corpus import prepare
from imdbattn.data.glove import load_glove
from imdbattn.data.reviews import find_source
from imdbattn.errors import UserError
from imdbattn.runs.fit import fit

from .commands import label_texts

Arguments = Callable[["Place"], list[str]]
ROWS = [(f"a {('dull', 'good')[n % 2]} film word{n}", ("neg", "pos")[n % 2]) for n in range(40)]
TEXTS, LABELS = zip(*ROWS, strict=True)
COUNTED = r"\(counted from 0\)"


class Place:
    """A user's folder, with trained runs and caches that the cases damage."""

    def __init__(self, folder: Path, trained, small: list[str], settings):
        self.folder, self.trained, self.small, self.settings = folder, trained, small, settings

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run(self, rung: str = "mean") -> Path:
        """A copy of a finished run."""
        return shutil.copytree(self.trained(rung)[0], self.folder / "run", dirs_exist_ok=True)


def left_in(*folders: Path) -> dict[Path, int]:
    """Sizes of files, and folders as -1; but whole entries of a cache may stay, and empty files that held a lock."""
    found = [path for folder in folders for path in folder.rglob("*")]
    whole = {path.parent for path in found if path.name == "checksums.json"}
    kept = whole | {above for entry in whole for above in (entry.parent, entry.parents[1])}
    caches = [cache for folder in folders for cache in (folder, folder / "cache")]
    kept |= {*caches} | {cache / kind for cache in caches for kind in ("glove", "tokens")}
    listed = (path for path in found if path not in kept and path.parent not in whole)
    sizes = {path: path.stat().st_size if path.is_file() else -1 for path in listed}
    return {path: size for path, size in sizes.items() if size or path.suffix != ".lock"}


# --- ways to make a wrong world ---------------------------------------------------------------------------------------


def typed(*arguments: str) -> Arguments:
    return lambda place: list(arguments)


def csv_text(labels=LABELS, texts=TEXTS, head="text,label") -> str:
    return "".join(f"{line}\n" for line in [head, *(f"{t},{n}" for t, n in zip(texts, labels, strict=True))])


def lines(*rows: object) -> str:
    """JSON Lines: forty good rows, then these."""
    return "".join(json.dumps(row) + "\n" for row in [*({"text": t, "label": n} for t, n in ROWS), *rows])


def parquet(texts=TEXTS) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "label": LABELS}), buffer)
    return buffer.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def locked(archive: bytes) -> bytes:
    """A zip whose only member is marked as encrypted."""
    data = bytearray(archive)
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def reviews(content: str | bytes, name: str = "r.csv", *more: str) -> Arguments:
    return lambda place: [f"data.path={place.write(name, content)}", *more]


def folder(**files: str | bytes) -> Arguments:
    """Reviews in a folder; `__` in a name parts folders, and its last `_` is the dot."""

    def make(place: Place) -> list[str]:
        (place.folder / "reviews").mkdir()
        for name, content in files.items():
            place.write("reviews/" + ".".join(name.replace("__", "/").rsplit("_", 1)), content)
        return [f"data.path={place.folder / 'reviews'}"]

    return make


def pipe(name: str, *settings: str) -> Arguments:
    """A named pipe that nobody writes into: reading it would block forever."""

    def make(place: Place) -> list[str]:
        path = place.write(name, "")
        path.unlink()
        os.mkfifo(path)
        return [setting.format(path=path, folder=place.folder) for setting in settings]

    return make


def not_utf8(name: bytes) -> Arguments:
    """Reviews of which a file or folder has that name."""

    def make(place: Place) -> list[str]:
        path = place.folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(csv_text())
        return [f"data.path='{place.folder if path.suffix == '.txt' else path}'"]

    return make


WRITER = ["task=seq2seq", "logger=csv", "trainer=cpu", "trainer.enable_progress_bar=false", "pictures=false"]
PAIRS = "".join(f"i see {n} of {n % 9}\tje vois {n} de {n % 9}\n" for n in range(90))


def pairs(content: str | bytes | None, *more: str) -> Arguments:
    """A file of pairs to be translated; None is a missing file."""

    def make(place: Place) -> list[str]:
        path = "nowhere.tsv" if content is None else place.write("p.tsv", content)
        return ["data=translation", "data.min_frequency=1", f"data.path={path}", *more]

    return make


GLOVE = b"".join(b"word%d 1 2 3 4 5 6 7 8 9 10\n" % n for n in range(40))


def vectors(content: bytes, name: str = "v.txt") -> Arguments:
    return lambda place: [f"data.glove.path={place.write(name, content)}", f"data.cache_dir={place.folder / 'cache'}"]


def flipped(pattern: str) -> Arguments:
    """A byte in the middle of a file of the cache has one bit changed."""

    def make(place: Place) -> list[str]:
        corpus, copy = prepare(place.settings(*place.small).data), place.folder / "cache"
        for entry in (corpus.folder, corpus.glove.folder):
            shutil.copytree(entry, copy / entry.relative_to(corpus.folder.parents[1]))
        (file,) = copy.glob(pattern)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        return [f"data.cache_dir={copy}"]

    return make


def broken(change: Callable[[Path], object] | None = None, *more: str, rung: str = "mean") -> Arguments:
    """A copy of a finished run, changed."""

    def make(place: Place) -> list[str]:
        run = place.run(rung)
        if change:
            change(run)
        return [f"run={run}", *more]

    return make


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(change((run / name).read_bytes()))


class Harm:
    def __reduce__(self):
        return (print, ("code ran",))


def repack(change: Callable[[dict], dict]) -> Callable[[Path], object]:
    """Another content in best.ckpt."""

    def do(run: Path) -> None:
        file = run / "checkpoints" / "best.ckpt"
        torch.save(change(torch.load(file, weights_only=True)), file)

    return do


def other_version(content: dict) -> dict:
    return content | {"state_dict": {f"model.{name}": value for name, value in content["state_dict"].items()}}


def without_phrases(content: dict) -> dict:
    return content | {"state_dict": {k: v for k, v in content["state_dict"].items() if "phrases" not in k}}


def shuffled(place: Place) -> list[str]:
    """The run's vectors in another order."""
    glove = Path(next(a.partition("=")[2] for a in place.small if a.startswith("data.glove.path=")))
    first, *rest = glove.read_text().splitlines(keepends=True)
    return [f"run={place.run()}", "text=good", *vectors("".join([*rest, first]).encode())(place), "data.glove.dim=10"]


# --- the table --------------------------------------------------------------------------------------------------------

TRAIN: dict[str, tuple[Arguments, str]] = {
    # Hydra
    "misspelt group": (typed("modle=mean"), r"error: there is no setting modle; the nearest is model\n$"),
    "misspelt key": (
        typed("trainer.max_epoch=2"),
        r"no setting trainer\.max_epoch; the nearest is trainer\.max_epochs",
    ),
    "misspelt deep down": (typed("data.glove.pth=x"), r"no setting data\.glove\.pth; the nearest is data\.glove\.path"),
    "key without its group": (typed("lr=0.1"), r"no setting lr; the nearest is optim\.lr"),
    "a name of other tools": (typed("epochs=3"), r"no setting epochs; the nearest is trainer\.max_epochs\n$"),
    "the same in its group": (typed("optim.learning_rate=1"), r"learning_rate; the nearest is optim\.lr\n$"),
    "a batch in reviews": (typed("data.batch_size=32"), r"batch_size; the nearest is data\.batch_tokens\n$"),
    "a last part of several": (typed("data.glove.sorce=x"), r"sorce; the nearest is data\.glove\.source\n$"),
    "key of nothing": (typed("xyzzy=1"), "no setting xyzzy; --help lists them all"),
    "key below a value": (typed("seed.x=1"), r"no setting seed\.x; the nearest is seed"),
    "misspelt and added": (typed("+sed=1"), "there is no setting sed; the nearest is seed"),
    "misspelt and forced": (typed("++patiense=1"), "no setting patiense; the nearest is patience"),
    "added twice": (typed("+seed=3"), r"seed is already a setting: omit the \+"),
    "removed and unknown": (typed("~optim.betas"), r"error: there is no setting optim\.betas to remove\n$"),
    "unknown in a group that accepts further keys": (
        typed("optim.betas=1"),
        r"no setting optim\.betas; \+optim\.betas=\.\.\. passes it to the class",
    ),
    "removed": (typed("~seed"), "~seed: a setting cannot be removed; give it another value, seed=..."),
    "unknown rung": (typed("model=residul"), "model=residul is not a choice: model=residual is the nearest of base, "),
    "unknown choice": (typed("debug=x"), "debug=x is not a choice: choose one of fast, overfit"),
    "unknown experiment": (typed("+experiment=lader"), "not a choice: experiment=ladder is the nearest"),
    "experiment without +": (
        typed("experiment=ladder"),
        r"the group experiment is not in the defaults: add it, \+experiment=ladder",
    ),
    "a number for a choice": (typed("model=4"), "Config group override must be a string.*--help"),
    "not closed": (typed("seed=[1"), r"seed=\[1 cannot be read as a setting: write name=value"),
    "an option that is none": (typed("--seed=1"), r"error: --seed is not an option: write settings as name=value, w"),
    "an option with a value that it does not take": (typed("--run=x"), "argument --run.* write settings as name=value"),
    **{
        f"model.name={name}": (
            typed(f"model.name={name}"),
            r"model\.name=.* must be (at most 100 letters, digits, _ \. and|a valid string)",
        )
        for name in ("''", "null", "[a]", "a/b", "../../../../up", ".hidden", "n" * 300)
    },
    "an empty range in a sweep": (typed("-m", "seed=range(0)"), r"the sweep has no jobs: .*seed=range\(0\)"),
    "a sweep without jobs": (typed("-m", "model=glob(zzz*)"), r"the sweep has no jobs: .*model=glob\(zzz\*\)"),
    "no value": (typed("seed"), "seed cannot be read as a setting: write name=value"),
    "several values": (typed("seed=1,2"), "seed=1,2 has several values: add -m for a sweep over them"),
    "a launcher as a setting": (typed("-m", "hydra.launcher=joblib"), "is chosen with hydra/launcher=local"),
    "SLURM on a machine without it": (typed("-m", "hydra/launcher=slurm"), "launcher=slurm needs srun"),
    "the run folder as working folder": (typed("hydra.job.chdir=true"), r"hydra\.job\.chdir=true .*: omit it"),
    "the same in a sweep": (typed("-m", "seed=1,2", "hydra.job.chdir=true"), r"hydra\.job\.chdir=true .*: omit it"),
    "a misspelt key in a sweep": (typed("-m", "seed=1,2", "modle=x"), "no setting modle; the nearest is model"),
    "points to nothing": (typed("seed=${nothing}"), "'nothing' not found.*--help"),
    "value left open": (typed("model.layers=???"), "config: Missing mandatory value: layers"),
    # values
    **{
        value: (typed(value), f"{re.escape(value)} must be {words}")
        for value, words in {
            "seed=-1": "greater than or equal to 0",
            "seed=one": "a valid integer",
            "seed=1.5": "a valid integer",
            "seed=5000000000": "less than or equal to 4294967295",
            "threads=0": "greater than or equal to 1",
            "threads=100000": "less than or equal to 1024",
            "model.positions=null": "a group of settings",
            "patience=0": "greater than or equal to 1",
            "test=maybe": "a valid boolean",
            "decay=step": "'cosine', 'linear' or 'none'",
            "label_smoothing=2": "less than or equal to 1",
            "optim.lr=fast": "a valid number",
            "optim.lr=inf": "a finite number",
            "optim.lr=nan": "a finite number",
            "optim.weight_decay=-1": "greater than or equal to 0",
            "data.max_tokens=0": "greater than or equal to 1",
            "data.word_dropout=1.0": "less than 1",
            "data.validation_share=0": "greater than 0",
            "data.head_share=2": "less than or equal to 1",
            "data.encoding_errors=ignore": "'strict' or 'replace'",
            "data.label_names=pos": "a valid list",
            "data.path=": "text of at least one character",
            "data.text_column=null": "a valid string",
            "model.layers=-1": "greater than or equal to 0",
            "model.embedding.trainable=yes please": "a valid boolean",
            "model.embedding.mixout=1": "less than 1",
            "logger.name=paper": "'wandb', 'tensorboard', 'csv' or 'none'",
            "trainer.max_epochs=0": "greater than or equal to 1",
            "trainer.max_epochs=many": "a valid integer",
            "trainer.max_steps=0": "-1, or an integer of at least 1",
            "trainer.accumulate_grad_batches=0": "greater than or equal to 1",
            "trainer.gradient_clip_val=-1": "greater than or equal to 0",
            "trainer.check_val_every_n_epoch=0": "greater than or equal to 1",
            "trainer.num_nodes=two": "a valid integer",
            "trainer.enable_progress_bar=no please": "a valid boolean",
        }.items()
    },
    **{
        value: (typed("model=log_counts", value), rf"{re.escape(value)} must be {words}")
        for value, words in {
            "model.phrases.longest=4": "less than or equal to 3",
            "model.phrases.longest=0": "greater than or equal to 1",
            "model.phrases.longest=null": "a valid integer",
            "model.phrases.min_reviews=0": "greater than or equal to 1",
            "model.phrases.min_reviews=1.5": "a valid integer",
            "model.phrases.folds=1": "greater than or equal to 2",
            "model.phrases.folds=all": "a valid integer",
        }.items()
    },
    **{
        value: (typed("model=tuned", value), rf"model\.layer\.distances.* must {words}")
        for value, words in {
            "model.layer.distances.waves=0": "be greater than or equal to 1",
            "model.layer.distances.strength=-1": "be greater than or equal to 0",
            "model.layer.distances.strength=much": "be a valid number",
            "model.layer.distances.places=[]": "have at least 1 item",
            "model.layer.distances.places=[0.5]": "be a valid integer",
            "model.layer.distances.places=1": "be a valid list",
            "model.layer.distances=8": "be a group of settings",
        }.items()
    },
    **{
        f"model.convolution.kernel={size}": (
            typed("model=convolved", f"model.convolution.kernel={size}"),
            rf"model\.convolution\.kernel={size} must be an odd number of at least 1",
        )
        for size in (0, 2)
    },
    "channels without phrases": (
        typed("model=log_counts", "model.phrases=null"),
        r"model\.channels\.log_counts needs model\.phrases",
    ),
    "a number for phrases": (
        typed("model=log_counts", "model.phrases=3"),
        r"model\.phrases=3 must be a group of settings",
    ),
    "half the settings of phrases": (
        typed("model=log_counts", "~model.phrases.folds"),
        r"model\.phrases\.folds is missing",
    ),
    "phrases without their length": (typed("model=mean", "model.phrases={folds: 5}"), r"model\.phrases\.longest"),
    "a channel that is none": (
        typed("model=log_counts", "model.channels.log_counts._target_=torch.nn.functional.relu"),
        r"error: model\.[\w.]+=torch\.nn\.functional\.relu is not a subclass of torch\.nn\.",
    ),
    "a value for a group": (typed("optim=adam"), r"optim=adam must be a group of settings"),
    "a value for a group in a group": (
        typed("data.glove=50"),
        r"data\.glove=50 must be a group of settings",
    ),
    "null for a group": (typed("model.layer=null"), r"model\.layer=null must be a group of settings"),
    "shares that leave nothing": (typed("data.test_share=0.95"), "leave nothing for training: change one"),
    "positions too short": (
        typed("model=residual_learned", "model.positions.length=10"),
        r"model\.positions\.length=10 is too short for data\.max_tokens=512",
    ),
    # parts
    "positions without end": (typed("model=residual_learned", "data.max_tokens=null"), r"data\.max_tokens"),
    "heads that do not divide": (typed("model.layer.heads=3"), r"model\.layer\.heads=3 does not divide the width 10"),
    "no model part": (typed("model.layer._target_=os.system"), r"os\.system is not a subclass of torch\.nn\..*Module"),
    "no pooling": (typed("model.pooling._target_=imdbattn.nn.NoPositions"), r"is not a subclass of imdbattn\.nn\.Pool"),
    "a function": (typed("model.pooling._target_=torch.nn.functional.relu"), "relu is not a subclass of torch.nn"),
    "no optimiser": (typed("optim._target_=torch.load"), r"torch\.load is not a subclass of torch\.optim\..*Optimizer"),
    "unknown optimiser": (
        typed("optim._target_=torch.optim.Madam"),
        r"torch\.optim\.Madam cannot be imported: .*Madam",
    ),
    "no trainer": (typed("trainer._target_=imdbattn.files.write_atomically"), r"is not a subclass of .*Trainer"),
    "unknown part": (
        typed("model.positions._target_=imdbattn.nn.ladder.Nowhere"),
        "Nowhere cannot be imported: .*Nowhere",
    ),
    "a package that is not there": (typed("model.layer._target_=mypkg.Layer"), "imported: No module named 'mypkg'"),
    "no callback": (
        typed("+trainer.callbacks=[{_target_: torch.nn.ReLU}]"),
        r"trainer\.callbacks\[0\]\._target_=torch\.nn\.ReLU is not a subclass of .*Callback",
    ),
    "one callback": (
        typed("+trainer.callbacks={_target_: x}"),
        r"trainer\.callbacks=.* must be a valid list",
    ),
    "nothing to validate": (typed("trainer.limit_val_batches=0"), r"trainer\.limit_val_batches=0 leaves no batches"),
    "nothing to test": (
        typed("trainer.limit_test_batches=0.001"),
        r"trainer\.limit_test_batches=0\.001 is less than one batch: set it higher",
    ),
    "epochs in words": (typed("trainer.min_epochs=two"), r"trainer\.min_epochs=two must be an integer"),
    "a time without epochs": (
        typed("trainer.max_epochs=null", "trainer.max_time=00:00:01:00"),
        "trainer.max_time needs trainer.max_epochs or max_steps too",
    ),
    "unknown accelerator": (typed("trainer.accelerator=abacus"), "trainer: .*abacus.*"),
    "unknown precision": (typed("trainer.precision=7"), "trainer: .*7.*32"),
    "a strategy that forks": (typed("trainer.strategy=ddp_fork"), r"trainer\.strategy=ddp_fork must be a strategy"),
    "unknown strategy": (typed("trainer.strategy=magic"), "trainer: .*magic"),
    "unknown time": (typed("trainer.max_time=soon"), "trainer: .*soon"),
    "two sources": (typed("data.source=packaged"), r"data\.source=packaged has no effect with data\.path: set it"),
    "unknown source": (
        typed("data.source=floppy"),
        r"data\.source=floppy must be 'auto', 'hub', 'packaged', 'path' or 'order_probe'",
    ),
    "a source without its path": (typed("data.source=path", "data.path=null"), r"data\.source=path needs data\.path"),
    "unknown tokenizer": (
        typed("data.tokenizer=scissors"),
        r"data\.tokenizer=scissors must be 'ptb', 'basic_english'",
    ),
    # reviews
    "a missing file": (
        typed("data.path=nowhere.csv"),
        r"nowhere\.csv cannot be read \(No such file or directory\): give",
    ),
    "a name too long": (typed(f"data.path={'x' * 5000}"), r"cannot be read \(File name too long\)"),
    "an empty file": (reviews(""), r"r\.csv cannot be read: it has no rows"),
    "header only": (reviews("text,label\n"), r"r\.csv cannot be read: it has no rows"),
    "blank lines only": (reviews("\n\n\n"), r"r\.csv cannot be read: it has no rows"),
    "no such column": (
        reviews(csv_text(head="review,label")),
        r"no column 'text'; it has 'review', 'label': set data\.text_column",
    ),
    "other delimiter": (
        reviews(csv_text().replace(",", ";")),
        "no column 'text'; it has 'text;label': its columns seem to be separated by ';': write it with commas",
    ),
    "no header": (reviews(csv_text(head="fine film,pos")), r"no column 'text'; it has 'fine film', 'pos'"),
    "a column twice": (
        reviews(csv_text(head="text,text")),
        r"2 columns 'text'; it has 'text', 'text': set data\.text_column",
    ),
    "a space before a column": (
        reviews(csv_text(head="text, label")),
        "no column 'label'; it has 'text', ' label': set data.label_column",
    ),
    "columns swapped": (
        reviews(csv_text(TEXTS, LABELS)),
        "column 'label' has 40 different labels in 40 rows: set data.label_column",
    ),
    "labels that are measurements": (reviews(csv_text([n / 7 for n in range(40)])), "40 different labels in 40 rows"),
    "a label outside": (
        reviews(csv_text(("good", *LABELS[1:])), "r.csv", "data.label_names=[neg,pos]"),
        rf"row 0 {COUNTED} has the label good; labels are neg, pos \(data\.label_names\)",
    ),
    "a number outside": (
        reviews(csv_text([0, 1, 2, 0] * 10), "r.csv", "data.label_names=[neg,pos]"),
        rf"row 2 {COUNTED} has the label 2; labels are neg, pos",
    ),
    "a word among numbers": (
        reviews(csv_text([0, 1, "one", 1] * 10), "r.csv", "data.label_names=['0','1']"),
        rf"row 2 {COUNTED} has the label one; labels are 0, 1",
    ),
    "one class": (reviews(csv_text(["pos"] * 40)), "only one class; give reviews of at least two"),
    "no label": (reviews(csv_text(["neg", "", "pos", "pos"] * 10)), rf"row 1 {COUNTED} has no 'label': fill it"),
    "label nan": (reviews(csv_text(["1.0", "0.0", "nan", "1.0"] * 10)), rf"row 2 {COUNTED} has no 'label'"),
    "label of spaces": (reviews(csv_text(["neg", "pos", "  ", "pos"] * 10)), rf"row 2 {COUNTED} has no 'label'"),
    "label null": (reviews(lines({"text": "x", "label": None}), "r.jsonl"), rf"row 40 {COUNTED} has no 'label'"),
    "a missing key": (reviews(lines({"label": "pos"}), "r.jsonl"), rf"row 40 {COUNTED} has no 'text': fill it"),
    "not UTF-8": (
        reviews(csv_text().encode().replace(b"good film word3,", b"caf\xe9,")),
        r"not UTF-8 at byte 82, line 5: save it as UTF-8, or set data\.encoding_errors=replace",
    ),
    "not UTF-8 JSON": (
        reviews(lines().encode() + b'{"text": "caf\xe9", "label": "neg"}\n', "r.jsonl"),
        r"r\.jsonl is not UTF-8 at byte \d+, line 41: .*data\.encoding_errors=replace",
    ),
    "a label not UTF-8": (reviews(csv_text().encode().replace(b",pos", b",p\xf6s")), "at byte 52, line 3: save"),
    "a header not UTF-8": (reviews(b"text,label,caf\xe9\nx,pos,1\n"), "not UTF-8 at byte 14, line 1: save"),
    "UTF-16": (reviews(csv_text().encode("utf-16")), r"r\.csv is UTF-16: save it as UTF-8"),
    "a null byte": (
        reviews(csv_text().replace("word2", "\0")),
        r"r\.csv has a null byte at byte \d+, line 4: .* data\.encoding_errors=replace",
    ),
    "a row too long": (
        reviews(csv_text() + "b,neg,more\n"),
        "line 42: expected 2 columns, got 3",
    ),
    "a quote not closed": (
        reviews(csv_text().replace("a good", '"a good', 1)),
        r"r\.csv cannot be read: lines 3 to 41: unexpected end of data",
    ),
    "a quote not closed in the last row": (
        reviews(csv_text() + 'a good film,"pos\n'),
        r"r\.csv cannot be read: line 42: unexpected end of data",
    ),
    "text after a quote": (
        reviews(csv_text() + '"good" film,pos\n'),
        r"r\.csv cannot be read: line 42: ',' expected after '\"'",
    ),
    "another column not UTF-8": (
        reviews(csv_text([f"{n},\xe9" for n in LABELS], head="text,label,x").encode("latin1")),
        r"r\.csv is not UTF-8 at byte \d+, line 2: .*data\.encoding_errors=replace",
    ),
    "a zip for a csv": (reviews(zipped("r.csv", csv_text().encode())), r"r\.csv is compressed: unpack it first"),
    "a gz for a csv": (reviews(gzip.compress(csv_text().encode())), r"r\.csv is compressed: unpack it first"),
    "a list a line": (
        reviews('["x", "pos"]\n' * 40, "r.jsonl"),
        r"r\.jsonl cannot be read: line 1: it is a list",
    ),
    "one list for all": (
        reviews(json.dumps([{"text": "x", "label": 1}] * 9), "r.json"),
        r"r\.json cannot be read: line 1: it is a list",
    ),
    "half a line": (reviews(lines()[:-9], "r.jsonl"), r"r\.jsonl cannot be read: line 40: "),
    "a nested text": (
        reviews('{"text": {"a": "x"}, "label": "pos"}\n' * 9, "r.jsonl"),
        r"r\.jsonl cannot be read: line 1: a value is a dict",
    ),
    "a nested label": (
        reviews(lines({"text": "x", "label": ["pos"]}), "r.jsonl"),
        r"r\.jsonl cannot be read: line 41: a value is a list",
    ),
    "what ends pyarrow": (reviews("null[\n\n", "r.jsonl"), r"r\.jsonl cannot be read: line 1: Extra data"),
    "no parquet": (reviews("text", "r.parquet"), r"r\.parquet cannot be read: "),
    "half a parquet": (reviews(parquet()[:-30], "r.parquet"), r"r\.parquet cannot be read: "),
    "a parquet with a hole": (
        reviews(b"PAR1\xff\xfe PAR1", "r.parquet"),
        r"r\.parquet cannot be read: ",
    ),
    "a spreadsheet": (reviews("text", "r.xlsx"), r"r\.xlsx is not one of \.csv, .*: convert it to one of them"),
    "too few": (reviews(csv_text(LABELS[:2], TEXTS[:2])), "no reviews for (validation|test); give more"),
    "an empty folder": (folder(), r"holds neither train/<label>/\*\.txt nor a file train .*; give a folder"),
    "two files for one split": (
        folder(train_csv=csv_text(), train_tsv="x"),
        r"has train\.csv, train\.tsv for the split train: keep one",
    ),
    "no training": (folder(test_csv=csv_text()), "has no training reviews; it holds test"),
    "a text not UTF-8": (
        folder(train__pos__1_txt=b"caf\xe9", train__neg__1_txt="x"),
        r"1\.txt is not UTF-8 at byte 3, line 1: .*data\.encoding_errors=replace",
    ),
    "a text with a null byte": (
        folder(train__pos__1_txt="a\0", train__neg__1_txt="x"),
        r"1\.txt has a null byte at byte 1, line 1: save",
    ),
    "a folder for a text": (
        folder(**{"train__pos__1.txt__2_txt": "x"}, train__neg__1_txt="x"),
        r"1\.txt cannot be read",
    ),
    "a pipe for reviews": (pipe("r.csv", "data.path={path}"), r"r\.csv cannot be read \(it is not a regular file\)"),
    "a pipe for a split": (pipe("train.csv", "data.path={folder}"), r"train\.csv cannot be read \(it is not a regular"),
    "a pipe for a text": (
        pipe("train/pos/1.txt", "data.path={folder}"),
        r"1\.txt cannot be read \(it is not a regular",
    ),
    "a device for reviews": (typed("data.path=/dev/zero"), r"/dev/zero cannot be read \(it is not a regular file\)"),
    "a path not UTF-8": (not_utf8(b"caf\xe9.csv"), r"data\.path='.*caf\\udce9\.csv' is not UTF-8: rename the file"),
    "a column not UTF-8": (typed("data.text_column='caf\udce9'"), r"'caf\\udce9' is not UTF-8: .*, or write the text"),
    "a label not UTF-8 of a folder": (
        not_utf8(b"train/n\xe9g/1.txt"),
        r"has a folder 'n\\udce9g', whose name is not UTF-8: rename it",
    ),
    "the same reviews in all splits": (
        folder(train_csv=csv_text(), test_csv=csv_text(), validation_csv=csv_text()),
        "no reviews for train: each text is also in validation or test; give others",
    ),
    # vectors
    "a pipe for vectors": (pipe("v.txt", "data.glove.path={path}"), r"v\.txt is not a file: give a \.txt"),
    "a name too long for vectors": (typed(f"data.glove.path={'x' * 5000}"), "is not a file: give a .txt, .gz or .zip"),
    "two spaces in a line of vectors": (
        vectors(GLOVE.replace(b"word7 1", b"word7  1")),
        r"line 8 is not a word and 10 finite numbers, one space apart; it starts with 'word7  1 2 .*download the file",
    ),
    "tabs in vectors": (
        vectors(GLOVE.replace(b" ", b"\t")),
        r"line 1 is not a word and 10 finite numbers, one space apart; it starts with 'word0\\t1\\t2",
    ),
    "missing vectors": (
        typed("data.glove.path=nowhere.txt"),
        r"data\.glove\.path=nowhere\.txt is not a file: give a \.txt",
    ),
    "a folder for vectors": (typed("data.glove.path=/"), r"data\.glove\.path=/ is not a file"),
    **{
        words[-1]: (typed("data.glove.path=null", *words), message)
        for *words, message in (
            ("data.glove.source=web", r"data\.glove\.source=web must be 'auto', 'wheel', 'official' or 'torchtext'"),
            ("data.glove.source=wheel", "data.glove.dim=100", r"has 50 dimensions, not data\.glove\.dim=100"),
            ("data.glove.dim=0", r"data\.glove\.dim=0 must be greater than or equal to 1"),
        )
    },
    "vectors that have no effect": (
        typed("data.glove.source=wheel"),
        r"data\.glove\.source=wheel has no effect with data\.glove\.path: set it to auto",
    ),
    "no such width": (typed("data.glove.path=null", "data.glove.dim=9"), r"data\.glove\.dim=9: choose one of 50, 100"),
    "another width": (
        vectors(b"a 1 2 3\n"),
        r"line 1 is not a word and 10 finite numbers.*starts with 'a 1 2 3.*change data\.glove\.dim=10",
    ),
    "cut in a line": (vectors(GLOVE[:-6]), "line 40 is not a word and 10 finite numbers.*download the file again"),
    "spoilt vectors": (
        vectors(GLOVE.replace(b"word7 1", b"word7 x")),
        "line 8 is not a word and 10 finite numbers.*: change data.glove.dim=10, or download the file again",
    ),
    "vectors not UTF-8": (
        vectors(GLOVE.replace(b"word7 ", b"w\xe9 ")),
        r"line 8 is not a word and 10 finite numbers.* starts with 'w\\xe9 1 2",
    ),
    "nan in vectors": (vectors(GLOVE + b"x 1 2 3 4 5 6 7 8 9 nan\n"), "line 41 is not a word and 10 finite numbers"),
    "a word twice": (vectors(GLOVE + b"word7 0 9 8 7 6 5 4 3 2 1\n"), "line 41: 'word7' is already in line 8: rem"),
    "a header": (vectors(b"40 10\n" + GLOVE), "line 1 is not a word and 10 finite numbers, .*'40 10"),
    "no vectors": (vectors(b""), r"v\.txt is empty: give GloVe vectors \(data\.glove\.path\)"),
    "half a gz": (vectors(gzip.compress(GLOVE)[:-20], "v.gz"), r"v\.gz cannot be read .*: download it again"),
    "half a zip": (vectors(zipped("v.txt", GLOVE)[:-40], "v.zip"), r"v\.zip cannot be read .*: download it again"),
    "a zip with a password": (vectors(locked(zipped("v.txt", GLOVE)), "v.zip"), r"v\.zip cannot be read .*password"),
    "a zip without vectors": (
        vectors(zipped("v.bin", GLOVE), "v.zip"),
        r"no \.txt.* change data\.glove\.dim or data\.gl",
    ),
    # caches
    "a cache where none can be": (
        typed("data.cache_dir=/proc/x"),
        "/proc/x/.* cannot be created: set data.cache_dir",
    ),
    "a cache below a file": (
        lambda place: [f"data.cache_dir={place.write('file', 'x')}/cache"],
        r"file/cache/.* cannot be written \(Not a directory\): .*set data.cache_dir to another folder",
    ),
    **{
        f"a flipped byte in {pattern}": (
            flipped(pattern),
            rf"the cache is damaged \({Path(pattern).name}: .*\): delete the folder .*/{pattern[:5]}\S+ and run",
        )
        for pattern in (
            "glove/*/vectors.npy",
            "glove/*/words.txt",
            "glove/*/meta.json",
            "tokens/*/train.arrow",
            "tokens/*/test.arrow",
            "tokens/*/test_texts.parquet",
            "tokens/*/meta.json",
        )
    },
    "a flipped byte in checksums.json": (
        flipped("tokens/*/checksums.json"),
        r"the cache is damaged .*: delete the folder",
    ),
}

SEQ2SEQ: dict[str, tuple[Arguments, str]] = {  # training of an encoder-decoder
    # settings
    "a classifier": (
        typed("model=base"),
        "task=seq2seq needs data=reverse or translation, and one of the models seq2seq, ",
    ),
    "reviews": (typed("data=reviews"), r"task=seq2seq needs data=reverse or translation"),
    "the order probe": (typed("data=order_probe"), r"task=seq2seq needs data=reverse or translation"),
    "its data without the task": (
        typed("task=reviews", "data=reverse"),
        "this model or data is for encoder-decoders: add task=seq2seq",
    ),
    "its model without the task": (
        typed("task=reviews", "model=seq2seq"),
        "this model or data is for encoder-decoders: add task=seq2seq",
    ),
    "BLEU of letters": (typed("choose_by=bleu"), "choose_by=bleu needs words: use data=translation"),
    **{
        value: (typed(*value.split(" ")), re.escape(value.split(" ")[-1].partition("=")[0]) + rf"\S*=.* must {words}")
        for value, words in {
            "choose_by=luck": "be 'accuracy', 'loss' or 'bleu'",
            "model.cell=rnn": "be 'gru' or 'lstm'",
            "model.layers=0": "be greater than or equal to 1",
            "model.hidden=0": "be greater than or equal to 1",
            "model.hidden=null": "be a valid integer",
            "model.width=null": "be a valid integer",
            "model.dropout=2": "be less than or equal to 1",
            "data.lengths=20": "be a valid list",
            "data.lengths=[1,2,3]": "be the shortest and the longest length, from 1 to 1000",
            "data.lengths=[0,5]": r"be the shortest and the longest length, from 1 to 1000, such as \[1,20\]",
            "data.lengths=[5,2]": r"be the shortest and the longest length, from 1 to 1000, such as \[1,20\]",
            "data.test_lengths=[1,2000]": r"be the shortest and the longest length, from 1 to 1000, such as \[1,20\]",
            "data.letters=27": "be less than or equal to 26",
            "data.letters=1": "be greater than or equal to 2",
            "data.train=0": "be greater than or equal to 1",
            "data.seed=-1": "be greater than or equal to 0",
            "data.batch_tokens=0": "be greater than or equal to 1",
            "data.batch_tokens=null": "be a valid integer",
            "data=translation data.min_frequency=0": "be greater than or equal to 1",
            "data.test=1000000000000": "be less than or equal to 10000000",
            "data.lengths=[1.5,2]": "be a valid integer",
            "data=translation data.hub=/etc/passwd": "be owner/name of a dataset on the hub",
            "data=translation data.hub=../data": "be owner/name of a dataset on the hub",
            "data=translation data.languages=[en]": "be a list of two different names",
            "data=translation data.languages=[en,en]": "be a list of two different names",
            "data=translation data.lower=maybe": "be a valid boolean",
            "data=translation data.limit=0": "be greater than or equal to 1",
            "data=translation data.encoding_errors=ignore": "be 'strict' or 'replace'",
        }.items()
    },
    "more strings than there are": (
        typed("data.letters=2", "data.lengths=[1,4]", "data.test=5", "data.validation=2"),
        r"data\.train=\d+: only 23 strings of 2 letters and lengths 1 to 4 are available",
    ),
    "a file of strings": (typed("data.source=path"), r"data\.source=path must be 'reverse'"),
    "a score that is none": (
        typed("model.score._target_=torch.nn.Linear"),
        r"model\.score\._target_=torch\.nn\.Linear does not compare a query with keys: choose Dot, ScaledDot",
    ),
    "a score that is a function": (
        typed("model.score._target_=imdbattn.nn.scores.masked_softmax"),
        "masked_softmax is not a subclass of torch",
    ),
    # pairs
    "a missing file": (
        pairs(None),
        r"nowhere\.tsv cannot be read \(No such file or directory\): give",
    ),
    "a folder": (typed("data=translation", "data.path=/"), r"/ cannot be read \(it is not a regular file\)"),
    "a pipe for pairs": (
        pipe("p.tsv", "data=translation", "data.path={path}"),
        r"p\.tsv cannot be read \(it is not a regular file\): give another one, or make it readable",
    ),
    "an empty file": (pairs(""), r"p\.tsv is empty: it should contain source TAB target on each line"),
    "blank lines": (pairs(" \n\n"), r"p\.tsv is empty"),
    "an empty source": (
        pairs(PAIRS + "\tvide\n"),
        rf"p\.tsv: row 90 {COUNTED} has an empty source: fill it, or remove",
    ),
    "an empty target": (
        pairs("empty\t \n" + PAIRS),
        rf"p\.tsv: row 0 {COUNTED} has an empty target: fill it, or remove",
    ),
    "no tab": (pairs(PAIRS + "one side\n"), rf"row 90 {COUNTED} has 1 columns, .*: write source TAB target"),
    "pairs not UTF-8": (pairs(PAIRS.encode() + b"caf\xe9\tx\n"), r"not UTF-8 at byte \d+, line 91: save"),
    "pairs with a null byte": (pairs(PAIRS + "a\0\tx\n"), r"has a null byte at byte \d+, line 91: save it as UTF-8"),
    "pairs in a zip": (pairs(zipped("p.tsv", PAIRS.encode())), r"p\.tsv is compressed: unpack it first"),
    "too few pairs": (pairs("a\tb\n"), r"p\.tsv: no pairs for \w+"),
    "pairs that are too long": (
        pairs(PAIRS, "data.max_tokens=1"),
        r"no pairs for train; give more, or change data\.max_tokens",
    ),
    "no frequent word": (pairs(PAIRS, "data.min_frequency=999"), r"no training word occurs data\.min_frequency=999"),
    "shares that leave nothing": (
        typed("data=translation", "data.test_share=0.95"),
        r"data\.validation_share=0\.1 and data\.test_share=0\.95 leave nothing for training: change one",
    ),
    "other languages": (
        typed("data=translation", "data.languages=[en,de]"),
        r"data\.languages=\['en', 'de'\], but the packaged pairs have \[en,fr\]: use these, or give a data\.path",
    ),
    "a path that has no effect": (
        pairs(PAIRS, "data.source=packaged"),
        r"data\.source=packaged has no effect with data\.path: set it to auto",
    ),
    "a hub that has no effect": (
        typed("data=translation", "data.hub=a/b", "data.source=path"),
        r"data\.source=path has no effect with data\.hub: set it to auto",
    ),
    "a path that is missing": (typed("data=translation", "data.source=path"), r"data\.source=path needs data\.path"),
    "a path and a dataset": (pairs(PAIRS, "data.hub=a/b"), "are both given: set one to null"),
    "a hub without a name": (typed("data=translation", "data.source=hub"), r"data\.source=hub needs data\.hub=<owner"),
}


def table(content: str | bytes, *more: str, name: str = "r.csv") -> Arguments:
    """A table to be labeled, and an earlier table of results, o.csv."""

    def make(place: Place) -> list[str]:
        place.write("o.csv", "row,label\n")
        return ["run=.", f"file={place.write(name, content)}", *more]

    return make


TABLES: dict[str, tuple[Arguments, str]] = {
    "a column that is not there": (
        table(csv_text(head="review,label")),
        "has no column 'text'; it has 'review', 'label'",
    ),
    "another column that is not there": (table(csv_text(), "column=re"), "no column 're'; it has 'text', 'label': set"),
    "a column without a table": (
        table("fine", "column=text", name="r.txt"),
        "column=text is for tables, such as file=",
    ),
    "a column of a text": (typed("run=.", "text=a", "column=b"), r"column=b is for a table: add file=reviews\.csv"),
    "an empty table": (table(""), r"file=.*r\.csv cannot be read: it has no rows"),
    "a table without rows": (table("text,label\n"), r"r\.csv cannot be read: it has no rows"),
    "three values in two columns": (table("text,label\na,b,c\n"), "line 2: expected 2 columns, got 3"),
    "a quote that stays open": (table('text\n"a\n'), r"r\.csv cannot be read: line 2: unexpected end of data"),
    "a table that is not UTF-8": (table(b"text\ncaf\xe9\n"), r"r\.csv is not UTF-8 at byte 8, line 2: save it as"),
    "a table with a null byte": (table(b"text\na\0\n"), r"r\.csv has a null byte at byte 6, line 2: save it as"),
    "a list for a text": (
        table(lines({"text": [1, 2]}), name="r.jsonl"),
        "line 41: a value is a list",
    ),
    "a row without a text": (table(lines({"label": "a"}), name="r.jsonl"), f"row 40 {COUNTED} has no 'text': fill it"),
    "half a Parquet file": (table(parquet()[:500], name="r.parquet"), r"r\.parquet cannot be read: "),
    "a column of lists": (
        table(parquet([[1.0, 2.0]] * len(TEXTS)), name="r.parquet"),
        r"r\.parquet cannot be read: Unsupported cast from list",
    ),
    "a table for its own results": (table(csv_text(), "out=r.csv"), r"out=r\.csv is the file that is read: choose"),
    "results of another kind": (table(csv_text(), "out=o.xls"), r"out=o\.xls must be a file that ends in \.csv, \.tsv"),
    "compressed results": (table(csv_text(), "out=o.csv.gz"), r"out=o\.csv\.gz must be a file that ends in \.csv"),
    "results without a name": (table(csv_text(), "out=.csv"), r"out=\.csv must be a file that ends in \.csv"),
    "a missing table, and earlier results": (
        table(csv_text(), "file=missing.csv", "out=o.csv"),
        r"file=missing\.csv cannot be read \(No such file",
    ),
    "a table of an unknown user": (
        table("", "file='~nobody-of-that-name/r.csv'", "out='~nobody-of-that-name/o.csv'"),
        r"r\.csv cannot be read \(No such file",
    ),
    "results and a page": (table(csv_text(), "out=o.csv", "explain=true"), "give out= or explain=true, not both"),
    "results for no run": (table(csv_text(), "out=o.csv"), r"run=\. is not a finished run"),
}

OTHERS: dict[str, tuple[str, Arguments, str]] = {
    # runs
    "no run": ("predict", typed("text=good"), "run=<run folder> is needed"),
    "the working folder": ("predict", typed("run=r", "hydra.job.chdir=true"), r"hydra\.job\.chdir=true .*: omit it"),
    "a missing run": ("predict", typed("run=nowhere", "text=good"), "run=nowhere is not a folder"),
    "a run of an unknown user": (
        "predict",
        typed("run='~nobody-of-that-name/run'", "text=good"),
        "run=~nobody-of-that-name/run is not a folder",
    ),
    "a file for a run": (
        "predict",
        lambda place: [f"run={place.write('run', 'x')}", "text=good"],
        "run=.*run is not a folder",
    ),
    "an empty folder for a run": ("evaluate", typed("run=."), r"run=\. is not a finished run: it has no config\.yaml"),
    "a sweep for a run": (
        "predict",
        lambda place: ["text=good", f"run={place.run().parent}"],
        r"is not a finished run: it has no config\.yaml",
    ),
    "no checkpoint": (
        "predict",
        broken(lambda run: (run / "checkpoints" / "best.ckpt").unlink(), "text=good"),
        r"is not a finished run: it has no checkpoints/best\.ckpt",
    ),
    "half a checkpoint": (
        "predict",
        broken(rewrite("checkpoints/best.ckpt", lambda content: content[:1000]), "text=good"),
        r"best\.ckpt cannot be read: ",
    ),
    "an empty checkpoint": (
        "evaluate",
        broken(rewrite("checkpoints/best.ckpt", lambda content: b"")),
        r"best\.ckpt cannot be read: ",
    ),
    "code in a checkpoint": (
        "predict",
        broken(repack(lambda content: content | {"harm": Harm()}), "text=good"),
        r"best\.ckpt cannot be read: it contains something other than tensors and plain values; train again",
    ),
    "a checkpoint of another version": (
        "evaluate",
        broken(repack(other_version)),
        r"best\.ckpt cannot be loaded: .*Missing key",
    ),
    "a checkpoint without its facts": (
        "evaluate",
        broken(repack(lambda content: {"state_dict": content["state_dict"]})),
        r"best\.ckpt cannot be loaded: ",
    ),
    "another model": (
        "predict",
        broken(rewrite("config.yaml", lambda content: content.replace(b"layers: 0", b"layers: 1")), "text=good"),
        r"best\.ckpt cannot be loaded: ",
    ),
    "phrases that are not in the checkpoint": (
        "predict",
        broken(repack(without_phrases), "text=good", rung="log_counts_mean"),
        r"best\.ckpt cannot be loaded: .*net\.context\.phrases\.keys_P.*; train again",
    ),
    "phrases that only the checkpoint knows": (
        "predict",
        broken(
            rewrite("config.yaml", lambda content: re.sub(rb"  phrases:\n(    .*\n)+", b"  phrases: null\n", content)),
            "text=good",
            rung="log_counts_mean",
        ),
        r"model\.channels\.log_counts needs model\.phrases",
    ),
    "phrases of another length": (
        "evaluate",
        broken(
            rewrite("config.yaml", lambda content: content.replace(b"longest: 3", b"longest: 2")),
            rung="log_counts_mean",
        ),
        r"best\.ckpt cannot be loaded: .*size mismatch",
    ),
    "half a run's settings of phrases": (
        "predict",
        broken(
            rewrite("config.yaml", lambda content: content.replace(b"    longest: 3\n", b"")),
            "text=good",
            rung="log_counts_mean",
        ),
        r"model\.phrases\.longest",
    ),
    "other vectors": ("predict", shuffled, r"vectors with fingerprint .*: set data\.glove as in"),
    "broken settings of a run": (
        "evaluate",
        broken(rewrite("config.yaml", lambda content: b"model: [")),
        r"config\.yaml cannot be read: ",
    ),
    "half the settings of a run": (
        "evaluate",
        broken(rewrite("config.yaml", lambda content: content[: content.index(b"\noptim:") + 1])),
        r"config\.yaml: \S+ is missing: copy the run folder again, or train again",
    ),
    "a list for the settings of a run": (
        "predict",
        broken(rewrite("config.yaml", lambda content: b"- a\n- b\n"), "text=good"),
        r"config\.yaml cannot be read",
    ),
    "broken metrics of a run": (
        "evaluate",
        broken(rewrite("metrics.json", lambda content: content[:20])),
        r"metrics\.json cannot be read .*: delete it to score without it",
    ),
    # evaluate
    "unknown split": ("evaluate", broken(None, "split=tset"), "split=tset must be 'train', 'validation' or 'test'"),
    "a split that is not there": (
        "evaluate",
        lambda place: [f"run={place.run()}", "split=train", *reviews(csv_text())(place)],
        "split=train does not exist: choose one of test",
    ),
    "labels that the run does not know": (
        "evaluate",
        lambda place: [f"run={place.run()}", *reviews(csv_text(["good", "bad"] * 20))(place)],
        rf"row 0 {COUNTED} has the label good; labels are neg, pos",
    ),
    "no path to score": ("evaluate", broken(None, "data.path="), r"data\.path= must be text"),
    # predict
    "two texts": ("predict", typed("run=.", "text=a", "file=b"), "give text= or file=, not both"),
    "a missing file": (
        "predict",
        typed("run=.", "file=nowhere.txt"),
        r"file=nowhere\.txt cannot be read .*: give another",
    ),
    "a folder for a file": (
        "predict",
        typed("run=.", "file=/"),
        r"/ has subfolders: give a folder that has only a \.txt file for each text",
    ),
    "a path too long": ("predict", typed("run=.", f"file={'x' * 5000}"), r"cannot be read \(File name too long\)"),
    "an empty file": (
        "predict",
        lambda place: ["run=.", f"file={place.write('f', '')}"],
        "no review was given: use text=",
    ),
    "a file not UTF-8": (
        "predict",
        lambda place: ["run=.", f"file={place.write('f', b'fine' + bytes([10]) + b'caf' + bytes([233]))}"],
        r"is not UTF-8 at byte 8, line 2: save it as UTF-8",
    ),
    **{
        f"a name too long for {command}": (command, typed(f"{key}={'x' * 5000}", *more), f"{key}=x+ is not a folder")
        for command, key, *more in (
            ("predict", "run", "text=good"),
            ("evaluate", "run"),
            ("compare", "runs"),
        )
    },
    "explain what": ("predict", typed("run=.", "text=a", "explain=what"), "explain=what must be a valid boolean"),
    "misspelt key of predict": ("predict", typed("rum=."), "no setting rum; the nearest is run"),
    # compare
    "no runs": ("compare", typed(), r"runs=<folder> is needed: a sweep's folder, a run's, or several as runs=\[a,b\]"),
    "missing runs": (
        "compare",
        typed("runs=[nowhere/a,nowhere/b]"),
        "runs=nowhere/a is not a folder: give a run folder, or",
    ),
    "runs of an unknown user": ("compare", typed("runs='~nobody-of-that-name'"), "name is not a folder: give a run"),
    "no finished run": ("compare", typed("runs=."), r"no finished run in \.: choose another folder"),
    "unknown split to compare": (
        "compare",
        typed("runs=.", "split=train"),
        "split=train must be 'test' or 'validation'",
    ),
    "few resamples": (
        "compare",
        typed("runs=.", "resamples=10"),
        "resamples=10 must be greater than or equal to 100",
    ),
    "words that are none": (
        "compare",
        typed("runs=.", "words.but=but"),
        r"words\.but=but must be a valid list",
    ),
    "against nobody": (
        "compare",
        lambda place: [f"runs={place.run()}", "against=bass"],
        "against=bass is not among the runs; choose one of mean",
    ),
    # dashboard
    "no entity": ("dashboard", typed(), "entity=<W&B user or team> is needed, or dry_run=true"),
    "unknown time to wait": ("dashboard", typed("timeout=soon"), "timeout=soon must be a valid number"),
    "no project": ("dashboard", typed("dry_run=true", "project=null"), "project=null must be a valid string"),
}

CASES = {f"train: {name}": ("train", *case) for name, case in TRAIN.items()}
CASES |= {f"seq2seq: {name}": ("train", *case) for name, case in SEQ2SEQ.items()}
CASES |= {f"{case[0]}: {name}": case for name, case in OTHERS.items()}
CASES |= {f"predict: {name}": ("predict", *case) for name, case in TABLES.items()}
APART = (  # also in separate processes
    "train: misspelt key",
    "train: unknown rung",
    "train: not closed",
    "train: a misspelt key in a sweep",
    "train: seed=-1",
    "train: unknown part",
    "seq2seq: a classifier",
    "seq2seq: an empty source",
    "train: a missing file",
    "train: not UTF-8",
    "evaluate: a checkpoint of another version",
    "predict: code in a checkpoint",
    "predict: misspelt key of predict",
    "compare: missing runs",
    "dashboard: no entity",
)


@pytest.fixture
def place(tmp_path, trained, small, settings, monkeypatch) -> Place:
    monkeypatch.chdir(tmp_path)
    trained("mean")
    return Place(tmp_path, trained, small, settings)


@pytest.fixture
def start(monkeypatch, capfd):
    """start("train", arguments): runs a command's main here; returns its exit status and its standard error."""
    handlers, level = logging.root.handlers[:], logging.root.level

    def run(command: str, arguments: list[str]) -> tuple[int, str]:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # set back after the test
        monkeypatch.setattr(sys, "argv", [f"imdbattn-{command}", *arguments])
        mode = RunMode.MULTIRUN if "-m" in arguments else RunMode.RUN
        monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: mode)  # Hydra composes all settings to look at one
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            importlib.import_module(f"imdbattn.{command}").main()
        return end.value.code, capfd.readouterr().err

    yield run
    logging.root.handlers[:], logging.root.level = handlers, level


def arguments_of(name: str, place: Place) -> list[str]:
    command, make, _ = CASES[name]
    made = make(place)
    small = WRITER if name.startswith("seq2seq: ") else place.small
    return [
        *(a for a in made if a == "-m"),
        *(small if command == "train" else []),
        *(a for a in made if a != "-m"),
    ]


def is_one_line(stderr: str, message: str) -> None:
    assert re.fullmatch(r"error: [^\n]+\n", stderr), stderr
    assert re.search(message, stderr), stderr
    assert len(stderr) < 1000 or "xxxx" in stderr, "a line that nobody reads"


def test_the_table_is_long_enough():
    assert len(CASES) >= 60
    assert set(APART) <= set(CASES)


COMPOSED = [f"train: {name}" for name in list(TRAIN)[list(TRAIN).index("seed=-1") :]]
COMPOSED += [f"seq2seq: {name}" for name in SEQ2SEQ]


@pytest.mark.parametrize("name", COMPOSED)
def test_training_prints_one_line_and_leaves_nothing_behind(name, place, settings, data_cache):
    """What Hydra composes, without its half second."""
    arguments = arguments_of(name, place)
    (place.folder / "run").mkdir()
    before = left_in(place.folder, data_cache)
    with pytest.raises(UserError) as error:
        fit(settings(*arguments), place.folder / "run")
    is_one_line(f"error: {error.value}\n", CASES[name][2])
    assert left_in(place.folder, data_cache) == before


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in COMPOSED else ()) for n in CASES])
def test_a_command_prints_one_line_and_leaves_nothing_behind(name, place, start, data_cache):
    command, _, message = CASES[name]
    arguments = arguments_of(name, place)
    before = left_in(place.folder, data_cache)
    status, stderr = start(command, arguments)
    assert status == 2
    is_one_line(stderr, message)
    assert left_in(place.folder, data_cache) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_the_same_in_a_separate_process(name, place, shell):
    command, _, message = CASES[name]
    arguments = arguments_of(name, place)
    before = left_in(place.folder)
    done = shell(command, *arguments, cwd=place.folder)
    assert done.returncode == 2
    is_one_line(done.stderr, message)
    assert "Traceback" not in done.stdout
    assert left_in(place.folder) == before


# --- what looks wrong and is not --------------------------------------------------------------------------------------


def test_empty_reviews_are_scored_and_counted_each_time(place, caplog):
    texts = [*TEXTS[:30], "", " ", *TEXTS[32:]]
    reviews = [f"data.path={place.write('r.csv', csv_text(texts=texts))}", f"data.cache_dir={place.folder / 'cache'}"]
    for number in (1, 2):  # the second time from the cache
        caplog.clear()
        metrics = fit(place.settings(*place.small, *reviews, "trainer.max_epochs=1"), place.folder / f"run{number}")
        assert "2 reviews of validation have no words; they are kept and scored" in caplog.text
        assert "of train have no words" not in caplog.text
        assert np.isfinite([metrics["val_loss"], metrics["test_loss"]]).all()
    run = place.settings(f"run={place.folder / 'run1'}", config="predict")
    caplog.clear()
    found, _ = label_texts(run, ["", "a good film", " \n"])
    assert all(np.isfinite(one.probability) for one in found)
    assert "2 of 3 reviews have no words" in caplog.text


@pytest.mark.slow
def test_a_review_of_ten_megabytes_trains_and_is_scored(place):
    long = "good film " * 1_000_000
    texts = [long + TEXTS[0], *TEXTS[1:38], long + TEXTS[38], TEXTS[39]]
    path = place.write("r.csv", csv_text(texts=texts))
    settings = place.settings(
        *place.small, f"data.path={path}", f"data.cache_dir={place.folder}", "trainer.max_epochs=1"
    )
    metrics = fit(settings, place.folder / "run")
    assert np.isfinite([metrics["val_loss"], metrics["test_loss"]]).all()
    assert metrics["train_reviews"] + metrics["val_reviews"] + metrics["test_reviews"] == 40
    found, _ = label_texts(place.settings(f"run={place.folder / 'run'}", config="predict"), [long])
    assert np.isfinite(found[0].probability)


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "byte order mark": ("r.csv", b"\xef\xbb\xbf" + csv_text().encode()),
        "byte order mark in JSON": ("r.jsonl", b"\xef\xbb\xbf" + lines().encode()),
        "lines of Windows": ("r.csv", csv_text().replace("\n", "\r\n").encode()),
        "lines of an old Mac": ("r.csv", csv_text().replace("\n", "\r").encode()),
        "blank lines": ("r.csv", csv_text().replace("\n", "\n\n").encode()),
        "a suffix in capitals": ("R.CSV", csv_text().encode()),
        "another suffix in capitals": ("R.JsonL", lines().encode()),
        "spaces around labels": ("r.csv", csv_text([f" {label}  " for label in LABELS]).encode()),
    }.values(),
)
def test_files_of_other_programs_are_read_as_intended(data_settings, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    reviews = find_source(data_settings(f"data.path={tmp_path / name}")).load()
    assert reviews.label_names == ["neg", "pos"]
    assert reviews.splits[""].texts == list(TEXTS)
    assert reviews.splits[""].labels.tolist() == [0, 1] * 20


@pytest.mark.parametrize("kind", ["0{}.0", "2024-01-01 00:00:{:02}", "nan", "true", "1e{}"])
def test_labels_stored_as_floats_become_whole_numbers_and_texts_are_never_numbers(data_settings, tmp_path, kind):
    texts = [kind.format(n) for n in range(40)]
    (tmp_path / "r.csv").write_text(csv_text([f"{n % 2}.0" for n in range(40)], texts))
    reviews = find_source(data_settings(f"data.path={tmp_path}/r.csv")).load()
    assert (reviews.label_names, reviews.splits[""].texts) == (["0", "1"], texts)


@pytest.mark.parametrize(
    "content", [csv_text().replace("word2,", "\0,").encode(), b"text,label\ncaf\xe9 \0,neg\n,pos\n"]
)
def test_invalid_bytes_are_replaced_where_the_settings_allow_it(data_settings, tmp_path, content):
    (tmp_path / "r.csv").write_bytes(content)
    reviews = find_source(data_settings(f"data.path={tmp_path}/r.csv", "data.encoding_errors=replace")).load()
    assert sum("\ufffd" in text and "\0" not in text for text in reviews.splits[""].texts) == 1


def test_a_zip_with_a_path_outside_of_it_is_read_and_nothing_is_written_there(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "v.zip").write_bytes(zipped("../../x.txt", GLOVE))
    found = load_glove(dim=10, path=str(tmp_path / "in" / "v.zip"), cache_dir=str(tmp_path / "in" / "cache"))
    assert len(found.words) == 40
    assert os.listdir(tmp_path) == ["in"]
    assert not list(tmp_path.rglob("x.txt"))
