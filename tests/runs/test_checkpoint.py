"""Damaged files in a run folder are noticed; resuming from an older checkpoint, or anew, gives the same results."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import small_runs
from small_runs import Unbroken

from cpfl import api
from cpfl.callbacks import Callback
from cpfl.errors import RunFolderError
from cpfl.inference.global_model import export, predict
from cpfl.runs import files, records, writer
from cpfl.runs.folder import SCHEMA, RunFolder, load_state

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "emptied": lambda content: b"",
    "cut to half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "a byte more": lambda content: content + b"\0",
    "last byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"this is no model\n",
}


class Messages(Callback):
    """Keeps the messages of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def broken(tmp_path: Path, unbroken: Unbroken) -> Path:
    """A run that was killed after the last rounds of its cohorts and before its distillation."""
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    for name in ("summary.json", "clients.json", "epochs.jsonl", "models/global.safetensors"):
        (path / name).unlink()
    return path


def checkpoints(path: Path, cohort: int = 1) -> list[Path]:
    """Oldest first."""
    return sorted((path / "checkpoints").glob(f"cohort-{cohort:04d}-*.safetensors"))


def resumed(path: Path) -> list[str]:
    """The messages of a resume."""
    messages = Messages()
    api.resume(path, device="cpu", callback=messages)
    return messages.texts


@pytest.mark.parametrize("damage", DAMAGES)
def test_newest_damaged(damage: str, broken: Path, unbroken: Unbroken) -> None:
    newest = checkpoints(broken)[-1]
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    assert any(str(newest) in text and "damaged" in text for text in resumed(broken))
    assert small_runs.differing(broken, unbroken()) == []


def test_all_damaged(broken: Path, unbroken: Unbroken) -> None:
    """Every cohort has lost both of its checkpoints: all start again."""
    for cohort in range(3):
        assert len(checkpoints(broken, cohort)) == 2
        for path in checkpoints(broken, cohort):
            path.write_bytes(path.read_bytes()[:-7])
    assert sum("damaged" in text for text in resumed(broken)) == 6
    assert small_runs.differing(broken, unbroken()) == []


def test_checkpoints_gone(broken: Path, unbroken: Unbroken) -> None:
    for path in (broken / "checkpoints").iterdir():
        path.unlink()
    resumed(broken)
    assert small_runs.differing(broken, unbroken()) == []


def test_any_byte_flipped(tmp_path: Path, unbroken: Unbroken) -> None:
    """A changed byte is noticed, or changes nothing that is read (a space after the header)."""
    sound = checkpoints(unbroken())[-1]
    content, (tensors, numbers) = sound.read_bytes(), files.load_tensors(sound)
    path = tmp_path / sound.name
    dice = random.Random(5)
    header = 8 + int.from_bytes(content[:8], "little")
    chosen = [*range(header), *dice.sample(range(header, len(content)), 300)]
    noticed = 0
    for position in chosen:
        flipped = bytearray(content)
        flipped[position] ^= 1 << dice.randrange(8)
        path.write_bytes(flipped)
        try:
            found, found_numbers = files.load_tensors(path)
        except RunFolderError as error:
            sentence = str(error)
        else:
            assert position < header, f"byte {position} of a tensor"
            assert found_numbers == numbers, position
            assert found.keys() == tensors.keys(), position
            assert all(found[name].equal(tensors[name]) for name in tensors), position
            continue
        assert str(path) in sentence
        assert "\n" not in sentence, position
        noticed += 1
    assert noticed > 0.9 * len(chosen)


def test_leftover_temporary_files(broken: Path, unbroken: Unbroken) -> None:
    """Half-written files that a crash leaves behind affect neither resume nor readers."""
    for folder in ("", "models", "snapshots", "checkpoints", "rounds"):
        for name in (".cohort-0001-round-000009.safetensors.part", ".summary.json.part", ".x.part"):
            (broken / folder / name).write_bytes(b"\x13half")
    assert RunFolder.open(broken).summary() is None
    resumed(broken)
    assert small_runs.differing(broken, unbroken()) == []
    assert api.distill(broken, at="30s", device="cpu")["teachers"] == [0, 1, 2]
    export(broken, onnx=False)
    assert (broken / "export" / "model.safetensors").is_file()


@pytest.mark.parametrize("torn", [b'{"cohort":1,"rou', b"\0\0\0\0", b'{"cohort":1,"round":6}\n{"x'])
def test_incomplete_line_after_the_checkpoint(torn: bytes, broken: Path, unbroken: Unbroken) -> None:
    path = RunFolder.open(broken).rounds(1)
    whole = records.read(path)
    with path.open("ab") as file:
        file.write(torn)
    if b"\n" not in torn:
        assert records.read(path) == whole  # a reader leaves the incomplete line out
    resumed(broken)
    assert small_runs.differing(broken, unbroken()) == []


