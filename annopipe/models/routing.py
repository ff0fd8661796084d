"""Where tokens go when the router does not decide it: evenly, or skewed as in real training, the same in every run.

    config = dataclasses.replace(MixtralConfig.tiny(), routing=Routing("skewed", exponent=1.2, idle=1, seed=3))

Freshly initialised routers spread tokens almost evenly; those of real training do not, and how well communication hides
depends on it. So a model's config names its routing:

    learned     the router's scores choose.
    balanced    experts are dealt like cards, token after token: the numbers of tokens of two experts differ by at most
                one, on each rank and over the whole group.
    skewed      each token draws its ``top_k`` experts without replacement, expert number i in order of popularity with
                a share proportional to ``1 / i ** exponent`` (Zipf), and ``idle`` experts never. With ``top_k`` of 1
                the shares are exact; with more, popular experts are less far ahead, since a token visits each once: of
                8 experts with exponent 1 the first and last get 37% and 5% of all visits if ``top_k`` is 1, 32% and 5%
                if it is 2.

In all three the router's scores weigh the experts' results, so its weights get gradients, and the numbers of tokens
stay values that the graph computes: one capture serves any exponent, number of idle experts and seed (buffers of the
router hold them). Which experts are popular differs from layer to layer and depends on ``seed`` and the router's name
only. What a token draws depends on these, on the signs of its values and on its place in the batch, where the ranks of
an expert-parallel group hold equal parts in rank order: so the number of ranks does not matter.
Places are counted from the start of what the router is called with: a batch cut into microbatches or nano-batches is
routed piece by piece, otherwise than the whole.
"""

import dataclasses
import hashlib
from typing import Literal, get_args

import torch
from torch import Tensor

from annopipe.errors import GraphError

__all__ = ["Routing", "RoutingKind", "deal", "draw"]

RoutingKind = Literal["learned", "balanced", "skewed"]

_SIGNS = 32  # how many of a token's values take part in its draw
_ODD = (0x2545F4914F6CDD1D, 0x1B873593CC9E2D51)  # odd, below 2**63: multiplying by them loses no bit


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """Which experts tokens visit; the kinds are described in ``annopipe.models.routing``.

    kind: learned, balanced or skewed.
    exponent: skewed: how steeply shares fall; 0 is even on average, 1 gives the first of 8 experts 37%.
    idle: skewed: how many experts get no token at all.
    seed: which experts are popular or idle, and what tokens draw.

    >>> [round(share, 2) for share in Routing("skewed", exponent=1.0, idle=1).shares(4)]
    [0.55, 0.27, 0.18, 0.0]
    >>> Routing("random")
    Traceback (most recent call last):
    annopipe.errors.GraphError: Routing: kind is 'random'; it must be one of learned, balanced, skewed
    """

    kind: RoutingKind = "learned"
    exponent: float = 1.0
    idle: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(RoutingKind):
            raise GraphError(f"Routing: kind is {self.kind!r}; it must be one of {', '.join(get_args(RoutingKind))}")
        if not 0 <= self.exponent < float("inf"):
            raise GraphError(f"Routing: exponent is {self.exponent!r}; it must be finite and not negative")
        for name in ("idle", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or (name == "idle" and value < 0):
                raise GraphError(f"Routing: {name} is {value!r}; idle is a number of experts, seed any integer")

    def shares(self, experts: int) -> tuple[float, ...]:
        """Shares of a token's first draw by popularity, most popular first; they add up to 1."""
        used = experts - self.idle
        weights = [(place + 1) ** -self.exponent for place in range(used)]
        return tuple(weight / sum(weights) for weight in weights) + (0.0,) * self.idle

    def order(self, experts: int, router: str) -> Tensor:
        """The experts in order of popularity, int64 [experts]: another order for every name of a router."""
        return torch.randperm(experts, generator=torch.Generator().manual_seed(_key(self.seed, router)))

    def salt(self, router: str) -> int:
        """What tells the draws of one router from those of another; below 2**62."""
        return _key(self.seed, f"{router} draws") >> 2


def deal(order: Tensor, tokens: int, top_k: int, first: int) -> Tensor:
    """The balanced choice: experts in turn, ``top_k`` for each token.

    Args:
        order: int64 [experts], the order in which experts are dealt.
        tokens, first: how many tokens, and the number of the first one in the batch of the whole group.
        top_k: at most the number of experts.

    Returns:
        int64 [tokens, top_k].

    >>> deal(torch.tensor([2, 0, 1]), tokens=2, top_k=2, first=0).tolist()
    [[2, 0], [1, 2]]
    """
    slots = torch.arange(first * top_k, (first + tokens) * top_k, device=order.device)
    return order[slots % order.shape[0]].view(tokens, top_k)


def draw(h: Tensor, shares: Tensor, salt: Tensor, first: int) -> Tensor:
    """The skewed choice as scores: a token's ``k`` highest are ``k`` experts drawn without replacement by their shares.

    Expert e arrives after a waiting time that is exponential with rate ``shares[e]``, and the first to arrive are
    drawn; the score is the negative waiting time, minus infinity for experts without a share.

    Args:
        h: [tokens, hidden], of which only signs matter.
        shares: float64 [experts].
        salt: int64 scalar.
        first: number of the first token in the batch of the whole group.

    Returns:
        float64 [tokens, experts].
    """
    signs = (h[:, :_SIGNS] > 0).long()
    bits = (signs << torch.arange(signs.shape[1], device=h.device)).sum(1)
    token = torch.arange(first, first + h.shape[0], device=h.device)
    key = _scrambled(bits * _ODD[0] + token + salt)
    number = _scrambled(key.unsqueeze(1) + torch.arange(shares.shape[0], device=h.device))
    uniform = ((number & (2**53 - 1)).double() + 0.5) * 2.0**-53
    return uniform.log() / shares


def _scrambled(x: Tensor) -> Tensor:
    """Another int64 for each int64, such that near ones become far: the steps of splitmix64, on signed numbers."""
    for factor in _ODD:
        x = (x ^ ((x >> 31) & (2**33 - 1))) * factor
    return x ^ ((x >> 31) & (2**33 - 1))


def _key(seed: int, text: str) -> int:
    """A number below 2**64 that depends on seed and text only."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest(), "little")
