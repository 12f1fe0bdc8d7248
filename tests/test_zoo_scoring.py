"""The rules by which a zoo row is scored, one by one."""

from typing import Any

import msgspec
import pytest

from ddparity.judge import LAYERS, Cause, Finding, LayerVerdict, Phase, Status, Verdict
from ddparity.trials import _scoring as scoring
from ddparity.trials._scoring import Locus, Outcome, Row

STEP_0 = Locus(step=0, phases=["backward"], names=["fc.weight"])


def finding(name: str = "fc.weight", **given: Any) -> Finding:
    facts = {"layer": "numerics", "step": 0, "phase": Phase.BACKWARD, "site": "synced_gradient"} | given
    cause = Cause(code="unexplained", text="?", confidence="unexplained")
    return Finding(name=name, cause=cause, **facts)


def verdict(*findings: Finding, **statuses: Status) -> Verdict:
    """Return a verdict in which a layer with findings deviates and ``statuses`` has the last word."""
    seen = dict.fromkeys(LAYERS, Status.NOT_TESTED) | {f.layer: Status.DEVIATES for f in findings} | statuses
    layers = {layer: LayerVerdict(status=status) for layer, status in seen.items()}
    return Verdict(control="c", candidate="d", partial=False, layers=layers, findings=list(findings))


HEALTHY = verdict(numerics=Status.PASS)
FAULTY = verdict(finding())


def row(**given: Any) -> Row:
    return Row(**({"name": "r", "file": "r.py", "layer": "numerics", "locus": STEP_0} | given))


def outcome(row: Row, clean: Verdict | None, faulty: Verdict | None) -> Outcome:
    return Outcome(row=row, clean=clean, faulty=faulty, score=scoring.score(row, clean, faulty, 1.0))


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({"numerics": Status.PASS}, True),
        ({"numerics": Status.INCONCLUSIVE, "data": Status.PASS}, True),
        ({"numerics": Status.PASS, "data": Status.DEVIATES}, False),
        ({"numerics": Status.INCONCLUSIVE}, False),
        ({}, False),
    ],
)
def test_a_clean_run_passes_when_a_layer_passes_and_none_deviates(statuses: dict[str, Status], expected: bool) -> None:
    assert scoring.passes(verdict(**statuses)) is expected


def test_a_fault_is_detected_when_some_layer_deviates() -> None:
    assert scoring.score(row(), HEALTHY, FAULTY, 1.0).detected is True
    assert scoring.score(row(), HEALTHY, HEALTHY, 1.0).detected is False
    assert scoring.score(row(), HEALTHY, verdict(numerics=Status.INCONCLUSIVE), 1.0).detected is False


def test_a_look_alike_is_detected_when_no_layer_deviates_and_is_never_located() -> None:
    benign = row(benign=True, layer="control", locus=Locus())
    assert scoring.score(benign, HEALTHY, HEALTHY, 1.0).detected is True
    assert scoring.score(benign, HEALTHY, FAULTY, 1.0).detected is False
    assert scoring.score(benign, HEALTHY, HEALTHY, 1.0).located is None
    assert scoring.score(benign, HEALTHY, FAULTY, 1.0).located is None


@pytest.mark.parametrize("benign", [False, True])
def test_a_run_that_could_not_be_judged_scores_nothing(benign: bool) -> None:
    score = scoring.score(row(benign=benign), None, None, 1.0)
    assert (score.clean_pass, score.detected, score.first_finding) == (False, False, None)
    assert score.located is (None if benign else False)


def test_located_needs_step_phase_and_name() -> None:
    assert scoring.matches(STEP_0, finding())
    assert not scoring.matches(STEP_0, finding(step=1))
    assert not scoring.matches(STEP_0, finding(step=None))
    assert not scoring.matches(STEP_0, finding(phase=Phase.FORWARD))
    assert not scoring.matches(STEP_0, finding("head.weight"))


def test_a_locus_without_a_step_takes_any_step() -> None:
    anywhere = Locus(step=None, phases=["backward"], names=["fc.weight"])
    assert scoring.matches(anywhere, finding(step=7))
    assert scoring.matches(anywhere, finding(step=None))


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ("fc.weight", "fc.weight", True),
        ("fc.weight", "net.fc.weight", True),  # ends in it
        ("fc.weight", "fc.weight.original0", True),  # below it
        ("bn", "bn.running_mean", True),
        ("bn", "net.bn", True),
        ("bn", "net.bn.weight", False),  # below something that ends in it is neither
        ("fc.weight", "sfc.weight", False),  # components, not characters
        ("bn", "bn1", False),
        ("bn", "bn1.weight", False),
        ("1", "1", True),
        ("1", "1.norm.weight", True),
        ("1", "11", False),
        ("loss", "loss", True),
        ("lr", "loss", False),
        ("grad_norm", "grad_norm", True),
    ],
)
def test_a_name_is_equal_to_ends_in_or_stands_below_the_manifests(wanted: str, name: str, expected: bool) -> None:
    locus = Locus(phases=["backward"], names=["other", wanted])
    assert scoring.name_matches(locus, finding(name)) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("b.weight", True),
        ("b.sub.bias", True),
        ("net.b.weight", True),
        ("b", False),
        ("bb.weight", False),
        ("a.weight", False),
        ("net.b", False),
    ],
)
def test_a_star_behind_a_module_stands_for_everything_below_it(name: str, expected: bool) -> None:
    assert scoring.name_matches(Locus(phases=["collective"], names=["b.*"]), finding(name)) is expected


