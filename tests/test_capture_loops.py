"""What is recorded of training loops of every shape: when a step is over, which gradients, which windows."""

import subprocess
import sys

import pytest

from capture_harness import Snippets, counted, environment
from ddparity.judge._run import _steps_of
from test_capture_shapes import NET

CRITIC = ["Sequential.0.weight", "Sequential.0.bias", "Sequential.2.weight", "Sequential.2.bias"]


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Snippets:
    return Snippets(tmp_path_factory.mktemp("loops"), "shapes_training")


@pytest.mark.parametrize("name", ["gan_critic_first", "gan_generator_first"])
def test_a_gan_updates_both_in_a_step(snippets: Snippets, name: str) -> None:
    recorded = snippets(name)
    assert recorded.steps == [0, 1, 2]
    assert recorded.optimizers == [(step, "Adam") for step in range(3) for _ in range(2)]
    for step in range(3):
        assert counted(recorded.names("parameter_after", step)) == counted(recorded.names("parameter_after", 0))
        assert len(recorded.names("parameter_after", step)) == len(recorded.names("synced_gradient", step)) == 6
        assert len(recorded.events("backward", step)) == 2
        assert sorted(b[3] for b in recorded.batches() if b[0] == step) == [4, 4, 4]


def test_a_batch_that_is_fed_counts_where_it_enters_a_model(snippets: Snippets) -> None:
    recorded = snippets("feeds_ahead")
    assert recorded.batches() == [(step, number, "_Net", 4) for step in range(3) for number in (0, 1)]
    assert recorded.batches(training=False) == [(step, 0, "_Net", 2) for step in (1, 2, 3)]


def test_batches_that_enter_no_model_count_as_they_are_fed(snippets: Snippets) -> None:
    assert snippets("feeds_no_model").batches() == [(step, 0, "feed", 4) for step in (0, 1)]


def test_rates_that_numpy_computed_are_recorded(snippets: Snippets) -> None:
    updates = [event.data for event in snippets("rates_by_numpy").events("optimizer")]
    assert [update["groups"][0]["lr"] for update in updates] == pytest.approx([0.1, 0.2, 0.3])
    assert {update["groups"][0]["weight_decay"] for update in updates} == {0.5}
    assert [list(update["counted"]) for update in updates] == [[], ["1"], ["2"]], "steps counted before each update"


def test_what_changes_a_parameter_between_two_steps_is_recorded(snippets: Snippets) -> None:
    recorded = snippets("changes_between_steps")
    assert [(event.step, event.data["changed"]) for event in recorded.events("settled")] == [
        (0, []),
        (1, ["head.weight"]),
    ]
    assert [(row.step, row.site.name) for row in recorded.digests("parameter_left")] == [(1, "head.weight")]


def test_five_steps_of_a_critic_are_five_steps(snippets: Snippets) -> None:
    recorded = snippets("gan_five_critic_steps")
    assert recorded.steps == list(range(10))
    assert counted(step for step, _ in recorded.optimizers) == dict.fromkeys(range(11), 1) | {5: 2}
    for step in (0, 1, 2, 3, 4, 6, 7, 8, 9):
        assert recorded.names("parameter_after", step) == CRITIC
        assert len(recorded.events("backward", step)) == 1
        assert len(recorded.digests("activation_gradient", step, "Sequential.2")) == 2, step


def test_freezing_in_every_step_opens_no_window_for_ever(snippets: Snippets) -> None:
    recorded = snippets("gan_freezes_the_critic")
    assert recorded.steps == [0, 1, 2, 3, 4, 5]
    assert len(recorded.steps_with_tensors()) <= 2
    events = recorded.events("requires_grad")
    assert {name for e in events for name in e.data["changed"]} == set(CRITIC) or events == []


def test_backward_inside_a_loss(snippets: Snippets) -> None:
    recorded = snippets("gradient_penalty")
    assert [(e.name, e.data["backward"]) for e in recorded.events("backward", 0)] == [("grad", 1), ("backward", 2)]
    seen = {d.backward for d in recorded.digests("activation_gradient", 0)}
    assert seen == {1, 2}


def test_several_backwards(snippets: Snippets) -> None:
    recorded = snippets("several_backwards")
    assert [(e.name, e.data["backward"]) for e in recorded.events("backward")] == [("backward", 1), ("backward", 2)]
    assert [d.backward for d in recorded.digests("activation_gradient", 0, "head")] == [1, 2]


