"""Megatron's models against transformers' on the same weights: every feature, packed or alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from moe.cpu import host as cpu_host
from moe.errors import MoeError
from moe.model.architectures import Architecture, architecture
from moe.model.decoder import Llama3Rope
from moe.model.head import forward
from moe.model.packing import pack
from moe.sequences import TrainingSequence
from moe.train.trainer import Trainer
from tests.helpers.moe_models import (
    DEEPSEEK_V3,
    DENSE,
    GLM4_MOE,
    MISTRAL,
    MIXTRAL,
    MOE,
    OLMO2,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
    batch,
    trainer,
    weights,
)

pytestmark = pytest.mark.slow
MODELS = {
    "llama4": MOE,
    "llama": DENSE,
    "tied": replace(DENSE, tie_word_embeddings=True),
    "stretched": replace(DENSE, rope_scaling=Llama3Rope(factor=8.0, original_max_position_embeddings=64)),
    "mistral": MISTRAL,
    "qwen2, stretched by YaRN": QWEN2,
    "qwen2": replace(QWEN2, rope_scaling=None),
    "qwen3": QWEN3,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe, some layers dense, weights as they are": replace(
        QWEN3_MOE, decoder_sparse_step=2, norm_topk_prob=False
    ),
    "mixtral": MIXTRAL,
    "glm4_moe": GLM4_MOE,
    "glm4_moe, norms instead of biases": replace(GLM4_MOE, use_qk_norm=True, attention_bias=False),
    "deepseek_v3, stretched by YaRN, in groups": DEEPSEEK_V3,
    "deepseek_v3, queries straight from the hidden state": replace(
        DEEPSEEK_V3, q_lora_rank=None, rope_scaling=None, n_group=1, topk_group=1
    ),
}


@pytest.fixture(scope="class", params=list(MODELS.values()), ids=list(MODELS))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Trainer, transformers.PreTrainedModel]]:
    """Our trainer and transformers' model of what it exported; no two norms are alike."""
    ours = trainer(request.param)
    stream = torch.Generator().manual_seed(1)
    ours.load_weights(
        {n: t + 0.2 * torch.randn(t.shape, generator=stream) if t.dim() == 1 else t for n, t in weights(ours).items()}
    )
    folder = tmp_path_factory.mktemp("hf")
    ours.save_hf(folder)
    theirs = getattr(transformers, request.param.hf_class).from_pretrained(folder, attn_implementation="eager").eval()
    yield ours, theirs
    ours.close()


def logits(model: torch.nn.Module, sequences: list[TrainingSequence], chunks: Any) -> torch.Tensor:
    with cpu_host.megatron(), torch.no_grad():
        return forward(model.eval(), pack(sequences, chunks), labels=False)[0]


@torch.no_grad()
def reference(theirs: transformers.PreTrainedModel, sequence: TrainingSequence) -> torch.Tensor:
    return theirs(input_ids=torch.from_numpy(sequence.tokens_T).long()[None]).logits[0]


class TestAgainstTransformers:
    def test_packed_logits_equal_transformers_one_by_one(
        self, pair: tuple[Trainer, transformers.PreTrainedModel]
    ) -> None:
        ours, theirs = pair
        sequences = batch(0)
        packed = logits(ours.model, sequences, architecture(ours.hf_config).chunks)
        for part, sequence in zip(packed.split([len(s) for s in sequences]), sequences):
            torch.testing.assert_close(part, reference(theirs, sequence), rtol=1e-6, atol=1e-5)

    def test_logprobs_equal_transformers(self, pair: tuple[Trainer, transformers.PreTrainedModel]) -> None:
        ours, theirs = pair
        sequences = batch(1)
        for sequence, logprobs_T in zip(sequences, ours.logprobs(sequences)):
            assert logprobs_T.dtype == np.float32
            assert logprobs_T[0] == 0
            tokens = torch.from_numpy(sequence.tokens_T).long()
            wanted = reference(theirs, sequence).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
            np.testing.assert_allclose(logprobs_T[1:], wanted, rtol=0, atol=1e-5)

    def test_a_sequence_does_not_feel_its_neighbours(self, pair: tuple[Trainer, transformers.PreTrainedModel]) -> None:
        ours, _ = pair
        sequences = batch(2, count=5)
        together = ours.logprobs(sequences)
        for sequence, logprobs_T in zip(sequences, together):
            np.testing.assert_allclose(logprobs_T, ours.logprobs([sequence])[0], rtol=0, atol=1e-5)


