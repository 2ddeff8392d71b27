"""A small Llama learns from Python's standard library: packed documents, tileformer's attention both ways."""

import itertools
import sysconfig
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorWithFlattening, LlamaConfig

import tileformer

STEPS, DOCUMENTS = 20, 4  # documents per step

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: STEPS * DOCUMENTS]
texts = [source.read_text(errors="replace")[:1000] for source in sources]  # how files begin
documents = [{"input_ids": tokens} for tokens in tokenizer(texts)["input_ids"]]

config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
model = AutoModelForCausalLM.from_config(config, attn_implementation="tileformer")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

# Documents one after the other in one row, without padding: position_ids say where each begins, attention
# stays within it, and no mask of [seq, seq] is made.
pack = DataCollatorWithFlattening()
batches = itertools.cycle([documents[i : i + DOCUMENTS] for i in range(0, len(documents), DOCUMENTS)])
for step, batch in zip(range(1, STEPS + 1), batches):
    loss = model(**pack(batch)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 or step % 5 == 0:
        print(f"step {step:2}: loss {loss.item():.3f}")
print(f"ISA {tileformer.isa()}; `tileformer train` does the same with checkpoints, a log and a plot")
