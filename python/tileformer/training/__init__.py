"""Training of language models with transformers, on packed text, with checkpoints that survive a kill.

    settings.py     what a run is: every option, resolved
    text.py         documents to learn from                    tokens.py    one stream of tokens, cached
    packing.py      rows without padding, in a fixed order     model.py     a new model, or one to continue
    loop.py         one step after the other                   run_folder.py, checkpoint.py, log.py: kept
    compare.py      the same steps with each attention, alternately, each in a process of its own

Nothing here is imported by ``import tileformer``; torch and transformers are imported inside the functions,
so that a wrong option is refused at once.
"""
