"""A network that can be sent to other processes: each loads it when it first needs it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakValueDictionary

from weft.core.contract.doors import door
from weft.core.placement.optimized_network import OptimizedNetwork
from weft.core.registry.device_choice import DeviceName
from weft.core.session.arguments import Input
from weft.core.session.load_options import LoadOptions, PoolKeywords, described
from weft.core.session.session import Session
from weft.errors import is_fatal
from weft.loading import load

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weft.loading import Model

MOST_KEPT = 4
"""How many sessions a process keeps whose predictors it dropped: the next task brings the predictor anew."""
_sessions: WeakValueDictionary[tuple[int, str], Session] = WeakValueDictionary()
"""By the process and the predictor's key; copies of a predictor share one."""
_kept: deque[Session] = deque(maxlen=MOST_KEPT)
_lock = Lock()


class Predictor:
    """A network that runs where it is called. It can be pickled: a worker gets the model's path and the options.

        predict = weft.Predictor("model.onnx")
        y, = predict(x)                           # arrays in, arrays out
        columns = predict({"x": x, "id": ids})    # columns in, columns out: {"id": ids, "y": ...}

    A process loads the network at the first call, or by `session`. As a class it suits Ray Data and Ray Serve.
    """

    @described(PoolKeywords)
    @door
    def __init__(
        self,
        model: Model | OptimizedNetwork,
        device: DeviceName | Sequence[DeviceName] | Callable[[], DeviceName] = "auto",
        **options: Unpack[PoolKeywords],
    ) -> None:
        """Note what to load; the options are checked.

        A path must be valid in the workers; whatever else `weft.load` takes is pickled whole. `device` may be a
        function without arguments that the worker calls, such as `weft.own_device`.
        """
        LoadOptions.of(dict(options), PoolKeywords, caller="weft.Predictor")
        self._model = os.path.abspath(model) if isinstance(model, (str, os.PathLike)) else model
        self._device, self._options, self._key = device, options, uuid4().hex
        self._session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: all but the session."""
        return {**vars(self), "_session": None}

    @property
    def session(self) -> Session:
        """Return the session of this process; the first call loads it."""
        key, session = (os.getpid(), self._key), self._session
        if session is not None and not session.is_closed and _sessions.get(key) is session:
            return session
        with _lock:
            session = _sessions.get(key)
            if session is None or session.is_closed:
                device = self._device() if callable(self._device) else self._device
                session = load(self._model, device, **self._options)
                _sessions[key] = session
                _kept.append(session)
            self._session = session
        return session

    @door
    def __call__(self, *inputs: Input | Mapping[str, Input]) -> Any:
        """Return the outputs: a list, in order; or for a dict, a dict by name.

        The dict may have more than the network's inputs, such as other columns of a table: those are returned, too.
        If the device fails, the network is loaded anew once.
        """
        columns = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else None
        session = self.session
        if columns is not None:
            inputs = ({name: value for name, value in columns.items() if name in session.inputs},)
        try:
            results = session.run(*inputs)
        except Exception as e:
            if not is_fatal(e):
                raise
            self.close()
            session = self.session
            results = session.run(*inputs)
        if columns is None:
            return results
        rest = {name: value for name, value in columns.items() if name not in session.inputs}
        return {**rest, **dict(zip(session.outputs, results, strict=True))}

    def close(self) -> None:
        """Close the session of this process, if there is one; the next call loads it again."""
        with _lock:
            session = _sessions.pop((os.getpid(), self._key), None)
            self._session = None
        if session is not None:
            session.close()
