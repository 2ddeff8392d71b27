"""What a run is: every option that has an influence on its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tileformer.training.errors import TrainingError

NEW, MIXTRAL, SMOLLM2, SMOLLM2_RANDOM = "llama", "mixtral", "smollm2", "smollm2-random"

ATTENTIONS = ("tileformer", "sdpa", "eager")
EXPERTS = ("tileformer", "grouped_mm", "eager")

# Shapes of models with random weights. The first reads well after a few minutes on two cores; the second has
# as many active parameters, and four times as many in all.
SHAPES: dict[str, dict[str, int]] = {
    NEW: {"layers": 4, "hidden": 192, "heads": 4, "kv_heads": 2, "intermediate": 512},
    MIXTRAL: {
        "layers": 4,
        "hidden": 192,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 256,
        "num_experts": 8,
        "top_k": 2,
    },
    SMOLLM2_RANDOM: {"layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "intermediate": 1536},
}
_NEW_LEARNING_RATE, _CONTINUED_LEARNING_RATE = 2e-3, 1e-4


@dataclass(frozen=True)
class Settings:
    """Options of ``tileformer train`` by their names. resolve() replaces None by what holds for the model."""

    model: str = NEW  # a key of SHAPES, SMOLLM2, or what `tileformer generate --model` takes
    tokenizer: str | None = None  # for models with random weights; None: SmolLM2's
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    intermediate: int | None = None  # of an expert, where there are some
    num_experts: int | None = None
    top_k: int | None = None
    text: str | None = None  # file or folder; None: the standard library of Python
    sequence_length: int = 256
    batch_size: int = 4
    steps: int = 200
    learning_rate: float | None = None
    warmup_steps: int | None = None
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    attn: str = ATTENTIONS[0]
    experts: str | None = None  # one of EXPERTS; None: tileformer's beside its attention
    fused_loss: bool | None = None
    gradient_checkpointing: bool = False
    threads: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether training starts from random weights."""
        return self.model in SHAPES

    def with_absolute_paths(self) -> Settings:
        """The same settings, meaning the same files from every folder: a run may be resumed elsewhere."""
        paths = {name: getattr(self, name) for name in ("model", "tokenizer", "text")}
        named = self.model in (*SHAPES, SMOLLM2)
        return replace(
            self,
            **{
                name: str(Path(path).expanduser().absolute())
                for name, path in paths.items()
                if path is not None and not (name == "model" and named) and Path(path).expanduser().exists()
            },
        )

    def resolve(self) -> Settings:
        """These settings with the defaults that depend on the model. Raises TrainingError."""
        changes: dict[str, Any] = {}
        shape = SHAPES.get(self.model, {})
        for name in SHAPES[MIXTRAL]:
            if getattr(self, name) is None:
                changes[name] = shape.get(name)
            elif name not in shape:
                models = [model for model, sizes in SHAPES.items() if name in sizes]
                raise TrainingError(
                    f"--{name.replace('_', '-')} shapes a new model ({', '.join(models)}); {self.model!r} "
                    "has its shape"
                )
        if self.is_new and self.experts is not None and "num_experts" not in shape:
            raise TrainingError(f"--experts is for a model with experts ({MIXTRAL}); {self.model!r} has none")
        if self.tokenizer is not None and not self.is_new:
            raise TrainingError(f"--tokenizer is for a new model; {self.model!r} brings its own")
        if self.is_new and self.hidden is not None and self.intermediate is None:
            changes["intermediate"] = _intermediate(self.hidden, 2 if self.model == MIXTRAL else 1)
        if self.learning_rate is None:
            changes["learning_rate"] = _NEW_LEARNING_RATE if self.is_new else _CONTINUED_LEARNING_RATE
        if self.warmup_steps is None:
            changes["warmup_steps"] = max(1, self.steps // 20)
        resolved = replace(self, **changes)
        resolved._check()
        return resolved

    def _check(self) -> None:
        if self.sequence_length < 2:
            raise TrainingError(f"--sequence-length is {self.sequence_length}; a token and its next need 2")
        if self.warmup_steps > self.steps:
            raise TrainingError(f"--warmup-steps is {self.warmup_steps}, more than the {self.steps} --steps")
        if not self.is_new:
            return
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise TrainingError(
                f"--hidden {self.hidden} with --heads {self.heads}: each head needs the same even number of "
                "dimensions"
            )
        if self.heads % self.kv_heads:
            raise TrainingError(f"--kv-heads is {self.kv_heads}, which does not divide --heads {self.heads}")
        if self.num_experts is not None and self.top_k > self.num_experts:
            raise TrainingError(f"--top-k is {self.top_k}, more than the {self.num_experts} --num-experts")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Settings:
        """The settings that to_json() wrote. Raises TrainingError on a name that is unknown here."""
        if unknown := values.keys() - {field.name for field in fields(cls)}:
            raise TrainingError(f"settings of another version of tileformer: {', '.join(sorted(unknown))}")
        return cls(**values)


def _intermediate(hidden: int, shared_by: int) -> int:
    """8/3 of hidden, as Llama has it, in multiples of 64, or the share of each of several experts."""
    return -(-hidden * 8 // 3 // 64) * 64 // shared_by
