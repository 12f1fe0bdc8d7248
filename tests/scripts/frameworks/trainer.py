"""A tiny random Llama, trained by the Trainer of Transformers: ``trainer.py OUT [--accumulate N] [--unweighted]``."""

import argparse
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY, LENGTH, NUM = 64, 16, 64


class Texts(torch.utils.data.Dataset):
    """Texts of unequal length, padded: ranks hold different numbers of tokens."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.ids = torch.randint(0, VOCABULARY, (NUM, LENGTH), generator=generator)
        self.lengths = torch.randint(6, LENGTH + 1, (NUM,), generator=generator)

    def __len__(self):
        return NUM

    def __getitem__(self, i):
        mask = (torch.arange(LENGTH) < self.lengths[i]).long()
        labels = torch.where(mask == 1, self.ids[i], -100)
        return {"input_ids": self.ids[i], "attention_mask": mask, "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--unweighted", action="store_true", help="each rank divides by its own number of tokens")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", 1))
    set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes))
    given = TrainingArguments(
        args.out,
        max_steps=args.steps,
        per_device_train_batch_size=8 // world // args.accumulate,
        gradient_accumulation_steps=args.accumulate,
        average_tokens_across_devices=not args.unweighted,
        learning_rate=1e-2,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if world > 1 else None,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=given, train_dataset=Texts())
    last = get_last_checkpoint(args.out) if args.resume and os.path.isdir(args.out) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
