"""Work in threads that take turns: only one of them, or the thread that gives the turns, works at a time.

A run is code that calls deep and waits deep within. In a thread of its own it can wait there while other runs go on;
because of the turns nothing else has to know that there are several.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch


class Cancelled(BaseException):
    """Ends a thread's work where it waits."""


class Turn:
    """A thread that works when it is given a turn, until it waits or ends."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.error: Exception | None = None
        self.ended = False
        self._work, self._works, self._cancelled = work, False, False
        self._fatal: BaseException | None = None  # what ends all of them, as Ctrl-C does
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self) -> None:
        """Let it work; returns when it waits or has ended."""
        self._works = True
        self._go.release()
        self._back.acquire()
        self._works = False
        if self._fatal is not None:
            raise self._fatal

    def wait(self) -> None:
        """In the thread: give the turn back, and wait for the next one."""
        self._back.release()
        self._go.acquire()
        if self._cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """End it where it is, as Ctrl-C would; what its `finally` clauses do is done when this returns."""
        self._cancelled = True
        if self._works and self._thread.ident is not None:  # Ctrl-C came in the midst of its turn
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(Cancelled))
        self._go.release()  # if it waits
        self._thread.join()

    def _run(self) -> None:
        try:
            self._go.acquire()
            if not self._cancelled:
                self._work()
        except Exception as error:
            self.error = error
        except Cancelled:
            pass
        except BaseException as error:
            self._fatal = error
        finally:
            self.ended = True
            self._back.release()


def give(turn: Turn) -> None:
    """Let it work; the next turn's thread begins with as many of torch's threads."""
    turn.give()
    torch.set_num_threads(torch.get_num_threads())


def stream_of_its_own(device: torch.device) -> AbstractContextManager[object]:
    """On a GPU what is done within may be done at the same time as what others do; elsewhere nothing changes."""
    own = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    return torch.cuda.stream(own)
