"""The documents name only things that exist: link targets, settings, routes, make targets, pinned packages, the files
on the page of the architecture, and the documents and sections that are cited anywhere.

A citation is the path of a document, optionally with sections, quoted words and numbered points:
`docs/spec/http.md sections 4 "Processing order" and 6`, `docs/architecture.md section 3 points 1 to 3`.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project import ROOT
from trident.app.version import VERSION
from trident.app.worker.http2.frames import Http2Limits
from trident.core.http.routes import ROUTES

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def anchors(markdown: str) -> set[str]:
    """The anchors of all headings: lower case, hyphens for spaces, no punctuation."""
    texts = HEADING.findall(re.sub(r"```.*?```", "", markdown, flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def broken_links(document: Path) -> list[str]:
    markdown = document.read_text()
    broken = []
    for link in LINK.findall(CODE.sub("", markdown)):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


def without_brackets(route: str) -> set[str]:
    """A documented route with and without the parts in square brackets."""
    return {re.sub(r"\[.*?\]", "", route), re.sub(r"[\[\]]", "", route)}


def as_documented(rule: str) -> str:
    """A Werkzeug rule in the notation of the documents: `<digits:version>` becomes `{version}`."""
    return re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", rule)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_has_a_target(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("# Here\n[x](none.md) [x](#here) [x](https://example.invalid/) `[x](none.md)` [x](#none)")
    assert broken_links(document) == ["none.md", "#none"]


def test_the_index_has_every_page_once() -> None:
    """Its sections are the navigation of the site, too."""
    sections = (ROOT / "docs" / "index.md").read_text().partition("\n## ")[2]
    named = re.findall(r"\]\(([^)#]+\.md)\)", sections)
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")
    assert sorted(page for page in named if "/" not in page) == pages


def test_the_http_page_names_exactly_the_routes() -> None:
    document = (ROOT / "docs" / "http.md").read_text()
    cells = re.findall(r"^\| (`/[^|]*)\|", document, re.MULTILINE)
    named = [route for cell in cells for route in re.findall(r"`(/[^`]*)`", cell)]
    documented = {form for route in named for form in without_brackets(route)}
    assert documented == {as_documented(rule) for route in ROUTES for rule in route.rules}


def test_every_make_target_in_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    documents = "".join(document.read_text() for document in DOCUMENTS)
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", documents, re.MULTILINE))
    assert {"serve", "test"} <= named <= targets


# Their packages are installed by hand, on machines that have a GPU; parts of them are not on PyPI.
FOR_GPUS = ("gpu", "gpu12", "tensorrt")


def test_lock_file_pins_every_required_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(name for extra in extras if extra not in FOR_GPUS for name in extras[extra])]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin) for pin in pins)
    pinned = {pin.partition("==")[0] for pin in pins}
    assert {re.split(r"[\[<>=]", name)[0] for name in wanted} <= pinned


def test_every_file_names_the_same_version() -> None:
    named = {
        "pyproject.toml": r'^version = "(.+)"',
        "docker/Dockerfile": r"^ARG VERSION=(.+)",
        "deploy/helm/trident/Chart.yaml": r"^appVersion: (.+)",
        "CHANGELOG.md": r"^## \[(\d.+)\]",
    }
    found = {name: re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)[:1] for name, pattern in named.items()}
    assert found == {name: [VERSION] for name in named}
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


PAGE = (ROOT / "docs" / "architecture.md").read_text()
TOP = ("core", "adapters", "app", "tools", "bench", "deploy", "docker", "docs", "tests")
PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(TOP)})(?:/[\w.-]+)+/?)")
TREE = re.compile(r"```text\n(.*?)```", re.DOTALL)
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)


def missing_paths(page: str) -> list[str]:
    return sorted({path for path in PATH.findall(page) if not (ROOT / path.rstrip(".")).exists()})


def listed_rooms(tree: str) -> dict[str, set[str]]:
    """The entries of the tree by their top-level folder; folders end with a slash."""
    rooms: dict[str, set[str]] = {}
    top = ""
    for line in tree.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            top = name.rstrip("/")
            rooms[top] = set()
        else:
            rooms[top].add(name)
    return rooms


def actual_rooms(top: str) -> set[str]:
    return {f"{path.name}/" for path in (ROOT / top).iterdir() if (path / "__init__.py").is_file()}


def test_every_named_file_exists() -> None:
    assert missing_paths(PAGE) == []
    assert missing_paths("see core/no_such.py and core/errors.py, app/no_room/") == ["app/no_room/", "core/no_such.py"]


def test_no_document_installs_the_project_from_an_index() -> None:
    """It is on no index, so that others could take the name. Texts have `installation` of core/errors.py."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_name = re.compile(r"trident-inference\[|install [^\n]*\btrident-inference\b")
    texts = [
        ROOT / name
        for name in listed.split("\0")
        if name.endswith((".md", ".py", ".sh", ".yaml", ".yml", ".html", ".js"))
    ]
    assert texts
    assert [
        str(path) for path in texts if path != Path(__file__) and path.is_file() and by_name.search(path.read_text())
    ] == []


def test_diagrams_and_tree_name_existing_files() -> None:
    pictures = MERMAID.findall(PAGE)
    assert len(pictures) == 4
    assert [len(PATH.findall(picture)) > 8 for picture in pictures] == [False, True, True, True]
    (tree,) = TREE.findall(PAGE)
    assert set(listed_rooms(tree)) == set(TOP)
    for top in ("core", "adapters", "app", "tools"):
        listed = listed_rooms(tree)[top]
        assert {name for name in listed if name.endswith("/")} == actual_rooms(top)
        assert all((ROOT / top / name).exists() for name in listed)


# --- docs/spec/attacks.md names all tests of the attacks

ATTACKS = (ROOT / "docs" / "spec" / "attacks.md").read_text()
ATTACK_TESTS = (ROOT / "tests" / "unit" / "app" / "worker" / "http2" / "test_attacks.py").read_text()
# It shows that a client is served which looks like one that attacks.
SERVED = {"test_rapid_reset_within_the_limits_is_served"}


ON_HTTP2, ON_THE_REST = ATTACKS.split("## 2. On messages")


def test_attack_table_names_the_existing_tests() -> None:
    named = set(re.findall(r"`(test_\w+)`", ON_HTTP2))
    assert named == set(re.findall(r"^def (test_\w+)", ATTACK_TESTS, re.MULTILINE)) - SERVED
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    for section in ON_THE_REST.split("\n## "):
        named = set(re.findall(r"`(test_\w+)`", section))
        assert named
        assert named <= tests


def test_documented_limits_match_the_http2_layer() -> None:
    limits = Http2Limits()
    assert f"budget: {limits.burst:,} in a row, and {limits.rate} more each second" in ATTACKS
    assert f"a stream keeps its place, of {limits.streams:,}," in ATTACKS
    assert f"{limits.header_frames} frames and {limits.header_list >> 10} KB for one header section" in ATTACKS
    assert f"with 32 bytes for each, so {limits.header_list // 32} of them" in ATTACKS
    assert f"{limits.unsent >> 20} MB wait on a connection and {limits.unsent_in_all >> 20} MB in all" in ATTACKS
    assert f"{limits.window >> 20} MB for a stream, {2 * limits.window >> 20} MB for all" in ATTACKS
    assert f"| {limits.held >> 20} MB, until the whole connection waits |" in ATTACKS
    assert f"| {limits.high_water >> 20} MB; the rest waits" in ATTACKS
    assert f"| half-open handshakes | {limits.handshake_s:g} s |" in ATTACKS
    assert f"| half a header section, and then silence | {limits.stall_s:g} s |" in ATTACKS


# --- citations


# What this file says of itself is not a citation.
OWN_PATH = "tests/unit/docs/test_docs.py"
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
