"""The tiny model, against transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from cloudrl.verl_cpu import tiny_model
from cloudrl.verl_cpu.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny-qwen2"))


def content(folder: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def test_bytes_follow_from_the_seed(path: str, tmp_path: Path) -> None:
    assert content(make_tiny_model(str(tmp_path / "same"))) == content(path)
    other = content(make_tiny_model(str(tmp_path / "other"), seed=1))
    assert other.keys() == content(path).keys()
    changed = [name for name, data in content(path).items() if other[name] != data]
    assert changed == ["model.safetensors"]


def test_model_is_what_transformers_would_make(path: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(path)
    assert type(model) is Qwen2ForCausalLM
    assert model.dtype == torch.float32
    fresh = Qwen2ForCausalLM(Qwen2Config.from_pretrained(path))
    ours, theirs = model.state_dict(), fresh.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape
        if tensor.dim() == 1:  # norms and biases start at the same constants
            assert torch.equal(tensor, theirs[name]), name
        else:
            assert tensor.mean().abs() < 0.002, name
            assert tensor.std() == pytest.approx(0.02, rel=0.1), name
    assert 100_000 < sum(tensor.numel() for tensor in ours.values()) < 120_000


def test_tokenizer_goes_there_and_back(path: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = "3 + 4 = 7\n\tÜber 加法 🙂 \x00\x7f"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids == [5 + byte for byte in text.encode()]  # a token a byte, after the five special ones
    assert len(tokenizer) == AutoModelForCausalLM.from_pretrained(path).config.vocab_size


def test_chat_template(path: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    question = [{"role": "user", "content": "3 + 4 ="}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>3 + 4 =<|end|><|assistant|>"
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    assert len(ids) == 3 + len("3 + 4 =")
    assert ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "3 + 4 ="
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("kept")
    assert make_tiny_model(str(tmp_path / "model")) == str(tmp_path / "model")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["mine"]


def test_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "_safetensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_tiny_model(str(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []
