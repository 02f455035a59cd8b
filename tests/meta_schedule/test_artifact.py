import json
from pathlib import Path

import pytest

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule.measuring import artifact


def test_what_is_written_is_read_again(make_artifact):
    path = make_artifact("one", 2e-5)
    files = artifact.read_files(path)
    assert set(files) == {artifact.MANIFEST, artifact.HOST, artifact.DEVICE}
    manifest = artifact.check(path, files)
    assert manifest.arguments == (artifact.TensorArgument("A", (4, 8), "float16", False),)
    assert manifest.predicted_seconds == 2e-5
    assert artifact.folder_of(path) == artifact.folder_of(Path(path).parent)


def test_files_are_removed_and_the_folder_is_left_to_tvms_callback(make_artifact):
    path = Path(make_artifact("one"))
    other = path.parent / "notes.txt"
    other.write_text("mine")
    artifact.remove(path)
    artifact.remove(path)  # twice is no mistake
    assert [x.name for x in path.parent.iterdir()] == ["notes.txt"]


def edited(path, change):
    plain = json.loads(Path(path).read_text())
    change(plain)
    Path(path).write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x: x.update(version=2), "version 2; this is 1"),
        (lambda x: x.pop("entry"), "KeyError: 'entry'"),
        (lambda x: x.update(arguments=[{"name": 1}]), "found 1, need a str"),
        (lambda x: x["arguments"][0].update(shape=["4"]), "found '4', need a int"),
        (lambda x: x["digests"].update({"../../x": "0"}), r"files \['../../x'"),
        (lambda x: x.update(kernels=[]), "need a dict"),
        (lambda x: x.update(predicted_seconds="soon"), "ValueError"),
    ],
)
def test_a_manifest_that_is_none_is_refused(make_artifact, change, match):
    path = make_artifact("one")
    edited(path, change)
    with pytest.raises(HopperError, match=match):
        artifact.read_files(path)


def test_files_that_are_not_those_of_the_manifest_are_refused(make_artifact):
    path = make_artifact("one")
    (Path(path).parent / artifact.DEVICE).write_bytes(b"other code")
    with pytest.raises(HopperError, match=r"found another device.cubin than its manifest says"):
        artifact.read_files(path)
    (Path(path).parent / artifact.DEVICE).unlink()
    with pytest.raises(HopperError, match=r"No such file.*device.cubin; need one that our builder"):
        artifact.read_files(path)
    Path(path).write_text("{")
    with pytest.raises(HopperError, match="JSONDecodeError"):
        artifact.read_files(path)
