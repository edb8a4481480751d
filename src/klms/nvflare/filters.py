"""The filters: `SendModel` and `ReceiveUpdate` at the server, `ReceiveModel` and `SendUpdate` at every client.

NVFlare builds each filter from the job's configuration. On each side, the filter that runs first holds the exchange,
and the other one finds it in the `FLContext` of the run. At the server, every client has a thread of its own.
"""

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.client.config import ExchangeFormat
from nvflare.client.converter_utils import convert_params

from klms import Client, OutOfSync, Server
from klms.errors import InvalidArgument, KLMSError

Arrays = dict[str, npt.NDArray[Any]]
_LARGEST_WEIGHT = 1e15
_KLMS = "klms"  # key of all our entries: in a DXO, its metadata, a Shareable, an FLContext; topic of our messages
_PATIENCE = 600.0  # seconds that a client waits for another request, which brings a snapshot of the model


class _Filter(DXOFilter):
    """A filter of models and differences of models."""

    def __init__(self) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(kinds, kinds)

    def add_to_fed_job(self, job: Any, ctx: Any, **keywords: Any) -> None:
        """Add the filter, but do not copy klms into the job: it is installed wherever the job runs."""
        job.set_app_packages(sorted({*job.job.app_packages, "klms"}))
        super().add_to_fed_job(job, ctx, **keywords)


class SendModel(_Filter):
    """Leads every client to the model by the steps that it lacks; `settings` are the arguments of `klms.Server`."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.settings = settings or {}
        self.server = Server(**self.settings)
        self._lock = Lock()
        self._model: Arrays = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            fl_ctx.set_prop(_KLMS, self, private=True, sticky=True)
            fl_ctx.get_engine().register_aux_message_handler(_KLMS, self.request_again)
        elif event_type == EventType.END_RUN:
            up, down = self.server.uplink_bytes, self.server.downlink_bytes
            self.log_info(fl_ctx, f"klms: {up:,} bytes up, {down:,} bytes down")

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        if shareable["DXO"]["kind"] == DataKind.COLLECTION:  # several models, which NVFlare does not tell apart
            return None
        try:
            arrays, form = _arrays_of(dxo)
            return _replaced(dxo, {_KLMS: self._request(_client_of(fl_ctx), arrays)}, {_KLMS: form})
        except InvalidArgument as error:
            self.log_warning(fl_ctx, f"klms: the model goes out uncompressed: {error}")
            return None

    def request_again(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return another request as the answer to a client that has lost the model."""
        client = _client_of(fl_ctx)
        try:
            self.receive(client, request[_KLMS])
        except OutOfSync:
            return Shareable({_KLMS: self._request(client)})
        except KLMSError as error:
            self.log_warning(fl_ctx, f"klms: {error}")
        return make_reply(ReturnCode.BAD_REQUEST_DATA)

    def receive(self, client: str, reply: bytes, weight: float = 1.0) -> tuple[Arrays, Arrays]:
        """Return the arrays that a client has trained, and the model of the round."""
        with self._lock:
            arrays = self.server.receive(client, reply, weight=weight)
            return arrays, self._model

    def _request(self, client: str, model: Arrays | None = None) -> bytes:
        """Return the request that leads a client to a model. A model that differs from the last begins a new round."""
        with self._lock:
            if model is not None and not _equal(model, self._model):
                self.server.step(model)
                self._model = {name: array.copy() for name, array in model.items()}
            return self.server.request(client)


class ReceiveUpdate(_Filter):
    """Decodes the replies of clients. For a bad reply, it raises an error, and NVFlare handles the error."""

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        if _KLMS not in dxo.meta:
            return None
        sender: SendModel = fl_ctx.get_prop(_KLMS)
        arrays, model = sender.receive(_client_of(fl_ctx), dxo.data[_KLMS], _weight_of(dxo))
        if dxo.data_kind == DataKind.WEIGHT_DIFF:  # the controller adds it to its own model, not to the clients' model
            arrays = {name: array - model[name] for name, array in arrays.items()}
        return _decoded(dxo, arrays)


