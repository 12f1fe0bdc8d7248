"""What a verdict looks like as text, JSON and HTML."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from ddparity.judge import ErrorCell, ErrorMap, Pictures
from ddparity.judge._verdict import Cause, Finding, Floor, LayerVerdict, Phase, Status, Varied, Verdict
from ddparity.report import render_html, render_json, render_text
from ddparity.report._wording import number, shown


def finding(name: str = "layers.0.weight", **settings) -> Finding:
    cause = Cause(code="summed", text="The gradients were summed, not averaged.", confidence="proved")
    base = {"layer": "numerics", "step": 0, "phase": Phase.BACKWARD, "name": name, "site": "synced_gradient"}
    return Finding(**{**base, "cause": cause, **settings})


def verdict(**settings) -> Verdict:
    layers = {
        "numerics": LayerVerdict(status=Status.DEVIATES, checked=812, reason="the gradients are twice the control's"),
        "data": LayerVerdict(status=Status.PASS, checked=1, reason="same samples"),
        "memory": LayerVerdict(status=Status.NOT_TESTED, reason="nothing was recorded for it"),
        "communication": LayerVerdict(status=Status.INCONCLUSIVE, reason="the order is not known"),
    }
    return Verdict(**{"control": "c-1", "candidate": "c-2", "partial": False, "layers": layers, **settings})


FULL = verdict(
    partial=True,
    partial_reasons=["3 of 4 ranks"],
    varied=[Varied(variable="world_size", control=1, candidate=2), Varied(variable="lr", control=0.1, candidate=0.2)],
    confounded=True,
    merge_plan={"samples": "sharded", "loss_weights": [0.5, 0.5], "reduction": {"fc.weight": "mean"}},
    findings=[
        finding(
            ranks=[0, 1],
            ranks_differ=True,
            evidence={"ratio": 2.0, "residual": 1.234567e-7},
            floor=Floor(value=3e-7, source="float32, depth 6"),
            next="ddparity trials show c-2",
        ),
        *(finding(f"p{index}", follows=0) for index in range(6)),
        finding("other", step=None, follows=1),
        finding("lone.bias", phase=Phase.OPTIMIZER),
    ],
)


def test_text_says_everything_in_order():
    assert (
        render_text(FULL)
        == """\
PARTIAL: 3 of 4 ranks

control    c-1
candidate  c-2

✗ DEVIATES      numerics       812 checks; the gradients are twice the control's
✓ PASS          data           1 check; same samples
– NOT TESTED    memory         nothing was recorded for it
? INCONCLUSIVE  communication  0 checks; the order is not known

varied
  world_size: 1 -> 2
  lr: 0.1 -> 0.2
  CONFOUNDED: more than one variable changed, so a deviation cannot be put down to one of them. Change one at a time.

merge plan
  samples: sharded
  loss weights: 0.5, 0.5
  reduction: fc.weight: mean

numerics: first deviation
  at        step 0, backward: synced gradient of layers.0.weight
  ranks     0, 1; the ranks differ from each other
  evidence  ratio: 2
            residual: 1.235e-07
  floor     3e-07 (float32, depth 6)
  cause     The gradients were summed, not averaged. [summed, proved]
  next      ddparity trials show c-2
  7 findings follow from it: p0, p1, p2, p3, p4 and 2 more
  1 more finding follows from no other: lone.bias
