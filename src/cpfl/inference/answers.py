"""A model's answers in the form that people read: a class, labels, or numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from cpfl.objectives.base import Objective


def described(objective: Objective, answers: Tensor, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """One entry for each sample: what is predicted, and how probable it is where the objective knows that."""
    link, predicted = objective.link, objective.predicted(answers)
    probabilities = link.probabilities(answers) if link.has_probabilities else None
    for k, answer in enumerate(predicted):
        if probabilities is None or answers.dim() > 2:
            yield {"answer": answer.tolist()}
        elif link.name == "sigmoid" and answers.shape[1] > 1:
            yield {"answer": answer.nonzero().flatten().tolist(), "probabilities": probabilities[k].tolist()}
        else:
            best = int(answer)
            sure = float(probabilities[k, 0] if best else 1 - probabilities[k, 0])
            probability = sure if link.name == "sigmoid" else float(probabilities[k, best])
            yield {"class": best, "name": names[best] if names else str(best), "probability": probability}
