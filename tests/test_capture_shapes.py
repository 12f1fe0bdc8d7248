"""What is recorded of models of every shape, and of tensors that a recorder trips over."""

from pathlib import Path

import pytest

from capture_harness import Recorded, Snippets, counted
from ddparity.trace._streams import FLAG_RANDOM

NET = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]
CALLS = ["body.0", "body.1", "head"]


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Snippets:
    return Snippets(tmp_path_factory.mktemp("shapes"), "shapes_models", "shapes_exotic")


def updated_in_every_step(recorded: Recorded, steps: int = 2) -> None:
    """The optimizer's side of a training of the usual little net is whole."""
    assert recorded.steps == list(range(steps))
    for step in range(steps):
        assert recorded.names("synced_gradient", step) == NET
        assert recorded.names("parameter_after", step) == NET
    assert sorted(recorded.names("parameter")) == sorted(NET)


def test_a_plain_net(snippets: Snippets) -> None:
    recorded = snippets("plain_names")
    updated_in_every_step(recorded)
    assert recorded.names("activation") == CALLS
    assert recorded.names("activation_gradient") == CALLS[::-1]
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]
    assert recorded.not_recorded == []
    (order,) = (e.data["order"] for e in recorded.events("gradient_order", 0))
    assert sorted(order) == sorted(NET)


def test_an_inplace_module_has_values_and_gradients_of_its_own(snippets: Snippets) -> None:
    recorded = snippets("plain_names")
    (before,), (after,) = (recorded.digests("activation", 0, name) for name in ("body.0", "body.1"))
    assert before.digest.minimum < 0 <= after.digest.minimum
    (before,), (after,) = (recorded.digests("activation_gradient", 0, name) for name in ("body.0", "body.1"))
    assert before.digest.sum_abs < after.digest.sum_abs


@pytest.mark.parametrize("name", ["compiled_names", "compiled_in_place_names"])
def test_a_compiled_model_keeps_its_names_and_says_what_is_missing(snippets: Snippets, name: str) -> None:
    recorded = snippets(name)
    updated_in_every_step(recorded)
    assert recorded.names("activation") == ["_Net"]
    assert recorded.not_recorded == ["_Net: compiled: activations inside the region, and their gradients"]
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]


def test_a_model_called_only_inside_a_compiled_function(snippets: Snippets) -> None:
    recorded = snippets("compiled_step")
    updated_in_every_step(recorded)
    assert recorded.names("activation") == []
    assert any(text.startswith("activations: no module was called") for text in recorded.not_recorded)
    assert all("?" not in e.data["order"] for e in recorded.events("gradient_order"))


def test_a_checkpoint_wrapper_does_not_show_in_names(snippets: Snippets) -> None:
    recorded = snippets("checkpoint_wrapper_names")
    updated_in_every_step(recorded)
    assert recorded.names("activation") == ["body.0", "body.1", "head"]


def test_recomputation_is_not_recorded_twice(snippets: Snippets) -> None:
    recorded = snippets("recomputed_once")
    for step in (0, 1):
        assert recorded.names("activation", step) == ["first", *CALLS]
        assert recorded.names("activation_gradient", step) == [*CALLS[::-1], "first"]
    recorded = snippets("recomputed_once_reentrant")
    for step in (0, 1):
        assert recorded.names("activation", step) == ["first", *CALLS]
        assert recorded.names("activation_gradient", step) == ["head", "first"]
    reason = "activation gradients inside a reentrant checkpoint"
    assert recorded.not_recorded == [f"body.0: {reason}", f"body.1: {reason}"]


def test_a_model_inside_a_reentrant_checkpoint(snippets: Snippets) -> None:
    recorded = snippets("whole_model_checkpointed")
    updated_in_every_step(recorded)
    assert recorded.names("activation") == CALLS
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]


def test_a_shared_module_is_counted(snippets: Snippets) -> None:
    recorded = snippets("shared_module_twice")
    for step in (0, 1):
        calls = [d.occurrence for d in recorded.digests("activation", step, "layer")]
        assert calls == [0, 1]
        assert [d.occurrence for d in recorded.digests("activation_gradient", step, "layer")] == [1, 0]


def test_tied_parameters_are_one(snippets: Snippets) -> None:
    recorded = snippets("tied_parameters")
    assert recorded.names("parameter") == recorded.names("synced_gradient") == ["embed.weight"]
    (model,) = recorded.events("model")
    assert model.data["ties"] == {"embed.weight": ["head.weight"]}


def test_outputs_of_every_kind(snippets: Snippets) -> None:
    recorded = snippets("returns_dict")
    assert recorded.names("activation") == [*CALLS, "_Returns:loss"]
    recorded = snippets("returns_dataclass")
    assert recorded.names("activation") == [*CALLS, "_Returns:logits", "_Returns:hidden.1"]
    recorded = snippets("returns_model_output_by_keyword")
    assert recorded.names("activation") == [*CALLS, "_Returns:loss"]
    assert recorded.batches() == [(0, 0, "_Returns", 4), (1, 0, "_Returns", 4)]
    assert {d.rows for d in recorded.digests("activation", 0) if d.site.name in CALLS} == {1}