"""  # noqa: RUF001
    )


def test_a_clean_verdict_is_short():
    layers = {"numerics": LayerVerdict(status=Status.PASS, checked=3)}
    text = render_text(verdict(layers=layers))
    assert (
        text
        == "control    c-1\ncandidate  c-2\n\n✓ PASS          numerics  3 checks\n\nvaried: nothing that was recorded\n"
    )


def test_partial_without_a_reason_is_announced_all_the_same():
    assert render_text(verdict(partial=True)).startswith("PARTIAL: a part of the recording is missing\n")


def test_findings_that_follow_from_each_other_in_a_circle_end_nothing():
    circle = verdict(
        findings=[finding("a", follows=1), finding("b", follows=0), finding("c", follows=99), finding("d")]
    )
    assert "at        step 0, backward: synced gradient of d" in render_text(circle)
    assert "follows from #99" in render_html(circle)


def test_a_terminal_is_told_nothing_by_a_trace():
    evil = "\x1b[2J\x07name\nnew line\u202e"
    text = render_text(
        verdict(
            control=evil,
            partial=True,
            partial_reasons=[evil],
            varied=[Varied(variable=evil, control=evil, candidate=[evil])],
            merge_plan={evil: {evil: evil}},
            findings=[finding(evil, site=evil, evidence={evil: evil}, next=evil)],
        )
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert "new line" in text
    assert "\nnew line" not in text


def test_long_lists_are_cut():
    text = render_text(
        verdict(
            varied=[Varied(variable=f"v{i}", control=0, candidate=1) for i in range(30)],
            merge_plan={f"k{i}": i for i in range(30)},
            findings=[finding(evidence={"values": list(range(100)), "text": "x" * 1000})],
        )
    )
    assert "and 10 more (--json lists them)" in text
    assert "and 18 more (--json lists them)" in text
    assert "values: 0, 1, 2, 3, 4, 5, 6, 7 and 92 more" in text
    assert max(len(line) for line in text.splitlines()) < 260


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2"),
        (-0.0, "0"),
        (1e-7, "1e-07"),
        (123456.789, "1.235e+05"),
        (999999.0, "999999"),
        (1e300, "1e+300"),
        (float("nan"), "NaN"),
        (float("inf"), "Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "yes"),
        (3, "3"),
        ([], "none"),
        ({}, "none"),
        ({"a": [1.5, None]}, "a: 1.5, none"),
        ("s", "s"),
    ],
)
def test_values(value, text):
    assert shown(value) == text


def test_json_is_the_contracts_document():
    document = msgspec.json.decode(render_json(FULL))
    assert document["schema"] == 1
    assert set(document) >= {"control", "candidate", "partial", "varied", "layers", "findings", "merge_plan"}
    assert document["layers"]["memory"] == {
        "status": "NOT_TESTED",
        "checked": 0,
        "reason": "nothing was recorded for it",
    }
    assert msgspec.json.decode(render_json(FULL), type=Verdict) == FULL
    assert render_json(FULL).startswith('{\n  "schema": 1,')


def test_json_takes_numpy_scalars_and_numbers_that_json_lacks():
    evidence = {"a": np.float32(0.5), "b": np.int64(3), "c": float("nan"), "d": np.float64(2.0)}
    document = msgspec.json.decode(render_json(verdict(findings=[finding(evidence=evidence)])))
    assert document["findings"][0]["evidence"] == {"a": 0.5, "b": 3, "c": None, "d": 2.0}
    with pytest.raises(TypeError, match="object does not belong into a verdict"):
        render_json(verdict(merge_plan={"x": object()}))


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_whole_and_loads_nothing():
    page = Page(render_html(FULL))
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in {"src", "href"} or name.startswith("on")]
    assert "url(" not in render_html(FULL)
    assert "prefers-color-scheme: dark" in render_html(FULL)


def test_html_escapes_what_comes_from_a_trace():
    evil = "<script>alert(1)</script>\"'&"
    cause = Cause(code=evil, text=evil, confidence=evil)
    text = render_html(
        verdict(
            control=evil,
            candidate=evil,
            partial=True,
            partial_reasons=[evil],
            varied=[Varied(variable=evil, control=evil, candidate=evil)],
            merge_plan={evil: evil},
            layers={evil: LayerVerdict(status=Status.PASS, reason=evil)},
            findings=[
                finding(
                    evil,
                    layer=evil,
                    site=evil,
                    evidence={evil: evil},
                    cause=cause,
                    next=evil,
                    floor=Floor(value=1.0, source=evil),
                )
            ],
        )
    )
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 12
    assert Page(text).open == []


def test_html_says_what_text_says():
    text = render_html(FULL)
    for words in ("PARTIAL:", "CONFOUNDED:", "✗ DEVIATES", "✓ PASS", "NOT TESTED", "? INCONCLUSIVE", "1.235e-07"):
        assert words in text


def test_html_lists_a_bounded_number_of_findings():
    text = render_html(verdict(findings=[finding(f"p{index}") for index in range(1003)]))
    assert "3 more are in the JSON document" in text
    assert "p1002" not in text


def test_reporting_needs_no_torch():
    code = "import sys, ddparity.report; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def cells(step, phase, errors, **more):
    return [ErrorCell(step=step, phase=phase, name=name, error=e, floor=1e-6, **more) for name, e in errors.items()]


MAP = ErrorMap(
    cells=[
        *cells(0, "forward", {"fc": 1e-7, "<b>": 0.0}),
        *cells(0, "backward", {"fc.weight": 5e-7}),
        *cells(1, "forward", {"fc": 2e-7}),
        *cells(1, "backward", {"layers.0.weight": 2.0, "fc.weight": 5e-6}, by_rank={0: 2.0, 1: 1e-7}),
    ]
)

PICTURES = Pictures(errors=MAP)


def test_the_map_of_errors_counts_in_floors_and_marks_the_first():
    text = render_html(verdict(findings=[finding(step=1)]), PICTURES)
    assert '<th scope="row">layers.0.weight</th><td></td><td class="h3 first">2e+06 <b>first</b></td>' in text
    assert '<th scope="row">fc</th><td class="h0">0.2</td><td></td>' in text
    assert '<th scope="row">fc.weight</th><td></td><td class="h1">5</td>' in text
    assert "Step 1, in the order of computation" in text
    assert '<th scope="row">gradient</th><td class="h0">0.5</td><td class="h3">2e+06</td>' in text  # along the steps
    assert '<th scope="row">layers.0.weight</th><td class="h3">2e+06</td><td class="h0">0.1</td>' in text  # by rank
    healthy = render_html(verdict(findings=[]), Pictures(errors=ErrorMap(cells=MAP.cells[:3])))
    assert "<b>first</b>" not in healthy
    assert "&lt;b&gt;" in healthy
    assert Page(healthy).tags.count("table") == Page(render_html(verdict(findings=[]))).tags.count("table") + 2


def test_the_map_keeps_the_first_deviation_among_the_rows_it_has_room_for():
    many = {f"m{number}": 1e-7 for number in range(300)} | {"layers.0.weight": 1.0}
    text = render_html(verdict(findings=[finding()]), Pictures(errors=ErrorMap(cells=cells(0, "backward", many))))
    assert 'layers.0.weight</th><td class="h3 first">' in text
    assert "241 more rows" in text
    assert '"row">m0<' not in text
