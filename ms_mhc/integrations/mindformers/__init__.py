"""These operators in MindSpore Transformers (``mindformers`` 2.0.0 and 2.1.0)::

    from ms_mhc.integrations import mindformers
    mindformers.apply()  # before the model is built

See docs/mindspore-transformers.md.
"""

from ms_mhc.integrations.mindformers.replacing import apply, undo

__all__ = ["apply", "undo"]
