"""Built-in models of sequences: signals in time, and characters."""

from torch import Tensor, nn

from cpfl.errors import ModelError

KERNEL, STRIDE = 9, 2  # of both convolutions
POOLED = 4  # parts of a window that are told apart
SHORTEST = 40  # steps that leave something after both convolutions


def signal_cnn(shape: tuple[int, ...], classes: int, width: int = 32) -> nn.Module:
    """Two convolutions over time and a linear layer, for signals (channels, steps)."""
    if len(shape) != 2 or shape[1] < SHORTEST:
        raise ModelError(f"model signal-cnn takes (channels, {SHORTEST} steps or more), not samples of shape {shape}")
    return nn.Sequential(
        nn.Conv1d(shape[0], width, KERNEL, STRIDE),
        nn.ReLU(),
        nn.Conv1d(width, 2 * width, KERNEL, STRIDE),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(POOLED),
        nn.Flatten(),
        nn.Linear(2 * width * POOLED, classes),
    )


class CharLSTM(nn.Module):
    """LEAF's model of the next character: an embedding, an LSTM, and a linear layer on its last output."""

    def __init__(self, classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the character after each sequence (batch, steps) of numbers of characters."""
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.head(outputs[:, -1])  # type: ignore[no-any-return]


def char_lstm(
    shape: tuple[int, ...], classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> nn.Module:
    """CharLSTM in LEAF's size unless it is told otherwise; the classes are the characters."""
    if len(shape) != 1:
        raise ModelError(f"model char-lstm takes sequences of characters (steps,), not samples of shape {shape}")
    return CharLSTM(classes, embedding, hidden, layers)
