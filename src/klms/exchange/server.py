"""The server's side of the exchange: the bytes for each client, and what the client's answer means.

    server = klms.Server(model, bits_per_parameter=1)
    request = server.request("hospital 3")            # bytes: the steps that this client lacks, and how to answer
    trained = server.receive("hospital 3", reply)     # its arrays, decoded; a typed error if the reply does not count
    server.step(average)                              # after any kind of aggregation: the next model

`server.model` is the model to which updates are added; aggregate relative to it. Clients train at `server.view`, the
model that they decode. Usually the two are the same: the error of a step becomes part of the model, and the model stays
right on average, since steps are unbiased. They differ after a model was coded from nothing: after the first model, and
after jumps for clients that take part rarely (`held.py`).
"""

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal

import numpy as np

from klms.compressors.arguments import check_model, like_held, message_bytes, named_arrays, number
from klms.compressors.base import Vector
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.compressors.trellis import TrellisSettings, product
from klms.container import Array, Arrays, describe, grouped, joined, read_arrays, write_arrays
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync, SideInformationMismatch
from klms.exchange import reply as replies_module
from klms.exchange.broadcast import ANCHOR, Sender, Trail
from klms.exchange.held import Held, jump, lead
from klms.exchange.model import Apart
from klms.exchange.model_steps import ModelSteps
from klms.exchange.policy import AUTO, ArrayBits, CompressionPolicy
from klms.exchange.rate_control import RoundQuality
from klms.exchange.rates import Rate, RateArguments, RateRule
from klms.exchange.reply import Expected, Reply
from klms.exchange.request import RequestBody, Terms, agreement, changed
from klms.exchange.round_rates import RoundRates
from klms.exchange.uplink import Ask, Uplink
from klms.frame import Frame, Kind, LostAgain, WrongRound, digest_of
from klms.numerics.checks import check_name, integer

log = logging.getLogger("klms")
_MOST_ROUNDS = (1 << 32) - 1  # the round of a frame has 32 bits
_CLAIMS = 3  # to have lost the model that are believed at once: a machine may restart again and again
_LARGEST_WEIGHT = 1e15  # so that sums of weights and of their squares stay finite


@dataclass(frozen=True)
class Base:
    """Arrays to which an update is added: the model, arrays that travel alongside the requests, or both."""

    arrays: Arrays
    digests: tuple[bytes, ...]
    """Digests of these arrays as clients hold them."""
    coded: bool
    """Whether the model is among the arrays."""


