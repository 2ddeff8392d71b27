"""A Llama of 0.1 million random weights as a GGUF file, with a byte-level tokenizer and a chat template."""

from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, LAYERS, INTERMEDIATE, CONTEXT = 64, 4, 2, 2, 128, 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = SPECIAL.index("<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_gguf(path: Path, seed: int = 0) -> Path:
    """Writes the file and returns its path. Another seed makes another content."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    vocabulary = _add_tokenizer(writer)
    _add_weights(writer, vocabulary, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> int:
    characters = sorted(ByteLevel.alphabet())  # one for each byte: every longer character is several tokens
    tokens = [*SPECIAL, *characters, "Ġt"]
    types = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(characters) + 1)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(END)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(tokens)


def _add_weights(writer: gguf.GGUFWriter, vocabulary: int, random: np.random.Generator) -> None:
    kv_dim = HIDDEN // HEADS * KV_HEADS

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.2, shape).astype(np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    add("token_embd", vocabulary, HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_norm(f"{block}.attn_norm")
        add(f"{block}.attn_q", HIDDEN, HIDDEN)
        add(f"{block}.attn_k", kv_dim, HIDDEN)
        add(f"{block}.attn_v", kv_dim, HIDDEN)
        add(f"{block}.attn_output", HIDDEN, HIDDEN)
        add_norm(f"{block}.ffn_norm")
        add(f"{block}.ffn_gate", INTERMEDIATE, HIDDEN)
        add(f"{block}.ffn_up", INTERMEDIATE, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, INTERMEDIATE)
    add_norm("output_norm")
