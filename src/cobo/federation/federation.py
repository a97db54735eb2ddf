"""The federation: all clients, who of them is present, and the few things that can be asked of them.

    gradients(models, clients, round)   the stochastic gradient of client clients[k] at models[k], for any rows;
                                        with `pairs`, also the products of pair gradients at midpoints
    local_steps(...)                    several SGD steps of each client, pulled toward an anchor
    evaluate(models)                    loss, accuracy or perplexity of each client's model on its test samples

Shapes: n clients present, d trained parameters, m rows asked for, p pairs. Clients are asked for by their position
among those present; data, buffers and keys are those of everyone, present or not. Rows may live in several processes:
those asked for are of clients that are here (`place`), and pairs of any.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cobo import draws
from cobo.compute.accumulated import Accumulated
from cobo.compute.batch import Fields
from cobo.compute.blueprint import Blueprint, BufferPolicy, Buffers, Precision, average_buffers, mean_buffer
from cobo.compute.executor import Choice, Chosen, choose
from cobo.compute.on_demand import Models
from cobo.compute.task import Task
from cobo.federation.answers import Gradients, Products
from cobo.federation.augment import Augmentation, check_images, crop_flip
from cobo.federation.batches import SAMPLES_AT_ONCE, Batches, Indices
from cobo.federation.client import Client, check_clients
from cobo.federation.judge import Judge
from cobo.federation.place import Place
from cobo.federation.samples import unsound
from cobo.federation.targets import check_targets

TOKENS_AT_ONCE = 4096  # in a pass; logits of 50,000 words for so many take 800 MB
ROWS_AT_ONCE = 8 << 20  # bytes of gradients that are not yet where they belong, when models are looped over


class Federation(Place):
    """Clients, their data and buffers, the model's blueprint and the executor.

    `held` says whose rows and samples are here (positions among everyone), if not all are.
    """

    fewest: ClassVar[int] = 2  # clients

    def __init__(
        self,
        clients: Sequence[Client],
        model: nn.Module | Callable[[], nn.Module],
        *,
        task: Task | None = None,
        seed: int = 0,
        batch_size: int | None = 32,
        accumulate: int = 1,
        augment: Augmentation | None = None,
        buffers: BufferPolicy = "local",
        precision: Precision = "float32",
        executor: Choice = "auto",
        models_at_once: int = 40,
        device: str | torch.device = "cpu",
        held: Indices | None = None,
    ) -> None:
        self.clients = check_clients(clients, self.fewest)
        self.everyone = [client.name for client in self.clients]
        self._held = np.arange(len(self.clients)) if held is None else held
        self.attend(self.everyone)
        self.seed, self.policy = seed, buffers
        self.batch_size = None if batch_size is None else accumulate * batch_size
        self.accumulate = accumulate
        self.models_at_once = models_at_once
        self.device = torch.device(device)
        self.computed = 0  # gradients so far
        self.compared = 0  # losses without a gradient so far
        self.blueprint = Blueprint(
            model, task or Task(), seed=seed, policy=buffers, device=self.device, precision=precision
        )
        place: dict[str, Any] = {"dtype": self.blueprint.dtype, "device": self.device}
        self._train = Batches(self.clients, place, augment, self._held)
        self._judge = Judge(self.clients, self.blueprint, place)
        self._at_once = self._in_one_pass(batch_size)
        self._weigh = self.blueprint.task.weights if self.blueprint.task.predicts_tokens else None  # padding is nothing
        trial = self._trial()
        if augment is crop_flip:
            check_images(trial[0])
        check_targets(self.clients, self.blueprint, self._train.layout.build(trial))
        self.blueprint.try_out(trial, self._train.layout)
        self.chosen: Chosen = choose(self.blueprint, self._train.layout, trial, executor)
        if self.chosen.executor.name == "looped":  # activations exist for one model at a time, but rows for all
            row = self.blueprint.size * self.blueprint.start.element_size()
            self.models_at_once = max(1, min(models_at_once, ROWS_AT_ONCE // row))
        # Pair gradients of many batches are taken in passes too where outputs are large, as those of tokens are.
        self._in_passes = accumulate > 1 or self.blueprint.task.predicts_tokens
        if self._in_passes and batch_size is not None:
            self.chosen = self.chosen._replace(
                executor=Accumulated(self.chosen.executor, self._at_once or batch_size, self.blueprint.task.weights)
            )
        self.buffers: Buffers = {
            name: b.expand(len(self.clients), *b.shape).clone() for name, b in self.blueprint.buffers.items()
        }
        self._keys = self.keys("batch")  # of everyone
        self.work = np.zeros(len(self.clients), dtype=np.int64)  # gradients of each client since it was made
        self.unsound = {c.name: (unsound(c.train), unsound(c.test)) for c in self.clients}  # samples

    def attend(self, names: Sequence[str], since: Mapping[str, int] | None = None) -> None:
        """From now on these clients are present, in this order; `since` says from which round on, if not from 0."""
        self.names = list(names)
        self._here = np.array([self.everyone.index(name) for name in names], dtype=np.int64)
        self.mine = np.flatnonzero(np.isin(self._here, self._held))
        self.since = np.array([(since or {}).get(name, 0) for name in names], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def places(self) -> Indices:
        """Where those present are among everyone."""
        return self._here

    def keys(self, purpose: str) -> draws.Keys:
        """One key per client: what is drawn from it depends on seed, purpose and name alone."""
        return np.array([draws.key(self.seed, purpose, name) for name in self.names])

    @property
    def groups(self) -> list[str | int | None]:
        """The true group of each client present, where the user knows it."""
        return [self.clients[k].group for k in self._here]

    @property
    def samples(self) -> Tensor:
        """How many training samples each client present has."""
        return torch.from_numpy(self._train.sizes[self._here])

    @property
    def start(self) -> Tensor:
        """X^0, the rows that are here: all clients start from the same model."""
        return self.blueprint.start.repeat(len(self.mine), 1)

    def gradients(
        self,
        models: Tensor,
        clients: Sequence[int] | None = None,
        round: int | Indices = 0,
        *,
        pairs: Indices | None = None,
        step: int = 0,
        last: bool = True,
        track: bool = True,
        batches: int | None = 1,
        out: Tensor | None = None,
    ) -> Gradients:
        """Gradients of clients[k]'s loss at models[k], and products for `pairs` [p, 2] of positions in `models`.

        The batch of a client follows from its name, the round (one for all, or one for each row) and `step`; that of a
        pair gradient also from the peer's name; it is as large as `batches` of them (and counts as so many
        gradients), or has all samples if that is None. With `track`, running
        statistics move as the policy says, and are shared (if they are) after the `last` step of a round; pair
        gradients never move them. `out` [m, d] receives the rows, if given.
        """
        who = self._found(clients)
        pairs = np.empty((0, 2), dtype=np.int64) if pairs is None else pairs
        rows = torch.empty_like(models) if out is None else out
        of_pairs = round if isinstance(round, int) else round[pairs[:, 0]]
        products = self._products(models, who, pairs, of_pairs, batches, scratch=rows)
        losses = torch.empty(len(who), dtype=models.dtype, device=models.device)
        finite = torch.empty(len(who), dtype=torch.bool, device=models.device)
        keys = draws.combine(self._keys[who], round, step)
        for chunk in self._train.chunks(who, size=self.batch_size, most=self.models_at_once):
            chosen = who[chunk]
            held = {name: b[chosen] for name, b in self.buffers.items()}
            pieces, losses[chunk] = self.chosen.executor.gradients(
                _some(models, chunk), self._train.draw(chosen, keys[chunk], self.batch_size), held, keys[chunk]
            )
            _put(rows, chunk, pieces)
            # A sum is not finite as soon as one of its terms is not.
            finite[chunk] = torch.isfinite(torch.stack([piece.sum(1) for piece in pieces]).sum(0))
            if track and held:
                sound = finite[chunk].nonzero()[:, 0]
                for name, value in held.items():
                    self.buffers[name][torch.from_numpy(chosen).to(sound.device)[sound]] = value[sound]
        if track and last and self.policy == "shared" and self.buffers:
            self._share_buffers(who[finite.cpu().numpy()])
        self._count(who)
        return Gradients(rows, losses, finite, products)

    def products(
        self, models: Tensor, pairs: Indices, round: int | Indices = 0, *, batches: int | None = 1
    ) -> Products:
        """The products for `pairs` alone, of clients whose models are the rows [n, d]; a round for all, or for each."""
        return self._products(models, self._here, pairs, round, batches, scratch=torch.empty_like(models))

    def _products(
        self,
        models: Tensor,
        who: Indices,
        pairs: Indices,
        round: int | Indices,
        batches: int | None,
        *,
        scratch: Tensor,
    ) -> Products:
        """Both clients' gradients at z_ij = (x_i + x_j) / 2, a chunk of pairs at a time: only numbers are kept.

        Midpoints are written into `scratch` [m, d], whose rows have another use only later.
        """
        size = self.pair_batch(batches)
        values = torch.empty(3, len(pairs), dtype=models.dtype, device=models.device)
        i, j = who[pairs[:, 0]], who[pairs[:, 1]]
        asks, asked = self._pair_keys(i, j, round)
        most = max(1, min(len(scratch), self.models_at_once // self._in_a_pass(batches)))  # large ones, few at once
        for chunk in self._train.chunks(i, j, size=size, most=most):
            Z = scratch[: len(chunk)]
            for k, (a, b) in enumerate(pairs[chunk].tolist()):
                torch.lerp(models[a], models[b], 0.5, out=Z[k])
            g_i = self._ask(Z, i[chunk], asks[chunk], size)
            g_j = self._ask(Z, j[chunk], asked[chunk], size)
            values[0, chunk] = sum(torch.linalg.vecdot(g, h) for g, h in zip(g_i, g_j, strict=True))
            values[1, chunk] = sum(torch.linalg.vector_norm(g, dim=1).square() for g in g_i)
            values[2, chunk] = sum(torch.linalg.vector_norm(g, dim=1).square() for g in g_j)
        for asked_of in (i, j):
            self._count(asked_of, self.cost(asked_of, batches))
        return Products(torch.from_numpy(pairs), values[0], values[1].sqrt_(), values[2].sqrt_())

    def _pair_keys(self, i: Indices, j: Indices, round: int | Indices) -> tuple[draws.Keys, draws.Keys]:
        """What the batches of pairs follow from, of those who ask and of those who are asked."""
        asks = draws.combine(self._keys[i], round, self._keys[j], 1)
        return asks, draws.combine(self._keys[j], round, self._keys[i], 2)

    def _share_buffers(self, whose: Indices) -> None:
        """Policy `shared`: those of everyone present become the mean over these clients, if there are any."""
        if len(whose):
            average_buffers(self.buffers, whose, self._here)

    def complete_buffers(self) -> None:
        """Bring buffers up to date that others have moved; all are moved here."""

    def pair_batch(self, batches: int | None) -> int | None:
        """The samples of a pair gradient of so many batches, or None for all that a client has."""
        return None if batches is None or self.batch_size is None else batches * self.batch_size

    def _in_a_pass(self, batches: int | None) -> int:
        """How many batches of samples are in one pass of a pair gradient."""
        if self.batch_size is None or self._in_passes:
            return 1
        return batches or -(-min(int(self._train.sizes[self._here].max()), SAMPLES_AT_ONCE) // self.batch_size)

    def _ask(self, models: Tensor, clients: Indices, keys: draws.Keys, size: int | None) -> list[Tensor]:
        """Gradients in pieces, on batches of `size` samples; on all samples, the mean over passes of a thousand."""
        if size is not None:
            return self._pass(models, clients, keys, self._train.draw(clients, keys, size))
        mean: list[Tensor] = []
        for k, (positions, share) in enumerate(self._train.whole(clients, self._weigh)):
            mine = draws.combine(keys, k) if k else keys
            pieces = self._pass(models, clients, mine, self._train.take(clients, mine, positions))
            pieces = [share.to(piece)[:, None] * piece for piece in pieces]
            mean = [a + b for a, b in zip(mean, pieces, strict=True)] if mean else pieces
        return mean

    def _pass(self, models: Tensor, clients: Indices, keys: draws.Keys, fields: Fields) -> list[Tensor]:
        scratch = {name: b[clients] for name, b in self.buffers.items()}
        return self.chosen.executor.gradients(models, fields, scratch, keys)[0]

    def _found(self, clients: Sequence[int] | None) -> Indices:
        """Where clients (all that are here), given by position among those present, are among everyone."""
        return self._here[self.mine if clients is None else np.asarray(clients, dtype=np.int64)]

    def cost(self, clients: Indices, batches: int | None) -> Indices:
        """As how many gradients a pair gradient of so many batches (or of all samples) counts, for each of everyone."""
        if self.batch_size is None:  # all gradients have all samples
            return np.ones(len(clients), dtype=np.int64)
        if batches is None:
            return -(-self._train.sizes[clients] // self.batch_size)
        return np.full(len(clients), batches)

    def _count(self, who: Indices, each: int | Indices = 1) -> None:
        np.add.at(self.work, who, each)
        self.computed += int(np.sum(np.broadcast_to(each, len(who))))

    def survey(self, models: Tensor, owners: Indices, round: int) -> tuple[Tensor, Tensor]:
        """Z [b, n, d]: gradients of all clients at models [b, d], and which are finite [b, n]; the others are 0.

        But for those of the models' owners, which are known: their place is kept free. Running statistics do not move.
        """
        i, k = np.nonzero(owners[:, None] != np.arange(len(self)))
        answer = self.gradients(models[i], k.tolist(), round, track=False)
        return spread_out(answer, i, k, (len(models), len(self)))

    def losses(
        self, models: Tensor, clients: Sequence[int] | None = None, round: int = 0, *, whole: bool = False
    ) -> Tensor:
        """[c, m]: the loss of each of m clients at every one of c models, on the same data for all models.

        That is the batch on which `gradients` of the round would be taken or, if `whole`, all training samples.
        Running statistics do not move.
        """
        who = self._found(clients)
        keys = draws.combine(self._keys[who], round, 0)
        size = None if whole else self.batch_size
        losses = torch.zeros(len(models), len(who), dtype=models.dtype, device=models.device)
        for chunk in self._train.chunks(who, size=size, most=self.models_at_once):
            for fields, share in self._train.parts(who[chunk], keys[chunk], size, self._weigh):
                for k, row in enumerate(models):
                    held = {name: b[who[chunk]] for name, b in self.buffers.items()}
                    rows = row.expand(len(chunk), -1)
                    losses[k, chunk] += share.to(losses) * self.chosen.executor.losses(rows, fields, held, keys[chunk])
        self.compared += len(models) * int(self.cost(who, None if whole else 1).sum())
        return losses

    def rehearse(self) -> int:
        """Gradients as in a round, of as many clients as go together; how many. Nothing is kept, counted or moved."""
        who = self._found(None)
        chunk = next(self._train.chunks(who, size=self.batch_size, most=self.models_at_once))
        who = who[chunk if self.chosen.executor.name == "vectorised" else chunk[:1]]
        rows = self.blueprint.start.expand(len(who), -1)
        self._ask(rows, who, draws.combine(self._keys[who], 0, 0), self.batch_size)
        return len(who)

    def rehearse_evaluation(self) -> int:
        """A model judged on a part of a client's test samples; how many. Nothing is kept."""
        return self._judge.rehearse(self.buffers, self.batch_size)

    def activations(self, batches: int | None = 1) -> int:
        """The bytes that autograd keeps while the gradients are computed that go together.

        The most of own gradients and of pair gradients of so many batches, or of all samples.
        """
        models = min(len(self), self.models_at_once) if self.chosen.executor.name == "vectorised" else 1
        each = self._in_a_pass(batches)
        together = max(models, each * max(1, min(models, self.models_at_once // each)))
        return together * self.blueprint.activations(self._trial(), self._train.layout)

    def _trial(self) -> Fields:
        return self._train.trial(self._at_once, self.seed)

    def _in_one_pass(self, batch_size: int | None) -> int | None:
        """The samples of a pass: a batch or, of tokens, which have large outputs, as many of it as fit."""
        if batch_size is None or not self.blueprint.task.predicts_tokens:
            return batch_size
        return max(1, min(batch_size, TOKENS_AT_ONCE // max(1, self._train.trial(1, self.seed)[0][0].numel())))

    def local_steps(
        self,
        models: Tensor,
        clients: Sequence[int] | None = None,
        round: int = 0,
        *,
        steps: int,
        lr: float,
        pull: Tensor | None = None,
        anchors: Tensor | None = None,
        track: bool = True,
    ) -> Tensor:
        """Models after `steps` of x <- x - lr (g + pull_i x - anchor_i), each client on its own.

        With pull_i = rho sum_k w_ik and anchor_i = rho sum_k w_ik x_k this is CoBo's step with peers held
        still; client i never needs a peer's model, only the sum.
        """
        X = models.clone()
        for step in range(steps):
            G = self.gradients(X, clients, round, step=step, last=step == steps - 1, track=track).rows
            if pull is not None:
                G.addcmul_(pull[:, None], X)
            if anchors is not None:
                G.sub_(anchors)
            X.sub_(G, alpha=lr)
        return X

    def evaluate(self, models: Tensor, clients: Sequence[int] | None = None) -> list[dict[str, float]]:
        """For each client: mean loss, and accuracy (percent) or perplexity, over its whole test set, if it has one."""
        return self._judge.evaluate(models, self._found(clients).tolist(), self.buffers)

    def build(self, models: Tensor, clients: Indices | None = None) -> Models:
        """A ready module for each of these clients (or all present), by name, with a copy of its row."""
        names = self.names if clients is None else [self.names[k] for k in clients]
        numbers = {
            n: self.blueprint.numbers(row.to(self.device), self.buffers_of(n))
            for n, row in zip(names, models, strict=True)
        }
        return Models(numbers, self.blueprint.build)

    def buffers_of(self, name: str) -> Buffers:
        """The buffers of one client, present or not."""
        place = self.everyone.index(name)
        return {b: rows[place] for b, rows in self.buffers.items()}

    def welcome(self, client: int, state: Mapping[str, Tensor]) -> None:
        """A newcomer's buffers are those of a state_dict."""
        for name, rows in self.buffers.items():
            rows[self._here[client]] = state[name].to(rows)

    def inherit(self, client: int, peers: Sequence[bool]) -> None:
        """A newcomer's buffers are the mean of those of some of the n clients, if there are any."""
        whose = torch.from_numpy(self._here[np.asarray(peers, dtype=bool)])
        for rows in self.buffers.values() if len(whose) else ():
            rows[self._here[client]] = mean_buffer(rows[whose.to(rows.device)])


def spread_out(answer: Gradients, i: Indices, k: Indices, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Gradients at places (i, k) of [*shape, d], 0 where not finite; and which are finite [*shape]."""
    Z = answer.rows.new_zeros(*shape, answer.rows.shape[1])
    finite = torch.zeros(shape, dtype=torch.bool, device=Z.device)
    Z[i, k], finite[i, k] = answer.rows.nan_to_num(0, 0, 0), answer.finite
    return Z, finite


def _some(models: Tensor, chunk: Indices) -> Tensor:
    """Rows of a chunk, as a view when they are consecutive."""
    if chunk[-1] - chunk[0] + 1 == len(chunk):
        return models[chunk[0] : chunk[-1] + 1]
    return models[chunk]


def _put(rows: Tensor, chunk: Indices, pieces: list[Tensor]) -> None:
    if chunk[-1] - chunk[0] + 1 == len(chunk):
        torch.cat(pieces, dim=1, out=rows[chunk[0] : chunk[-1] + 1])
    else:
        rows[chunk] = torch.cat(pieces, dim=1)
