"""The position vectors of a model and what its distances add to the scores. T positions, D width."""

from typing import Any

import numpy as np

from imdbattn.api.model import Model
from imdbattn.errors import UserError
from imdbattn.explain.figures import position_tables, scores_by_distance
from imdbattn.explore.changes import layers_of
from imdbattn.explore.read import framed


def answer(model: Model, length: int) -> bytes:
    """The products pe_i . pe_j of the first `length` positions, (T, T), and their means by distance.

    Raises UserError for a model without positions.
    """
    net = model.net
    tables = position_tables(net, length) if hasattr(net, "positions") else {}
    layers = scores_by_distance(net) if layers_of(net) else {}
    if not tables and not layers:
        name = model.predictor.cfg.model.name
        raise UserError(f"{name} has no positions: residual_pe, residual_learned and tuned have")
    products = {name: pe_TD @ pe_TD.T for name, pe_TD in tables.items()}
    facts: dict[str, Any] = {
        "tables": [
            {
                "name": name,
                "size": len(products_TT),
                "largest": float(np.abs(products_TT[~np.eye(len(products_TT), dtype=bool)]).max(initial=0)),
                "by_distance": [
                    float(np.diagonal(products_TT, apart).mean()) for apart in range(len(products_TT) // 2)
                ],
            }
            for name, products_TT in products.items()
        ],
        "distances": [{"name": name, "added": added_HR.tolist()} for name, added_HR in layers.items()],
    }
    return framed(facts, list(products.values()))
