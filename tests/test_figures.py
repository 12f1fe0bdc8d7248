"""The pictures: what is measured for them is bounded and right, what is drawn is whole, escaped and says every rank."""

import re
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddparity
from ddparity.judge import (
    CallsPicture,
    ErrorCell,
    ErrorMap,
    Pictures,
    SampleRow,
    SamplesPicture,
    SampleStrip,
    Verdict,
    compare_and_measure,
    compare_trials,
    picture_trial,
)
from ddparity.judge._bounded import MAX_RANKS, some_points, some_ranks
from ddparity.judge._comm_picture import picture_calls
from ddparity.judge._memory_growth import growth
from ddparity.judge._memory_picture import picture_ranks
from ddparity.judge._memory_run import MemoryRank
from ddparity.report import (
    STYLE,
    ShownVerdict,
    calls_figure,
    errors_figure,
    memory_figure,
    metric_figure,
    render_fragment,
    render_html,
    render_json,
    samples_figure,
)
from ddparity.trace._ring_format import Kind
from synthetic import Fault, Training, as_control, write_trial
from test_comm_match import make, run_of
from test_memory_judge import rank_of, step
from test_report import finding, verdict

MIB = 1 << 20
EVIL = "<script>alert(1)</script>\"'&\x1b[2J"
words = st.text(max_size=12)
names = words | st.just(EVIL)


