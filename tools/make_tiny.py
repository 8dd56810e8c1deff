"""Write `src/arrowtune/assets/tiny/`: the configuration and tokenizer of the embedded model. It has no weights.

The tokenizer is a byte-level BPE trained on the example data and a list of common English words; the same inputs give
the same bytes. The chat template in that folder is written by hand.

    python tools/make_tiny.py [FOLDER]
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = Path(__file__).parents[1]
VOCAB = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# Letters with one leading space or mark, single digits, runs of marks, line ends, other white space.
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dtype": "float32",
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.08,  # about 1 / sqrt(hidden_size): a narrow model learns far faster than from the usual 0.02
    "intermediate_size": 384,
    "max_position_embeddings": 8192,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": VOCAB,
}
TOKENIZER_CONFIG: dict[str, Any] = {
    "add_bos_token": False,
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "errors": "replace",
    "model_max_length": 8192,
    "pad_token": "<|endoftext|>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": None,
}


def corpus() -> Iterator[str]:
    """The texts that the merges are learnt from."""
    examples = runpy.run_path(str(ROOT / "tools" / "make_examples.py"))
    for rows in examples["make"]().values():
        for row in rows:
            yield from strings(row)
    words = (ROOT / "tools" / "tiny_words.txt").read_text(encoding="utf-8").split()
    # Twice, as a word and as the first word of a sentence, so that rare words get merges of their own too.
    yield from (text for word in words for text in (f" {word} {word}", word, f" {word.title()}"))


def strings(value: Any) -> Iterator[str]:
    """Every text of a row; tools and calls as the template writes them."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from strings(item)
        case {"function": _}:
            yield json.dumps(value)
        case dict():
            for item in value.values():
                yield from strings(item)


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of exactly `VOCAB` entries, the added tokens last."""
    tokenizer = Tokenizer(models.BPE())
    splits = [
        pre_tokenizers.Split(pattern=Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL) - len(PLAIN),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    if tokenizer.get_vocab_size() != VOCAB:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} entries instead of {VOCAB}: the corpus is too small")
    return tokenizer


def main(folder: Path) -> None:
    """Write the generated files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    ids = {"eos_token_id": tokenizer.token_to_id("<|im_end|>"), "pad_token_id": tokenizer.token_to_id("<|endoftext|>")}
    for name, values in (("config.json", {**CONFIG, **ids}), ("tokenizer_config.json", TOKENIZER_CONFIG)):
        (folder / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "arrowtune" / "assets" / "tiny")