def test_gradients_by_autograd_grad(snippets: Snippets) -> None:
    recorded = snippets("gradients_by_hand")
    assert [e.name for e in recorded.events("backward")] == ["grad"]
    assert recorded.names("synced_gradient") == NET


def test_backward_into_chosen_inputs(snippets: Snippets) -> None:
    recorded = snippets("backward_into_chosen_inputs")
    assert recorded.names("synced_gradient") == ["head.weight", "head.bias"]
    assert recorded.names("parameter_after") == NET


def test_a_closure_that_is_evaluated_several_times(snippets: Snippets) -> None:
    recorded = snippets("closure_lbfgs")
    assert recorded.steps == [0, 1]
    assert recorded.names("synced_gradient") == recorded.names("parameter_after") == NET
    assert [d.occurrence for d in recorded.digests("activation", 0, "head")] == [0, 1, 2]
    assert recorded.not_recorded == ["closure: gradients of all but the first evaluation of an optimizer's closure"]


def test_a_closure_that_is_evaluated_once(snippets: Snippets) -> None:
    """What the closure left is what the optimizer was given, even where its arithmetic works in ``.grad`` itself."""
    recorded = snippets("closure_sgd")
    given = snippets.printed("closure_sgd", "GIVEN")
    found = [recorded.digests("synced_gradient", step, "head.weight")[0].digest.sum for step in (0, 1)]
    assert found == pytest.approx(given, rel=1e-5)
    assert recorded.not_recorded == []


def test_a_step_that_the_scaler_skips(snippets: Snippets) -> None:
    recorded = snippets("scaler_skips_a_step")
    assert recorded.steps == [0, 1, 2]
    assert recorded.optimizers == [(0, "SGD"), (1, "skipped"), (2, "SGD")]
    assert [e.value for e in recorded.events("unscale")] == [4.0, 4.0, 2.0]
    assert [e.value for e in recorded.events("scale")] == [4.0, 2.0, 2.0]
    assert recorded.names("step_gradient") == recorded.names("synced_gradient") == NET
    assert recorded.names("parameter_after", 1) == []
    first, last = recorded.digests("synced_gradient", 0)[0], recorded.digests("step_gradient", 0)[0]
    assert first.digest.sum_abs > last.digest.sum_abs


def test_a_disabled_scaler_does_nothing(snippets: Snippets) -> None:
    recorded = snippets("scaler_disabled")
    assert recorded.events("unscale") == recorded.events("scale") == []
    assert recorded.names("step_gradient") == []
    assert recorded.optimizers == [(0, "SGD"), (1, "SGD")]


def test_clipping_with_a_generator(snippets: Snippets) -> None:
    recorded = snippets("clipping_by_generator")
    first = recorded.events("clip")[0]
    assert (first.value, first.data["max_norm"]) == (
        pytest.approx(*snippets.printed("clipping_by_generator", "NORM")),
        1e-3,
    )
    assert recorded.names("synced_gradient") == recorded.names("step_gradient") == NET


def test_micro_batches_are_told_apart(snippets: Snippets) -> None:
    recorded = snippets("accumulation")
    assert recorded.batches() == [(0, 0, "_Net", 4), (0, 1, "_Net", 4), (1, 0, "_Net", 4), (1, 1, "_Net", 4)]
    assert [(d.batch, d.occurrence) for d in recorded.digests("activation", 0, "head")] == [(0, 0), (1, 0)]
    assert [e.data["batch"] for e in recorded.events("backward", 0)] == [0, 1]
    assert len({int(i) for s in recorded.trace.samples if s.step == 0 for i in s.ids}) == 8


def test_a_trial_run_on_a_copy_is_void(snippets: Snippets) -> None:
    recorded = snippets("trial_run_on_a_copy")
    assert recorded.steps == [0, 1]
    (event,) = recorded.events("start_over")
    steps = _steps_of(recorded.trace)
    assert [len(sample.ids) for sample in steps[0].samples] == [4]
    names = {name for name, _ in steps[0].digests["synced_gradient"]}
    assert names == set(NET)
    assert all(row.seq > event.seq for rows in steps[0].digests["parameter"].values() for row in rows)


