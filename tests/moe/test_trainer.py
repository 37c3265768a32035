"""Training on Megatron equals plain torch on transformers' model, whatever the packing; faults are named."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from moe.errors import MoeError
from moe.model.decoder import DecoderConfig
from moe.model.init import InitialWeights
from moe.sequences import TrainingSequence
from moe.settings import Layout, OptimizerConfig, TrainerSetup
from moe.train.trainer import Trainer
from moe.weights.shards import Snapshot
from tests.helpers.moe_models import DENSE, MOE, OPTIMIZER, QWEN3_MOE, batch, rendezvous, trainer, weighted, weights

pytestmark = pytest.mark.slow


class PlainTorch:
    """transformers' model, one sequence at a time, torch's clipping and AdamW."""

    def __init__(self, folder: Path, cls: type[transformers.PreTrainedModel]) -> None:
        self.model = cls.from_pretrained(folder, attn_implementation="eager")
        self.model.model.embed_tokens.padding_idx = None  # else token 0 would not learn
        groups = [
            {"params": [p for p in self.model.parameters() if (p.dim() > 1) == decays], "weight_decay": 0.01 * decays}
            for decays in (True, False)
        ]
        self.adam = torch.optim.AdamW(groups, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)

    def step(self, sequences: list[TrainingSequence], lr: float) -> tuple[float, float]:
        loss = torch.zeros(())
        for s in sequences:
            tokens = torch.from_numpy(s.tokens_T).long()
            logp = self.model(input_ids=tokens[None]).logits[0].log_softmax(-1)[:-1].gather(1, tokens[1:, None])
            loss = loss - (logp[:, 0] * torch.from_numpy(s.extras["weight"])[1:]).sum()
        self.adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMIZER.clip_grad)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        return loss.item(), norm.item()


@pytest.mark.parametrize(
    ("model", "cls"),
    [(MOE, transformers.Llama4ForCausalLM), (DENSE, transformers.LlamaForCausalLM)],
    ids=["moe", "dense"],
)
def test_steps_equal_plain_torch(
    make: Callable[..., Trainer], model: DecoderConfig, cls: type[transformers.PreTrainedModel], tmp_path: Path
) -> None:
    ours = make(model)
    ours.save_hf(tmp_path)
    theirs = PlainTorch(tmp_path, cls)
    for step in range(4):
        result = ours.train_step(batch(step), weighted)
        loss, norm = theirs.step(batch(step), OPTIMIZER.lr * min(1, (step + 1) / OPTIMIZER.warmup_steps))
        assert result.loss == pytest.approx(loss, abs=1e-5)
        assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    assert ours.version == 4
    state = theirs.model.state_dict()
    for name, tensor in ours.export_weights():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=2e-5)


def test_splitting_into_micro_batches_changes_nothing(make: Callable[..., Trainer]) -> None:
    told = []
    for budget in (60, 10**6):
        one = make(MOE, tokens_per_micro_batch=budget)
        told.append((one.train_step(batch(0), weighted), weights(one)))
    (a, weights_a), (b, weights_b) = told
    assert a.loss == pytest.approx(b.loss, abs=1e-6)
    assert a.metrics == pytest.approx(b.metrics, abs=1e-5)
    for name, tensor in weights_a.items():
        torch.testing.assert_close(tensor, weights_b[name], rtol=0, atol=1e-5)


def test_metrics_are_put_together_as_their_names_say(make: Callable[..., Trainer]) -> None:
    one = make(MOE)
    sequences = batch(0)
    metrics = one.train_step(sequences, weighted).metrics
    with pytest.raises(MoeError, match="'loss' must end in _sum, _max or _min"):
        one.train_step(sequences, lambda lp, ent, ex: (lp.sum(), {"loss": lp.sum()}))
    every = np.concatenate(make(MOE).logprobs(sequences))
    assert metrics["logprob_min"] == pytest.approx(every.min(), abs=1e-5)
    assert metrics["weight_sum"] == pytest.approx(sum(s.extras["weight"].sum() for s in sequences), abs=1e-6)
    assert 1 <= metrics["moe_imbalance"] <= metrics["moe_imbalance_max"] <= MOE.num_local_experts


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make: Callable[..., Trainer]) -> None:
    one = make(MOE)
    before = weights(one)
    result = one.train_step(batch(0), lambda lp, ent, ex: ((lp * float("inf")).sum(), {}))
    assert result.skipped
    assert (one.version, one.skipped) == (0, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.export_weights())
    assert not one.train_step(batch(0), weighted).skipped
    assert (one.version, one.skipped) == (1, 1)


def test_learning_rate_may_change_every_step(make: Callable[..., Trainer]) -> None:
    one = make(MOE)
    before = weights(one)
    one.train_step(batch(0), weighted, lr=0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.export_weights())
    one.train_step(batch(0), weighted, lr=1e-3)
    name = "model.embed_tokens.weight"
    moved = (weights(one)[name] - before[name]).abs().max()
    assert 1e-4 < moved < 2e-3


def test_a_loss_of_the_entropy_alone_is_refused(make: Callable[..., Trainer]) -> None:
    one = make(DENSE)
    with pytest.raises(MoeError, match="carries no gradient"):
        one.train_step(batch(0), lambda logprobs_T, entropy_T, extras: (entropy_T.mean(), {}))


def test_bf16_learns_as_fp32_does(make: Callable[..., Trainer]) -> None:
    told = {}
    for dtype in ("float32", "bfloat16"):
        one = make(MOE, dtype=dtype)
        told[dtype] = [one.train_step(batch(0), weighted).loss for _ in range(6)]
        assert one.logprobs(batch(0))[0].dtype == np.float32
    np.testing.assert_allclose(told["bfloat16"], told["float32"], atol=0.05)
    assert told["bfloat16"][-1] < told["bfloat16"][0] - 0.1


def test_balancing_spreads_tokens_over_the_experts(make: Callable[..., Trainer]) -> None:
    told = {}
    for balance in (0.0, 1.0):
        one = make(MOE, balance=balance, optimizer=OptimizerConfig(lr=3e-3, warmup_steps=0))
        told[balance] = [one.train_step(batch(seed), weighted).metrics["moe_imbalance"] for seed in range(16)]
    assert told[0.0][0] == told[1.0][0]
    assert told[1.0][-1] < 0.8 * told[0.0][-1]


def test_weights_go_out_and_in_bit_for_bit(make: Callable[..., Trainer], tmp_path: Path) -> None:
    one = make(MOE, seed=1)
    out = weights(one)
    one.save_hf(tmp_path)
    published = Snapshot([one.publish(1)])
    other = make(MOE, seed=2)
    assert any(not torch.equal(tensor, out[name]) for name, tensor in other.export_weights())
    for source in (tmp_path, out, published.weights(one.hf_config)):
        other.load_weights(make_zero(out))
        other.load_weights(source)
        assert all(torch.equal(tensor, out[name]) for name, tensor in other.export_weights())


def test_a_trainer_that_is_given_weights_draws_none(
    make: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(MOE, seed=1)
    out = weights(one)
    one.save_hf(tmp_path)
    monkeypatch.setattr(InitialWeights, "rows", lambda self, name, *stretch: pytest.fail(f"drew {name}"))
    started = make(MOE, weights=tmp_path)
    assert all(torch.equal(tensor, out[name]) for name, tensor in started.export_weights())


def make_zero(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def test_wrong_weights_are_named(make: Callable[..., Trainer]) -> None:
    one = make(MOE)
    out = weights(one)
    norm = "model.norm.weight"
    with pytest.raises(MoeError, match=r"lack model\.norm\.weight"):
        one.load_weights({name: tensor for name, tensor in out.items() if name != norm})
    with pytest.raises(MoeError, match=r"hold extra\.weight"):
        one.load_weights({**out, "extra.weight": torch.zeros(1)})
    with pytest.raises(MoeError, match=r"model.norm.weight has shape \(7,\), but this model needs \(48,\)"):
        one.load_weights({**out, norm: torch.zeros(7)})
    with pytest.raises(MoeError, match="holds no"):
        one.load_weights("/nowhere")


def test_bad_input_is_named(make: Callable[..., Trainer]) -> None:
    with pytest.raises(MoeError, match=r"layout\.expert=3 does not divide 16 experts: nearest valid expert=2"):
        trainer(MOE, world=3, layout=Layout(expert=3))
    with pytest.raises(MoeError, match="did not meet the others"):
        trainer(MOE, world=2, layout=Layout(expert=2), deadline=1.0, at=rendezvous())
    one = make(DENSE)
    with pytest.raises(MoeError, match="close"):
        trainer(DENSE)
    with pytest.raises(MoeError, match="there are no sequences"):
        one.train_step([], weighted)
    with pytest.raises(MoeError, match="exceeds max_position_embeddings = 4096"):
        one.logprobs([TrainingSequence(np.zeros(5000, np.int32))])


def test_config_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"'float32' or 'bfloat16'.*input_value='fp8'"):
        TrainerSetup(dtype="fp8")  # type: ignore[arg-type]  # no type of the trainer's
    with pytest.raises(ValueError, match="multiple of"):
        replace(MOE, num_attention_heads=3, num_key_value_heads=2)
    with pytest.raises(ValueError, match=r"expert\n.*greater than 0"):
        Layout(expert=0)


@pytest.mark.parametrize("model", [MOE, QWEN3_MOE], ids=["sigmoid", "softmax"])
def test_the_z_loss_is_the_mean_squared_log_sum_of_the_logits(
    make: Callable[..., Trainer], model: DecoderConfig
) -> None:
    one = make(model, z_loss=0.3)
    router, padding_T = one.model.routers[0], torch.arange(10) >= 8
    router.step_tokens = 40
    logits_TE = torch.randn(10, 1, router.num_experts, generator=torch.Generator().manual_seed(0)).requires_grad_()
    probs, _ = router.routing(logits_TE, padding_T.unsqueeze(1))
    (probs * 0).sum().backward()
    written_out = logits_TE.detach().squeeze(1).requires_grad_()
    (0.3 / 40 * sum(torch.log(row.exp().sum()) ** 2 for row in written_out[:8])).backward()
    torch.testing.assert_close(logits_TE.grad.squeeze(1), written_out.grad)


def test_frozen_routers_stay_as_they_are_while_all_else_learns(make: Callable[..., Trainer]) -> None:
    one = make(MOE, freeze_router=True)
    before = weights(one)
    one.train_step(batch(0), weighted)
    still = {name for name, tensor in one.export_weights() if torch.equal(tensor, before[name])}
    assert still == {name for name in before if "router" in name}


def test_a_closed_trainer_leaves_neither_threads_nor_modules_behind(make: Callable[..., Trainer]) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        threads = len(list(Path("/proc/self/task").iterdir()))
        return threads, sum(isinstance(thing, torch.nn.Module) for thing in gc.get_objects())

    def live() -> tuple[int, int]:
        ours = trainer(MOE)
        ours.train_step(batch(0), weighted)
        ours.close()
        return held()

    first = live()
    assert [live() for _ in range(3)] == [first] * 3
