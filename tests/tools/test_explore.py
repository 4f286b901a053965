"""The server of the interactive page: its numbers are the models', changes have their effect and
can be undone, and it answers only its own page.

Shape suffixes: B reviews, T positions, H heads, D width, C classes, S source symbols.
"""

import copy
import itertools
import math
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import imdbattn
from imdbattn.nn import WordPositions, sequence_mask, sinusoids
from tests.explorer import CLASSIFIERS, TEXT, TOKEN, WRITER, Page, served
from tests.processes import started_command

pytest.importorskip("uvicorn")
HEADERS = pytest.importorskip("imdbattn.tools.explore.server").HEADERS  # which needs starlette


@pytest.fixture(scope="module")
def page(folder_of, page_of) -> Iterator[Page]:
    """A page of a run of each rung in CLASSIFIERS and of an encoder-decoder."""
    page = page_of(*map(folder_of, (*CLASSIFIERS, WRITER)))
    with page.client:  # one event loop for all requests
        yield page


@pytest.mark.parametrize("rung", CLASSIFIERS)
def test_numbers_equal_those_of_explain(page, folder_of, rung):
    found, expected = page.read(rung), imdbattn.load(folder_of(rung)).explain(TEXT)
    assert found.label == expected.prediction.output
    assert found.probability == expected.prediction.probability
    assert found.probabilities == dict(expected.prediction.probabilities)
    words = [(word["start"], word["end"], word["share"]) for word in found.words]
    assert words == [*expected.prediction.words]
    own = expected.attention.layers
    has_pooling = expected.attention.pooling is not None  # not the mean
    names = [f"layer {number}" for number in own] + ["pooling"] * has_pooling
    assert [one["name"] for one in found.attentions] == names
    expected_maps = [*own.values()]
    if has_pooling:  # of a query, or of one for each label
        by_label = [*getattr(expected.attention, "by_label", {}).values()]
        expected_maps.append(np.stack(by_label or [expected.attention.pooling]))
    for weights, expected_HQK in zip(found.maps, expected_maps, strict=True):
        np.testing.assert_allclose(weights, expected_HQK.reshape(weights.shape), atol=1e-7)
        np.testing.assert_allclose(weights.sum(2), 1, atol=1e-5)
    for one, weights in zip(found.attentions, found.maps, strict=True):
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        np.testing.assert_allclose(one["entropies"], -(weights * logs).sum(2).mean(1), atol=1e-4)


def logits(net: Any, batch: Any, kept_T: torch.Tensor | None = None) -> list[float]:
    """Probabilities of a net put together here from its parts; removed words are masked."""
    mask_BT = sequence_mask(batch.lengths_B, batch.tokens_BT.shape[1])
    if kept_T is not None:
        mask_BT = mask_BT & kept_T
    words = WordPositions(mask_BT, batch.positions_BT)
    x_BTD = net.positions(net.embedding(batch.tokens_BT), words)
    x_BTD, words = net.pooling.prepend(x_BTD, words)
    for layer in net.layers:
        x_BTD = layer(x_BTD, words)
    return net.head(net.pooling(x_BTD, words)).double().softmax(1)[0].tolist()


def changed(page: Page, rung: str, **changes: Any) -> tuple[SimpleNamespace, Any, Any]:
    """What the page shows, a copy of its net, and the batch of TEXT."""
    predictor = page.runs.predictor(page.run(rung))
    batch = predictor.batch_maker([TEXT]).of_items(np.arange(1))
    return page.read(rung, **changes), copy.deepcopy(predictor.net), batch


