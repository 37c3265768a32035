"""Run the loop on an event loop of its own, and end it in order when a signal asks."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from scalelab.errors import LabError
from scalelab.signals import StopSignals, finishing, heed_signals, stops
from scalelab.watch.progress import Progress

if TYPE_CHECKING:
    from scalelab.run.loop import Loop

OBJECTS = 10_000
"""New objects after which Python looks for garbage. With its own 700, a driver of 1,000 engines that has 120,000
requests to look through stands still for half a second at a time.
"""


def drive(
    main: Callable[[Callable[[Loop], None]], Coroutine[Any, Any, None]],
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
    progress: Progress,
) -> str | None:
    """Run the loop on an event loop of its own; the first signal to stop ends it in order, a later one at once.

    Args:
        main: the coroutine, which calls its argument with the loop before it begins.
        new_event_loop: of the wall clock, or of a simulated one.
        progress: takes lines for people.

    Returns:
        Why the run ended before its budget was spent; None if it was.

    Raises:
        KeyboardInterrupt: the loop was asked to stop, and has.
        LabError: what ended the run.
    """
    loops: list[Loop] = []
    signals = StopSignals()
    gc.set_threshold(OBJECTS)

    async def heeding() -> None:
        events, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None

        def ask(number: signal.Signals) -> None:
            [loop] = loops
            which = signals.note()
            if which == "first" and not loop.stopping:
                loop.stop()
                progress.say(finishing(number))
            elif which != "same":
                this.cancel()

        def attach(loop: Loop) -> None:
            loops.append(loop)
            if threading.current_thread() is threading.main_thread():
                for number in stops():
                    events.add_signal_handler(number, ask, number)

        await main(attach)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(heeding())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as errors:
        raise unwrapped(errors) from errors
    finally:
        heed_signals()
    [loop] = loops
    if loop.stopping:
        raise KeyboardInterrupt
    return loop.early_end


def unwrapped(error: BaseException) -> BaseException:
    """The error to report from nested groups: an unexpected one first."""
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if not isinstance(one, LabError)), error.exceptions[0])
    return error
