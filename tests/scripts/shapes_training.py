"""Snippets: training loops of every shape."""

import contextlib
import copy
import io
import threading

import numpy as np
import torch
import torch.nn.functional as F
from shapes_models import _fit, _Net
from torch import nn

import ddparity


def _gan():
    generator, critic = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(), nn.Linear(4, 1))
    return generator, critic, torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())


def _train_critic(generator, critic, optimizer):
    optimizer.zero_grad()
    fake = generator(torch.randn(4, 2)).detach()
    (critic(fake).mean() - critic(torch.randn(4, 6)).mean()).backward()
    optimizer.step()


def _train_generator(generator, critic, optimizer):
    optimizer.zero_grad()
    (-critic(generator(torch.randn(4, 2))).mean()).backward()
    optimizer.step()


def gan_critic_first():
    generator, critic, of_generator, of_critic = _gan()
    for _ in range(3):
        _train_critic(generator, critic, of_critic)
        _train_generator(generator, critic, of_generator)


def gan_generator_first():
    generator, critic, of_generator, of_critic = _gan()
    for _ in range(3):
        _train_generator(generator, critic, of_generator)
        _train_critic(generator, critic, of_critic)


def gan_five_critic_steps():
    generator, critic, of_generator, of_critic = _gan()
    for _ in range(2):
        for _ in range(5):
            _train_critic(generator, critic, of_critic)
        _train_generator(generator, critic, of_generator)


def gan_freezes_the_critic(steps="1"):
    generator, critic, of_generator, of_critic = _gan()
    for _ in range(6):
        critic.requires_grad_(True)
        _train_critic(generator, critic, of_critic)
        critic.requires_grad_(False)
        _train_generator(generator, critic, of_generator)


def gradient_penalty():
    _, critic, _, optimizer = _gan()
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        out = critic(x)
        slope = torch.autograd.grad(outputs=out.sum(), inputs=x, create_graph=True)[0]
        (out.mean() + (slope.norm(2, dim=1) - 1).square().mean()).backward()
        optimizer.step()


def several_backwards():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(x)
    out[:, 0].sum().backward(retain_graph=True)
    torch.autograd.backward(tensors=[out[:, 1].sum(), out[:, 2].sum()])
    optimizer.step()


def gradients_by_hand():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter, grad in zip(
        model.parameters(), torch.autograd.grad(model(x).sum(), model.parameters()), strict=True
    ):
        parameter.grad = grad
    optimizer.step()


def backward_into_chosen_inputs():
    model, x = _Net(), torch.randn(4, 6)
    model(x).sum().backward(inputs=list(model.head.parameters()))
    assert [p.grad is not None for p in model.parameters()] == [False, False, True, True]
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def closure_lbfgs():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        assert isinstance(optimizer.step(closure), torch.Tensor)


def closure_sgd():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    given = []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        given.append(model.head.weight.grad.sum().item())
        return loss

    for _ in range(2):
        optimizer.step(closure=closure)
    print("GIVEN", *given)


def scaler_skips_a_step():
    model, x = _Net(), torch.randn(4, 6)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_((p for p in model.parameters()), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()


def scaler_disabled():
    model, x = _Net(), torch.randn(4, 6)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def clipping_by_generator():
    import warnings

    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    after = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert after < norm, "the generator was used up"
    print("NORM", norm.item())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nn.utils.clip_grad_norm_((p for p in []), 1.0)
    assert ["empty generator" in str(w.message) for w in caught] == [True]
    optimizer.step()


def accumulation():
    model, data = _Net(), torch.arange(48.0).reshape(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        for micro in data.split(4):
            (model(micro).square().mean() / 2).backward()
        optimizer.step()


def trial_run_on_a_copy():
    net = _Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    probe = copy.deepcopy(net)
    trial = torch.optim.SGD(probe.parameters(), lr=0.1)
    probe(torch.randn(8, 6)).sum().backward()
    trial.step()
    del probe, trial
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 6)).sum().backward()
        optimizer.step()


def unfrozen_later(steps="1"):
    model, x = _Net(), torch.randn(4, 6)
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _fit(model, x, steps=4, optimizer=optimizer)
    model.body.requires_grad_(True)
    _fit(model, x, steps=3, optimizer=optimizer)


