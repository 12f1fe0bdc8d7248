"""TRL's SFTTrainer on a tiny random Llama: ``sft.py OUT [--accumulate N] [--unweighted]``.

Texts are of unequal length, and each batch is padded to its longest: ranks pad to other widths than one device.
"""

import argparse
import os
import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = [f"w{i}" for i in range(60)]
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def tokenizer():
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--unweighted", action="store_true", help="each rank divides by its own number of tokens")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", 1))
    set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(SPECIAL + WORDS), num_key_value_heads=2, **sizes))
    own = random.Random(3)
    texts = [" ".join(own.choices(WORDS, k=own.randint(4, 20))) for _ in range(64)]
    given = SFTConfig(
        args.out,
        max_steps=6,
        per_device_train_batch_size=8 // world // args.accumulate,
        gradient_accumulation_steps=args.accumulate,
        average_tokens_across_devices=not args.unweighted,
        learning_rate=1e-2,
        max_length=32,
        bf16=False,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if world > 1 else None,
        disable_tqdm=True,
        save_strategy="no",
    )
    data = Dataset.from_dict({"text": texts})
    SFTTrainer(model=model, args=given, train_dataset=data, processing_class=tokenizer()).train()


if __name__ == "__main__":
    main()
