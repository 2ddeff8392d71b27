"""Whole models for the command line: find one, load it fast, generate with it.

Nothing here is imported by ``import tileformer``. The modules import torch and transformers inside their
functions: finding a model and checking options must not wait for them.
"""