def test_positions_are_not_samples(snippets: Snippets) -> None:
    recorded = snippets("positions")
    assert {d.site.name: d.rows for d in recorded.digests("activation", 0)} == {"wte": 1, "wpe": 0, "head": 1}


def test_layouts_and_autocast(snippets: Snippets) -> None:
    assert snippets("channels_last").names("activation") == ["0", "1"]
    assert snippets("channels_last").names("buffer", 1) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    recorded = snippets("autocast")
    assert {d.site.dtype for d in recorded.digests("activation", 0)} == {"bfloat16"}
    assert {d.site.dtype for d in recorded.digests("synced_gradient", 0)} == {"float32"}


def test_lazy_parameters_are_recorded_before_their_first_update(snippets: Snippets) -> None:
    recorded = snippets("lazy")
    assert sorted(recorded.names("parameter")) == ["body.bias", "body.weight", "head.bias", "head.weight"]
    assert {d.site.name for d in recorded.digests("activation_gradient", 0)} == {"body", "head"}


def test_a_caught_exception_leaves_the_stack_balanced(snippets: Snippets) -> None:
    recorded = snippets("caught_exception")
    assert recorded.steps == [0, 1]
    assert recorded.names("activation") == recorded.names("activation", 1) == CALLS


def test_models_made_in_a_loop_are_told_apart(snippets: Snippets) -> None:
    recorded = snippets("models_in_a_loop")
    assert recorded.steps == [0, 1, 2]
    assert [e.name for e in recorded.events("model")] == ["_Net", "_Net", "_Net#2"]
    for step, prefix in enumerate(("", "_Net.", "_Net#2.")):
        names = [prefix + name for name in NET]
        assert recorded.names("parameter", step) == recorded.names("parameter_after", step) == names
    assert recorded.events("requires_grad") == []


def test_losses_made_anew_every_step_share_a_name(snippets: Snippets) -> None:
    recorded = snippets("losses_made_anew")
    assert [e.name for e in recorded.events("model")] == ["_Net", "CrossEntropyLoss"]
    for step in range(3):
        assert recorded.names("activation", step)[-1] == "CrossEntropyLoss"
        assert recorded.batches()[step] == (step, 0, "_Net", 4)


def test_transforms_in_the_loader_are_no_batches(snippets: Snippets) -> None:
    recorded = snippets("transforms_in_the_loader")
    assert recorded.batches() == [(0, 0, "_Net", 4), (1, 0, "_Net", 4)]
    assert recorded.names("activation") == CALLS


def test_a_model_that_is_called_while_it_is_built(snippets: Snippets) -> None:
    recorded = snippets("called_while_being_built")
    names = ["conv.weight", "conv.bias", "head.weight", "head.bias"]
    assert recorded.names("synced_gradient") == recorded.names("parameter_after") == names
    assert sorted(set(recorded.names("parameter"))) == sorted(names)
    assert list(recorded.events("model")[-1].data["parameters"]) == names


def test_wrappers_inside_a_model_do_not_show_in_names(snippets: Snippets) -> None:
    recorded = snippets("inner_wrapper_names")
    assert recorded.names("parameter_after") == [f"{part}.{name}" for part in "ab" for name in NET]
    assert recorded.names("activation") == ["a.body.0", "a.body.1", "a.head", "b"]


def test_a_module_whose_truth_is_false(snippets: Snippets) -> None:
    assert snippets("falsy_module").names("activation", 1) == ["layer"]


def test_submodules_that_the_script_calls(snippets: Snippets) -> None:
    recorded = snippets("submodule_called_alone")
    updated_in_every_step(recorded)
    assert recorded.names("activation") == CALLS
    assert recorded.batches() == [(0, 0, "body", 4), (1, 0, "body", 4)]


def test_a_module_that_returns_its_parameter_keeps_no_hooks(snippets: Snippets) -> None:
    recorded = snippets("returns_its_parameter")
    for step in range(3):
        assert len(recorded.digests("activation_gradient", step, "learned")) == 1


def test_a_carried_state_is_no_identity_of_samples(snippets: Snippets) -> None:
    recorded = snippets("carried_state")
    ids = [tuple(s.ids) for s in recorded.trace.samples]
    assert recorded.batches() == [(0, 0, "cell", 4), (1, 0, "cell", 4), (2, 0, "cell", 4)]
    assert len(set(ids)) == 3


