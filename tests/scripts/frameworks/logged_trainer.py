"""The Trainer with a metric: ``logged_trainer.py OUT [--callback] [--own-share] [--resume]``."""

import argparse
import os

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY, LENGTH, CLASSES = 64, 12, 3


class Texts(torch.utils.data.Dataset):
    def __init__(self, rows):
        generator = torch.Generator().manual_seed(3)
        self.ids = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=generator)
        self.labels = self.ids[:, 0] % CLASSES

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Own(Trainer):
    """Evaluates by a loop of its own, in numpy, each rank on its share, and logs what that comes to."""

    def evaluate(self, *args, **kwargs):
        right = []
        for batch in self.get_eval_dataloader():
            with torch.no_grad():
                logits = self.model(**batch).logits
            right.append(logits.numpy().argmax(1) == batch["labels"].numpy())
        metrics = {"eval_accuracy": float(np.concatenate(right).mean())}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--callback", action="store_true")
    parser.add_argument("--own-share", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--averaged", action="store_true", help="the Trainer's default, wrong for this model")
    args = parser.parse_args()
    callbacks = []
    if args.callback:
        from ddparity.integrations.transformers import DdparityCallback

        callbacks = [DdparityCallback(seal=True)]
    world = int(os.environ.get("WORLD_SIZE", 1))
    set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, num_labels=CLASSES, pad_token_id=0, **sizes)
    given = TrainingArguments(
        args.out,
        max_steps=9 if args.resume else 6,
        per_device_train_batch_size=8 // world,
        per_device_eval_batch_size=8 // world,
        average_tokens_across_devices=args.averaged,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if world > 1 else None,
        disable_tqdm=True,
    )
    kind = Own if args.own_share else Trainer
    trainer = kind(
        model=LlamaForSequenceClassification(config),
        args=given,
        train_dataset=Texts(64),
        eval_dataset=Texts(48 if args.own_share else 44),  # 44 do not divide: the Trainer repeats some, and drops them
        compute_metrics=accuracy,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume else None)


if __name__ == "__main__":
    main()
