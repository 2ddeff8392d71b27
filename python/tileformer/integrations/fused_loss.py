"""The training loss of a Hugging Face causal language model without its logits.

    fuse_linear_cross_entropy(model)     # from now on model(..., labels=...) in training has logits None
    unfuse_linear_cross_entropy(model)   # as it was

A forward is replaced only where it is known what it does: its code has to be, instruction by instruction,
that of Llama (decoder, lm_head, loss_function) or of Gemma 2 (the same with capped logits), which most
architectures in transformers copy. What is not so is refused with the reason, never approximated.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable

import torch
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel, slice_logits_to_keep
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple

from tileformer.cross_entropy import linear_cross_entropy

_MARK = "_tileformer_replaced_forward"


def _code_of(function: Callable) -> tuple:
    """What a function does, without names of files and docstrings."""
    code = inspect.unwrap(function).__code__
    constants = tuple(c for c in code.co_consts if not (isinstance(c, str) and "\n" in c))
    return code.co_code, code.co_names, code.co_varnames[: code.co_argcount], constants


@functools.cache
def _known_forwards() -> tuple[tuple, tuple]:
    """The code of Llama's and of Gemma 2's forward; imported when first needed."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return _code_of(LlamaForCausalLM.forward), _code_of(Gemma2ForCausalLM.forward)


def _refuse(model: torch.nn.Module, reason: str) -> ValueError:
    return ValueError(f"model: got {type(model).__name__}, which cannot be fused: {reason}")


def _caps_logits(model: PreTrainedModel) -> bool:
    """Whether the forward is Gemma 2's; false: Llama's. Raises ValueError for any other."""
    code = _code_of(type(model).forward)
    if code not in _known_forwards():
        raise _refuse(
            model,
            "its forward is not that of LlamaForCausalLM or Gemma2ForCausalLM",
        )
    return code == _known_forwards()[1]


def _check_head(model: PreTrainedModel) -> None:
    """lm_head has to be a plain linear layer: an adapter, a quantised layer or a hook would not run."""
    head = model.lm_head
    if type(head) is not torch.nn.Linear:
        raise _refuse(model, f"its lm_head is a {type(head).__name__}, expected a plain torch.nn.Linear")
    hooks = head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks
    if hooks or "forward" in head.__dict__:
        raise _refuse(model, "its lm_head has hooks or a forward of its own, which would not run")


def _check_loss_function(model: PreTrainedModel) -> None:
    if model.loss_function is not ForCausalLMLoss:
        name = getattr(model.loss_function, "__name__", repr(model.loss_function))
        raise _refuse(model, f"its loss function is {name}, expected transformers' ForCausalLMLoss")


def _loss(
    model: PreTrainedModel,
    hidden: torch.Tensor,
    labels: torch.Tensor,
    caps_logits: bool,
    num_items_in_batch: torch.Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None,
    **_kwargs,
) -> torch.Tensor:
    """transformers' ForCausalLMLoss of the logits that lm_head would make of hidden [..., seq, hidden]."""
    if shift_labels is None:
        labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:]
    total = linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        model.lm_head.weight,
        shift_labels.reshape(-1),
        bias=model.lm_head.bias,
        ignore_index=ignore_index,
        softcap=(model.config.final_logit_softcapping or 0.0) if caps_logits else 0.0,
        reduction="mean" if num_items_in_batch is None else "sum",
    )
    return total if num_items_in_batch is None else total / num_items_in_batch


@deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
@can_return_tuple
def _fused_forward(
    self: PreTrainedModel,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache=None,
    inputs_embeds: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    use_cache: bool | None = None,
    logits_to_keep: int | torch.Tensor = 0,
    *,
    tileformer_caps_logits: bool,
    **kwargs,
) -> CausalLMOutputWithPast:
    """LlamaForCausalLM.forward with the loss made from the hidden states; logits is None."""
    _check_head(self)
    _check_loss_function(self)
    outputs = self.model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        cache=cache,
        inputs_embeds=inputs_embeds,
        use_cache=use_cache,
        **kwargs,
    )
    hidden = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
    return CausalLMOutputWithPast(
        loss=_loss(self, hidden, labels, tileformer_caps_logits, **kwargs),
        logits=None,
        cache=outputs.cache,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )


def _replacement(original: Callable, caps_logits: bool) -> Callable:
    """Fused in training with labels; original otherwise. Looks like original to whoever inspects it."""
    labels_at = _known_forwards()[0][2].index("labels") - 1  # without self

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        labels = args[labels_at] if len(args) > labels_at else kwargs.get("labels")
        if labels is None or not self.training:
            return original(self, *args, **kwargs)
        return _fused_forward(self, *args, tileformer_caps_logits=caps_logits, **kwargs)

    setattr(forward, _MARK, True)
    return forward


def _is_fused(model: PreTrainedModel) -> bool:
    """False for a model that was saved whole and loaded: it comes back with its class's own forward."""
    return getattr(getattr(vars(model).get("forward"), "__func__", None), _MARK, False)


def fuse_linear_cross_entropy(model: PreTrainedModel) -> PreTrainedModel:
    """Makes the model compute its training loss from hidden states and lm_head.weight in chunks of rows.

    In training mode with `labels` the output then has the same loss (num_items_in_batch, shift_labels and
    ignore_index included) and `logits` None: they are never made. In evaluation mode and without labels
    nothing changes, so generate() and metrics work. Weights may be tied; parameters, state_dict and
    save_pretrained are not touched.

    Returns the model. Calling it twice does nothing more.

    Raises:
        ValueError: the model is not of a known form (forward, lm_head, loss function); the message says what.
    """
    if not isinstance(model, PreTrainedModel):
        raise _refuse(model, "expected a transformers.PreTrainedModel such as LlamaForCausalLM")
    if _is_fused(model):
        return model
    unfuse_linear_cross_entropy(model)
    caps_logits = _caps_logits(model)
    if "forward" in vars(model):
        raise _refuse(model, "its forward was replaced already; fuse it before whatever wraps it")
    _check_head(model)
    _check_loss_function(model)
    if model.lm_head.out_features != model.config.vocab_size:
        given, needed = model.lm_head.out_features, model.config.vocab_size
        raise _refuse(model, f"its lm_head has {given} rows, expected config.vocab_size, {needed}")
    model.forward = types.MethodType(_replacement(type(model).forward, caps_logits), model)
    setattr(model, _MARK, True)
    return model


def unfuse_linear_cross_entropy(model: PreTrainedModel) -> PreTrainedModel:
    """Undoes fuse_linear_cross_entropy. Returns the model; one that is not fused stays as it is."""
    if vars(model).pop(_MARK, False):
        vars(model).pop("forward", None)
    return model
