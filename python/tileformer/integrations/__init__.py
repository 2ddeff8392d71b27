"""Other libraries that tileformer plugs itself into."""

from __future__ import annotations

import sys
import warnings

from tileformer.integrations.after_import import after_import

# The module of transformers that holds its table of attention functions. Importing it takes seconds, so it is
# never imported from here: registration waits until the user's own imports have brought it in.
_TABLE = "transformers.modeling_utils"


def register_with_transformers() -> None:
    """Makes "tileformer" known to transformers as an implementation of attention and of experts, now or as
    soon as it is imported."""
    if _TABLE in sys.modules:
        _register()
    else:
        after_import(_TABLE, _register)


def _register() -> None:
    try:
        import tileformer.integrations.transformers  # noqa: F401  (registers on import)
    except ImportError as error:  # a transformers without these tables must stay usable
        warnings.warn(f"'tileformer' is not available in transformers: {error}", RuntimeWarning, stacklevel=2)


def paged_cache(model, **options):
    """A cache of pages for a Hugging Face model, see PagedKVCache.for_model."""
    from tileformer.integrations.model_cache import ModelCache

    return ModelCache.for_model(model, **options)