def test_experts_are_chosen_by_logit_where_sigmoids_tie(tmp_path: Path) -> None:
    """Scaled up, several of a token's router logits have sigmoid 1 in fp32."""
    ours = trainer(MOE)
    try:
        loud = {n: t * (40 if n.endswith("router.weight") else 1) for n, t in ours.export_weights()}
        ours.load_weights(loud)
        ours.save_hf(tmp_path)
        theirs = transformers.Llama4ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        sequence = batch(0)[1]
        logits_TV = logits(ours.model, [sequence], architecture(ours.hf_config).chunks)
        torch.testing.assert_close(logits_TV, reference(theirs, sequence), rtol=1e-6, atol=1e-5)
    finally:
        ours.close()


OFF: dict[str, dict[str, Any]] = {
    "chunked attention": {"attention_chunk_size": 4096},
    "QK norm": {"use_qk_norm": False},
    "layers without RoPE": {"no_rope_layers": [1, 1, 1, 1], "layer_types": ["chunked_attention"] * 4},
    "attention temperature": {"attn_temperature_tuning": False},
    "RoPE base": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "RoPE scaling": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 2.0, "original_max_position_embeddings": 64,
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("feature", OFF)
def test_each_attention_feature_matters_and_equals_transformers(feature: str, tmp_path: Path) -> None:
    plain = trainer(MOE)
    sequences = batch(3)
    with_feature = np.concatenate(plain.logprobs(sequences))
    plain.save_hf(tmp_path)
    plain.close()
    changed: Any = Changed(OFF[feature])
    ours = trainer(changed)
    try:
        ours.load_weights(tmp_path)
        without = ours.logprobs(sequences)
        assert np.abs(np.concatenate(without) - with_feature).max() > 1e-3
        config = transformers.AutoConfig.for_model(**changed.to_hf())
        theirs = transformers.Llama4ForCausalLM.from_pretrained(
            tmp_path, config=config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        for sequence, logprobs_T in zip(sequences, without):
            tokens = torch.from_numpy(sequence.tokens_T).long()
            wanted = reference(theirs, sequence).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
            np.testing.assert_allclose(logprobs_T[1:], wanted, rtol=0, atol=1e-5)
    finally:
        ours.close()


def off(**fields: Any) -> Callable[[Architecture], Architecture]:
    """An architecture without some of its features."""

    def change(arch: Architecture) -> Architecture:
        return replace(arch, fields={**arch.fields, **fields})

    return change


def layers_off(**changes: Any) -> Callable[[Architecture], Architecture]:
    def change(arch: Architecture) -> Architecture:
        attention = [replace(layer.attention, **changes) for layer in arch.layers]
        return replace(arch, layers=tuple(map(lambda layer, a: replace(layer, attention=a), arch.layers, attention)))

    return change


TAKEN_AWAY = {
    "sigmoid router": off(moe_router_score_function="softmax", moe_router_pre_softmax=True),
    "weight on the expert's input": off(moe_apply_probs_on_input=False),
    "interleaved RoPE": layers_off(interleaved=False),
    "chunked attention": layers_off(chunk=None),
    "attention temperature": layers_off(temperature=None),
    "RoPE": layers_off(inv_freq=None),
    "QK norm": lambda arch: replace(arch, layers=tuple(replace(layer, qk_norm="none") for layer in arch.layers)),
    "layers without RoPE": lambda arch: replace(arch, layers=(arch.layers[0],) * len(arch.layers)),
}


@pytest.fixture(scope="module")
def scout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingSequence, torch.Tensor]:
    """A folder of Scout in miniature, a sequence, and what transformers says of it."""
    folder = tmp_path_factory.mktemp("scout")
    ours = trainer(MOE)
    ours.save_hf(folder)
    ours.close()
    theirs = transformers.Llama4ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    sequence = batch(5)[1]
    return folder, sequence, reference(theirs, sequence)


def scout_logits(
    scout: tuple[Path, TrainingSequence, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Architecture], Architecture],
) -> torch.Tensor:
    """Ours without a feature."""
    folder, sequence, _ = scout
    whole = architecture

    def without(hf_config: dict[str, Any]) -> Architecture:
        return change(whole(hf_config))

    monkeypatch.setattr("moe.model.gpt.architecture", without)
    ours = trainer(MOE)
    try:
        ours.load_weights(folder)
        return logits(ours.model, [sequence], without(MOE.to_hf()).chunks)
    finally:
        ours.close()


