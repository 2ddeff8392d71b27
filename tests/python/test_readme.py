"""The Python examples of README, tutorial and examples/python run; the figures of the README are current."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CPP_BLOCK = re.compile(r"```cpp\n(.*?)```", re.DOTALL)
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # what the examples load by name


@pytest.fixture(scope="module")
def folder_with_model(tmp_path_factory) -> Path:
    """Where the examples' model name is a tiny random model: from_pretrained prefers a local folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("examples")
    words = {
        word: i for i, word in enumerate(["<s>", "</s>", "<unk>", "The", "sky", "is", "blue", "because"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    fast.save_pretrained(folder / MODEL)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=36,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / MODEL)
    return folder


def run(code: str, folder: Path) -> str:
    """Runs a program in the folder; returns what it printed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_examples_of_a_document_run_one_after_the_other(document, folder_with_model):
    blocks = PYTHON_BLOCK.findall((ROOT / document).read_text())
    assert len(blocks) >= 3
    run("\n".join(blocks), folder_with_model)


@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_cpp_example_of_a_document_compiles(document):
    compiler = os.environ.get("CXX", "c++")
    (block,) = CPP_BLOCK.findall((ROOT / document).read_text())
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(
        [*command, "-I", str(ROOT / "include")], input=block, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples/python").glob("*.py")))
def test_example_script_runs(script, folder_with_model):
    assert run((ROOT / "examples/python" / script).read_text(), folder_with_model)


def test_figures_are_those_of_the_recorded_run():
    sys.path.insert(0, str(ROOT))
    from bench import readme

    text = (ROOT / "README.md").read_text()
    blocks = readme.BLOCK.findall(text)
    assert blocks and {name for _, name, *_ in blocks} <= set(readme.BLOCKS)
    assert readme.render(text) == text
    for _, _, results, _ in blocks:
        assert json.loads((ROOT / results).read_text())["rows"]


def test_links_lead_somewhere():
    for document in ("README.md", "docs/architecture.md", "docs/benchmark.md", "docs/tutorial.md"):
        path = ROOT / document
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{document}: {target}"