class ReceiveModel(_Filter):
    """Restores the model from the server's request.

    NVFlare's simulator may end the process of a client between rounds; a file keeps the client's state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.received: Arrays = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            file = _state_file(fl_ctx)
            self.client = Client(file.read_bytes() if file.exists() else b"")
            fl_ctx.set_prop(_KLMS, self, private=True, sticky=True)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        self.received = {}
        if _KLMS not in dxo.meta:
            return None
        try:
            model = self.client.receive(dxo.data[_KLMS])
        except OutOfSync as lost:
            self.log_info(fl_ctx, f"klms: asking for the whole model: {lost}")
            model = self.client.receive(_request_again(lost, fl_ctx))
        self.received = {name: array.copy() for name, array in model.items()}  # training may change the model itself
        return _decoded(dxo, model)


class SendUpdate(_Filter):
    """Codes the arrays that the client has trained; a result that cannot be coded passes unchanged."""

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        receiver: ReceiveModel = fl_ctx.get_prop(_KLMS)
        if not receiver.received:
            return None
        try:
            arrays, form = _arrays_of(dxo)
            if dxo.data_kind == DataKind.WEIGHT_DIFF:
                arrays = {name: receiver.received.get(name, 0) + array for name, array in arrays.items()}
            payload = receiver.client.reply(arrays)
            if fl_ctx.get_prop(FLContextKey.SIMULATE_MODE):
                _state_file(fl_ctx).write_bytes(receiver.client.state)
            return _replaced(dxo, {_KLMS: payload}, {_KLMS: form})
        except InvalidArgument as error:
            self.log_warning(fl_ctx, f"klms: the update goes out uncompressed: {error}")
            return None


def _request_again(lost: OutOfSync, fl_ctx: FLContext) -> bytes:
    """Return another request from the server: one that builds on no state of the client."""
    engine, question = fl_ctx.get_engine(), Shareable({_KLMS: lost.reply})
    reply = engine.send_aux_request(None, _KLMS, question, _PATIENCE, fl_ctx).get("server")
    if reply is None or reply.get_return_code() != ReturnCode.OK:
        raise lost
    return bytes(reply[_KLMS])


def _state_file(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / "klms.state"


def _client_of(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def _arrays_of(dxo: DXO) -> tuple[Arrays, dict[str, Any]]:
    """Return a DXO's parameters as NumPy arrays, and their form: whether they were tensors, and which were bfloat16."""
    tensors = {name: value.detach().cpu() for name, value in dxo.data.items() if hasattr(value, "detach")}
    narrow = [name for name, tensor in tensors.items() if str(tensor.dtype) == "torch.bfloat16"]
    params = {**tensors, **{name: tensors[name].float() for name in narrow}} or dxo.data
    arrays = {name: np.asarray(value) for name, value in params.items()}
    if len(arrays) < len(dxo.data) or any(array.dtype.kind not in "biuf" for array in arrays.values()):
        raise InvalidArgument("it holds something other than arrays of numbers")
    return arrays, {"torch": bool(tensors), "bfloat16": narrow}


def _weight_of(dxo: DXO) -> float:
    """Return the weight of a result in NVFlare's average."""
    steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
    return float(steps) if isinstance(steps, int | float) and 0 < steps < _LARGEST_WEIGHT else 1.0


def _decoded(dxo: DXO, arrays: Arrays) -> DXO:
    """Return a DXO with arrays in place of the payload, in the form that they had at the sender."""
    params: dict[str, Any] = {name: np.require(array, requirements="W") for name, array in arrays.items()}
    if (form := dxo.meta[_KLMS])["torch"]:
        params = convert_params(params, ExchangeFormat.NUMPY, ExchangeFormat.PYTORCH, {})
        for name in form["bfloat16"]:
            params[name] = params[name].bfloat16()
    return _replaced(dxo, params, {})


def _replaced(dxo: DXO, data: dict[str, Any], meta: dict[str, Any]) -> DXO:
    """Return a new DXO; NVFlare shares the old one between clients, and extends the history of filters itself."""
    kept = {key: value for key, value in dxo.meta.items() if key not in (_KLMS, MetaKey.FILTER_HISTORY)}
    return DXO(dxo.data_kind, data, {**kept, **meta})


def _equal(model: Arrays, other: Arrays) -> bool:
    return model.keys() == other.keys() and all(np.array_equal(array, other[name]) for name, array in model.items())