@pytest.mark.parametrize("name", [*sorted(scoring.NOT_PARAMETERS), *(f"{p}x" for p in scoring.NOT_PARAMETER_PREFIXES)])
def test_the_star_stands_for_parameters_only(name: str) -> None:
    star = Locus(phases=["backward"], names=["*"])
    assert not scoring.name_matches(star, finding(name))
    assert scoring.name_matches(star, finding("fc.weight"))
    assert scoring.name_matches(star, finding("loss_head.lr"))  # a parameter may be called anything


@pytest.mark.parametrize("site", ["activation", "activation_gradient", "buffer", "input"])
def test_a_module_or_a_buffer_is_no_parameter(site: str) -> None:
    assert not scoring.name_matches(Locus(phases=["backward"], names=["*"]), finding("fc", site=site))


def test_the_names_that_are_no_parameters_are_the_contracts() -> None:
    words = {"loss", "lr", "grad_norm", "clip_coefficient", "loss_scale", "sample_ids", "rng"}
    assert words == scoring.NOT_PARAMETERS
    assert scoring.NOT_PARAMETER_PREFIXES == ("metric:", "collective:", "memory:", "rank:")


def test_prose_is_not_scored() -> None:
    prose = Locus(step=0, phases=["clip"], names=["clip coefficient"])
    assert scoring.matches(prose, finding("grad_norm", phase=Phase.CLIP))
    assert not scoring.matches(prose, finding("grad_norm", phase=Phase.CLIP, step=1))


def test_prose_beside_a_name_leaves_the_name_scored() -> None:
    mixed = Locus(phases=["backward"], names=["all of them", "fc.weight"])
    assert scoring.name_matches(mixed, finding("fc.weight"))
    assert not scoring.name_matches(mixed, finding("head.weight"))


def test_names_of_the_phases_eval_and_memory_are_not_scored() -> None:
    assert scoring.matches(Locus(phases=["eval", "data"], names=["accuracy"]), finding("sample_ids", phase=Phase.DATA))
    memory = Locus(step=0, phases=["memory"], names=["optimizer.step"])
    assert scoring.matches(memory, finding("memory:optimizer", phase=Phase.MEMORY))
    assert not scoring.matches(memory, finding("memory:optimizer", phase=Phase.MEMORY, step=3))


def test_the_first_finding_of_any_deviating_layer_may_locate() -> None:
    elsewhere = finding("sample_ids", layer="data", phase=Phase.DATA)
    assert scoring.locating(STEP_0, verdict(elsewhere, finding())) == finding()


def test_a_later_finding_of_a_layer_does_not_locate() -> None:
    assert scoring.locating(STEP_0, verdict(finding("head.weight"), finding())) is None


def test_a_finding_that_follows_from_another_is_passed_over() -> None:
    assert scoring.locating(STEP_0, verdict(finding("head.weight", follows=1), finding())) == finding()


def test_a_layer_that_does_not_deviate_locates_nothing() -> None:
    assert scoring.locating(STEP_0, verdict(finding(), numerics=Status.INCONCLUSIVE)) is None


def test_the_finding_shown_is_the_one_that_located() -> None:
    elsewhere = finding("sample_ids", layer="data", phase=Phase.DATA)
    shown = scoring.score(row(), HEALTHY, verdict(elsewhere, finding()), 1.0).first_finding
    assert shown is not None
    assert shown["name"] == "fc.weight"
    missed = scoring.score(row(), HEALTHY, verdict(elsewhere), 1.0).first_finding
    assert missed is not None
    assert missed["name"] == "sample_ids"


def test_the_document_counts_faults_and_healthy_runs_apart() -> None:
    benign = row(name="b", benign=True, locus=Locus())
    summary = scoring.summarise(
        [
            outcome(row(name="found"), HEALTHY, FAULTY),
            outcome(row(name="missed"), FAULTY, HEALTHY),
            outcome(benign, HEALTHY, FAULTY),
        ]
    )
    document = msgspec.json.decode(msgspec.json.encode(summary))
    assert list(document) == ["rows", "detected", "located", "false_alarms"]
    assert list(document["rows"][0]) == ["name", "clean_pass", "detected", "located", "seconds", "first_finding"]
    assert (document["detected"], document["located"], document["false_alarms"]) == ("1/2", "1/2", "2/4")


def test_all_is_well_only_without_a_miss_and_without_an_alarm() -> None:
    good = outcome(row(), HEALTHY, FAULTY)
    assert scoring.all_well([good])
    assert not scoring.all_well([good, outcome(row(), HEALTHY, HEALTHY)])
    assert not scoring.all_well([good, outcome(row(), FAULTY, FAULTY)])
    assert not scoring.all_well([good, outcome(row(benign=True), HEALTHY, FAULTY)])
    assert not scoring.all_well([good, outcome(row(), None, FAULTY)])
