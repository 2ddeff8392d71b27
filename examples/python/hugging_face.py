"""A Hugging Face model with tileformer's attention: the same answer as with its own."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tileformer

name = "HuggingFaceTB/SmolLM2-135M-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name).eval()
inputs = tokenizer("The sky is blue because", return_tensors="pt", return_token_type_ids=False)

answers = []
for attention in ("eager", "tileformer"):
    model.set_attn_implementation(attention)
    answers.append(model.generate(**inputs, max_new_tokens=30, do_sample=False))
    print(f"{attention}: {tokenizer.decode(answers[-1][0])}")
print(f"ISA {tileformer.isa()}, texts {'equal' if torch.equal(*answers) else 'differ'}")
