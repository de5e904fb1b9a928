"""Time limits of hours that pass in a moment: when the test says so, or when nobody who could answer is waited for."""

import time

from cpfl.engines.flower.clock import Clock

SKIPPED_SECONDS = 86400.0  # longer than every time limit of a run


class WatchedGrid:
    """Flower's grid, with the messages that have no answer yet and the clients of nodes."""

    def __init__(self, grid):
        self._grid, self._open, self._clients = grid, {}, {}

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def push_messages(self, messages):
        sent = list(messages)
        numbers = self._grid.push_messages(sent)
        self._open |= {n: message.metadata.dst_node_id for n, message in zip(numbers, sent, strict=True) if n}
        return numbers

    def pull_messages(self, message_ids):
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            node = self._open.pop(reply.metadata.reply_to_message_id, None)
            report = {} if reply.has_error() else reply.content.config_records.get("report", {})
            if "client" in report:
                self._clients[node] = str(report["client"])
        return replies

    def waited_for(self):
        """The clients that have not answered a message; "" for a node that has not enrolled."""
        return {self._clients.get(node, "") for node in self._open.values()}


class HeldClock(Clock):
    """Real seconds, which are far too few to reach a time limit, and skipped ones."""

    def __init__(self, grid, held):
        self._grid, self._held, self._skipped = grid, held, 0.0

    def now(self):
        return time.monotonic() + self._skipped

    def sleep(self, seconds):
        time.sleep(min(seconds, 0.2))
        waited_for, asleep = self._grid.waited_for(), {file.name for file in (self._held / "asleep").iterdir()}
        if (self._held / "skip").exists():
            (self._held / "skip").unlink()
            self._skipped += SKIPPED_SECONDS
        elif waited_for and waited_for <= asleep:
            self._skipped += SKIPPED_SECONDS
