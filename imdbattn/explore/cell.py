"""The arithmetic of one row of an attention map, with the numbers of the network.

Shape suffixes: B reviews, H heads, Q queries, K keys, d width of queries and keys, V width of the values; T positions.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from imdbattn.data.ragged import Batch
from imdbattn.errors import UserError
from imdbattn.explore.changes import changed
from imdbattn.explore.read import Reading, framed
from imdbattn.nn.ladder import Attention
from imdbattn.nn.scores import is_product


@torch.no_grad()
def answer(reading: Reading, layer: int, head: int, query: int, padding: int, masked: bool) -> bytes:
    """One query and all keys, as `framed`.

    Its arrays: query (d,), its projection (d,) if the score is a product, keys (K, d), values (K, V), what distances
    add to the scores (K,) if they do, scores (K,), mask (K,), weights (K,), and the output (V,).

    Args:
        layer: from 1; 0 is the pooling.
        head: from 1.
        query: row of the map, from 0.
        padding, masked: see `padded`.

    Raises UserError for a part of one's own that does not use `Attention`.
    """
    net: Any = reading.model.net
    part, calls = net.layers[layer - 1] if layer else net.pooling, list[Any]()
    attentions = [module for module in part.modules() if isinstance(module, Attention)]
    if len(attentions) != 1:
        raise UserError(f"{type(part).__name__} does not use imdbattn.nn.Attention once: its arithmetic is unknown")
    (attention,) = attentions
    hook = attention.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True)
    with hook, changed(net, reading.changes):
        (probability_C,) = reading.model.predictor.probabilities(padded(reading.batch, padding, masked)).tolist()
    ((inputs, options, output_1HQV),) = calls
    inputs = dict[str, Any](inspect.signature(attention.forward).bind(*inputs, **options).arguments)
    query_1HQd, key, value = (inputs[name] for name in ("query", "key", "value"))
    mask, added = inputs.get("mask"), inputs.get("added")
    weights_1HQK = attention.attention_weights(**inputs)
    shape, row = weights_1HQK.shape, (0, head - 1, query)
    arrays: dict[str, Any] = {"query": query_1HQd[row], "scores": attention.score(query_1HQd, key)[row]}
    if is_product(attention.score):
        arrays["projected"] = attention.score.project(query_1HQd)[row]
    arrays["keys"], arrays["values"] = (columns.expand(-1, shape[1], -1, -1)[row[:2]] for columns in (key, value))
    if added is not None:
        arrays["added"] = (added[0] @ added[1].transpose(-2, -1)).expand(shape)[row]
        arrays["scores"] = arrays["scores"] + arrays["added"]
    arrays["mask"] = torch.ones(shape[3]) if mask is None else mask.expand(shape)[row]
    arrays |= {"weights": weights_1HQK[row], "output": output_1HQV[row]}
    words = [reading.text[start:end] for start, end in reading.read_places] or ["<pad>"]
    facts = {
        "names": ["<cls>"] * (shape[3] - padding - len(words)) + words + ["<pad>"] * padding,
        "score": type(attention.score).__name__,
        "scale": getattr(attention.score, "scale", None),
        "probabilities": dict(zip(reading.model.labels, probability_C, strict=True)),
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
    }
    return framed(facts, [array.float().cpu().numpy() for array in arrays.values()])


def padded(batch: Batch, padding: int, masked: bool) -> Batch:
    """The batch with padded positions after its review; without their mask, they count as words in every layer."""
    tokens_BT, positions_BT = (F.pad(part_BT, (0, padding)) for part_BT in (batch.tokens_BT, batch.positions_BT))
    lengths_B = batch.lengths_B if masked else torch.full_like(batch.lengths_B, tokens_BT.shape[1])
    before_BTW = F.pad(batch.before_BTW, (0, 0, 0, padding))
    return batch._replace(tokens_BT=tokens_BT, positions_BT=positions_BT, lengths_B=lengths_B, before_BTW=before_BTW)