@pytest.mark.parametrize("feature", TAKEN_AWAY)
def test_without_any_one_of_scouts_features_the_logits_are_not_transformers(
    feature: str, scout: tuple[Path, TrainingSequence, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = (scout_logits(scout, monkeypatch, TAKEN_AWAY[feature]) - scout[2]).abs().max()
    assert error > 1e-2


def test_with_all_of_scouts_features_they_are(
    scout: tuple[Path, TrainingSequence, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.testing.assert_close(scout_logits(scout, monkeypatch, lambda arch: arch), scout[2], rtol=1e-6, atol=1e-5)


def test_without_the_shared_expert_scouts_weights_have_no_place(
    scout: tuple[Path, TrainingSequence, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(arch: Architecture) -> Architecture:
        kept = {name: value for name, value in arch.fields.items() if "shared_expert" not in name}
        return replace(arch, fields=kept)

    with pytest.raises(MoeError, match="shared_expert"):
        scout_logits(scout, monkeypatch, change)


class Changed:
    """The miniature with entries of its config.json replaced."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self.entries = entries

    def to_hf(self) -> dict[str, Any]:
        return {**MOE.to_hf(), **self.entries}


def test_configs_as_the_hub_writes_them_are_read() -> None:
    """Scout's has empty lists for defaults, and the rotary base at the top."""
    hf = MOE.to_hf()
    derived = ("no_rope_layers", "layer_types", "moe_layers", "rope_parameters")
    bare = {key: value for key, value in hf.items() if key not in derived}
    bare |= {"no_rope_layers": [], "rope_theta": 10000.0, "rope_scaling": None}
    assert architecture(bare) == architecture(hf)


def test_yarn_has_positions_up_to_its_factor_times_the_original_length() -> None:
    with pytest.raises(ValueError, match=r"YaRN stretches to 64 positions .* but max_position_embeddings is 65"):
        replace(QWEN2, max_position_embeddings=65)


def test_unknown_architectures_and_features_are_named() -> None:
    with pytest.raises(
        MoeError,
        match="'mamba' is not supported; supported are deepseek_v3, glm4_moe, llama, llama4_text, mistral, mixtral, ",
    ):
        architecture({"model_type": "mamba"})
    for family, lacking in {"gemma3_text": "gates of GELU", "olmo3": "windows", "gpt_oss": "sinks"}.items():
        with pytest.raises(MoeError, match=f"'{family}' is not supported .not built: .*{lacking}.*; supported are "):
            architecture({"model_type": family})
    with pytest.raises(MoeError, match="moe_layer_freq=2"):
        architecture({**DEEPSEEK_V3.to_hf(), "moe_layer_freq": 2})
    with pytest.raises(MoeError, match="needs norm_topk_prob"):
        architecture({**GLM4_MOE.to_hf(), "norm_topk_prob": False})
    with pytest.raises(MoeError, match="attention_bias=True"):
        architecture({**DENSE.to_hf(), "attention_bias": True})
    with pytest.raises(MoeError, match="use_sliding_window=True"):
        architecture({**QWEN3.to_hf(), "use_sliding_window": True, "sliding_window": 64})
    with pytest.raises(MoeError, match="sliding_window=64 is not supported, only None"):
        architecture({**MIXTRAL.to_hf(), "sliding_window": 64})
    with pytest.raises(MoeError, match="always weighs 1"):
        architecture({**QWEN3_MOE.to_hf(), "num_experts_per_tok": 1})
    with pytest.raises(MoeError, match="'longrope' is not supported; supported are default, llama3, yarn"):
        architecture({**DENSE.to_hf(), "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}})
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 64}
    with pytest.raises(MoeError, match="lacks or has an unknown 'factor'"):
        architecture({**DENSE.to_hf(), "rope_parameters": yarn})
    with pytest.raises(MoeError, match="'rms_norm_eps'"):
        architecture({k: v for k, v in DENSE.to_hf().items() if k != "rms_norm_eps"})
