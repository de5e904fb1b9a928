"""The half of a Flower app that runs at every node."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from cpfl.engines.flower import node
from cpfl.engines.flower.node import LocalData
from cpfl.problem import OwnModel


def client_app(model: OwnModel, data: LocalData, mods: list[Mod] | None = None) -> ClientApp:
    """A node that trains `model` on what `data(context)` returns: (inputs, labels), which never leave it."""
    app = ClientApp(mods=mods)

    @app.query("enrol")
    def enrol(message: Message, context: Context) -> Message:
        return Message(node.enrol(message, context, data), reply_to=message)

    @app.query("shares")
    def shares(message: Message, context: Context) -> Message:
        return Message(node.shares(message, context), reply_to=message)

    @app.query("masked")
    def masked(message: Message, context: Context) -> Message:
        return Message(node.masked(message, context, data), reply_to=message)

    @app.query("reveal")
    def reveal(message: Message, context: Context) -> Message:
        return Message(node.reveal(message, context), reply_to=message)

    @app.query("counts")
    def counts(message: Message, context: Context) -> Message:
        return Message(node.counts(message, context, data), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(node.train(message, context, model, data), reply_to=message)

    return app