def without_head(net: Any) -> None:
    """Without head 1 of layer 2: its values are zeros."""
    value = net.layers[1].f.value
    value.weight[: len(value.weight) // 2] = 0
    value.bias[: len(value.bias) // 2] = 0


def without_distances(net: Any) -> None:
    for layer in net.layers:
        layer.f.distances.cos_HM.zero_()
        layer.f.distances.sin_HM.zero_()


@pytest.mark.parametrize(
    ("rung", "changes", "alter"),
    [
        ("residual_pe", {"heads": [[2, 1]]}, without_head),
        ("residual_pe", {"layers": [2]}, lambda net: net.layers.pop(1)),
        ("base", {"layers": [1, 2, 3]}, lambda net: net.layers.__delitem__(slice(None))),
        ("residual_pe", {"positions": True}, lambda net: net.positions.pe_TD.zero_()),
        ("tuned", {"positions": True}, without_distances),
    ],
)
@torch.no_grad()
def test_a_change_has_the_effect_that_it_names(page, rung, changes, alter):
    """Heads output zeros, layers are skipped, position vectors and distances are zero."""
    (found, net, batch), (before, _, _) = changed(page, rung, **changes), changed(page, rung)
    alter(net)
    assert [*found.probabilities.values()] == pytest.approx(logits(net, batch), abs=1e-6)
    assert found.probability != pytest.approx(before.probability, abs=1e-6)
    assert found.before == pytest.approx(before.probabilities, abs=1e-6)
    kept = [layer for layer in range(1, 4) if layer not in changes.get("layers", ())]
    assert [one["layer"] for one in found.attentions if "layer" in one] == kept
    assert before.has_positions == (rung != "base")


@torch.no_grad()
def test_removed_words_get_no_attention_and_the_others_keep_their_positions(page):
    removed = [2, 6, 9]
    for rung in ("residual_pe", "residual_cls", "base", "mean"):
        found, net, batch = changed(page, rung, words=removed)
        kept_T = torch.ones(int(batch.lengths_B), dtype=torch.bool)
        kept_T[removed] = False
        expected = logits(net, batch, kept_T)
        assert [*found.probabilities.values()] == pytest.approx(expected, abs=1e-6)
        assert {word["place"] for word in found.removed} == set(removed)
        assert len(found.words) + len(found.removed) == int(batch.lengths_B)
        assert len(found.keys) == len(found.words) + found.cls


def test_words_in_the_middle_beyond_max_tokens_are_counted_and_not_shown(page):
    text = "film " * 384 + "bad " * 88 + "good " * 128
    found = page.read("mean", text)
    shown = [text[word["start"] : word["end"]] for word in found.words]
    assert (found.unread, shown) == (88, ["film"] * 384 + ["good"] * 128)


def test_shuffled_words_change_only_models_that_know_positions(page):
    for rung in ("mean", "learned_query", "base", "residual_cls"):
        plain, shuffled = page.read(rung), page.read(rung, shuffle=3)
        assert shuffled.probability == pytest.approx(plain.probability, abs=1e-6)
        shares, moved = (
            {word["place"]: word["share"] for word in one.words} for one in (plain, shuffled)
        )
        assert moved == pytest.approx(shares, abs=1e-6)
    plain, shuffled = page.read("residual_pe"), page.read("residual_pe", shuffle=3)
    assert shuffled.probability != pytest.approx(plain.probability, abs=1e-6)
    places = [word["place"] for word in shuffled.words]
    assert places != sorted(places) == [*range(len(plain.words))]
    assert page.read("residual_pe", shuffle=3).words == shuffled.words
    assert page.read("residual_pe", shuffle=4).words != shuffled.words
    again = page.read("residual_pe", shuffled.text)
    assert again.probability == pytest.approx(shuffled.probability, abs=1e-6)


def test_changes_are_undone(page):
    combined = {"heads": [[1, 2]], "layers": [3], "words": [0], "positions": True, "shuffle": 1}
    for rung in ("residual_pe", "tuned"):
        net = page.net(rung)
        state = copy.deepcopy(net.state_dict())
        plain, parts = page.read(rung), [*net.modules()]
        assert page.read(rung, **combined).probability != plain.probability
        request = {"run": page.run(rung), "text": TEXT}
        assert "no head 99" in page.ask("read", 400, **request, changes={"heads": [[1, 99]]})
        assert vars(page.read(rung)).keys() == vars(plain).keys()
        after = page.read(rung)
        assert (after.probabilities, after.words) == (plain.probabilities, plain.words)
        for weights, expected in zip(after.maps, plain.maps, strict=True):
            np.testing.assert_array_equal(weights, expected)
        assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
        assert [*net.modules()] == parts


def test_a_part_that_the_model_does_not_have_is_named(page):
    for rung, message in (
        ("learned_query", "there is no layer 4; number of layers: 0"),
        ("residual_pe", "there is no layer 4; number of layers: 3"),
    ):
        request = {"run": page.run(rung), "text": TEXT}
        for changes in ({"layers": [1, 4]}, {"heads": [[4, 1]]}):
            assert page.ask("read", 400, **request, changes=changes) == message
        assert page.ask("cell", 400, **request, layer=4, query=0) == message
    numbers = "number of heads: 2, of queries: 15"
    for row, message in (
        ({"head": 3, "query": 0}, f"there is no head 3 with a query 0; {numbers}"),
        ({"head": 1, "query": 15}, f"there is no head 1 with a query 15; {numbers}"),
        ({"query": 0, "changes": {"layers": [1]}}, "layer 1 is disabled"),
    ):
        assert page.ask("cell", 400, **request, layer=1, **row) == message


def softmax(scores: np.ndarray) -> np.ndarray:
    exp = np.exp(scores.astype(float) - scores.max())
    return exp / exp.sum()


ROWS = [("base", 1, 1), ("residual_pe", 2, 2), ("residual_cls", 3, 1), ("tuned", 2, 3)]
ROWS.append(("learned_query", 0, 1))


@pytest.fixture
def rows(page) -> Iterator[SimpleNamespace]:
    """One row of an attention of each rung in ROWS, as it is and with changes: its numbers in the
    page, and `ask`, a function that returns its arithmetic.
    """

    def row(rung: str, layer: int, head: int, changes: dict) -> SimpleNamespace:
        found, net, batch = changed(page, rung, **changes)
        numbers = [one.get("layer", 0) for one in found.attentions]
        weights_HQK = found.maps[numbers.index(layer)]
        query = min(4, weights_HQK.shape[1] - 1)
        row = {"run": page.run(rung), "text": TEXT, "changes": changes}
        row |= {"layer": layer, "head": head, "query": query}
        return SimpleNamespace(
            found=found,
            weights=weights_HQK[head - 1, query],
            ask=lambda **more: page.ask("cell", **row, **more),
            output=None if changes else output_of(net, batch, layer)[head - 1, query],
        )

    cases = itertools.product(ROWS, ({}, {"words": [2, 6], "shuffle": 4}))
    return (row(*one, changes) for one, changes in cases)


def output_of(net: Any, batch: Any, layer: int) -> torch.Tensor:
    """What an attention itself outputs for a review, (H, Q, d); layer 0 is the pooling."""
    outputs = []
    part = net.layers[layer - 1].f if layer else net.pooling
    part.attention.register_forward_hook(lambda *call: outputs.append(call[2]))
    net(batch)
    return outputs[0][0].detach()


def test_the_arithmetic_of_a_row_gives_the_numbers_of_the_network(rows):
    for row in rows:
        cell = row.ask()
        scores = cell.keys @ cell.projected * cell.scale + getattr(cell, "added", 0)
        np.testing.assert_allclose(cell.scores, scores, atol=1e-5)
        np.testing.assert_allclose(cell.weights, row.weights, atol=1e-6)
        np.testing.assert_allclose(cell.weights, softmax(cell.scores), atol=1e-6)
        np.testing.assert_allclose(cell.output, cell.weights @ cell.values, atol=1e-6)
        if row.output is not None:
            np.testing.assert_allclose(cell.output, row.output, atol=1e-6)
        assert cell.probabilities == pytest.approx(row.found.probabilities, abs=1e-9)
        assert cell.names == row.found.keys


def test_masked_padding_does_not_change_the_arithmetic_of_a_row(rows):
    for row in rows:
        cell, padded = row.ask(), row.ask(padding=3)
        assert padded.mask.tolist() == [1] * len(cell.names) + [0] * 3
        np.testing.assert_allclose(padded.weights, [*cell.weights, 0, 0, 0], atol=1e-6)
        np.testing.assert_allclose(padded.output, cell.output, atol=1e-6)
        assert padded.probabilities == pytest.approx(row.found.probabilities, abs=1e-6)


def test_padding_without_a_mask_gets_attention(rows):
    for row in rows:
        padded = row.ask(padding=3, masked=False)
        assert padded.names == [*row.found.keys, "<pad>", "<pad>", "<pad>"]
        assert padded.mask.all()
        assert (padded.weights[-3:] > 0).all()
        np.testing.assert_allclose(padded.weights, softmax(padded.scores), atol=1e-6)
        np.testing.assert_allclose(padded.output, padded.weights @ padded.values, atol=1e-6)
        assert padded.probabilities != pytest.approx(row.found.probabilities, abs=1e-6)


def test_positions_are_the_products_of_the_position_vectors(page):
    found = page.ask("positions", run=page.run("residual_pe"), length=40)
    table = page.net("residual_pe").positions.pe_TD[:40].double()
    pe_TD = sinusoids(40, table.shape[1]).double()  # at scale 1, as in the paper
    expected = (pe_TD @ pe_TD.T).numpy()
    np.testing.assert_allclose(found.rest.reshape(40, 40), expected, atol=1e-4)
    assert [one["size"] for one in found.tables] == [40]
    tuned = page.ask("positions", run=page.run("tuned"))
    layer = page.net("tuned").layers[0].f.distances
    query_BHTW, key_B1TW = layer(torch.arange(9)[None])
    added_HTT = (query_BHTW @ key_B1TW.transpose(2, 3))[0]
    added = np.array(tuned.distances[0]["added"])
    middle = added.shape[1] // 2
    for apart in (-3, 0, 4):
        expected_H = added_HTT[:, 4, 4 + apart].tolist()
        assert added[:, middle + apart].tolist() == pytest.approx(expected_H, abs=1e-4)


def test_the_encoder_decoder_gives_the_output_of_predict(page):
    run = page.run(WRITER)
    model = imdbattn.load(page.runs.by_id[run].folder)
    for beams, source in itertools.product((1, 4), ("ABC", "FEDC", "A")):
        found = page.ask("write", run=run, text=source, beams=beams)
        expected = model.predict([source], beams=beams)[0]
        assert found.output == expected.output
        assert found.probability == pytest.approx(expected.probability)
        steps = [step["probability"] for step in found.steps]
        assert math.prod(steps) == pytest.approx(found.probability, rel=1e-4)
        best = found.beams[0]["log_probability"]
        assert math.log(math.prod(steps)) == pytest.approx(best, abs=1e-4)
        assert len(found.beams) <= beams
        explained = model.predictor.write([source], beams)[0]
        np.testing.assert_allclose(found.weights, explained.weights_TS, atol=1e-6)
    assert len(page.ask("write", run=run, text="ABC", beams=4).beams) == 4


def test_only_requests_with_the_token_and_for_this_machine_are_answered(page):
    client = page.client
    for url in ("/", "/wrong/", f"/{TOKEN}x/", "/wrong/api/runs", "/%2e%2e/", f"//{TOKEN}/"):
        answer = client.get(f"http://127.0.0.1:8765{url}")
        assert answer.status_code == 404, url
        assert TOKEN not in answer.text
    for host in ("evil.example:8765", "127.0.0.1.evil.example:80", "", "[::1]:8765"):
        answer = client.get("api/runs", headers={"Host": host})
        assert answer.status_code == 400, host
    for host in ("127.0.0.1:8765", "localhost:8765"):
        assert client.get("api/runs", headers={"Host": host}).status_code == 200
    for path in ("../server.py", "..%2f..%2fpyproject.toml", "/etc/passwd", "api/foo"):
        assert client.get(f"http://127.0.0.1:8765/{TOKEN}/{path}").status_code == 404, path


def get(address: str, data: bytes | None = None) -> Any:
    """The answer of a server, also if it is an error."""
    try:
        return urllib.request.urlopen(address, data, timeout=30)
    except urllib.error.HTTPError as error:
        return error


def test_every_answer_forbids_foreign_scripts_and_frames(page):
    with served(page) as address:
        paths = ("", "main.js", "explore.css", "api/runs", "missing", "../")
        answers = [get(address + path) for path in paths]
        answers.append(get(f"{address}api/read", b"{}"))
        index = answers[0].read().decode()
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 404, 404, 400]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in index
    assert "style=" not in index


def test_a_port_in_use_is_named(shell, folder_of, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = f"port={other.getsockname()[1]}"
        done = shell("explore", f"runs={folder_of('mean')}", port, cwd=tmp_path, status=2)
    assert f"{port} cannot be used, choose another one" in done.stderr


def test_the_command_serves_the_page_until_ctrl_c(folder_of, tmp_path):
    arguments = [f"runs={folder_of('residual_pe')}", "port=0", "open=false"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started_command("explore", *arguments, cwd=tmp_path, **pipes) as process:
        line = process.stdout.readline()
        assert line.startswith("runs: 1, at http://127.0.0.1:"), line + process.stderr.read()
        address = line.split()[3]
        assert "<title>Attention explorer</title>" in get(address).read().decode()
        assert '"label": "residual_pe' in get(f"{address}api/runs").read().decode()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        assert (output, errors) == ("SIGINT: stopped\n", "")
        assert process.returncode == 130
    assert [*tmp_path.iterdir()] == []
