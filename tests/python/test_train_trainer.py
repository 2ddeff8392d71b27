"""transformers' own Trainer, with packed documents: tileformer's attention gives the losses of sdpa."""

from __future__ import annotations

import pytest
import tiny_transformers
import torch
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

import tileformer  # noqa: F401  (registers the attention)

pytestmark = pytest.mark.slow


def documents() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(2)
    return [
        {"input_ids": torch.randint(3, tiny_transformers.VOCABULARY, (n,), generator=generator).tolist()}
        for n in (9, 30, 4, 17, 25, 6, 12, 21, 8, 15, 3, 28)
    ]


@pytest.mark.parametrize("flash_arguments", [False, True])
def test_losses_are_those_of_sdpa(tmp_path, flash_arguments):
    histories = []
    for attention in ("sdpa", "tileformer"):
        model = tiny_transformers.decoder("llama")
        model.set_attn_implementation(attention)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(tmp_path / attention),
                max_steps=6,
                per_device_train_batch_size=4,
                learning_rate=1e-2,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=documents(),
            data_collator=DataCollatorWithFlattening(return_flash_attn_kwargs=flash_arguments),
        )
        trainer.train()
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(histories[0]) == 6
    assert histories[1] == pytest.approx(histories[0], abs=2e-3)
