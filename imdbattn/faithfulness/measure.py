"""The measurements of a run, each in its own Parquet file, so that a stopped command can continue.

Shape suffixes: B reviews of a batch, T positions, S shares of the words.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from imdbattn.data.ragged import Batch
from imdbattn.faithfulness.ablation import ablate, mean_outputs, units
from imdbattn.faithfulness.attributions import ATTRIBUTIONS, applicable, predicted
from imdbattn.faithfulness.counterfactual import adversary, permute
from imdbattn.faithfulness.erasure import SHOWN, average_precision, erase, precision, ranks, true_words
from imdbattn.faithfulness.subject import Subject
from imdbattn.nn.ladder import Attention, Classifier
from imdbattn.run_folder import write_table
from imdbattn.settings.schema import Faithfulness

VERSION = 1  # of the measurements; increment it when they change
POSITIONS = 8_192  # of a batch
WEIGHTS = 4_000_000  # attention weights of a batch of the adversary

Columns = dict[str, Any]  # name -> a value for each review of a batch
LAST = "last-"  # prefix of the parts that measure the network at the end of training


@dataclass(frozen=True)
class Part:
    """A measurement. options: what its numbers depend on in addition to the run. positions: of a batch.

    measure: called with a network, a batch, a random generator, and the result of `prepare` for all batches.
    """

    name: str
    options: dict[str, Any]
    reviews: int
    measure: Callable[[Classifier, Batch, Generator, Any], Columns]
    prepare: Callable[[Classifier, Iterator[Batch]], Any] = lambda net, batches: None
    positions: int = POSITIONS

    @property
    def file(self) -> str:
        digest = hashlib.sha256(json.dumps([VERSION, self.options, self.reviews]).encode()).hexdigest()[:8]
        return f"{self.name}-{digest}.parquet"


def parts_of(subject: Subject, cfg: Faithfulness) -> list[Part]:
    """The parts that apply to a run, in the order in which they are measured."""
    net, reviews = subject.net, len(subject.selected_N)
    common = {"split": cfg.split, "seed": cfg.seed}
    scores = [name for name in applicable(net) if name in cfg.scores]
    parts = []
    for name in scores:
        options = common | {"shares": cfg.shares, "steps": cfg.steps if name == "integrated_gradients" else None}
        measure = partial(explanations, name, cfg, subject.negation)
        parts.append(Part(name, options, reviews, measure))
    if any(isinstance(module, Attention) for module in net.modules()):
        measure = partial(named, ("distance", "weight"), partial(permute, permutations=cfg.permutations))
        parts.append(Part("permutation", common | {"permutations": cfg.permutations}, reviews, measure))
        search = cfg.adversary
        positions = WEIGHTS // (max(1, len(net.layers)) * int(subject.lengths_N.max()))
        changed = partial(adversary, **search.model_dump(exclude={"reviews"}))
        measure = partial(named, ("divergence", "distance"), changed)
        parts.append(Part("adversary", common | search.model_dump(), search.reviews, measure, positions=positions))
    if units(net):
        parts.append(Part("ablation", common, reviews, ablations, mean_outputs))
    for part in [part for part in parts if part.name in scores and part.name != "random"]:
        options = part.options | {"last": subject.last_key}
        parts.append(replace(part, name=LAST + part.name, options=options, reviews=cfg.epoch_reviews))
    return [replace(part, reviews=min(part.reviews, reviews)) for part in parts if part.reviews]


def measure(subject: Subject, part: Part, progress: Callable[[int], Any]) -> None:
    """Writes the file of a part if it does not exist. progress: called with a number of reviews."""
    file = subject.folder / part.file
    if file.exists():
        progress(part.reviews)
        return
    net = subject.last if part.name.startswith(LAST) else subject.net
    if net is None:
        progress(part.reviews)
    write_table(file, {"row": []} if net is None else columns_of(subject, part, net, progress))


def columns_of(subject: Subject, part: Part, net: Classifier, progress: Callable[[int], Any]) -> Columns:
    """The table of a part: a row for each review, in the order of `subject.selected_N`."""
    rng = Generator().manual_seed(zlib.crc32(f"{part.name} {part.options['seed']} {subject.key}".encode()))
    prepared = part.prepare(net, (batch for _, batch in subject.items(part.reviews, part.positions)))
    values: dict[int, Columns] = {}
    for places, batch in subject.items(part.reviews, part.positions):
        columns = part.measure(net, batch, rng, prepared)
        for number, place in enumerate(places):
            values[place] = {name: column[number] for name, column in columns.items()}
        progress(len(places))
    in_order = [values[place] for place in range(len(values))]
    names = in_order[0] if in_order else ()
    return {"row": subject.rows_N[: part.reviews]} | {name: [each[name] for each in in_order] for name in names}


# --- what is measured in each batch -----------------------------------------------------------------------------------


def explanations(
    name: str, cfg: Faithfulness, negation: int | None, net: Classifier, batch: Batch, rng: Generator, prepared: None
) -> Columns:
    """Scores of the words, the seconds that they took, and their evaluation by erasure and known rationales."""
    start = time.perf_counter()
    scores_BT = ATTRIBUTIONS[name](net, batch, rng, cfg.steps)
    seconds = (time.perf_counter() - start) / len(scores_BT)
    ranks_BT = ranks(scores_BT, batch, rng)
    comprehensiveness_BS, sufficiency_BS = erase(net, batch, ranks_BT, cfg.shares)
    lengths = batch.lengths_B.tolist()
    columns: Columns = {
        "right": (predicted(net, batch) == batch.labels_B).tolist(),
        "seconds": [seconds] * len(lengths),
        "scores": [scores_T[:length].tolist() for scores_T, length in zip(scores_BT, lengths, strict=True)],
        "comprehensiveness": comprehensiveness_BS.tolist(),
        "sufficiency": sufficiency_BS.tolist(),
    }
    if negation is not None:
        true_BT = true_words(batch, negation)
        columns["auprc"] = average_precision(ranks_BT, true_BT).tolist()
        columns |= {f"precision_{words}": precision(ranks_BT, true_BT, words).tolist() for words in SHOWN}
    return columns


def named(
    names: Sequence[str], test: Callable[..., Any], net: nn.Module, batch: Batch, rng: Generator, prepared: None
) -> Columns:
    """The numbers of each review that `test` returns, by their names."""
    return {name: numbers_B.tolist() for name, numbers_B in zip(names, test(net, batch, generator=rng), strict=True)}


@torch.no_grad()
def ablations(net: Classifier, batch: Batch, rng: Generator, means: list[Tensor]) -> Columns:
    """Whether each review is classified correctly, by the whole model and without each unit."""
    outputs = {"model": net(batch)} | {unit: ablate(net, batch, unit, means) for unit in units(net)}
    return {name: (logits_BC.argmax(1) == batch.labels_B).tolist() for name, logits_BC in outputs.items()}
