"""Memory, exchanges and FLOPs are counted right: against tensors kept by hand, plain sums and real products."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from scalelab.errors import LabError
from scalelab.hardware import device
from scalelab.rehearse.collectives import Collectives
from scalelab.rehearse.flops import Flops, counter
from scalelab.rehearse.memory import Memory
from scalelab.rehearse.ranks import all_replaced, other_ranks
from scalelab.rehearse.simulate import Answers, SimulatedDevice, simulated
from scalelab.rehearse.watching import Watching

pytestmark = pytest.mark.slow

BLOCK = 512


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["make", "view", "drop"]), st.integers(1, 2000)), max_size=30))
def test_live_memory_is_that_of_the_tensors_that_live(actions: list[tuple[str, int]]) -> None:
    """Views share memory, in-place operators make none, and what nobody holds is gone."""
    memory, most = Memory("cpu"), 0

    held: list[torch.Tensor] = []

    def live() -> int:
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in held}
        return sum(-(-size // BLOCK) * BLOCK for size in storages.values())

    with FakeTensorMode(), Watching(memory=memory), memory.phase() as peak:
        for action, number in actions:
            if action == "make":
                held.append(torch.empty(number))
            elif held and action == "view":
                held.append(held[number % len(held)].view(-1).mul_(2)[: 1 + number // 2])
            elif held:
                del held[number % len(held)]
            most = max(most, live())
        with memory.phase() as end:
            assert end.bytes == live()
        assert peak.bytes == most


def test_kinds_are_followed_to_their_end() -> None:
    memory = Memory("cpu")
    with FakeTensorMode(), Watching(memory=memory):
        weight, other = torch.empty(BLOCK), torch.empty(BLOCK)
        memory.classify("weights", [weight])
        with memory.phase() as peak:
            del other
            made = torch.empty(2 * BLOCK)
        del weight, made
    assert peak.kinds == {"weights": 4 * BLOCK, "activations": 8 * BLOCK}
    with memory.phase() as end:
        assert end.kinds == {"weights": 0, "activations": 0}


@pytest.fixture
def four_ranks() -> Iterator[Collectives]:
    collectives = Collectives()
    with all_replaced(other_ranks()), FakeTensorMode():
        dist.init_process_group("nccl", rank=1, world_size=4)
        try:
            collectives.groups[dist.group.WORLD.group_name] = "all"
            with Watching(collectives=collectives):
                yield collectives
        finally:
            dist.destroy_process_group()


def test_exchanges_are_counted_by_micro_batch_and_by_step(four_ranks: Collectives) -> None:
    small, large = torch.empty(8), torch.empty(32)
    four_ranks.per_micro_batch = True
    dist.all_gather_into_tensor(large, small)
    dist.all_gather(list(large.chunk(4)), small)
    dist.all_to_all_single(torch.empty(10), torch.empty(6), [1, 2, 3, 4], [3, 1, 1, 1])
    four_ranks.per_micro_batch = False
    dist.reduce_scatter_tensor(small, large)
    dist.all_reduce(small)
    found = {(e.group, e.op): (e.calls, e.bytes) for e in four_ranks.of_a_step(rehearsed=1, micro_batches=5)}
    assert found == {
        ("all × 4", "all-gather"): (10, 10 * 32 * 4),
        ("all × 4", "all-to-all"): (5, 5 * 10 * 4),
        ("all × 4", "reduce-scatter"): (1, 32 * 4),
        ("all × 4", "all-reduce"): (1, 8 * 4),
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dist.all_gather_into_tensor(torch.empty(31), torch.empty(8)), "all-gather over 4 ranks of 8 elements"),
        (lambda: dist.reduce_scatter_tensor(torch.empty(8), torch.empty(33)), "reduce-scatter over 4 ranks"),
        (
            lambda: dist.all_to_all_single(torch.empty(9), torch.empty(4), [1, 2, 3, 4], [1, 1, 1, 1]),
            "cuts an output of 9 rows",
        ),
        (lambda: dist.all_to_all_single(torch.empty(4), torch.empty(5)), "an input of 5 rows into equal parts"),
    ],
)
def test_sizes_at_which_nccl_would_stop_are_refused(
    four_ranks: Collectives, call: Callable[[], object], said: str
) -> None:
    with pytest.raises(LabError, match=said):
        call()


def test_products_of_stacked_experts_count_every_row_once() -> None:
    """FLOPs equal those of the same rows through matrices one by one, forward and backward."""
    rows, experts, inner, out = 96, 4, 16, 48
    with FakeTensorMode():
        tokens = torch.empty(rows, inner, dtype=torch.bfloat16, requires_grad=True)
        weights = torch.empty(experts, out, inner, dtype=torch.bfloat16, requires_grad=True)
        ends = torch.empty(experts, dtype=torch.int32)
        with counter() as together:
            torch.nn.functional.grouped_mm(tokens, weights.transpose(1, 2), offs=ends).relu().sum().backward()
        with counter() as apart:
            parts = [part @ weight.T for part, weight in zip(tokens.chunk(experts), weights, strict=True)]
            torch.cat(parts).relu().sum().backward()
    assert together.get_total_flops() == apart.get_total_flops() == 3 * 2 * rows * inner * out


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (16, 64)])
def test_causal_attention_counts_the_pairs_that_are_seen(queries: int, keys: int) -> None:
    heads, size = 4, 8
    with FakeTensorMode():
        q = torch.empty(queries, heads, size, requires_grad=True)
        k, v = (torch.empty(keys, heads, size, requires_grad=True) for _ in "kv")
        borders = torch.empty(2, dtype=torch.int32)
        with counter() as flops:
            varlen_attn(q, k, v, borders, borders, queries, keys, window_size=(-1, 0)).sum().backward()
    seen = sum(keys - queries + i + 0.5 for i in range(queries))  # the diagonal counts half
    assert flops.get_total_flops() == (2 + 5) * 2 * seen * heads * size


@pytest.mark.parametrize(("longest", "pieces"), [(48, [48, 16]), (32, [32, 16, 16])])
def test_sequences_of_other_lengths_are_counted_by_their_own(longest: int, pieces: list[int]) -> None:
    """Lengths are known, and longer sequences than attention takes at once are cut into chunks."""
    with FakeTensorMode():
        q, k, v = (torch.empty(64, 4, 8, requires_grad=True) for _ in "qkv")
        borders = torch.empty(len(pieces) + 1, dtype=torch.int32)
        with counter([48, 16]) as flops:
            varlen_attn(q, k, v, borders, borders, longest, longest, window_size=(-1, 0)).sum().backward()
    assert flops.get_total_flops() == (2 + 5) * 2 * sum(piece**2 / 2 for piece in pieces) * 4 * 8


def test_flops_are_summed_as_torchs_own_counter_sums_them() -> None:
    flops = Flops()
    with FakeTensorMode(), counter() as wanted, Watching(flops=flops):
        layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4, bias=False))
        q, k, v = (torch.empty(1, 2, 6, 8, requires_grad=True) for _ in "qkv")
        rows = torch.nn.functional.scaled_dot_product_attention(q, k, v).reshape(-1, 8)
        torch.bmm(rows.view(2, 6, 8), rows.view(2, 8, 6)).sum().add(layers(rows).sum()).backward()
    assert flops.total == wanted.get_total_flops() > 0


def test_a_number_of_a_real_tensor_is_its_own_and_that_of_a_fake_one_is_1() -> None:
    """vLLM's matrices free, by such a number, the memory behind them whenever Python clears them away."""
    real, world = torch.tensor(2**40 + 3), SimulatedDevice(device("h100"))
    with simulated(world), Watching(Answers(world)):
        assert torch.empty(1, dtype=torch.int64).item() == 1
        assert real.item() == 2**40 + 3