@dataclass
class Sent:
    """The server's record of the requests to one client."""

    expected: dict[tuple[int, int], Expected] = field(default_factory=dict)
    """Answers that the client has not sent yet, by the round and the number of the request."""
    answered: tuple[int, int] = (-1, -1)
    """Round and number of the latest request that the client is known to have received."""
    terms: Terms = field(default_factory=dict)
    """The terms that the client held after that request."""
    sent_since: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each term that later requests held, the last of these requests. They may not have arrived."""
    snapshot_round: int = -1
    """The round in which the client last turned out not to hold the model; -1 for never."""
    claims: int = 0
    """Number of times that the client claimed not to hold the model."""

    def reached(self, request: tuple[int, int], terms: Terms) -> bool:
        """Record that the client received a request; return False if it has already answered a later request."""
        if request <= self.answered:
            return False
        self.answered = request
        self.terms = terms
        self.sent_since = {name: last for name, last in self.sent_since.items() if last > request}
        return True

    def forget_terms(self) -> None:
        """Record that the client holds no terms, so that the next request has all of them."""
        self.terms = {}
        self.sent_since = {}


class Server:
    """Exchanges models and updates with any number of `Client`s at few bits per parameter, over any transport.

    `model` is a dictionary of arrays. If no rate is given, the server chooses the rates of both directions, round by
    round, so that their noise does no more harm than a `quality` allows (`klms.exchange.quality`): 1 is the default,
    and 2 allows half the harm. `bits_per_parameter` sets the rate of whole messages in both directions instead; `up`
    and `down` set the two rates separately, and with `down=32` the model is sent unchanged. Each may be a function of
    the round, and `up` also of the client: `lambda round, client: ...`. `array_bits` sets other rates for some arrays
    of the updates, by patterns of their names or by a function. Instead of all these, `budget` sets the bytes per round
    for all clients and both directions, and `rates` takes a rule of your own, a `klms.RateRule`.

    `scheme` names the scheme that codes the updates, and `settings` are its settings; `auto` is the scheme with the
    smallest error. `step` multiplies decoded updates: schemes that send only signs need it. With `replies="updates"`,
    clients answer with differences instead of trained arrays. Replies that are up to `late` rounds late are still
    accepted: they are added to the model of the current round, and `Reply.round` is the round of their request. With
    `client_secrets`, replies are encrypted so that only the server can read them.

    The shared randomness is a function of `(seed, round)`. Without a `seed`, every start draws a new one. With a
    `seed`, a server that starts anew must be given the number of rounds before it as `rounds_before`;
    `Server.restored(state, ...)` does not need it.
    """

    def __init__(
        self,
        model: Mapping[str, Any] | None = None,
        *,
        scheme: str = AUTO,
        bits_per_parameter: Rate | None = None,
        up: Rate | None = None,
        down: Rate | None = None,
        array_bits: ArrayBits | None = None,
        budget: Rate | None = None,
        quality: float | None = None,
        rates: RateRule | None = None,
        step: float | None = None,
        replies: Literal["weights", "updates"] = "weights",
        seed: int | None = None,
        rounds_before: int = 0,
        late: int = 0,
        client_secrets: bool = False,
        **settings: object,
    ) -> None:
        check_name("scheme", scheme, [AUTO, *UPDATE_SCHEMES])
        _check_names(scheme, settings)
        _check(scheme, step, replies, seed, rounds_before)
        self.scale = 1.0 if step is None else step
        self.late = integer("late", late, 0, _MOST_ROUNDS)
        self.round = rounds_before + 1
        """Number of this round. Keys and rates depend on it, and it never repeats."""
        self.clients = 0
        """Number of clients in a round, for a budget; by default, the number asked for updates of the last model."""
        self._before = self.round if rounds_before else 0  # at most one model per earlier round, and the last model
        self._key = None
        overhead = replies_module.OVERHEAD
        if client_secrets:
            from klms.exchange.sealing import OVERHEAD, ServerKey

            self._key = ServerKey()
            overhead += OVERHEAD
        named = (bits_per_parameter, up, down, array_bits, budget, quality, rates)
        rule = RateArguments(scheme, bool(settings), *named).rule()
        self.rates = RoundRates(rule, scheme, settings, array_bits, overhead)
        """The rates of both directions, and their measured effect."""
        self.rates.check(self.round)
        drawn = secrets.randbits(63) if seed is None else seed
        public = b"" if self._key is None else self._key.public
        self.uplink = Uplink(drawn, public, replies == "updates")
        self.held: Held[Arrays] = Held({})
        self._steps: ModelSteps | None = None
        self._wanted = b""  # digest of the latest model that clients were led to
        self._sender: Sender | None = None
        self._sent: dict[str, Sent] = {}
        self._number = 0
        self._asks: dict[tuple[object, ...], Ask] = {}
        self._asked: set[str] = set()
        self._lags: list[int] = []
        self._partial = False  # whether the last reply left arrays out, so that its noise is not measured
        self.uplink_bytes = 0
        """Bytes of all accepted replies since the start."""
        self.downlink_bytes = 0
        """Bytes of all requests since the start."""
        if model is not None:
            self.step(model)
            self.round = rounds_before + 1

    @property
    def sealed(self) -> bool:
        """Whether only this server can read replies."""
        return self._key is not None

    @property
    def quality(self) -> RoundQuality | None:
        """Measured quality of the last round, in both directions; None before the second model."""
        return self.rates.control.latest

    def codes(self, parameters: int) -> bool:
        """Return whether a model of `parameters` parameters is compressed in this round."""
        return self._down(parameters) is not None

    @property
    def model(self) -> dict[str, Array]:
        """The model to which the updates of clients are added; its arrays are read-only."""
        return _read_only(self.held.model)

    @property
    def view(self) -> dict[str, Array]:
        """The model that clients decode from their requests, and train; its arrays are read-only."""
        return _read_only(self.held.state)

    @property
    def unused_round(self) -> int:
        """Smallest number that `begin` accepts.

        If a client was already asked in the present round, this is the number of the next round, because the keys of
        the present one have been used.
        """
        return self.round + 1 if self._number else self.round

    def begin(self, round_: int) -> None:
        """Start a round with the caller's own number, at least `unused_round`; `step` starts rounds by itself."""
        if round_ < self.unused_round:
            raise InvalidArgument(f"round {round_} would use the keys of an earlier one; this is round {self.round}")
        self.clients = self.clients or len(self._asked)
        self.round = round_
        self._number = 0
        self._asked = set()
        self._lags = []
        self._asks.clear()
        self.uplink.begin()
        for sent in self._sent.values():
            sent.expected = {which: one for which, one in sent.expected.items() if which[0] >= round_ - self.late}

    def step(self, model: Mapping[str, Any]) -> None:
        """Lead all clients to this model, or as close to it as the rate allows, and start the next round.

        Names and shapes must be those of the model that the server holds; another model needs a new server.
        """
        wanted = named_arrays("model", model, copy=True)
        if self.held.state:
            wanted = like_held(wanted, self.held.state)
        check_model(wanted)
        self._lead_if_new(wanted, closer=True)
        self.uplink.learn()
        self.begin(self.round + 1)

    def lead(self, model: Mapping[str, Any], *, closer: bool = False) -> dict[str, Array]:
        """Lead all clients to this model within the round, and return the model to which updates are then added.

        If the arrays are the same as in the last call, clients keep their state or, with `closer`, are led closer to
        the arrays. The model may have other names and shapes than the last one, since a framework's strategy may change
        it.
        """
        self._lead_if_new(named_arrays("model", model, copy=True), closer=closer)
        return self.model

    def base(self, beside: Mapping[str, Any] | None = None, *, coded: bool = True) -> Base:
        """Return the arrays that requests refer to: the model, and arrays that travel alongside the requests."""
        extra = named_arrays("beside", beside or {})
        digests = (self._sender_now().digest,) if coded else ()
        held = self.held.model if coded else {}
        if extra.keys() & held.keys():
            raise InvalidArgument("an array beside the request has the name of one of the model's")
        return Base({**held, **extra}, (*digests, *([digest_of(0, extra)] if extra else [])), coded)

    def request(self, client: str, base: Base | None = None) -> bytes:
        """Return the request for a client: bytes that lead the client to the model and say how to code its answer.

        Every request needs an answer of its own; answers to earlier rounds count if they are at most `late` rounds old.
        """
        base = self.base() if base is None else base
        sent = self._sent.setdefault(client, Sent())
        unmeasured = self._partial or (base.coded and len(base.arrays) > len(self.held.model))
        policy = self.rates.up(self.round, _entries(base.arrays), self.clients or 1, client, unmeasured=unmeasured)
        ask = self._ask(base, policy)
        number, self._number = self._number, self._number + 1
        terms = ask.request.terms()
        if base.coded or self._steps is not None:
            terms["steps"] = self._rule().agreed()
        digest = agreement(terms, ask.request.side, iter(base.digests))
        knows = bool(sent.terms)
        lacking = changed(terms, {name: value for name, value in sent.terms.items() if name not in sent.sent_since})
        sent.sent_since = dict.fromkeys(lacking, (self.round, number)) if knows else {}
        broadcast = self._broadcast(client) if base.coded else b""
        body = RequestBody(lacking, not knows, ask.request.side, broadcast)
        frame = Frame(Kind.REQUEST, self.round, number, digest)
        request = replace(frame, body=body.to_bytes()).to_bytes()
        state = self.held.number if base.coded else None
        expected = Expected(frame, ask.request, terms, ask.model, ask.coder, policy.bits, state)
        sent.expected[self.round, number] = expected
        self._asked.add(client)
        self.downlink_bytes += len(request)
        return request

    def open(self, client: str, reply: bytes) -> Reply:
        """Check that a reply was asked for, and read everything but the message of the scheme.

        A reply implies that the client holds the model. Raise `OutOfSync` if the client says that it does not: the next
        `request` for this client then builds on no state. Raise `LostAgain` for a client that keeps saying so; such a
        client is left out.
        """
        reply = message_bytes("reply", reply)
        nbytes = len(reply)
        if self._key is not None and reply[:2] != b"KX":
            reply = self._key.open(reply)
        elif self._key is not None and Frame.from_bytes(reply, Kind.REPLY, Kind.LOST).body:
            raise SideInformationMismatch("the reply is not sealed: with client_secrets, all clients must seal")
        received = Frame.from_bytes(reply, Kind.REPLY, Kind.LOST)
        if received.first < self.round - self.late:
            raise WrongRound(f"the reply is of round {received.first}, this is round {self.round}")
        sent = self._sent.get(client)
        if sent is None or not sent.expected:
            raise SideInformationMismatch("this client was not asked, or it has answered already")
        latest = next(reversed(sent.expected.values()))
        expected = sent.expected.get((received.first, received.second), latest)
        received.check_belongs_to(expected.frame)
        answered = (received.first, received.second)
        del sent.expected[answered]
        if sent.reached(answered, expected.terms):
            if received.kind == Kind.LOST:
                self._lost(client, sent)
            if expected.state is not None:
                self.held = self.held.reached(client, number=expected.state)
        elif received.kind == Kind.LOST:
            raise WrongRound("the client has answered a later request than the one that it could not follow")
        return Reply.of(received, expected, nbytes)

    def receive(self, client: str, reply: bytes, *, weight: float = 1.0) -> dict[str, Array]:
        """Return the arrays that a client trained, as precisely as the reply conveys them; empty if the reply has none.

        `weight` is the client's weight in the average, in any unit; the noise of the average depends on it.
        """
        return self.decode(self.open(client, reply), weight=weight)

    def decode(self, reply: Reply, *, weight: float = 1.0) -> dict[str, Array]:
        """Return the arrays of a reply that was opened, and count its bytes; nothing is learned from a bad reply."""
        weight = number("weight", weight)
        if not 0 <= weight <= _LARGEST_WEIGHT:
            raise InvalidArgument(f"weight must be from 0 to {_LARGEST_WEIGHT:g}, got {weight}")
        decoded = reply.decode()
        update = decoded.vector.astype(np.float32, copy=False) * np.float32(self.scale)
        is_late = reply.round < self.round
        arrays = reply.arrays(update, self.held.model if is_late and not self.uplink.updates else None)
        if not is_late:
            reply.learn(decoded)
        bits = reply.expected.bits
        self._partial = reply.model is not reply.expected.model and bool(reply.dtypes)
        if update.size and bits is not None and self.held.state and not self._partial:
            own, norm = self._of_model(reply, update)
            self.rates.control.add(self.round, own, norm, weight, bits)
        self.uplink_bytes += reply.nbytes
        if reply.looks_like_updates:
            log.warning(
                "klms: a client answered with arrays that are small compared with those received, and far from them. "
                'If clients send differences instead of trained arrays, pass replies="updates"'
            )
        return arrays

    def _of_model(self, reply: Reply, update: Vector) -> tuple[Vector, float]:
        """Return the model's part of an update of the model and of arrays beside it, and its norm before coding.

        The noise of a message is spread evenly over its entries.
        """
        layout, norm = self._rule().model(self.held.state).layout, self.scale * reply.norm
        sent = reply.model.layout
        if sent == layout:
            return update, norm
        own = np.zeros(layout.d, dtype=np.float32)
        places, found = dict(layout.split(own)), 0
        for name, part in sent.split(update):
            if name in places and places[name].shape == part.shape:
                places[name][...] = part
                found += part.size
        noise = max(0.0, product(update, update) - norm**2) * found / update.size
        return own, math.sqrt(max(0.0, product(own, own) - noise))

    def forget(self, client: str) -> None:
        """Assume that a client holds nothing."""
        self._sent.pop(client, None)
        self.held = self.held.without(client)

    @property
    def state(self) -> bytes:
        """Everything that a server needs to resume after a restart, for `Server.restored`."""
        groups = {"view": self.held.state, "own": self.held.own or {}, "held": self.held.to_arrays()}
        meta = {
            "round": self.round,
            "wanted": self._wanted.hex(),
            "steps": None if self._steps is None else self._steps.agreed(),
            "apart": None if self.uplink.apart is None else self.uplink.apart.to_json(),
            "rates": self.rates.control.to_json(),
            "seed": self.uplink.seed,
            "clients": self.clients,
            "bytes": [self.uplink_bytes, self.downlink_bytes],
        }
        return Frame(Kind.SERVER, self.round, 0, bytes(8), write_arrays(joined(groups), meta)).to_bytes()

    @classmethod
    def restored(cls, state: bytes, **arguments: Any) -> "Server":
        """Return a server that resumes from the `state` of another server; the arguments must be the same.

        Clients keep their states; replies to requests of the other server no longer count. The seed is the other
        server's.
        """
        kept, meta = read_arrays(Frame.from_bytes(message_bytes("state", state), Kind.SERVER).body)
        server = cls(**{**arguments, "seed": meta.get("seed")})
        try:
            groups = grouped(kept, ("view", "own", "held"))
            server._wanted = bytes.fromhex(meta["wanted"])
            server.held = Held.from_arrays(groups["held"], groups["view"], groups["own"] or None)
            server._steps = None if meta["steps"] is None else ModelSteps.read_agreed(meta["steps"], None)
            server.uplink.apart = None if meta["apart"] is None else Apart.from_json(meta["apart"])
            server.rates.control.restore(meta["rates"])
            server.round = meta["round"] + 1  # the keys of the round under way may have been used
            server.clients = server.clients or int(meta["clients"])
            server.uplink_bytes, server.downlink_bytes = meta["bytes"]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMessage(f"these bytes are not the state of a server: {error!r}") from error
        return server

    def _down(self, parameters: int) -> CompressionPolicy | None:
        return self.rates.down(self.round, parameters, self.clients or 1)

    def _lead_if_new(self, wanted: Arrays, *, closer: bool) -> None:
        digest = digest_of(0, wanted)
        if digest != self._wanted or (closer and self.held.own is not None):
            self._lead(wanted)
            self._wanted = digest

    def _lead(self, wanted: Arrays) -> None:
        self.clients = len(self._asked) or self.clients
        self._asked = set()
        if _shapes(wanted) != _shapes(self.held.state) and self.held.state:  # another model altogether
            self._before = self._rule().before + self.held.number  # states are numbered anew, keys are not used again
            self.held = Held({})
            self._steps = None
            for sent in self._sent.values():
                sent.forget_terms()
                sent.expected = {}
        if self.held.state:
            self._learn(wanted)
        policy = self._down(_entries(wanted))
        rate = None if policy is None else self._rate(policy, wanted)
        self._sender = None
        if rate is None:
            self.held = Held(wanted, Trail(self.held.number + 1), self.held.by_client)
            return
        if not self.held.state:
            first = max(rate, self.rates.rule.least_first)
            self.held = jump(self._rule(wanted), self.held, wanted, first)
            return
        self.held = lead(self._rule(), self.held, wanted, rate, self._lags, bearable=self.rates.control.bearable)
        self.rates.control.stepped(rate, self.held.error, unbiased=self.held.own is None)
        self.rates.tell(self.round)

    def _learn(self, wanted: Arrays) -> None:
        """Learn which rates the next messages need, from the last round's replies and the model made from them."""
        rule = self._rule()
        model = rule.model(self.held.state)
        whole = rule.difference({}, wanted)
        step = rule.difference(self.held.model, wanted)
        away = rule.difference(self.held.model, self.held.state)
        bounds = np.cumsum([0, *model.layout.sizes]).tolist()
        self.rates.control.received(step, product(away, away), product(whole, whole), self.held.error, bounds)

    def _lost(self, client: str, sent: Sent) -> None:
        """Record that a client does not hold the model; raise `OutOfSync`, or `LostAgain` if it just had a snapshot.

        After some claims, a client gets another snapshot only after so many rounds that the steps since its last
        snapshot are about as large as a snapshot. A client that always claims to have lost its model thus costs about
        twice the bytes.
        """
        sent.forget_terms()
        latest = len(self.held.trail.steps[-1]) if self.held.trail.steps else math.inf
        rounds = self._rule().nbytes(self.held.state) / max(1, latest)
        sent.claims += 1
        if sent.claims > _CLAIMS and self.round - sent.snapshot_round < rounds:
            self.held = self.held.reached(client)  # it gets what everybody gets, until its next snapshot
            raise LostAgain(f"client {client!r} has lost the model again, after it was sent a snapshot")
        sent.snapshot_round = self.round
        self.held = self.held.without(client)
        raise OutOfSync(f"client {client!r} does not hold the model that its request builds on: send another request")

    def _rule(self, wanted: Arrays | None = None) -> ModelSteps:
        """Return the rule for the steps of this model; which arrays are compressed is decided with the first model."""
        if self._steps is None:
            arrays = self.held.state if wanted is None else wanted
            policy = self._down(_entries(arrays))
            apart = self.uplink.apart_of(arrays)
            model = apart.model(arrays, None if policy is None else policy.bits)
            before = self._before + self.held.number
            self._steps = ModelSteps(self.uplink.seed, model.sent_unchanged, model.coarse, before)
        return self._steps

    def _rate(self, policy: CompressionPolicy, wanted: Arrays) -> float | None:
        """Return the bits per parameter that headers leave for a step's message; None if nothing can be coded."""
        model = self._rule(wanted).model(wanted)
        try:
            model.check(wanted)
            settings = policy.for_model(model).settings
        except InvalidArgument as error:
            log.warning("klms: the model goes out uncompressed: %s", error)
            return None
        return settings.rate if isinstance(settings, TrellisSettings) else None

    def _ask(self, base: Base, policy: CompressionPolicy) -> Ask:
        which = (base.digests, policy.bits)
        if which not in self._asks:
            self._asks[which] = self.uplink.ask(base.arrays, policy)
        return self._asks[which]

    def _broadcast(self, client: str) -> bytes:
        self._lags.append(max(0, self.held.number - self.held.by(client) - 1))
        return self._sender_now().message(self.held.by_client.get(client, self._start(client)))

    def _start(self, client: str) -> int | None:
        """Return the state from which to lead a client of unknown state: the anchor, or None if it lost its model."""
        sent = self._sent.get(client)
        return None if sent is not None and sent.snapshot_round == self.round else ANCHOR

    def _sender_now(self) -> Sender:
        if self._sender is None:
            if not self.held.state:
                raise InvalidArgument("there is no model yet: give one to the server, or call step first")
            state = self.held.state
            size = self._rule().nbytes(state) + len(describe(state))
            self._sender = self.held.sender(self._rule(), size)
        return self._sender