@pytest.mark.parametrize("kept", ["half a line", "one line", "nothing", "no file"])
def test_records_shorter_than_the_checkpoint_says(kept: str, broken: Path, unbroken: Unbroken) -> None:
    """A disk that lost appended lines: the rounds are trained again, not left out or filled with zeros."""
    path = RunFolder.open(broken).rounds(1)
    content = path.read_bytes()
    if kept == "no file":
        path.unlink()
    else:
        first = content.index(b"\n") + 1
        path.write_bytes({"half a line": content[:-20], "one line": content[:first], "nothing": b""}[kept])
    resumed(broken)
    assert small_runs.differing(broken, unbroken()) == []


def test_incomplete_line_in_the_log(broken: Path) -> None:
    """A crash in the middle of a log line does not make the log unreadable."""
    log = broken / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"event":"resu')
    resumed(broken)
    assert [line["event"] for line in records.read(log)] == ["started", "finished", "resumed", "finished"]


def test_two_checkpoints_are_kept(unbroken: Unbroken) -> None:
    for cohort in range(3):
        rounds = [int(path.stem[-6:]) for path in checkpoints(unbroken(), cohort)]
        assert len(rounds) == writer.KEPT
        assert rounds[0] == rounds[1] - 1


@pytest.mark.parametrize("damage", ["missing", "of another cohort", *DAMAGES])
def test_damaged_teachers_are_made_again(damage: str, broken: Path, unbroken: Unbroken) -> None:
    """The checkpoint of a stopped cohort holds its model: a resume repairs the file for later distillations."""
    folder = RunFolder.open(broken)
    teacher = folder.teacher(1)
    if damage == "missing":
        teacher.unlink()
    elif damage == "of another cohort":
        shutil.copyfile(folder.teacher(0), teacher)
    else:
        teacher.write_bytes(DAMAGES[damage](teacher.read_bytes()))
    resumed(broken)
    assert small_runs.differing(broken, unbroken()) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_models_are_refused(damage: str, tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    folder = RunFolder.open(path)
    for victim, use in (
        (folder.teacher(1), lambda: api.distill(path, device="cpu")),
        (sorted((path / "snapshots").glob("cohort-0001-*"))[1], lambda: api.distill(path, at="90s", device="cpu")),
        (folder.model("start"), lambda: api.distill(path, at="1s", device="cpu")),
        (folder.model("global"), lambda: export(path, onnx=False)),
        (folder.model("global"), lambda: list(predict(path, tmp_path))),
        (folder.model("global"), lambda: load_state(folder.model("global"))),
    ):
        content = victim.read_bytes()
        victim.write_bytes(DAMAGES[damage](content))
        with pytest.raises(RunFolderError, match="damaged") as refused:
            use()
        assert str(victim) in str(refused.value)
        assert "\n" not in str(refused.value)
        victim.write_bytes(content)
    assert not list(path.glob("distillations/*/summary.json"))
    assert not (path / "export").exists()


def test_missing_models_are_refused(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    RunFolder.open(path).teacher(2).unlink()
    with pytest.raises(RunFolderError, match=r"cohort-0002.safetensors is missing"):
        api.distill(path, device="cpu")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (1, ("has schema 1;", "reads schema 3", "cpfl 0.1")),
        (2, ("has schema 2;", "reads schema 3", "experiment.toml --out NEW")),
        (4, ("has schema 4;", "reads schema 3", "newer cpfl")),
        (None, ("run.json is damaged", "schema")),
        ([2], ("run.json is damaged", "schema")),
    ],
)
def test_folders_of_another_schema_are_refused(
    schema: object, words: tuple[str, ...], tmp_path: Path, unbroken: Unbroken
) -> None:
    """The sentence says which version of cpfl reads an older folder."""
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    about = json.loads((path / "run.json").read_text())
    assert about["schema"] == SCHEMA == 3
    (path / "run.json").write_text(json.dumps(about | {"schema": schema}))
    for use in (api.load_run, api.resume, api.distill):
        with pytest.raises(RunFolderError) as refused:
            use(path)
        assert "\n" not in str(refused.value)
        for word in (str(path), *words):
            assert word in str(refused.value)


def test_damaged_run_json_is_refused(tmp_path: Path, unbroken: Unbroken) -> None:
    path = tmp_path / "run"
    shutil.copytree(unbroken(), path)
    for content in (b"", b"{", b"[1]", b"\xff\xfe"):
        (path / "run.json").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"run\.json is damaged"):
            api.resume(path)
