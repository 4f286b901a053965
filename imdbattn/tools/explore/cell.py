"""The arithmetic of one row of an attention map, with the numbers of the network.

Shape suffixes: B reviews, H heads, Q queries, K keys, d width of queries and keys, V width of the
values; T positions.
"""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from imdbattn.data.ragged import Batch, map_per_token
from imdbattn.errors import UserError
from imdbattn.nn.ladder import Attention
from imdbattn.nn.scores import PRODUCT_SCORES
from imdbattn.tools.explore.changes import changed, layer_of
from imdbattn.tools.explore.read import Read, Reading
from imdbattn.tools.explore.runs import Answer, Runs
from imdbattn.tools.faithfulness.attributions import arguments_of, attentions


class Cell(Read):
    """Asks for one query and all keys. Layers count from 1, with 0 for the pooling; heads from 1;
    queries, the rows of a map, from 0.

    padding: number of padded positions after the review. masked: False treats them as words.
    """

    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=1)] = 1
    query: Annotated[int, Field(ge=0)]
    padding: Annotated[int, Field(ge=0, le=20)] = 0
    masked: bool = True

    @torch.no_grad()
    def answer(self, runs: Runs) -> Answer:
        """Returns query (d,), keys (K, d), values (K, V), scores, mask, weights (K,),
        output (V,); for a score that is a product, projected (d,), the projected query; with
        distances, added (K,), their part in the scores.

        Raises UserError for a custom part that does not use `Attention`, and for a row that the map
        does not have.
        """
        reading = self.reading(runs)
        attention = self.attention(reading.predictor.net)
        probabilities, inputs, output_1HQV = self.computed(reading, attention)
        arrays = self.arrays(attention, inputs, output_1HQV)
        keys = len(arrays["mask"])
        words = [reading.text[start:end] for start, end in reading.word_spans] or ["<pad>"]
        before = ["<cls>"] * (keys - self.padding - len(words))
        labels = reading.predictor.metadata["labels"]
        facts = {
            "names": [*before, *words, *["<pad>"] * self.padding],
            "score": type(attention.score).__name__,
            "scale": getattr(attention.score, "scale", None),
            "probabilities": dict(zip(labels, probabilities, strict=True)),
            "shapes": {name: list(array.shape) for name, array in arrays.items()},
        }
        return facts, [array.float().cpu().numpy() for array in arrays.values()]

    def attention(self, net: Any) -> Attention:
        """Returns the attention of a part. Raises UserError unless there is exactly one."""
        part = layer_of(net, self.layer) if self.layer else net.pooling
        every = attentions(part)
        if len(every) != 1:
            raise UserError(
                f"{type(part).__name__} does not use imdbattn.nn.Attention once: its arithmetic is"
                " unknown"
            )
        return every[0]

    def computed(
        self, reading: Reading, attention: Attention
    ) -> tuple[list[float], dict[str, Any], Tensor]:
        """Returns the probabilities of the classes, and the inputs and output of the attention."""
        calls: list[tuple[tuple[object, ...], dict[str, object], Tensor]] = []
        hook = attention.register_forward_hook(
            lambda _, *call: calls.append(call), with_kwargs=True
        )
        with hook, changed(reading.predictor.net, reading.changes):
            probability_BC = reading.predictor.probabilities(self.padded(reading.batch))
        if not calls:
            raise UserError(f"layer {self.layer} is disabled")
        ((positional, named, output_1HQV),) = calls
        (probabilities,) = probability_BC.tolist()
        return probabilities, arguments_of(attention, positional, named), output_1HQV

    def arrays(
        self, attention: Attention, inputs: dict[str, Any], output_1HQV: Tensor
    ) -> dict[str, Tensor]:
        """Returns the numbers of the query by name."""
        query_1HQd = inputs["query"]
        weights_1HQK = attention.attention_weights(**inputs)
        shape = weights_1HQK.shape
        if self.head > shape[1] or self.query >= shape[2]:
            raise UserError(
                f"there is no head {self.head} with a query {self.query}; number of heads:"
                f" {shape[1]}, of queries: {shape[2]}"
            )
        index = (0, self.head - 1, self.query)
        arrays = {"query": query_1HQd[index]}
        arrays["scores"] = attention.score(query_1HQd, inputs["key"])[index]
        if type(attention.score) in PRODUCT_SCORES:
            arrays["projected"] = attention.score.project_query(query_1HQd)[index]
        for name, column in (("keys", inputs["key"]), ("values", inputs["value"])):
            arrays[name] = column.expand(-1, shape[1], -1, -1)[index[:2]]
        extra_columns = inputs.get("extra_columns")
        if extra_columns is not None:
            extra_query, extra_key = extra_columns
            arrays["added"] = (extra_query @ extra_key.transpose(-2, -1)).expand(shape)[index]
            arrays["scores"] = arrays["scores"] + arrays["added"]
        mask = inputs.get("mask")
        arrays["mask"] = torch.ones(shape[3]) if mask is None else mask.expand(shape)[index]
        arrays["weights"] = weights_1HQK[index]
        arrays["output"] = output_1HQV[index]
        return arrays

    def padded(self, batch: Batch) -> Batch:
        """Returns the batch with padded positions after its review."""
        batch = map_per_token(batch, lambda x: F.pad(x, (0, 0) * (x.ndim - 2) + (0, self.padding)))
        if self.masked:
            return batch
        size = batch.tokens_BT.shape[1]
        return batch._replace(lengths_B=torch.full_like(batch.lengths_B, size))
