"""Every cited document and section exists: in comments and docstrings, in tests, and between the documents themselves.

A citation is the path of a document, optionally with sections, quoted words and numbered points:
`docs/spec/http.md sections 4 "Processing order" and 6`, `docs/architecture.md section 3 points 1 to 3`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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
PARAGRAPH_MARK = re.compile(r"\s*\n\s*(?:# )?(?=\S)")
DOCUMENT = re.compile(r"(?<![\w/.-])docs/(?:[\w-]+/)?[\w-]+\.md\b")
# Forms that do not say where the document lies.
HOMELESS = re.compile(r"(?<![\w/.(-])spec/[\w-]+\.md|(?<![\w/.-])architecture,? (?:sections?|decision) ")


@dataclass(frozen=True)
class Section:
    number: str
    text: str


@cache
def sections(document: str) -> dict[str, Section] | None:
    """The numbered sections of a document, subsections included in their parents; None if it does not exist."""
    path = ROOT / document
    return split_sections(path.read_text()) if path.is_file() else None


def split_sections(markdown: str) -> dict[str, Section]:
    headings = [
        (match.start(), len(match[1]), match[2])
        for match in re.finditer(rf"^(#+) (?:({NUMBER})\.? )?.*$", markdown, re.MULTILINE)
    ]
    found: dict[str, Section] = {}
    for index, (start, depth, number) in enumerate(headings):
        ends = (begin for begin, level, _ in headings[index + 1 :] if level <= depth)
        if number:
            found[number] = Section(number, markdown[start : next(ends, len(markdown))])
    return found


def faults(source: str) -> list[str]:
    """The faults of the citations in a text."""
    text = PARAGRAPH_MARK.sub(" ", source)
    found = [f"`{match[0].strip()}` does not say where the document lies" for match in HOMELESS.finditer(text)]
    found += [f"{name} does not exist" for name in sorted({*DOCUMENT.findall(text)}) if not (ROOT / name).is_file()]
    for match in CITATION.finditer(text):
        document, cited = match[1], match[2]
        known = sections(document)
        if known is None:
            continue
        outside_remarks = re.sub(r"\([^)]*\)", "", cited)
        without_quotes = re.sub(r'"[^"]*"', "", outside_remarks)
        without_points = re.sub(POINTS.rstrip("?"), "", without_quotes)
        numbers = re.findall(rf"(?<![\w.]){NUMBER}", without_points)
        found += [f"{document} has no section {number}" for number in numbers if number not in known]
        cited_text = "\n".join(known[number].text for number in numbers if number in known)
        found += [
            f'{document} does not say "{words}" in section {" or ".join(numbers)}'
            for words in re.findall(r'"([^"]+)"', cited)
            if " ".join(words.split()) not in " ".join(cited_text.split())
        ]
        found += [
            f"{document} has no point {point} in section {' or '.join(numbers)}"
            for points in re.findall(POINTS.rstrip("?"), without_quotes)
            for point in re.findall(r"\d+", points)
            if not re.search(rf"^\s*(?:\* )?{point}\. ", cited_text, re.MULTILINE)
        ]
    return found


def cross_reference_faults(document: str, markdown: str) -> list[str]:
    """The faults of references such as `http.md §3` and `§2.7` in one document of the specification.

    A number with a dot is the same section everywhere; one without belongs to the named document, or to this one.
    """
    everywhere = {number for path in sorted((ROOT / "docs/spec").glob("*.md")) for number in _numbers(path.name)}
    found = []
    for match in re.finditer(r"(?:([\w-]+\.md) )?(§[\d.]*\d(?:(?:, |\u2013)§[\d.]*\d)*)", markdown):
        name = match[1] or document
        for number in re.findall(r"[\d.]*\d", match[2]):
            known = everywhere if "." in number and not match[1] else _numbers(name)
            if number not in known:
                found.append(f"{name} has no section {number}")
    return found


def _numbers(name: str) -> set[str]:
    return set(sections(f"docs/spec/{name}") or ())


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
        ('docs/spec/http.md section 6 "Decompression".', 'does not say "Decompression"'),
        ("docs/architecture.md section 3 points 1 to 93.", "has no point 93"),
        ("spec/http.md section 4.", "does not say where"),
    ],
)
def test_a_wrong_citation_is_found(text: str, fault: str) -> None:
    (found,) = faults(f"Source: {text}")
    assert fault in found
