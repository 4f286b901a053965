"""A trained classifier as a graph that runs without this package: torch.export and ONNX.

Shape suffixes: B reviews, T positions, W words before a word.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from imdbattn.data.phrases import PhraseBatch
from imdbattn.data.ragged import Batch, ragged_from_lists
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.nn.scores import sequence_mask
from imdbattn.tasks.reviews.predictor import ReviewPredictor

# (reviews, positions) of the batches on which graph and net are compared
CHECKED_SIZES = ((1, 1), (2, 7), (5, 1), (3, 64), (1, 33))
TOLERANCE = 1e-4  # for logits


class Graph(nn.Module):
    """The net of a predictor with tensors as inputs."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(
        self, tokens_BT: Tensor, lengths_B: Tensor, before_BTW: Tensor | None = None
    ) -> Tensor:
        """Returns logits (B, C).

        tokens_BT: ids, 0 after the end. before_BTW: see data/phrases, for phrases only.
        """
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        positions_BT = positions_T * sequence_mask(lengths_B, tokens_BT.shape[1])
        unused = lengths_B  # stands for labels, items and indices
        batch = Batch(tokens_BT, positions_BT, lengths_B, unused, unused, 0)
        return self.net(batch if before_BTW is None else PhraseBatch(*batch, before_BTW, unused))


def example(
    predictor: ReviewPredictor, reviews: int, positions: int, seed: int = 0
) -> tuple[Tensor, ...]:
    """Returns random inputs of a graph: reviews of different lengths, the first of full length."""
    rng = np.random.default_rng(seed)
    lengths = [positions, *rng.integers(positions + 1, size=reviews - 1)]
    ids = [rng.integers(1, len(predictor.vectors.table_VD), length).tolist() for length in lengths]
    batch = predictor.batch_maker_of_ids(ragged_from_lists(ids)).of_items(np.arange(reviews))
    inputs = batch.tokens_BT, batch.lengths_B
    return (*inputs, batch.before_BTW) if isinstance(batch, PhraseBatch) else inputs


def to_program(predictor: ReviewPredictor) -> ExportedProgram:
    """Returns the net as a graph with inputs tokens_BT, lengths_B, and before_BTW for a model with
    phrases: int64, any B and T.

    T is at most data.max_tokens. Raises UserError for a net whose graph computes other logits, and
    for one with a recurrent network, whose graph would have a fixed T.
    """
    if any(isinstance(part, nn.RNNBase) for part in predictor.net.modules()):
        raise UserError(
            f"model={predictor.settings.model.name} has a recurrent network, of which torch.export"
            " makes a graph for one length only: export without it"
        )
    graph = Graph(predictor.net).cpu().eval()
    reviews = Dim("reviews", min=1)
    positions = Dim("positions", min=1, max=predictor.settings.data.max_tokens or 8192)
    inputs = example(predictor, 3, 5)
    shapes = ({0: reviews, 1: positions}, {0: reviews}, {0: reviews, 1: positions})
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.export.export(
            graph, inputs, dynamic_shapes=shapes[: len(inputs)], strict=True
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    check_graph(predictor, program.module(), "torch.export")
    return program


def to_onnx(predictor: ReviewPredictor, program: ExportedProgram, path: Path) -> None:
    """Writes the graph of `to_program` as ONNX, checked by onnxruntime. Raises UserError."""
    names = ["tokens_BT", "lengths_B"]
    if predictor.settings.model.phrases:
        names.append("before_BTW")
    for library in ("onnx_ir", "onnxscript", "torch.onnx"):  # they log about a hundred lines
        logging.getLogger(library).setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        # ONNX has no searchsorted
        program = program.run_decompositions({torch.ops.aten.searchsorted.Tensor: bisected})
        torch.onnx.export(
            program,
            (),
            path,
            input_names=names,
            output_names=["logits_BC"],
            external_data=False,
            verbose=False,
        )
    check_graph(predictor, read_onnx(path), "ONNX")


def read_onnx(path: Path) -> Callable[..., Tensor]:
    """Returns the graph in a file of `to_onnx` as a function of tensors."""
    import onnxruntime  # the extra `onnx` installs it

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        arrays = [tensor.numpy() for tensor in inputs]
        (logits_BC,) = session.run(None, dict(zip(names, arrays, strict=True)))
        return torch.from_numpy(logits_BC)

    return run


def bisected(sorted_P: Tensor, values: Tensor, **_: object) -> Tensor:
    """Returns torch.searchsorted for int64 by bisection: the number of entries below each value."""
    below = torch.zeros_like(values)
    for power in reversed(range(len(sorted_P).bit_length())):
        more = below + 2**power
        fits = (more <= len(sorted_P)) & (
            sorted_P[(more - 1).clamp(max=len(sorted_P) - 1)] < values
        )
        below = torch.where(fits, more, below)
    return below


def check_graph(predictor: ReviewPredictor, graph: Callable[..., Tensor], what: str) -> None:
    """Raises UserError if a graph and the net compute different logits for random reviews."""
    longest = predictor.settings.data.max_tokens or 8192
    name = f"model={predictor.settings.model.name}: the graph of {what}"
    for seed, (reviews, positions) in enumerate(CHECKED_SIZES):
        inputs = example(predictor, reviews, min(positions, longest), seed)
        with torch.no_grad(), wrapping_errors(name, "export without it"):
            torch.testing.assert_close(
                graph(*inputs), Graph(predictor.net)(*inputs), atol=TOLERANCE, rtol=TOLERANCE
            )
