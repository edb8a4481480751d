"""A TCP relay that counts the bytes on the wire, including those of TLS and of the application's protocol."""

import asyncio
import itertools
import threading
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class WireBytes:
    """Bytes that TCP carried, without its own headers: `up` to the target and `down` from it."""

    up: int
    down: int

    def __sub__(self, before: "WireBytes") -> "WireBytes":
        return WireBytes(self.up - before.up, self.down - before.down)


class Relay:
    """A listener on a free port of 127.0.0.1 that relays every connection to `target`, in a thread of its own."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._bytes = {"up": 0, "down": 0}
        self._ends: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.connections = 0  # accepted so far

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="klms-relay", daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def counted(self) -> WireBytes:
        """Return the bytes of all connections so far, including those that broke."""
        return WireBytes(**self._bytes)

    async def _close(self) -> None:
        self._server.close()
        for end in itertools.chain(*self._ends.values()):
            end.transport.abort()
        await asyncio.gather(*self._ends)

    async def _connected(self, caller: asyncio.StreamReader, to_caller: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections += 1
        ends = self._ends[task] = [to_caller]
        try:
            link, to_link = await asyncio.open_connection(*self._target)
            ends.append(to_link)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass(caller, to_link, "up"))
                ways.create_task(self._pass(link, to_caller, "down"))
        except* OSError:  # there is no target, or one end reset the connection: the other end must not wait for it
            for end in ends:
                end.transport.abort()
        finally:
            for end in ends:
                end.close()
            del self._ends[task]

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str) -> None:
        """Copy until the source ends, then end the sink. The other direction may continue."""
        while chunk := await source.read(1 << 16):
            self._bytes[direction] += len(chunk)
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()
