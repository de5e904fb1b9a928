"""A tune on the screen: a line for every trial that ends, and live lines for those that train."""

from collections.abc import Sequence

from rich.text import Text

from cpfl.sweeps.view import INDENT, SweepView

PREPARING = "preparing …"


class TuneView(SweepView):
    """Shows a tune."""

    _share = 0.0
    _words: Sequence[str] = (PREPARING,)

    def on_trial(self, name: str, share: float, facts: Sequence[str]) -> None:
        """Take the run from those that train."""
        ended = self._progress.pop(name, None)
        self._rounds += ended.rounds if ended else 0
        self._share, self._words = share, facts
        self._changed()

    def _facts(self) -> list[str]:
        rounds = self._rounds + sum(progress.rounds for progress in self._progress.values())
        return [*self._words, f"{rounds:,} rounds"]

    def _lines(self) -> Sequence[Text | str]:
        lines = self._flow(f"tune {self._bar(self._share)} ", self._facts(), INDENT)
        return [*lines, *self._active(len(lines))]
