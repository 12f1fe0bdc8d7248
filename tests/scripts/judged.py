"""One training for the judge's tests: by flags another model, optimizer or fault; one device or torchrun.

Faults (``--bug``) and micro-batches (without ``--alone``) are for several processes only, so that the control is the
same command without a launcher.
"""

import argparse
import contextlib
import gc
import os
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from judged_models import CLASSES, FEATURES, LENGTH, MODELS, ON_TOKENS, VOCABULARY
from torch.nn.parallel import DistributedDataParallel

WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def arguments():
    parser = argparse.ArgumentParser()
    for name, value in {
        "model": "mlp",
        "opt": "sgd",
        "bug": "",
        "loss": "cross_entropy",
        "scheduler": "",
        "after": "",
    }.items():
        parser.add_argument(f"--{name}", default=value)
    for name, value in {"seed": 0, "steps": 3, "accum": 1, "batch": 24, "bug-step": 0, "kill-rank": -1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"lr": 0.0, "wd": 0.0, "clip": 0.0, "smoothing": 0.0, "scale": 1.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    for name in ("hand", "scaler", "bf16", "shuffle", "separable", "nan", "view", "alone"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def make_optimizer(args, parameters):
    lr, wd = args.lr, {"weight_decay": args.wd}
    sgd, optim = torch.optim.SGD, torch.optim
    return {
        "sgd": lambda: sgd(parameters, lr or 0.1, **wd),
        "momentum": lambda: sgd(parameters, lr or 0.05, momentum=0.9, **wd),
        "nesterov": lambda: sgd(parameters, lr or 0.05, momentum=0.9, nesterov=True, **wd),
        "adam": lambda: optim.Adam(parameters, lr or 1e-3, **wd),
        "adamw": lambda: optim.AdamW(parameters, lr or 1e-3, **wd),
        "loop": lambda: optim.AdamW(parameters, lr or 1e-3, foreach=False, **wd),
        "fused": lambda: optim.AdamW(parameters, lr or 1e-3, fused=True, **wd),
        "amsgrad": lambda: optim.AdamW(parameters, lr or 1e-3, amsgrad=True, **wd),
        "eps": lambda: optim.Adam(parameters, lr or 1e-3, eps=1e-15, **wd),
        "rmsprop": lambda: optim.RMSprop(parameters, lr or 1e-3, momentum=0.9, **wd),
        "adagrad": lambda: optim.Adagrad(parameters, lr or 1e-2, **wd),
        "groups": lambda: optim.AdamW(_groups(parameters), lr or 1e-3),
    }[args.opt]()


def _groups(parameters):
    parameters = list(parameters)
    flat, others = [p for p in parameters if p.dim() < 2], [p for p in parameters if p.dim() >= 2]
    return [{"params": others, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]


def batch_of(args, generator):
    if args.model in ON_TOKENS:
        tokens = torch.randint(0, VOCABULARY, (args.batch, LENGTH + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    inputs = args.scale * torch.randn(args.batch, FEATURES, generator=generator)
    if args.separable:
        return inputs, inputs[:, :CLASSES].argmax(-1)
    return inputs, torch.randint(0, CLASSES, (args.batch,), generator=generator)


def share(args, inputs, targets, step):
    """Return this rank's part of a batch."""
    if WORLD == 1 or args.bug == "overlap":
        return inputs, targets
    if args.bug == "other_samples" and step == args.bug_step and RANK == 1:
        inputs = inputs + 1.0
    if args.shuffle:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(step))
        inputs, targets = inputs[order], targets[order]
    return inputs[RANK::WORLD], targets[RANK::WORLD]


def loss_of(args, outputs, targets, micro):
    if args.loss == "mse":
        return F.mse_loss(outputs, F.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)) / micro
    if args.loss == "sum":  # for gradients that are summed over the ranks
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="sum") / (args.batch * LENGTH)
    flat, wanted = outputs.flatten(0, -2), targets.flatten()
    if args.loss == "tokens":  # unequal numbers of tokens that count, averaged alike: a fault of its own
        wanted = torch.where(wanted < 4 + 8 * (RANK if WORLD > 1 else 1), wanted, -100)
    return F.cross_entropy(flat, wanted, label_smoothing=args.smoothing) / micro


def wrap(args, net):
    if WORLD == 1 or args.hand:
        return net
    if args.bug == "unsynced":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            net, [[n for n, _ in net.named_parameters()][-2]]
        )
    unused = args.model in ("moe", "unused")
    model = DistributedDataParallel(net, find_unused_parameters=unused, gradient_as_bucket_view=args.view)
    if args.bug == "summed":
        model.register_comm_hook(None, _sum_hook)
    if args.bug == "bf16_reduce":
        model.register_comm_hook(None, _bf16_hook)
    return model


def _sum_hook(_state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def _bf16_hook(_state, bucket):
    low = (bucket.buffer() / WORLD).bfloat16()
    work = dist.all_reduce(low, async_op=True)
    return work.get_future().then(lambda f: bucket.buffer().copy_(f.value()[0].float()))


def reduce_by_hand(args, net):
    for parameter in net.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            if args.loss != "sum" and args.bug != "hand_sum":
                parameter.grad /= WORLD


def train(args, net, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.scaler)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps) if args.scheduler else None
    generator = torch.Generator().manual_seed(args.seed + 100)
    for step in range(args.steps):
        faulty = WORLD > 1 and step >= args.bug_step
        if faulty and args.bug == "lr":
            optimizer.param_groups[0]["lr"] *= 0.5
        if faulty and args.bug == "state" and RANK == 1 and step == args.bug_step:
            optimizer.state.clear()
        inputs, targets = share(args, *batch_of(args, generator), step)
        if args.nan and step == 1:
            inputs = inputs * float("nan")
        optimizer.zero_grad()
        total = backward(args, net, model, scaler, inputs, targets)
        finish_step(args, net, optimizer, scaler, faulty, step)
        if scheduler is not None:
            scheduler.step()
        if RANK == 0:
            print(step, total, flush=True)


def backward(args, net, model, scaler, inputs, targets):
    micro = args.accum if WORLD > 1 or args.alone else 1
    called = net if args.bug == "none_synced" and WORLD > 1 else model
    total = 0.0
    for number, (x, y) in enumerate(zip(inputs.chunk(micro), targets.chunk(micro), strict=True)):
        keep = WORLD > 1 and not args.hand and number < micro - 1
        with model.no_sync() if keep else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss = loss_of(args, called(x), y, micro)
            scaler.scale(loss).backward()
        if args.bug == "clip_each" and WORLD > 1:
            torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        total += loss.item()
    return total


def finish_step(args, net, optimizer, scaler, faulty, step):
    if WORLD > 1 and args.hand and args.bug != "none_synced" and args.after != "average":
        reduce_by_hand(args, net)
    if faulty and args.bug == "double":
        for parameter in net.parameters():
            parameter.grad /= WORLD
    if faulty and args.bug == "missing":
        next(net.parameters()).grad = None
    if args.kill_rank == RANK and step == 1 and WORLD > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if args.clip:
        if not (faulty and args.bug == "clip"):
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
    scaler.step(optimizer)
    scaler.update()
    change_after_step(args, net, faulty)


@torch.no_grad()
def change_after_step(args, net, faulty):
    for parameter in net.parameters():
        if args.after == "average":
            dist.all_reduce(parameter)
            parameter /= WORLD
        if args.after == "clip":
            parameter.clamp_(-0.15, 0.15)
    if faulty and args.bug == "left" and RANK == 1:
        list(net.parameters())[-2].data.mul_(0.5)


def main():
    args = arguments()
    if WORLD > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed + (RANK if args.bug == "init" else 0))
    net = MODELS[args.model]()
    if args.bug == "shifted":
        net.shifted = RANK == 1
    if args.bug == "path" and WORLD > 1:
        list(net.children())[-1].register_full_backward_hook(lambda _m, grads, _o: (grads[0] * 0.9,))
    model = wrap(args, net)
    optimizer = make_optimizer(args, [p for p in net.parameters() if p.requires_grad])
    if args.bug == "not_held" and WORLD > 1:
        optimizer.param_groups[0]["params"].pop(0)
    train(args, net, model, optimizer)
    if WORLD > 1:
        dist.destroy_process_group()
        gc.collect()


if __name__ == "__main__":
    main()
