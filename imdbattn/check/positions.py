"""Rules of positional_encoding: pe[i, 2k] = sin(i / 10000^(2k/d)), pe[i, 2k+1] = cos(i / 10000^(2k/d)).

Shape suffixes: T positions, D width, K = D / 2.
"""

import math

import torch
from torch import Tensor

from imdbattn.check.rules import Mistake, Part, Rules, require_shape, same, show
from imdbattn.nn.ladder import sinusoids

RULES = Rules()
LENGTH, WIDTH = 5, 6
FIX = "pe[:, 0::2] = sin(angle) and pe[:, 1::2] = cos(angle), angle[i, k] = i / 10000 ** (2 * k / d)."


@RULES.add("shape")
def shape(part: Part) -> None:
    """(length, width) in, a table of that shape out."""
    for length, width in ((LENGTH, WIDTH), (1, 2), (7, 4)):
        table_TD, call = table(part.make(length, width)), f"positional_encoding({length}, {width})"
        require_shape(table_TD, (length, width), call, "One row per position.")


def table(value: Tensor) -> Tensor:
    """In the type that is expected here: students may compute in float64 or float32."""
    real = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().to(torch.get_default_dtype()) if real else value


@RULES.add("sin-and-cos")
def sin_and_cos(part: Part) -> None:
    """Even columns are sines and odd columns cosines, of positions from 0."""
    table_TD = table(part.make(LENGTH, WIDTH))
    first_D = table_TD[0]
    example = f"For d = {WIDTH}, position 0 is {show(first_D)}; right is [0, 1, 0, 1, 0, 1]."
    if same(first_D, torch.tensor([0.0, 1, 0, 1, 0, 1])):
        return
    if same(first_D, torch.tensor([1.0, 0, 1, 0, 1, 0])):
        raise Mistake("sin-and-cos-swapped", "Even columns are cosines and odd columns sines.", example, FIX)
    if same(first_D, torch.tensor([0.0, 0, 0, 1, 1, 1])):
        sentence = "The sines are in the first half of the columns and the cosines in the second."
        raise Mistake("halves-not-interleaved", sentence, example, FIX)
    if abs(first_D[0] - math.sin(1)) < 1e-3:
        raise Mistake("positions-from-1", "The first position is 1, not 0.", example, FIX)
    raise Mistake("not-sin-and-cos", "Position 0 is not sin(0), cos(0), sin(0), cos(0), ...", example, FIX)


@RULES.add("wavelengths", "sin-and-cos")
def wavelengths(part: Part) -> None:
    """Columns 2k and 2k + 1 have the angle i / 10000^(2k/d)."""
    table_TD, right_TD = table(part.make(LENGTH, WIDTH)), sinusoids(LENGTH, WIDTH).to(torch.get_default_dtype())
    if same(table_TD, right_TD):
        return
    row, column = (int(n) for n in ((table_TD - right_TD).abs() > 1e-4).nonzero()[0])
    given, right = table_TD[row, column], right_TD[row, column]
    example = f"For d = {WIDTH}, pe[{row}, {column}] is {given:.4g}; right is {right:.4g}."
    angle_K = torch.atan2(table_TD[1, 0::2], table_TD[1, 1::2])
    h_D = torch.arange(WIDTH)
    even_D = h_D - h_D % 2
    exponents = {"h / d": h_D, "2h / d": 2 * h_D, "k / d": even_D / 2, "4k / d": 2 * even_D}
    for text, numerator_D in exponents.items():
        angle_D = 10000.0 ** -(numerator_D / WIDTH)
        if same(table_TD[1], torch.where(h_D % 2 == 0, angle_D.sin(), angle_D.cos())):
            sentence = f"The exponent of 10000 is {text}"
            sentence += " for each column h." if "h" in text else " for columns 2k and 2k + 1."
            raise Mistake("wrong-exponent", f"{sentence} It is 2k / d for columns 2k and 2k + 1.", example, FIX)
    if 0 < angle_K[1] < 1 and same(angle_K[1] ** 2, angle_K[2]) and abs(angle_K[0] - 1) < 1e-3:
        base = float(angle_K[1]) ** (-WIDTH / 2)
        raise Mistake("wrong-base", f"The base of the power is {base:.4g}, not 10000.", example, FIX)
    raise Mistake("wrong-wavelengths", "The angles are not i / 10000^(2k/d).", example, FIX)
