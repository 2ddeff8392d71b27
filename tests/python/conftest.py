"""One thread per worker where pytest-xdist runs several: more would wait for each other's cores."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
