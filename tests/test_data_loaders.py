"""Real loaders in real processes: what is recorded of them, and what the audits make of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ddparity.judge import compare_trials, report_data
from ddparity.report import render_data, render_data_html
from ddparity.trace import read_trial

SCRIPT = str(Path(__file__).parent / "scripts" / "loaders.py")
ALONE = ["env", "OMP_NUM_THREADS=1", sys.executable, SCRIPT]
RANKS = [*ALONE[:3], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def judged(recorded):
    """Record a kind alone and a fault on two ranks, both once a session, and judge them."""

    def judge(kind, fault="none", *more):
        name = f"data-{kind}-{fault}".replace("_", "-")
        control = recorded(f"data-{kind}-alone", [*ALONE, "--kind", kind, *more], control=True)
        candidate = recorded(name, [*RANKS, "--kind", kind, "--fault", fault, *more])
        folders = [recorded.store.path(trial.id) for trial in (control, candidate)]
        return compare_trials(*folders), report_data(folders[1]), folders[1]

    return judge


def codes(verdict):
    return [(f.step, str(f.phase), f.name, f.cause.code) for f in verdict.findings if f.layer == "data"]


def test_a_healthy_run_with_workers_and_evaluation(judged):
    verdict, report, folder = judged("workers", "none", "--evaluate")
    assert verdict.layers["data"].status == "PASS"
    assert "the samples of 2 evaluations" in verdict.layers["data"].reason
    assert report.status == "PASS"
    passed = {(audit.name, audit.status.value) for audit in report.audits}
    assert passed >= {(name, "PASS") for name in ("shards", "coverage", "batches", "order", "split")}
    rank = read_trial(folder).ranks[1]
    assert rank.loads.ids.dtype == np.uint64
    first = report.passes[0]
    assert (first.dataset, first.training, first.length) == ("Items", True, 101)
    assert [(row.rank, row.batches, row.samples, row.unique) for row in first.ranks] == [(0, 3, 35, 35), (1, 3, 35, 35)]
    both = np.array([row.bins for row in first.ranks]).sum(axis=0)
    assert both.max() <= 1.0
    text, page = render_data(report), render_data_html(report)
    assert "Items (training), pass 0, from step 0, 101 samples" in text
    assert page.count('role="img"') == len(report.passes)
    assert "<script" not in page


def test_a_generator_that_is_copied_into_workers_and_ranks(judged):
    verdict, report, folder = judged("workers", "copied_noise", "--evaluate")
    assert codes(verdict)[0] == (0, "data", "rng.augmentation", "data.rng_copied")
    finding = report.findings[0]
    assert finding.evidence["same_among"] == ["rank", "worker"]  # evaluating moves the original on between epochs
    assert finding.evidence["generator"].endswith("noise")
    lines = [
        json.loads(line) for path in (folder / "workers").rglob("*.jsonl") for line in path.read_text().splitlines()
    ]
    assert {(line["worker"], line["epoch"]) for line in lines} >= {(0, 0), (1, 0)}


def test_a_metric_of_one_share(judged):
    verdict, _, _ = judged("workers", "one_share", "--evaluate")
    assert codes(verdict)[0] == (3, "eval", "metric:accuracy", "metric.one_share")


SLOW = [
    ("map", "seed_per_rank", (0, "data", "sample_ids", "data.sampler_differs")),
    ("map", "one_shuffles", (0, "data", "sample_ids", "data.sampler_differs")),
    ("map", "no_sampler", (0, "data", "sample_ids", "data.overlap")),
    ("map", "no_set_epoch", (5, "data", "sample_ids", "data.epoch_order")),
    ("map", "drop_last", (4, "data", "sample_ids", "data.dropped")),
    ("map", "twice", (0, "data", "sample_ids", "data.not_covered")),
    ("persistent", "none", (4, "data", "sample_ids", "data.padded")),
    ("stream", "none", None),
    ("stream", "not_by_rank", (0, "data", "sample_ids", "data.overlap")),
    ("stream", "not_by_worker", (0, "data", "sample_ids", "data.workers_copy")),
    ("hf", "none", (4, "data", "sample_ids", "data.padded")),
    ("hf", "no_set_epoch", (5, "data", "sample_ids", "data.epoch_order")),
    ("stateful", "seed_per_rank", (0, "data", "sample_ids", "data.sampler_differs")),
]
NEEDS = {"hf": "datasets", "stateful": "torchdata"}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault", "found"), SLOW)
def test_kinds_of_loaders_and_their_faults(judged, kind, fault, found):
    if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    verdict, _, _ = judged(kind, fault)
    listed = codes(verdict)
    if found is None:
        assert verdict.layers["data"].status == "PASS"
    else:
        assert found in listed
        assert found[0] != 0 or listed[0] == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("eval_padded", (3, "eval", "sample_ids", "eval.padded")),
        ("eval_drop_last", (3, "eval", "sample_ids", "eval.dropped")),
        ("summed", (3, "eval", "metric:accuracy", "metric.scaled")),
        ("split_per_rank", (3, "data", "sample_ids", "data.split_differs")),
    ],
)
def test_faults_of_evaluation(judged, fault, found):
    verdict, _, _ = judged("workers", fault, "--evaluate")
    assert found in codes(verdict) or found[-1] == "data.split_differs"
    assert verdict.layers["data"].status == "DEVIATES"


@pytest.mark.slow
def test_an_image_folder_is_audited_without_training_it_through(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(30):
        folder = tmp_path / "images" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number:03}.npy", rng.normal(size=8))
    data = [str(Path(sys.executable).with_name("ddparity")), "data", "--store", str(tmp_path / "store"), "--json"]
    command = [*RANKS, "--kind", "folder", "--folder", str(tmp_path / "images")]
    done = subprocess.run([*data, "--dry", "--", *command], capture_output=True, text=True, timeout=200, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["status"]) == (0, "PASS")
    assert {audit["name"] for audit in report["audits"]} == {"shards", "coverage", "batches"}
    assert [row["samples"] for row in report["passes"][0]["ranks"]] == [15, 15]
