"""Options of a run: what they default to, what fits together, and where a learning rate goes."""

from itertools import pairwise

import pytest

from tileformer.training.errors import TrainingError
from tileformer.training.interrupt import Interrupt
from tileformer.training.loop import Training
from tileformer.training.settings import Settings


def test_defaults_depend_on_the_model():
    new, shape, continued = (Settings(model=m).resolve() for m in ("llama", "smollm2-random", "smollm2"))
    assert (new.layers, new.hidden, new.heads, new.kv_heads, new.intermediate) == (4, 192, 4, 2, 512)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate) == (
        30, 576, 9, 3, 1536,
    )  # fmt: skip
    assert continued.layers is None and continued.learning_rate < new.learning_rate
    assert new.warmup_steps == 10 and Settings(steps=1).resolve().warmup_steps == 1


def test_a_model_with_experts_has_as_many_active_parameters_as_one_without():
    dense, sparse = Settings(hidden=256).resolve(), Settings(model="mixtral", hidden=256).resolve()
    assert (sparse.num_experts, sparse.top_k, dense.num_experts) == (8, 2, None)
    assert sparse.top_k * sparse.intermediate == dense.intermediate


@pytest.mark.parametrize(
    "settings, message",
    [
        (Settings(num_experts=4), r"--num-experts shapes a new model \(mixtral\); 'llama' has its shape"),
        (Settings(experts="eager"), r"--experts is for a model with experts \(mixtral\); 'llama' has none"),
        (Settings(model="mixtral", top_k=9), "--top-k is 9, more than the 8 --num-experts"),
        (
            Settings(model="smollm2", hidden=64),
            r"--hidden shapes a new model \(llama, mixtral,",
        ),
    ],
)
def test_shapes_that_do_not_fit(settings, message):
    with pytest.raises(TrainingError, match=message):
        settings.resolve()


@pytest.mark.parametrize("hidden, intermediate", [(192, 512), (256, 704), (576, 1536), (1000, 2688)])
def test_the_mlp_follows_the_hidden_size(hidden, intermediate):
    settings = Settings(hidden=hidden, heads=4).resolve()
    assert settings.intermediate == intermediate >= hidden * 8 / 3
    assert Settings(hidden=hidden, heads=4, intermediate=7).resolve().intermediate == 7


def test_settings_survive_json():
    settings = Settings(model="smollm2-random", layers=3).resolve()
    assert Settings.from_json(settings.to_json()) == settings
    with pytest.raises(TrainingError, match="another version of tileformer: colour"):
        Settings.from_json({**settings.to_json(), "colour": "red"})


def test_paths_become_absolute_and_names_stay(tmp_path, monkeypatch):
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = Settings(model="smollm2", text="text", tokenizer="absent").with_absolute_paths()
    assert settings.model == "smollm2" and settings.text == str(tmp_path / "text")
    assert settings.tokenizer == "absent"
    assert Settings(model="./smollm2").with_absolute_paths().model == str(tmp_path / "smollm2")


def test_the_learning_rate_goes_up_in_a_line_and_down_in_a_cosine():
    training = object.__new__(Training)
    training.settings = Settings(steps=110, warmup_steps=10)
    rates = [training._rate(step) for step in range(110)]
    assert rates[:3] == [0.1, 0.2, 0.3] and rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[10:])) and 0 < rates[-1] < 1e-3


def test_a_second_signal_ends_at_once():
    heard = []
    with Interrupt(lambda: heard.append("first")) as interrupt:
        interrupt._received(15, None)
        assert interrupt.signal == 15 and heard == ["first"]
        with pytest.raises(KeyboardInterrupt):
            interrupt._received(2, None)
