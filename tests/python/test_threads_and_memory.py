"""Same bits for any number of threads; memory in the order of the inputs; torch's threads and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tileformer


@pytest.fixture
def restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(window=(30, 5), softcap=3.0)], ids=str)
def test_bits_do_not_depend_on_threads(restore_threads, dtype, options):
    q, k, v = (torch.randn(2, h, n, 64).to(dtype) for h, n in ((6, 150), (2, 210), (2, 210)))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(tileformer.flash_attention(q, k, v, return_lse=True, **options))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])


PEAK = """
import resource, threading, sys, torch, tileformer
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
n, masked = 6144, sys.argv[1] == "mask"
q = torch.randn(1, 2, n, 16, dtype=torch.bfloat16)
k = v = torch.randn(1, 1, n, 16, dtype=torch.bfloat16)
mask = (torch.arange(n) % 7 != 3) if masked else None
small = (q[:, :, :8], k[:, :, :8], v[:, :, :8])
tileformer.flash_attention(*small, causal=True)
before = peak()
out = tileformer.flash_attention(q, k, v, causal=True, attn_mask=mask)
if masked:
    with tileformer.enabled():
        tileformer.flash_attention(q, k, v, attn_mask=mask.expand(n, n))
print(peak() - before - out.nbytes)
"""


@pytest.mark.parametrize("kind", ["plain", "mask"])
def test_no_allocation_of_the_size_of_the_scores(kind):
    run = subprocess.run([sys.executable, "-c", PEAK, kind], capture_output=True, text=True, check=True)
    scores = 6144 * 6144  # one byte per score would already be too much
    assert int(run.stdout.split()[-1]) < min(scores, 24 << 20)


def test_no_thread_of_our_own():
    code = """
import os, torch, tileformer
q = torch.randn(1, 8, 300, 64)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    tileformer.flash_attention(q, q, q)
print(len(os.listdir("/proc/self/task")) - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


def test_calls_from_many_python_threads():
    import concurrent.futures

    inputs = [tuple(torch.randn(1, 4, 60 + i, 32) for _ in range(3)) for i in range(8)]
    expected = [tileformer.flash_attention(*x, causal=True) for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(lambda x: tileformer.flash_attention(*x, causal=True), inputs))
            assert all(torch.equal(a, b) for a, b in zip(results, expected))
