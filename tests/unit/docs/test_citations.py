"""Every cited document and section exists: in comments and docstrings, in tests, and between the documents themselves.

A citation is the path of a document, optionally with sections, quoted words and numbered points:
`docs/spec/http.md sections 4 "Processing order" and 6`, `docs/architecture.md section 3 points 1 to 3`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

from tests.project import ROOT

# What this file says of itself is not a citation.
OWN_PATH = "tests/unit/docs/test_citations.py"
TEXT_FILES = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", ".lua")

NUMBER = r"(?:\d+(?:\.\d+)*|[A-D]\d*)(?!\w)"
POINTS = r"(?: (?:points?|items?) \d+(?:(?:, | and | to )\d+)*)?"
REMARK = r"(?: \([^)]*\))?"
QUOTES = r'(?:,? "[^"]+"(?:(?:, | and )"[^"]+")*)?'
SECTION = f"{NUMBER}{REMARK}{QUOTES}{POINTS}{REMARK}"
SECTIONS = rf"[,;]? sections? {SECTION}(?:(?:, | and | to ){SECTION})*"
CITATION = re.compile(rf"(docs/(?:spec/[\w-]+|architecture)\.md)((?:{SECTIONS})*)")
OF_SECTIONS = re.compile(rf'\([^)]*\)|"[^"]*"|{POINTS.rstrip("?")}')  # remarks, quotes and points
PARAGRAPH_MARK = re.compile(r"\s*\n\s*(?:# )?(?=\S)")
DOCUMENT = re.compile(r"(?<![\w/.-])docs/(?:[\w-]+/)?[\w-]+\.md\b")
# Forms that do not say where the document lies.
HOMELESS = re.compile(r"(?<![\w/.(-])spec/[\w-]+\.md|(?<![\w/.-])architecture,? (?:sections?|decision) ")


@cache
def sections(document: str) -> frozenset[str]:
    """The numbers of the sections of a document; empty if it does not exist."""
    path = ROOT / document
    text = path.read_text() if path.is_file() else ""
    return frozenset(re.findall(rf"^#+ ({NUMBER})\.? ", text, re.MULTILINE))


def faults(source: str) -> list[str]:
    """The faults of the citations in a text."""
    text = PARAGRAPH_MARK.sub(" ", source)
    found = [f"`{match[0].strip()}` does not say where the document lies" for match in HOMELESS.finditer(text)]
    found += [f"{name} does not exist" for name in sorted({*DOCUMENT.findall(text)}) if not (ROOT / name).is_file()]
    for match in CITATION.finditer(text):
        document, known = match[1], sections(match[1])
        numbers = re.findall(rf"(?<![\w.]){NUMBER}", OF_SECTIONS.sub("", match[2]))
        found += [f"{document} has no section {number}" for number in numbers if known and number not in known]
    return found


def cross_reference_faults(document: str, markdown: str) -> list[str]:
    """The faults of references such as `http.md §3` and `§2.7` in one document of the specification.

    A number with a dot is the same section everywhere; one without belongs to the named document, or to this one.
    """
    pages = sorted((ROOT / "docs/spec").glob("*.md"))
    everywhere = {number for page in pages for number in sections(f"docs/spec/{page.name}")}
    found = []
    for match in re.finditer(r"(?:([\w-]+\.md) )?(§[\d.]*\d(?:(?:, |\u2013)§[\d.]*\d)*)", markdown):
        name = match[1] or document
        for number in re.findall(r"[\d.]*\d", match[2]):
            known = everywhere if "." in number and not match[1] else sections(f"docs/spec/{name}")
            if number not in known:
                found.append(f"{name} has no section {number}")
    return found


def project_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in TEXT_FILES and name != OWN_PATH and path.is_file():
            yield name, path.read_text()


@pytest.mark.slow
def test_every_citation_names_an_existing_section() -> None:
    found = [f"{name}: {fault}" for name, text in project_texts() for fault in faults(text)]
    assert found == []


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs/spec").glob("*.md")))
def test_cross_references_of_the_specification_resolve(name: str) -> None:
    assert cross_reference_faults(name, (ROOT / "docs/spec" / name).read_text()) == []


def test_the_project_cites_its_documents() -> None:
    cited = {match[1] for _, text in project_texts() for match in CITATION.finditer(text)}
    assert "docs/architecture.md" in cited
    assert "docs/spec/http.md" in cited
    wrong = {"§4 and grpc.md §2": "", "§93": "http.md", "grpc.md §92": "grpc.md", "§5.91": "http.md"}
    for text, document in wrong.items():
        number = text.rpartition("§")[2]
        expected = [f"{document} has no section {number}"] if document else []
        assert cross_reference_faults("http.md", f"as in {text}") == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("docs/spec/htp.md section 4.", "docs/spec/htp.md does not exist"),
        ("docs/spec/http.md sections 4, 5 and 98.", "has no section 98"),
        ("docs/spec/http.md sections 4 (`id`), 97 (limit).", "has no section 97"),
        ("docs/spec/http.md sections 4 to 96.", "has no section 96"),
        ("docs/spec/http.md section 4; section 95.", "has no section 95"),
        ("docs/spec/sagemaker.md sections A2 and B99.", "has no section B99"),
        ("# docs/spec/http.md\n    # section 94.", "has no section 94"),
        ('docs/spec/http.md sections 6 "Compression" and 93.', "has no section 93"),
        ("spec/http.md section 4.", "does not say where"),
    ],
)
def test_a_wrong_citation_is_found(text: str, fault: str) -> None:
    (found,) = faults(f"Source: {text}")
    assert fault in found
