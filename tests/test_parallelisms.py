"""One training in many parallelisms: each agrees with one device, and a wrong gradient on one rank is found."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddparity.judge import Status, Verdict, compare_trials
from ddparity.trace import TrialStatus

pytestmark = pytest.mark.timeout(240)
SCRIPT = str(Path(__file__).parent / "scripts" / "parallel.py")
slow = pytest.mark.slow
KINDS = [
    pytest.param("zero", 2, id="zero"),
    pytest.param("fsdp1", 2, id="fsdp1"),
    pytest.param("fsdp1_orig", 4, id="fsdp1_orig", marks=slow),
    pytest.param("megatron", 2, id="megatron"),
    pytest.param("fsdp", 2, id="fsdp", marks=slow),
    pytest.param("fsdp_noreshard", 2, id="fsdp_noreshard", marks=slow),
    pytest.param("hsdp", 4, id="hsdp", marks=slow),
    pytest.param("tp", 2, id="tp", marks=slow),
    pytest.param("dptp", 4, id="dptp", marks=slow),
]


@pytest.fixture
def compared(recorded, monkeypatch) -> Callable[..., Verdict]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def trial(key: str, *words: str, **spec) -> Path:
        facts = recorded(key, [sys.executable, *words], **spec)
        assert facts.status is TrialStatus.COMPLETED
        return recorded.store.path(facts.id)

    def verdict(kind: str, ranks: int, *flags: str) -> Verdict:
        control = trial("parallel.single", SCRIPT, control=True)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return compare_trials(control, trial(f"{kind}{''.join(flags)}", *launcher, SCRIPT, "--kind", kind, *flags))

    return verdict


@pytest.mark.parametrize(("kind", "ranks"), KINDS)
def test_a_healthy_training_passes_with_every_gradient_judged(compared, kind, ranks):
    found = compared(kind, ranks)
    assert found.layers["numerics"].status is Status.PASS, found.findings
    assert found.layers["data"].status is Status.PASS
    parameters = {f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")}
    assert not parameters & set(found.merge_plan.get("not_compared", {}))
    assert found.layers["numerics"].checked > 60


@pytest.mark.parametrize(("kind", "ranks"), KINDS)
def test_a_wrong_gradient_on_one_rank_is_found_at_its_step(compared, kind, ranks):
    first = compared(kind, ranks, "--bug").first("numerics")
    assert first is not None
    assert first.step == 1
    if kind != "fsdp1":  # its flat gradient is one tensor: that of every parameter the rank holds
        assert first.name in ("0.weight", "2.weight", "4.weight")
