"""Numbers as text for tables and sentences; "" where there is none."""

from collections.abc import Callable, Iterable

from imdbattn.report.comparison_types import Spread
from imdbattn.report.statistics import LEVEL

LEVEL_NAME = f"{100 * LEVEL:g} %"  # level of the intervals, as text


def is_in_percent(metric: str) -> bool:
    """Returns whether a metric is a share, which is shown in percent and points."""
    return metric in ("accuracy", "macro_f1")


def metric_name(metric: str) -> str:
    """Returns the name of a metric in sentences and figures."""
    return {"macro_f1": "macro F1", "bleu": "BLEU"}.get(metric, metric)


def percents(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def percent(value: float | None) -> str:
    """Returns a fraction in percent with one decimal."""
    return "" if value is None else f"{100 * value:.1f}"


def decimal(value: float, digits: int, sign: bool = False) -> str:
    """Returns a number with `digits` decimals; sign: show + before a positive number."""
    # Adding 0.0 turns −0.0 into 0.0.
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def metric_text(value: float, metric: str, sign: bool = False) -> str:
    """Returns a value of a metric: in percent with one decimal, or with four digits.

    sign: whether it is a difference, which has a sign and is in points.
    """
    if is_in_percent(metric):
        return decimal(100 * value, 1, sign)
    return f"{value + 0.0:{'+' if sign else ''}.4g}".replace("-", "−")


def interval_text(
    ends: Iterable[float] | None, metric: str, sign: bool = False, between: str = " to "
) -> str:
    """Returns the ends of an interval, such as `85.8 to 86.6`."""
    return between.join(metric_text(end, metric, sign) for end in ends or ())


def mean_and_sd(values: Spread | None, as_text: Callable[[float], str] = percent) -> str:
    """Returns `86.2 ± 0.3`; without ± for a single seed. as_text: returns a number as text."""
    numbers = [] if values is None else [values["mean"], values["sd"]]
    return " ± ".join(as_text(number) for number in numbers if number is not None)


def count(value: float | None) -> str:
    """Returns a number with thousands, or with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def p_number(p: float) -> str:
    """Returns `0.0123`, or `< 0.001`, for a column of p-values."""
    return "< 0.001" if p < 0.001 else f"{p:#.3g}"


def p_value(p: float) -> str:
    """Returns `p = 0.0123`, or `p < 0.001`."""
    number = p_number(p)
    return f"p {number}" if number.startswith("<") else f"p = {number}"