# -- tensors and transforms that a recorder trips over: recorded right or named ----------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vmap_over_models", "inside a torch.func transform"),
        ("func_grad", "inside a torch.func transform"),
        ("jacobians", "inside a torch.func transform"),
        ("functional_call_with_fast_weights", "a tensor in the parameter's place"),
        ("fake_tensors", "FakeTensor"),
        ("meta_tensors", "on meta"),
        ("nested_tensors", "NestedTensor"),
        ("sparse_input", "no tensor among its inputs to tell samples by"),
        ("no_inputs_at_all", "no tensor among its inputs to tell samples by"),
    ],
)
def test_what_cannot_be_recorded_is_named(snippets: Snippets, name: str, reason: str) -> None:
    recorded = snippets(name)
    assert any(reason in text for text in recorded.not_recorded), recorded.not_recorded
    assert recorded.steps
    assert recorded.names("parameter_after")


@pytest.mark.parametrize(
    "name",
    ["default_device", "deterministic_and_anomaly", "dispatch_mode", "empty_batch", "forward_mode", "not_finite"],
)
def test_what_is_recorded_all_the_same(snippets: Snippets, name: str) -> None:
    recorded = snippets(name)
    for step in recorded.steps:
        assert recorded.names("synced_gradient", step) == recorded.names("parameter_after", step) == NET
    assert "head" in recorded.names("activation")


def test_values_that_are_not_finite_are_counted(snippets: Snippets) -> None:
    recorded = snippets("not_finite")
    assert recorded.digests("parameter", 0, "head.weight")[0].digest.num_nan == 1
    assert recorded.digests("activation", 0, "head")[0].digest.num_nan > 0


def test_weights_that_belong_to_no_module(snippets: Snippets) -> None:
    recorded = snippets("functional_weights")
    for site in ("synced_gradient", "parameter_after"):
        assert recorded.names(site, 1) == ["SGD.group0.0"]
    assert recorded.names("parameter") == ["SGD.group0.0"]


def test_gradients_by_functional_transform_reach_the_optimizer(snippets: Snippets) -> None:
    assert snippets("func_grad").names("synced_gradient") == NET


def test_sparse_gradients_are_those_of_the_dense_tensor(snippets: Snippets) -> None:
    recorded = snippets("sparse_gradients")
    (gradient,) = recorded.digests("synced_gradient", 0)
    assert gradient.site.shape == (11, 4)


def test_scripted_traced_and_exported_graphs_are_the_users(snippets: Snippets) -> None:
    assert len(snippets("scripted_and_traced").names("parameter_after", 1)) == 4
    assert snippets("fx_and_export").names("parameter_after", 1) == NET


def test_a_tensor_subclass_is_not_asked(snippets: Snippets) -> None:
    assert snippets("tensor_subclass").names("activation") == [*CALLS, *CALLS]


def test_inference_mode_inside_a_model(snippets: Snippets) -> None:
    recorded = snippets("inference_mode_inside")
    assert recorded.names("activation") == CALLS
    assert recorded.names("activation_gradient") == ["head"]


def test_odd_dtypes(snippets: Snippets) -> None:
    recorded = snippets("odd_dtypes")
    assert {d.site.dtype for d in recorded.digests("synced_gradient", 0)} == {"complex128"}
    assert recorded.batches()[0] == (0, 0, "Model", 4)


def test_nothing_warns(snippets: Snippets) -> None:
    assert snippets("warnings_are_errors").steps == [0, 1, 2, 3]


def test_parametrizations(snippets: Snippets) -> None:
    recorded = snippets("parametrized")
    assert counted(recorded.names("parameter_after"))["head.parametrizations.weight.original0"] == 1


def test_a_fault_of_the_recorder_ends_the_recording_and_not_the_run(snippets: Snippets) -> None:
    assert snippets.code("fault_in_the_recorder") == 0
    log = snippets.log("fault_in_the_recorder")
    assert log.count("ddparity:") == 1
    assert "the recorder failed: ZeroDivisionError: injected" in log
    assert "TRAINED" in log
    recorded = Recorded(snippets.out / "fault_in_the_recorder" / "rank-00000")
    assert len(recorded.facts.partial) == 1
    assert [e.name for e in recorded.events("disabled")] == ["ZeroDivisionError"]
    assert recorded.steps == [0]


def test_a_trace_that_cannot_be_written(snippets: Snippets) -> None:
    assert snippets.code("cannot_write") == 0
    assert "TRAINED False" in snippets.log("cannot_write")
    assert not Path("/proc/nowhere").exists()


def test_views_of_images_are_no_rows_of_their_channels(snippets: Snippets) -> None:
    recorded = snippets("three_views_of_images")
    rows = {d.site.name: d.rows for d in recorded.digests("activation", 0)}
    assert (rows["views"], rows["pixels"]) == (0, 25)


def test_what_is_drawn_between_modules_belongs_to_the_next(snippets: Snippets) -> None:
    drawn = {d.site.name: bool(d.flags & FLAG_RANDOM) for d in snippets("masked_by_hand").digests("activation", 0)}
    assert drawn == {"body": False, "middle.0": True, "middle.1": False, "head": False}
