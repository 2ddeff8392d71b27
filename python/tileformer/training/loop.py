"""The training itself: one step after the other, each a function of the state before it."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tileformer.training import fused_loss
from tileformer.training.errors import TrainingError, TrainingStopped
from tileformer.training.log import Record
from tileformer.training.memory import peak_rss_mib

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tileformer.training.packing import PackedRows
    from tileformer.training.settings import Settings

_BETAS = (0.9, 0.95)  # of AdamW, as Llama was trained


class Training:
    """A model, its optimizer and its data, after `step` steps.

    Weights, gradients and the optimizer's moments are fp32 always: an update is often smaller than half a
    bf16 step of its weight (1/256 of its size) and would be lost. With dtype bf16 the products run in bf16
    by autocast, as `bf16=True` of transformers' Trainer does it.
    """

    def __init__(self, model: PreTrainedModel, rows: PackedRows, settings: Settings) -> None:
        import torch

        self.model, self.rows = model, rows
        fused = fused_loss.fuse_if(settings.fused_loss, model, settings.attn)
        self.settings = replace(settings, fused_loss=fused)
        self.step = 0
        self._bf16 = settings.dtype == "bfloat16"
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for p in self._parameters if p.dim() >= 2],
                    "weight_decay": settings.weight_decay,
                },
                {"params": [p for p in self._parameters if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=_BETAS,
            fused=True,
        )
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._rate)

    def advance(self) -> Record:
        """One step. Raises TrainingStopped, with the state as it was, if the loss is not finite."""
        import torch

        start = perf_counter()
        batch = self.rows.batch(self.step)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            loss = self.model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                labels=batch.labels,
                use_cache=False,
            ).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip or math.inf)
        value, norm = loss.item(), norm.item()
        if not (math.isfinite(value) and math.isfinite(norm)):
            self._optimizer.zero_grad()
            raise TrainingStopped(
                f"step {self.step + 1}: the loss is {value}, its gradient's norm {norm}; "
                "a lower --learning-rate may help"
            )
        rate = self._scheduler.get_last_lr()[0]
        self._optimizer.step()
        self._scheduler.step()
        self._optimizer.zero_grad()
        self.step += 1
        speed = batch.tokens / (perf_counter() - start)
        return Record(self.step, value, rate, norm, round(speed, 1), round(peak_rss_mib(), 1))

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on; the position in the data is the number of the step."""
        import torch

        return {
            "data": self.rows.key,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the state of a checkpoint. Raises TrainingError if it is one of another text or model."""
        import torch

        if state["data"] != self.rows.key:
            raise TrainingError(
                "the text (or the tokenizer) is not the one that the run was started with, so it cannot go "
                "on as it would have; start another run"
            )
        try:
            self.model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise TrainingError(f"the checkpoint does not fit the model: {error}") from error
        self._scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        self.step = state["step"]

    def _rate(self, step: int) -> float:
        """Factor of the learning rate: up in a line, down in a half cosine."""
        warmup, steps = self.settings.warmup_steps, self.settings.steps
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
