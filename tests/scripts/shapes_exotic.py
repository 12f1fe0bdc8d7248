"""Snippets: tensors and transforms that a recorder trips over."""

import warnings

import torch
import torch.nn.functional as F
from shapes_models import _fit, _Net
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def _train_on(steps=1):
    _fit(_Net(), torch.randn(4, 6), steps=steps)


def vmap_over_models():
    from torch.func import functional_call, stack_module_state, vmap

    models = [_Net() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = _Net().to("meta")
    out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
        parameters, buffers, torch.randn(4, 6)
    )
    assert out.shape == (3, 4, 3)
    _train_on()


def func_grad():
    from torch.func import functional_call, grad, vmap

    model, x, y = _Net(), torch.randn(4, 6), torch.randint(0, 3, (4,))
    parameters = dict(model.named_parameters())

    def loss_of(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, parameter in parameters.items():
        parameter.grad = grads[name].mean(0)
    optimizer.step()


def functional_call_with_fast_weights():
    from torch.func import functional_call

    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        fast = dict(model.named_parameters())
        for _ in range(2):
            loss = functional_call(model, fast, (x,)).square().mean()
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), grads, strict=True)}
        functional_call(model, fast, (x,)).square().mean().backward()
        optimizer.step()


def functional_weights():
    """No module at all."""
    weight = torch.randn(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        (torch.randn(4, 6) @ weight).square().mean().backward()
        optimizer.step()


def forward_mode():
    from torch.autograd import forward_ad

    model = _Net()
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(torch.randn(4, 6), torch.randn(4, 6)))
        assert forward_ad.unpack_dual(out).tangent is not None
    _fit(model, torch.randn(4, 6))


def jacobians():
    model = _Net()
    torch.autograd.functional.jacobian(model, torch.randn(4, 6), vectorize=True)
    torch.func.jacrev(model)(torch.randn(4, 6))
    torch.func.hessian(lambda x: model(x).sum())(torch.randn(6))
    _fit(model, torch.randn(4, 6))


def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = _Net()
        model(torch.randn(4, 6)).sum().backward()
    _train_on()


def meta_tensors():
    with torch.device("meta"):
        model = _Net()
    model(torch.empty(4, 6, device="meta")).sum().backward()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    _fit(model, torch.randn(4, 6))


def default_device():
    model, x = _Net(), torch.randn(4, 6)
    with torch.device("meta"):
        _fit(model, x)


def scripted_and_traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(_Net())
        traced = torch.jit.trace(_Net(), torch.randn(4, 6))
    text = str(traced.inlined_graph)
    assert "embedding_bag" not in text, "the recorder's own operations were traced"
    assert "aminmax" not in text, "the recorder's own operations were traced"
    traced(torch.randn(4, 6)).sum().backward()
    _fit(model, torch.randn(4, 6))


def fx_and_export():
    graph = torch.fx.symbolic_trace(_Net())
    exported = torch.export.export(_Net(), (torch.randn(4, 6),))
    assert len(exported.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)) == 2
    assert len(exported.graph.nodes) < 12, exported.graph
    _fit(graph, torch.randn(4, 6))


def nested_tensors():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x)

    model = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layout in (torch.jagged, torch.strided):
            x = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(3, 6)], layout=layout)
            out = model(x)
            sum(t.sum() for t in out.unbind()).backward()
    _fit(model, torch.randn(4, 6))


def sparse_gradients():
    model = nn.Embedding(11, 4, sparse=True)
    _fit(model, torch.randint(0, 11, (4, 3)), optimizer=torch.optim.SparseAdam(model.parameters()))


def sparse_input():
    model = _Net()
    x = torch.eye(6)[:4].to_sparse()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            return self.net(torch.sparse.mm(x, torch.eye(6)))

    _fit(Model(), x)


class _Tagged(torch.Tensor):
    """As fastai's images: counts what torch asks of it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        _Tagged.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def tensor_subclass():
    model = _Net()
    x = torch.randn(4, 6).as_subclass(_Tagged)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        before = _Tagged.asked
        model(x)
        asked = _Tagged.asked - before
        assert asked == 3, asked
        model(x).as_subclass(torch.Tensor).sum().backward()
        optimizer.step()


class _Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def dispatch_mode():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _Counts() as mode:
        model(x).sum().backward()
        optimizer.step()
    assert not any("embedding_bag" in name or "aminmax" in name for name in mode.seen), mode.seen
    print("OPERATIONS", len(mode.seen))


def inference_mode_inside():
    class Model(_Net):
        def forward(self, x):
            with torch.inference_mode():
                y = self.body(x)
            return self.head(y.clone())

    _fit(Model(), torch.randn(4, 6))


def odd_dtypes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3, dtype=torch.complex128)

        def forward(self, x, mask, empty, scalar):
            return self.layer(x * mask.any()).abs() + scalar + empty.sum()

    x = torch.randn(4, 6, dtype=torch.complex128)
    _fit(Model(), x.conj(), torch.tensor([True, False, True, True]), torch.zeros(0, 3), torch.tensor(2))


def empty_batch():
    model = _Net()
    model(torch.zeros(0, 6)).sum().backward()
    _fit(model, torch.randn(4, 6))


def not_finite():
    model = _Net()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    _fit(model, torch.randn(4, 6) * float("inf"))


def deterministic_and_anomaly():
    torch.use_deterministic_algorithms(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autograd.set_detect_anomaly(True)
    _train_on(2)


def warnings_are_errors():
    warnings.simplefilter("error")
    model = _Net()
    _fit(model, torch.randn(4, 6))
    _fit(torch.compile(_Net(), backend="eager"), torch.randn(4, 6))
    torch.save(model, "/dev/null")
    kept = model(torch.randn(4, 6))
    torch.save(kept, "/dev/null")
    loss = kept.sum()
    loss.backward()


def parametrized():
    model = _Net()
    nn.utils.parametrizations.weight_norm(model.head)
    nn.utils.parametrizations.spectral_norm(model.body[0])
    _fit(model, torch.randn(4, 6))


def no_inputs_at_all():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self):
            return self.weight * 2

    model = Model()
    _fit(model)


def fault_in_the_recorder():
    import ddparity.capture._gradients as gradients
    import ddparity.capture._outputs as outputs

    model, x = _Net(), torch.randn(4, 6)
    _fit(model, x, steps=1)

    def broken(*args, **kwargs):
        raise ZeroDivisionError("injected")

    gradients.digest_tensor = outputs.digest_tensor = broken
    _fit(model, x, steps=3)
    print("TRAINED")


def cannot_write():
    import os

    from ddparity.capture import _session

    _session._session.config.trial_dir = "/proc/nowhere"
    _fit(_Net(), torch.randn(4, 6))
    print("TRAINED", os.path.exists("/proc/nowhere"))