def _check(scheme: str, step: float | None, replies: str, seed: int | None, rounds_before: int) -> None:
    if step is None and scheme != AUTO and UPDATE_SCHEMES[scheme].directions_only:
        raise InvalidArgument(f"{scheme} sends directions without lengths: set a step size, such as step=0.002")
    integer("rounds_before", rounds_before, 0, _MOST_ROUNDS)
    if seed is not None:
        integer("seed", seed, 0, 2**63 - 1)
    if not 0 < number("step", 1.0 if step is None else step) < math.inf:
        raise InvalidArgument(f"step must be above 0 and finite, got {step}")
    if replies not in ("weights", "updates"):
        raise InvalidArgument(f'replies must be "weights" or "updates", got {replies!r}')


def _check_names(scheme: str, settings: Mapping[str, object]) -> None:
    """Raise an error with the likely name if a name is neither an argument of the server nor a scheme's setting."""
    arguments = [name for name in signature(Server).parameters if name not in ("model", "settings")]
    schemes = UPDATE_SCHEMES.values() if scheme == AUTO else [UPDATE_SCHEMES[scheme]]
    known = dict.fromkeys([*arguments, *(name for one in schemes for name in one.settings.model_fields)])
    for name in settings:
        check_name("argument", name, known)
        if name == "bits" and scheme == AUTO:  # a setting of other schemes, but here most likely not meant as such
            raise InvalidArgument("there is no argument 'bits'; did you mean 'bits_per_parameter'?")


def _read_only(arrays: Arrays) -> dict[str, Array]:
    views = {name: array.view() for name, array in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _shapes(arrays: Arrays) -> list[tuple[str, Sequence[int]]]:
    return [(name, array.shape) for name, array in arrays.items()]


def _entries(arrays: Arrays) -> int:
    return sum(array.size for array in arrays.values())
