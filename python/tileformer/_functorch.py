"""torch.func's transforms and forward mode around a call of ours: what works, and errors for what does not.

Inside a transform tensors are wrappers that do not say whether a gradient is wanted further out, and an
operator with an autograd formula from torch.library cannot be differentiated by torch.func.grad (torch 2.13).
"""

from __future__ import annotations

import torch
from torch._C._functorch import TransformType, get_interpreter_stack, peek_interpreter_stack
from torch.autograd import forward_ad


def inside_transform(name: str) -> bool:
    """Whether a transform is active in which gradients may be wanted that no tensor shows.

    name: the function, for the message. Raises NotImplementedError inside torch.func.grad and what is built
    on it (vjp, jacrev, hessian).
    """
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    if any(interpreter.key() == TransformType.Grad for interpreter in get_interpreter_stack()):
        raise NotImplementedError(
            f"tileformer.{name} cannot be differentiated by torch.func.grad, vjp, jacrev or hessian. Use "
            "torch.autograd.grad or backward(); where torch.func is needed, torch's own operators"
        )
    return True


def refuse_tangents(message: str, **tensors: torch.Tensor | None) -> None:
    """Operators without a forward-mode formula drop tangents in silence. message: with {name} in it."""
    if forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(message.format(name=name))