def resumed_later(steps="1"):
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.Adam(model.parameters())
    _fit(model, x, steps=3, optimizer=optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _fit(model, x, steps=3, optimizer=optimizer)


def target_network(steps="1"):
    """A script that loads a state every step must not keep the window open for ever."""
    policy, target, x = _Net(), _Net(), torch.randn(4, 6)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for _ in range(20):
        _fit(policy, call=lambda: F.mse_loss(policy(x), target(x).detach()), steps=1, optimizer=optimizer)
        target.load_state_dict(policy.state_dict())


def evaluation_inside():
    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            model(torch.randn(3, 6))
        model.train()
        _fit(model, torch.randn(4, 6), steps=1, optimizer=optimizer)


def fine_tuning_in_eval_mode():
    _fit(_Net().eval(), torch.randn(4, 6))


def stops_after_two_steps(stop_after_steps=2):
    _fit(_Net(), torch.randn(4, 6), steps=9)
    print("never reached")


def gradients_only(level="gradients"):
    _fit(_Net(), torch.randn(4, 6))


def copies_and_files():
    model, x = _Net(), torch.randn(4, 6)
    optimizer = torch.optim.Adam(model.parameters())
    _fit(model, x, steps=1, optimizer=optimizer)
    out = model(x)
    file = io.BytesIO()
    torch.save((model, optimizer, out.detach(), copy.deepcopy(model), model.state_dict()), file)
    import os
    from pathlib import Path

    Path(os.environ["TMPDIR"], "saved.pt").write_bytes(file.getvalue())
    twin = copy.deepcopy((model, optimizer))
    _fit(twin[0], x, steps=1, optimizer=twin[1])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class _Parallel(nn.Module):
    """As nn.DataParallel: replicas in threads, inside the forward of the module that is called."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        out = [self.net(x[:2]), None]
        thread = threading.Thread(target=lambda: out.__setitem__(1, copy.deepcopy(self.net)(x[2:])))
        thread.start()
        thread.join()
        return torch.cat(out)


def threads_apart():
    _fit(_Parallel(_Net()), torch.randn(4, 6))


def trained_in_a_thread():
    thread = threading.Thread(target=_fit, args=(_Net(), torch.randn(4, 6)))
    thread.start()
    thread.join()


def optimizer_inside_an_optimizer():
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    model = _Net()
    _fit(model, torch.randn(4, 6), steps=3, optimizer=Lookahead(torch.optim.SGD(model.parameters(), lr=0.1)))


def step_in_backward():
    model, x = _Net(), torch.randn(4, 6)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        model(x).square().mean().backward()


def step_raises_once():
    class Raises(torch.optim.SGD):
        raised = False

        def step(self, closure=None):
            if not self.raised:
                self.raised = True
                raise ValueError("once")
            return super().step(closure)

    model, x = _Net(), torch.randn(4, 6)
    first, second = Raises(model.body.parameters(), lr=0.1), torch.optim.SGD(model.head.parameters(), lr=0.1)
    for _ in range(3):
        model(x).square().mean().backward()
        with contextlib.suppress(ValueError):
            first.step()
        second.step()


def feeds_ahead():
    """The next batch is fetched before the update, and one is evaluated on the way."""
    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    following = ddparity.feed(torch.randn(4, 6))
    for _ in range(3):
        for _ in range(2):
            loss = model(following).square().mean()
            following = ddparity.feed(torch.randn(4, 6))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(ddparity.feed(torch.randn(2, 6)))


def rates_by_numpy():
    model = _Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for rate in np.linspace(0.1, 0.3, 3):
        optimizer.param_groups[0] |= {"lr": rate, "weight_decay": np.float32(0.5)}
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def changes_between_steps():
    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            model.head.weight.data.mul_(0.5)
        with torch.no_grad():  # an evaluation with other weights, which are put back
            held = model.head.bias.clone()
            model.head.bias.zero_()
            model(torch.randn(2, 6))
            model.head.bias.copy_(held)


def feeds_no_model():
    weight = nn.Parameter(torch.randn(1, 6))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        F.linear(ddparity.feed(torch.randn(4, 6)), weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
