"""A thread that says a few times a second that this process lives and where its main thread stands.

When the process has been quiet for too long (no call, no completion, no mark of a training step), it writes the stacks
of all its threads, without locals, beside the ring. It also does where somebody outside asks for them in the ring: that
needs no socket and no port. Only a thread that keeps the GIL for itself is not heard: then the heartbeat stands still.
"""

import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from ddparity.trace._ring_format import Field

from ._stacks import full_stack

if TYPE_CHECKING:
    from ._comm import CommWatch
    from ._ring import Ring

_TICK_SECONDS = 0.2


class Watchdog:
    """Beats while there is a ring."""

    def __init__(self, watch: "CommWatch") -> None:
        self._watch = watch
        self._begin()

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._hang_ns = int(self._watch.session.config.hang_after_s * 1e9)
        self._dumped_for = 0
        self._asked = 0

    def forked(self) -> None:
        """Begin anew in a child, where the thread is not."""
        self._begin()

    def start(self, ring: "Ring") -> None:
        """Begin to beat."""
        ring.set(Field.HANG_NS, self._hang_ns)
        self._thread = threading.Thread(target=self._run, args=(ring,), name="ddparity-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def knows_timeout(self, seconds: float) -> None:
        """Look earlier where the group's own time-out would end the process before."""
        ring = self._watch.ring
        if ring is not None:
            self._hang_ns = min(self._hang_ns, max(int(seconds * 0.4e9), 1_000_000_000))
            ring.set(Field.HANG_NS, self._hang_ns)
            ring.set(Field.TIMEOUT_NS, int(seconds * 1e9))

    def _run(self, ring: "Ring") -> None:
        main = threading.main_thread().ident
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._beat(ring, main)
            except Exception as error:
                self._watch.session.disable(error)
                return

    def _beat(self, ring: "Ring", main: int | None) -> None:
        now = time.monotonic_ns()
        gap = now - ring.get(Field.HEARTBEAT)
        if gap > ring.get(Field.GAP_NS):
            ring.set(Field.GAP_NS, gap)
            ring.set(Field.GAP_ENDED, now)
        ring.set(Field.HEARTBEAT, now)
        frame = sys._current_frames().get(self._watch.session.thread or main or 0)
        ring.position("\n".join(self._watch.stacks.uncached(frame)))
        del frame
        active = ring.get(Field.ACTIVE)
        asked = ring.get(Field.ASKED)
        if asked != self._asked or (now - active > self._hang_ns and active != self._dumped_for):
            self._dumped_for, self._asked = active, asked
            self._dump(ring)

    def _dump(self, ring: "Ring") -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        stacks = {
            names.get(ident, str(ident)): full_stack(frame)
            for ident, frame in sys._current_frames().items()
            if ident != own
        }
        document = {"schema": 1, "pid": ring.pid, "time": time.time(), "threads": stacks}
        ring.path.with_suffix(".stacks.json").write_bytes(msgspec.json.format(msgspec.json.encode(document)))
        ring.set(Field.DUMPED, time.monotonic_ns())
