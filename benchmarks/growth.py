"""What training costs for a review on ten times as many reviews beside a tenth of them.

python -m benchmarks.growth
"""

from benchmarks.table import Row, in_turn, markdown, row
from benchmarks.training import Ours, corpora
from imdbattn.runs.trainer import quiet

REVIEWS, TIMES = 1200, 10


def rows(rounds: int = 2) -> list[Row]:
    """An epoch of residual_pe on real reviews, tenfold, in µs for a review."""
    quiet()
    few, many = (Ours(corpora(count), "data.word_dropout=0") for count in (REVIEWS, TIMES * REVIEWS))
    few.train()  # the first call is not timed
    pairs = in_turn(lambda: 1e6 * many.train() / (TIMES * REVIEWS), lambda: 1e6 * few.train() / REVIEWS, rounds)
    return [row(f"training on {TIMES}x: an epoch, for each review, beside 1x", "µs", "<= 1.1", pairs)]


if __name__ == "__main__":
    print(markdown(rows()), end="")
