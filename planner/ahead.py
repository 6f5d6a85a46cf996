"""Choosing while runs go on: beside the loop, and early enough that no slot waits for it."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.buying import Purchase

_MEMORY = 32  # durations of runs that are remembered
_CHOICES = 8
_SWITCH_SECONDS = 0.0005
BATCH_SHARE = 2.0 / 3.0


class Buyer:
    """Buys runs, one purchase at a time: at once, or `aside` in a thread while the loop looks after the runs.

    A purchase is what the ledger said when it began, so that runs which end meanwhile are still pending for it.
    """

    def __init__(self, buy: Callable[[int], Purchase], *, aside: bool) -> None:
        self._buy = buy
        self._pool = ThreadPoolExecutor(1, "planner-buys") if aside else None
        self._purchase: Future[Purchase] | None = None
        self.num_ended = 0  # runs that had ended when the last purchase began

    def __enter__(self) -> Buyer:
        if self._pool is not None:
            # The loop gives up the interpreter at every file that it opens, and by default would wait 5 ms each time.
            self._interval = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            sys.setswitchinterval(self._interval)

    @property
    def is_busy(self) -> bool:
        """Whether a purchase was begun that was not taken yet."""
        return self._purchase is not None

    def begin(self, num: int, num_ended: int) -> None:
        """Begins to buy up to `num` runs, knowing how `num_ended` runs ended."""
        self.num_ended = num_ended
        if self._pool is not None:
            self._purchase = self._pool.submit(self._buy, num)
        else:
            self._purchase = Future()
            self._purchase.set_result(self._buy(num))

    def wait(self, seconds: float | None = None) -> None:
        """Waits until the purchase is made, if there is one, or for so long."""
        if self._purchase is not None:
            wait([self._purchase], seconds)

    def take(self) -> Purchase | None:
        """The purchase, once it is made; raises what was raised in making it."""
        if self._purchase is None or not self._purchase.done():
            return None
        purchase, self._purchase = self._purchase, None
        return purchase.result()


class Pace:
    """How long runs and choices take, as seen by this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[str, float] = {}
        self._runs: deque[float] = deque(maxlen=_MEMORY)
        self._choices: deque[float] = deque(maxlen=_CHOICES)

    def start(self, run_id: str) -> None:
        """Notes that a run was started now."""
        self._started[run_id] = self._clock()

    def end(self, run_id: str) -> None:
        """Notes that a run ended now."""
        if run_id in self._started:
            self._runs.append(self._clock() - self._started.pop(run_id))

    def timed(self, choose: Callable[[int], Purchase]) -> Callable[[int], Purchase]:
        """`choose` with its time noted."""

        def noted(num: int) -> Purchase:
            began = self._clock()
            purchase = choose(num)
            self._choices.append(self._clock() - began)
            return purchase

        return noted

    @property
    def run_seconds(self) -> float:
        """What a run usually takes; infinite before the first has ended."""
        return statistics.median(self._runs) if self._runs else math.inf

    def ahead(self, slots: int, num_known: int) -> int:
        """How many runs to hold ready beyond the slots: three times as many as end while the next are chosen.

        A choice begins when two thirds of them have been started (`BATCH_SHARE`) and is made before the last has: so no
        slot waits, and choosing takes half of the time at most.  None are held where runs take much longer than
        choices: what is bought later is bought with more knowledge.  At most half of what is known already, so that the
        first runs of a study are not bought blindly.

        Args:
            num_known: runs whose response is known.
        """
        if not self._choices:
            return 0
        # A choice that has to compile something first takes many times as long as the others: it is no guide.
        ends = 3.0 * slots * sorted(self._choices)[len(self._choices) * 3 // 4] / self.run_seconds
        return min(math.ceil(ends) if ends >= 0.5 else 0, num_known // 2)