def test_unfreezing_opens_a_window(snippets: Snippets) -> None:
    recorded = snippets("unfrozen_later")
    assert recorded.steps_with_tensors() == [0, 4]
    (event,) = recorded.events("requires_grad")
    assert event.data["unfrozen"] == event.data["changed"] == ["body.0.weight", "body.0.bias"]
    assert recorded.names("activation", 4) == ["body.0", "body.1", "head"]
    assert set(recorded.names("synced_gradient", 4)) == set(NET)


def test_resuming_opens_a_window(snippets: Snippets) -> None:
    recorded = snippets("resumed_later")
    assert recorded.steps_with_tensors() == [0, 3]
    assert [(e.step, e.name) for e in recorded.events("resume")] == [(3, "_Net"), (3, "Adam")]
    assert recorded.names("activation", 3) == ["body.0", "body.1", "head"]
    assert [b[0] for b in recorded.batches()] == [0, 1, 2, 3, 4, 5]


def test_loading_in_every_step_opens_no_window_for_ever(snippets: Snippets) -> None:
    recorded = snippets("target_network")
    assert len(recorded.steps) == len(recorded.events("resume")) == 20
    assert len(recorded.steps_with_tensors()) < 12
    assert "windows: more than 8 that open by themselves" in recorded.not_recorded


def test_evaluation_inside_the_loop_is_apart(snippets: Snippets) -> None:
    recorded = snippets("evaluation_inside")
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]
    assert recorded.batches(training=False) == [(0, 0, "_Net", 3), (1, 0, "_Net", 3)]
    assert recorded.names("activation") == ["body.0", "body.1", "head"]


def test_fine_tuning_in_evaluation_mode_is_training(snippets: Snippets) -> None:
    assert snippets("fine_tuning_in_eval_mode").batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]


def test_stopping_early(snippets: Snippets) -> None:
    recorded = snippets("stops_after_two_steps")
    assert recorded.steps == [0, 1]
    assert recorded.facts.status == "FINISHED"
    assert "never reached" not in snippets.log("stops_after_two_steps")


def test_the_level_gradients_leaves_activations_out(snippets: Snippets) -> None:
    recorded = snippets("gradients_only")
    assert recorded.names("activation") == []
    assert recorded.names("synced_gradient") == NET
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]


def test_copies_and_files_know_nothing_of_the_recorder(snippets: Snippets) -> None:
    snippets("copies_and_files")
    load = (
        "import sys, torch; sys.path.insert(0, sys.argv[2]); m, o, *_ = torch.load(sys.argv[1], weights_only=False); "
        "m(torch.randn(4, 6)).sum().backward(); o.step(); assert not any(n.startswith('ddparity') for n in sys.modules)"
    )
    from capture_harness import SCRIPTS

    code = [sys.executable, "-c", load, str(snippets.out / "saved.pt"), str(SCRIPTS)]
    done = subprocess.run(
        code, env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_other_threads_are_not_recorded(snippets: Snippets) -> None:
    recorded = snippets("threads_apart")
    names = ["net.body.0", "net.body.1", "net.head", "_Parallel"]
    assert recorded.names("activation") == recorded.names("activation", 1) == names
    assert recorded.batches() == [(0, 0, "_Parallel", 4), (1, 0, "_Parallel", 4)]


def test_a_training_in_a_thread_is_recorded(snippets: Snippets) -> None:
    recorded = snippets("trained_in_a_thread")
    assert recorded.steps == [0, 1]
    assert recorded.names("activation") == ["body.0", "body.1", "head"]


def test_an_optimizer_inside_an_optimizer_steps_once(snippets: Snippets) -> None:
    recorded = snippets("optimizer_inside_an_optimizer")
    assert recorded.steps == [0, 1, 2]
    assert recorded.optimizers == [(step, "Lookahead") for step in range(3)]
    assert recorded.names("parameter_after") == NET


def test_steps_taken_inside_backward(snippets: Snippets) -> None:
    recorded = snippets("step_in_backward")
    assert recorded.steps == [0, 1]
    assert sorted(recorded.names("parameter_after", 1)) == sorted(NET)


def test_a_step_that_raised_does_not_hide_the_next(snippets: Snippets) -> None:
    recorded = snippets("step_raises_once")
    assert recorded.optimizers == [(0, "Raises"), (0, "SGD"), (0, "Raises"), (1, "SGD"), (1, "Raises"), (2, "SGD")]
