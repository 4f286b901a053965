"""The answer that a report of faithfulness gives follows from its claims."""

import pytest

from imdbattn.tools.faithfulness import page
from tests.made_up import claim, made_up_faithfulness


@pytest.mark.parametrize(
    ("differences", "answer"),
    [
        ({"a": {"rollout": 0.1, "last_layer": -0.1}}, "yes: * better in 1 of 1 variants"),
        ({"a": {"rollout": -0.1}}, "no: * worse in 1 of 1 variants"),
        (
            {"a": {"rollout": 0.1, "gradient": 0.2}},
            "partly: * better in 1 of 1 variants; another attribution is"
            " better than attention in 1",
        ),
        (
            {"a": {"rollout": 0.1}, "b": {"last_layer": -0.1}, "c": {"rollout": 0.0}},
            "partly: * better in 1, worse in 1, undecided in 1 of 3 variants",
        ),
    ],
)
def test_the_answer_follows_from_the_claims(differences, answer):
    summary = made_up_faithfulness(tuple(differences))
    summary["claims"] = [
        claim(variant, "comprehensiveness", attribution, value)
        for variant, differing in differences.items()
        for attribution, value in differing.items()
    ]
    words = answer.replace("*", "compared with random words, attention is")
    assert page.headline(summary) == f"{page.QUESTION} {words}"
