"""Compiles the Java beside it into snapshot.jar: `python -m operators.corpus.jar`, for which alone javac is needed."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

from operators.corpus.jvm import JAR, lucene_jar

SOURCES = Path(__file__).with_name("java")


def source_hash() -> str:
    """What the jar's manifest says of the sources that it was made from, when the two agree."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def recorded_hash() -> str:
    """The hash in the jar's manifest."""
    with zipfile.ZipFile(JAR) as jar:
        lines = jar.read("META-INF/MANIFEST.MF").decode().splitlines()
    return next(line.removeprefix("Source-Hash: ") for line in lines if line.startswith("Source-Hash: "))


def build() -> None:
    """Compiles for Java 11, Lucene 9's own level, and writes a jar with nothing in it that changes from run to run."""
    with tempfile.TemporaryDirectory() as classes:
        command = ["javac", "--release", "11", "-encoding", "UTF-8", "-Xlint:all", "-Werror", "-proc:none", "-g:lines"]
        command += ["-cp", str(lucene_jar()), "-d", classes, *map(str, sorted(SOURCES.glob("*.java")))]
        subprocess.run(command, check=True)
        manifest = f"Manifest-Version: 1.0\nSource-Hash: {source_hash()}\n\n"
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            _add(jar, "META-INF/MANIFEST.MF", manifest.encode())
            for path in sorted(Path(classes).rglob("*.class")):
                _add(jar, path.relative_to(classes).as_posix(), path.read_bytes())
            for path in sorted(SOURCES.glob("*.txt")):
                _add(jar, f"headrace/{path.name}", path.read_bytes())


def _add(jar: zipfile.ZipFile, name: str, data: bytes) -> None:
    jar.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # ZipInfo's own date: 1980


if __name__ == "__main__":
    build()
