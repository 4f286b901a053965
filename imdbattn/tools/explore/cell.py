"""The arithmetic of one row of an attention map, with the numbers of the network.

Shape suffixes: B reviews, H heads, Q queries, K keys, d width of queries and keys, V width of the
values; T positions.
"""

import inspect
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field

from imdbattn.data.ragged import Batch
from imdbattn.errors import UserError
from imdbattn.nn.ladder import Attention
from imdbattn.nn.scores import is_product
from imdbattn.tools.explore.changes import changed
from imdbattn.tools.explore.read import Read, framed
from imdbattn.tools.explore.runs import Runs


class Cell(Read):
    """One query and all keys. layer counts from 1, 0 is the pooling; head from 1; query is a row of
    the map, from 0.

    padding: number of padded positions after the review. masked: without their mask, they count as
    words everywhere.
    """

    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=1)] = 1
    query: Annotated[int, Field(ge=0)]
    padding: Annotated[int, Field(ge=0, le=20)] = 0
    masked: bool = True

    @torch.no_grad()
    def answer(self, runs: Runs) -> bytes:
        """As `framed`: query (d,), keys (K, d), values (K, V), scores, mask, weights (K,), output
        (V,); projected (d,), the query as the score projects it, if it is a product; added (K,),
        the part of distances in the scores.

        Raises UserError for a part of one's own that does not use `Attention`.
        """
        reading = self.reading(runs)
        net: Any = reading.model.net
        part, calls = net.layers[self.layer - 1] if self.layer else net.pooling, list[Any]()
        attentions = [module for module in part.modules() if isinstance(module, Attention)]
        if len(attentions) != 1:
            raise UserError(
                f"{type(part).__name__} does not use imdbattn.nn.Attention once: its arithmetic is"
                " unknown"
            )
        (attention,) = attentions
        hook = attention.register_forward_hook(
            lambda _, *call: calls.append(call), with_kwargs=True
        )
        with hook, changed(net, reading.changes):
            (probability_C,) = reading.model.predictor.probabilities(
                self.padded(reading.batch)
            ).tolist()
        ((inputs, options, output_1HQV),) = calls
        inputs = dict[str, Any](
            inspect.signature(attention.forward).bind(*inputs, **options).arguments
        )
        query_1HQd, key, value = (inputs[name] for name in ("query", "key", "value"))
        mask, added = inputs.get("mask"), inputs.get("added")
        weights_1HQK = attention.attention_weights(**inputs)
        shape, row = weights_1HQK.shape, (0, self.head - 1, self.query)
        arrays: dict[str, Any] = {
            "query": query_1HQd[row],
            "scores": attention.score(query_1HQd, key)[row],
        }
        if is_product(attention.score):
            arrays["projected"] = attention.score.project(query_1HQd)[row]
        arrays["keys"], arrays["values"] = (
            columns.expand(-1, shape[1], -1, -1)[row[:2]] for columns in (key, value)
        )
        if added is not None:
            arrays["added"] = (added[0] @ added[1].transpose(-2, -1)).expand(shape)[row]
            arrays["scores"] = arrays["scores"] + arrays["added"]
        arrays["mask"] = torch.ones(shape[3]) if mask is None else mask.expand(shape)[row]
        arrays |= {"weights": weights_1HQK[row], "output": output_1HQV[row]}
        words = [reading.text[start:end] for start, end in reading.read_places] or ["<pad>"]
        facts = {
            "names": ["<cls>"] * (shape[3] - self.padding - len(words))
            + words
            + ["<pad>"] * self.padding,
            "score": type(attention.score).__name__,
            "scale": getattr(attention.score, "scale", None),
            "probabilities": dict(zip(reading.model.labels, probability_C, strict=True)),
            "shapes": {name: list(array.shape) for name, array in arrays.items()},
        }
        return framed(facts, [array.float().cpu().numpy() for array in arrays.values()])

    def padded(self, batch: Batch) -> Batch:
        """The batch with padded positions after its review."""
        tokens_BT, positions_BT = (
            F.pad(x_BT, (0, self.padding)) for x_BT in (batch.tokens_BT, batch.positions_BT)
        )
        lengths_B = (
            batch.lengths_B if self.masked else torch.full_like(batch.lengths_B, tokens_BT.shape[1])
        )
        before_BTW = F.pad(batch.before_BTW, (0, 0, 0, self.padding))
        return batch._replace(
            tokens_BT=tokens_BT,
            positions_BT=positions_BT,
            lengths_B=lengths_B,
            before_BTW=before_BTW,
        )