class Markup(HTMLParser):
    """Holds what a picture is made of, and fails on what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def whole(text: str) -> Markup:
    """Return the parts of a picture that may stand in any page."""
    page = Markup(text)
    assert not {"script", "style", "link", "img", "image", "use", "foreignobject"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"style", "href", "src", "id"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    for attribute in ("x", "y", "width", "height"):
        assert not re.search(rf' {attribute}="[^"]*(nan|inf)', text)
    assert "\x1b" not in text
    return page


# -- what is measured -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=400), st.integers(1, 60), st.integers(-5, 400))
def test_some_points_keep_ends_tops_and_what_is_to_be_kept(values, limit, keep):
    chosen = some_points(values, limit, [keep])
    assert len(chosen) <= max(limit, 0) or limit < 3
    assert chosen == sorted(set(chosen))
    if values and limit >= 4:
        assert {0, len(values) - 1} <= set(chosen)
        assert max(values[i] for i in chosen) == max(values)
        assert keep in chosen or not 0 <= keep < len(values)


@settings(deadline=None)
@given(st.sets(st.integers(0, 3000), max_size=300), st.sets(st.integers(0, 3000), max_size=20))
def test_some_ranks_are_those_that_matter_and_others(ranks, wanted):
    chosen = some_ranks(ranks, wanted)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(len(ranks), MAX_RANKS)
    assert wanted & ranks <= set(chosen) <= ranks


def test_growth_is_marked_where_it_begins_on_the_rank_that_grows():
    level, rising = [100 * MIB] * 12, [100 * MIB + MIB * max(0, n - 3) for n in range(12)]
    ranks = {0: rank_of(level), 1: rank_of(rising, rank=1), 2: rank_of(level, rank=2)}
    picture = picture_ranks(ranks, rank_of(level), growth(ranks))
    assert [each.rank for each in picture.lines] == [None, 0, 1, 2]
    assert (picture.first.step, picture.first.ranks, picture.first.code) == (3, [1], "memory.growth")
    assert picture.lines[2].held == rising
    assert picture.lines[2].top == rising[-1]
    assert (picture.capacity, picture.stable) == (1 << 34, int((1 << 34) * 0.8))
    drawn = memory_figure(picture)
    assert "✗ first deviation: step 3, memory:held" in drawn
    assert drawn.count('class="ddp-curve ddp-marked"') == 2  # held, and of the capacity
    assert Markup(drawn).words.count("✗ step 3") == 2


def test_memory_counts_what_an_evaluation_held_and_where_a_rank_ended():
    from ddparity.judge._memory_run import Evaluation

    mine = rank_of([100 * MIB] * 4)
    mine.evaluations.append(Evaluation(2, [100 * MIB], [50 * MIB], [MIB], 0))
    mine.unfinished = step(4, 0, start=90 * MIB, inside=500 * MIB)
    (line,) = picture_ranks({0: mine}, None, []).lines
    assert line.held == [100 * MIB, 100 * MIB, 150 * MIB, 100 * MIB, 90 * MIB]
    assert line.used[0] == 300 * MIB  # the resident pages
    assert line.ended_in == 4
    assert picture_ranks({0: MemoryRank(0)}, None, []) is None


def compared(folder: Path, **training):
    candidate = Training(**{"world_size": 2, "steps": 3, **training})
    control = write_trial(as_control(candidate), folder / "control")
    return compare_and_measure(control, write_trial(candidate, folder / "candidate"))


def test_every_sample_of_a_healthy_step_is_on_one_rank(tmp_path):
    measured = compared(tmp_path, world_size=3, order="strided")
    (strip,) = measured.pictures.samples.strips
    assert (strip.step, strip.length, strip.copies, strip.first) == (0, 24, 1, None)
    assert sum(strip.repeated) == sum(strip.missing) == 0
    assert [sum(shares) for shares in zip(*(row.shares for row in strip.rows), strict=True)] == [1.0] * 24
    assert measured.pictures.errors.cells


def test_copies_on_several_ranks_are_no_repetition(tmp_path):
    (strip,) = compared(tmp_path, world_size=4, copies=2).pictures.samples.strips
    assert strip.copies == 2
    assert not any(strip.repeated)
    assert "each is on 2 ranks" in samples_figure(SamplesPicture(strips=[strip]))


@pytest.mark.parametrize("kind", ["samples", "overlap"])
def test_samples_that_are_missing_or_taken_twice_are_told(tmp_path, kind):
    measured = compared(tmp_path, faults=(Fault(kind=kind, step=1, ranks=(1,)),))
    found = measured.verdict.first("data")
    strip = measured.pictures.samples.strips[0]
    assert strip.step == found.step
    assert strip.first is not None
    assert strip.code == found.cause.code
    assert sum(strip.missing) == found.evidence["missing"] > 0
    assert strip.first == next(i for i, pair in enumerate(zip(strip.repeated, strip.missing, strict=True)) if any(pair))


def test_a_comparison_that_draws_says_the_same(tmp_path):
    measured = compared(tmp_path, noise=0.5)
    plain = compare_trials(tmp_path / "control", tmp_path / "candidate")
    assert measured.verdict == plain
    text = msgspec.json.encode(measured.pictures)
    assert msgspec.json.decode(text, type=Pictures) == measured.pictures
    alone = picture_trial(tmp_path / "candidate")
    assert alone.errors.cells == []
    assert alone.samples is None  # no loader, and no control to hold its steps against


MS = 1_000_000


def program(num: int, *, late: int = 0):
    calls = [make(n, entered=n * 10 * MS + late, done=n * 10 * MS + 5 * MS, step=n // 4) for n in range(1, num + 1)]
    return [replace(call, entered=min(call.entered, call.done - 1)) for call in calls]


def waiting(seq: int):
    return make(seq, entered=seq * 10 * MS, done=0, step=seq // 4)


def test_the_call_that_waits_is_outlined_and_the_rank_that_does_not_come_is_named():
    programs = [[*program(20), waiting(21)], program(20), [*program(20), waiting(21)]]
    _, run = run_of(programs)
    absent = finding(layer="communication", ranks=[1], step=5, evidence={"group": "world", "call": 21})
    picture = picture_calls(run, [absent])
    assert [row.concerned for row in picture.rows] == [False, True, False]
    for row in picture.rows:
        firsts = [bar for bar in row.calls if bar.first]
        assert [bar.number for bar in firsts] == ([] if row.rank == 1 else [21])
        assert all(bar.waits for bar in firsts)
        assert all(0 <= bar.begin <= picture.span for bar in firsts)
        assert min(bar.step for bar in row.calls) >= 4
    assert [name.number for name in picture.names if name.first] == [21]
    assert list(picture.names[-1].told) == ["rank 0, 2"]
    drawn = Markup(calls_figure(picture)).words
    assert "✗ all_reduce 21" in drawn
    assert "✗ does not call" in drawn


def test_without_a_finding_the_last_step_is_drawn():
    _, run = run_of([program(11), program(11, late=2 * MS)])
    picture = picture_calls(run, [])
    assert {bar.step for row in picture.rows for bar in row.calls} == {2}
    assert picture.code == ""
    assert "✗" not in calls_figure(picture)
    assert picture_calls(run_of([program(3)])[1], []) is None


def test_a_call_whose_completion_nobody_saw_waits_only_at_the_end():
    unseen = [replace(call, done=0, launched=call.entered + MS) for call in program(8)]
    _, run = run_of([unseen, unseen])
    for row in picture_calls(run, []).rows:
        assert [bar.waits for bar in row.calls] == [False] * (len(row.calls) - 1) + [True]


def test_a_transfer_belongs_to_one_rank():
    send, receive = (
        make(1, kind, entered=MS, done=2 * MS, root=peer) for kind, peer in ((Kind.SEND, 1), (Kind.RECV, 0))
    )
    picture = picture_calls(run_of([[send], [receive]])[1], [])
    assert sorted(next(iter(name.told)) for name in picture.names) == ["rank 0", "rank 1"]


# -- what is drawn ----------------------------------------------------------------------------------------------------

memory_ranks = st.dictionaries(
    st.integers(0, 2000),
    st.lists(st.integers(0, 1 << 50), min_size=1, max_size=30).map(rank_of),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(memory_ranks, st.booleans(), st.integers(0, 30), names)
def test_memory_of_anything_is_drawn_and_every_rank_is_in_it(ranks, capacity, at, name):
    for mine in ranks.values():
        mine.capacity, mine.capacity_by = (1 << 34, name) if capacity else (0, "")
    found = finding(name, layer="memory", step=at, ranks=sorted(ranks)[:1])
    drawn = memory_figure(picture_ranks(ranks, rank_of([MIB, 2 * MIB]), [found]))
    page = whole(drawn)
    for rank in ranks:
        assert f">rank {rank}<" in drawn
    assert ">control<" in drawn
    assert sum(tag == "svg" for tag, _ in page.tags) == 1 + capacity
    assert len(drawn) < 60_000


shares = st.floats(0, 1)


@st.composite
def strips(draw):
    num = draw(st.integers(1, 64))
    counts = st.lists(st.integers(0, 9), min_size=num, max_size=num)
    row = st.builds(
        SampleRow,
        rank=st.integers(0, 5000),
        shares=st.lists(shares, min_size=num, max_size=num),
        samples=st.integers(0, 10**9),
        others=st.integers(0, 9),
    )
    return SampleStrip(
        step=draw(st.none() | st.integers(0, 9)),
        dataset=draw(names),
        training=draw(st.none() | st.booleans()),
        whole=draw(st.booleans()),
        length=draw(st.integers(num, 10**12)),
        rows=draw(st.lists(row, min_size=1, max_size=6)),
        num_ranks=7,
        repeated=draw(counts),
        missing=draw(counts),
        first=draw(st.none() | st.integers(0, num - 1)),
        code=draw(names),
    )


@settings(max_examples=60, deadline=None)
@given(strips())
def test_samples_of_anything_are_drawn_and_marked_not_by_colour_alone(strip):
    drawn = samples_figure(SamplesPicture(strips=[strip], left_out=2))
    page = whole(drawn)
    for row in strip.rows:
        assert f">rank {row.rank}<" in drawn
    assert (page.words.count("✗ first:") == 1) == (strip.first is not None)
    assert ("taken too often" in page.words) == bool(sum(strip.repeated))
    assert "2 more passes are left out" in page.words
    assert len(drawn) < 60_000


bars = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from([Kind.ALL_REDUCE, Kind.SEND]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(bars, min_size=1, max_size=8), min_size=2, max_size=5), st.integers(1, 9), names)
def test_calls_of_anything_are_drawn_and_every_rank_is_in_them(programs, at, name):
    made = [
        [
            make(n, kind, entered=entered, done=done, group="world", name=name, root=0)
            for n, (entered, done, kind) in enumerate(sorted(calls), start=1)
        ]
        for calls in programs
    ]
    found = finding(name, layer="communication", step=0, ranks=[1], evidence={"group": "world", "call": at})
    picture = picture_calls(run_of(made)[1], [found])
    drawn = calls_figure(picture)
    whole(drawn)
    for rank in range(len(programs)):
        assert f">rank {rank}<" in drawn
    assert picture.span >= 0
    assert len(drawn) < 80_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            ErrorCell,
            step=st.just(1),
            phase=st.sampled_from(["init", "forward", "loss", "backward", "optimizer", EVIL]),
            name=names,
            error=st.floats(),
            floor=st.floats(),
        ),
        max_size=40,
    )
)
def test_errors_of_any_size_are_drawn(cells):
    first = finding(cells[0].name, step=1) if cells else None
    whole(errors_figure(ErrorMap(cells=cells), first))


def test_the_first_deviation_is_outlined_along_the_depth():
    kinds = ["forward"] * 400 + ["loss"] + ["backward"] * 400 + ["optimizer"] * 400
    cells = [ErrorCell(step=0, phase=kind, name=f"m{n}", error=1e-7, floor=1e-6) for n, kind in enumerate(kinds)]
    cells[500].error = 1.0
    page = whole(drawn := errors_figure(ErrorMap(cells=cells), finding("m500")))
    assert sum(tag == "circle" for tag, _ in page.tags) == 1
    for word in ("✗ first", "noise floor", "outputs", "gradients", "after the step"):
        assert word in page.words
    assert "at most 1000000 noise floors" in drawn or "at most 1e+06 noise floors" in drawn
    assert errors_figure(None) == errors_figure(ErrorMap(cells=[])) == ""


def test_errors_along_many_steps_are_a_curve_a_kind_and_the_table_of_steps_stays_narrow():
    cells = [
        ErrorCell(step=n, phase=kind, name="m", error=1e-7 * n, floor=1e-6, by_rank=dict.fromkeys(range(99), 1e-07))
        for n in range(900)
        for kind in ("forward", "backward")
    ]
    cells[-1].by_rank[77] = 1.0
    page = whole(drawn := errors_figure(ErrorMap(cells=cells)))
    assert sum(tag == "svg" for tag, _ in page.tags) == 2
    assert "the largest error along the steps: at most 89.9 noise floors" in drawn
    report = render_html(verdict(), Pictures(errors=ErrorMap(cells=cells)))
    assert "884 earlier steps are left out" in report
    assert ">rank 77</th>" in report
    assert "83 more ranks are left out" in report


def test_a_metric_of_any_numbers_is_drawn():
    points = [{"value": 1.5, "step": 1}, {"value": "nan", "step": 2}, {"value": 1e300, "step": 3}]
    page = whole(metric_figure(EVIL, points))
    assert "(1 not finite)" in page.words
    assert any(tag == "polyline" for tag, _ in page.tags)
    assert "polyline" not in metric_figure("one", [{"value": 1, "step": None}])


def test_nothing_recorded_is_nothing_drawn():
    assert memory_figure(None) == samples_figure(None) == calls_figure(None) == ""
    assert render_html(verdict(), Pictures(errors=ErrorMap(cells=[]))) == render_html(verdict())


def test_the_one_style_sheet_touches_nothing_else():
    plain = re.sub(r"@media[^{]*\{(.*?\})\s*\}", r"\1", STYLE, flags=re.S)
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", plain)
    assert len(selectors) > 20
    assert [one for each in selectors for one in each.split(",") if not one.strip().startswith(".ddp-figure")] == []
    assert "url(" not in STYLE


def large(num_ranks: int, num_steps: int) -> Pictures:
    """Return the pictures of a run so large, each as full as it gets."""
    ends = [[(100 + (rank * 7 + n * 13) % 50) * MIB for n in range(num_steps)] for rank in range(num_ranks)]
    ranks = {rank: rank_of(each, rank) for rank, each in enumerate(ends)}
    calls = [
        replace(call, stack=(f"train_{call.seq}.py:{rank} in main",)) for rank in range(1) for call in program(400)
    ]
    programs = [[replace(call, entered=call.entered + rank) for call in calls] for rank in range(num_ranks)]
    strip = SampleStrip(
        step=0,
        length=640,
        rows=[
            SampleRow(rank=rank, shares=[((rank + n) % 10) / 10 for n in range(64)], samples=10)
            for rank in range(min(num_ranks, MAX_RANKS))
        ],
        num_ranks=num_ranks,
        repeated=[1] * 64,
        missing=[1] * 64,
    )
    cells = [
        ErrorCell(
            step=n // 400, phase="backward", name=f"layers.{n % 400}.weight", error=1e-7 * n, floor=1e-6,
            by_rank=dict.fromkeys(range(num_ranks), 1e-06),
        )
        for n in range(1200)
    ]  # fmt: skip
    return Pictures(
        errors=ErrorMap(cells=cells),
        memory=picture_ranks(ranks, ranks[0], []),
        samples=SamplesPicture(strips=[strip] * 9),
        calls=picture_calls(run_of(programs)[1], []),
    )


def test_the_report_of_64_ranks_and_1000_steps_is_below_two_megabytes():
    page = render_html(verdict(), large(64, 1000))
    assert len(page.encode()) < 2_000_000
    for rank in range(64):
        assert page.count(f">rank {rank}<") >= 3  # memory, samples, calls


def test_more_ranks_are_left_out_and_it_is_said():
    pictures = large(100, 12)
    assert len(pictures.memory.lines) == 1 + MAX_RANKS
    assert len(pictures.calls.rows) == MAX_RANKS
    for drawn in (memory_figure(pictures.memory), samples_figure(pictures.samples), calls_figure(pictures.calls)):
        assert "36 more ranks left out" in drawn


def test_a_picture_is_data_that_a_json_twin_can_be_made_of():
    picture = picture_calls(run_of([program(4), program(4)])[1], [])
    assert msgspec.json.decode(msgspec.json.encode(picture), type=CallsPicture) == picture


# -- notebooks --------------------------------------------------------------------------------------------------------


def test_a_verdict_shows_itself_in_a_notebook(tmp_path, monkeypatch):
    from ddparity.trials import Store

    candidate = Training(world_size=2, steps=3, faults=(Fault(kind="summed", step=1),))
    store = Store(tmp_path / "store")
    for name, training in (("alone", as_control(candidate)), ("two", candidate)):
        write_trial(training, store.path(name))
    found = ddparity.compare("alone", "two", store=store.root)
    plain = compare_trials(store.path("alone"), store.path("two"))
    assert isinstance(found, Verdict)
    assert found == plain
    assert plain == found
    assert msgspec.json.encode(found) == msgspec.json.encode(plain)
    shown = found._repr_html_()
    assert shown.startswith('<div class="ddparity-verdict">')
    assert "Error along the depth" in shown
    assert found._repr_html_() == shown


def test_pictures_are_measured_once_and_only_when_they_are_shown():
    asked: list[int] = []

    def measure() -> Pictures:
        asked.append(1)
        return large(2, 6)

    shown = ShownVerdict.of(verdict(findings=[finding(EVIL)]), measure)
    assert shown != verdict()
    assert shown.first().name == EVIL
    assert not asked
    assert "Memory along the steps" in shown._repr_html_()
    assert "<script" not in shown._repr_html_()
    assert asked == [1]


def test_a_verdict_whose_trials_are_gone_is_shown_without_pictures():
    def gone() -> Pictures:
        raise ddparity.TraceError("no such file")

    assert "ddp-figure" not in ShownVerdict.of(verdict(), gone)._repr_html_().partition("</style>")[2]


def test_a_fragment_styles_nothing_outside_of_its_box():
    style = re.search(r"<style>(.*?)</style>", render_fragment(verdict()), re.S)[1]
    depth, tops = 0, [""]
    for char in style:
        if char == "{":
            depth += 1
            tops += [""] if depth == 1 else []
        elif char == "}":
            depth -= 1
        elif depth == 0:
            tops[-1] += char
    found = [one.strip() for each in tops for one in each.split(",") if one.strip()]
    assert [one for one in found if not one.startswith((".ddparity-verdict", ".ddp-figure", "@media"))] == []


# -- whole comparisons ------------------------------------------------------------------------------------------------

trainings = st.builds(
    Training,
    world_size=st.integers(1, 3),
    widths=st.just((4, 4, 3)),
    steps=st.integers(1, 2),
    micro=st.integers(1, 2),
    order=st.sampled_from(["strided", "blocks", "shuffled", "uneven"]),
    optimizer=st.sampled_from(["sgd", "adam"]),
    noise=st.sampled_from([0.0, 0.5]),
    buffer=st.booleans(),
    faults=st.lists(
        st.builds(
            Fault, kind=st.sampled_from(["samples", "overlap", "nan", "summed", "missing"]), step=st.integers(0, 2)
        ),
        max_size=1,
    ).map(tuple),
    missing=st.sampled_from([(), (), (), (0,)]),
    killed=st.sampled_from([None, None, (0, 1)]),
)


@settings(max_examples=15, deadline=None)
@given(trainings)
def test_whatever_was_recorded_is_drawn_and_the_verdict_is_the_same(training):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        control = write_trial(as_control(training), folder / "control")
        candidate = write_trial(training, folder / "candidate")
        measured = compare_and_measure(control, candidate)
        assert render_json(measured.verdict) == render_json(compare_trials(control, candidate))
    drawn = render_html(measured.verdict, measured.pictures).partition("<main>")[2].partition("</main>")[0]
    whole(drawn)
    samples = measured.pictures.samples
    first = measured.verdict.first("data")
    if first is not None and first.name == "sample_ids" and samples is not None:
        assert any(strip.code == first.cause.code for strip in samples.strips)
