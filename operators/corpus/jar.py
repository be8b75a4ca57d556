"""Compiles Snapshot.java into snapshot.jar: `python -m operators.corpus.jar`, for which alone javac is needed."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

from operators.corpus.jvm import JAR, lucene_jar

SOURCE = Path(__file__).with_name("Snapshot.java")


def source_hash() -> str:
    """What the jar's manifest says of the source that it was made from, when the two agree."""
    return hashlib.blake2b(SOURCE.read_bytes(), digest_size=16).hexdigest()


def recorded_hash() -> str:
    """The hash in the jar's manifest."""
    with zipfile.ZipFile(JAR) as jar:
        lines = jar.read("META-INF/MANIFEST.MF").decode().splitlines()
    return next(line.removeprefix("Source-Hash: ") for line in lines if line.startswith("Source-Hash: "))


def build() -> None:
    """Compiles for Java 11, Lucene 9's own level, and writes a jar with nothing in it that changes from run to run."""
    with tempfile.TemporaryDirectory() as classes:
        command = ["javac", "--release", "11", "-proc:none", "-g:lines", "-cp", str(lucene_jar()), "-d", classes]
        subprocess.run([*command, str(SOURCE)], check=True)
        manifest = f"Manifest-Version: 1.0\nSource-Hash: {source_hash()}\n\n"
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            _add(jar, "META-INF/MANIFEST.MF", manifest.encode())
            for path in sorted(Path(classes).rglob("*.class")):
                _add(jar, path.relative_to(classes).as_posix(), path.read_bytes())


def _add(jar: zipfile.ZipFile, name: str, data: bytes) -> None:
    jar.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # ZipInfo's own date: 1980


if __name__ == "__main__":
    build()
