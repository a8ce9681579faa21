"""The site builds without a warning, its links work, and a browser shows it."""

import functools
import html
import http.server
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest
from filelock import FileLock

from tests.test_house import ROOT, public_objects

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("sphinx") is None, reason="what builds it is missing"
    ),
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def site(tmp_path_factory, worker_id):
    """The site as `make docs` builds it, once for all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == "master" else folder.parent) / "site"
    words = ["-W", "--keep-going", "-q", "-c", "docs", "-d", str(folder / "trees")]
    with FileLock(f"{folder}.lock"):
        if not (folder / "html" / "objects.inv").exists():
            subprocess.run(
                [sys.executable, "-m", "sphinx", *words, ".", str(folder / "html")],
                cwd=ROOT,
                check=True,
            )
    return folder / "html"


class Page(HTMLParser):
    """The links of a page, its anchors, and its equations."""

    def __init__(self, path):
        super().__init__()
        self.links, self.names, self.equations = [], set(), 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.names |= {found.get("id"), found.get("name")} - {None}
        self.equations += tag == "math"
        wanted = {"a": "href", "img": "src", "link": "href", "script": "src"}
        if (link := found.get(wanted.get(tag, ""))) is not None:
            self.links.append(link)


@pytest.fixture(scope="module")
def parsed(site):
    paths = (path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path: Page(path) for path in paths}


def test_every_link_of_the_site_leads_somewhere(site, parsed):
    lost = set()
    for path, page in parsed.items():
        for link in page.links:
            if ":" in link or link.startswith("//"):
                continue
            name, anchor = urldefrag(unquote(link.partition("?")[0]))
            target = (path.parent / name).resolve() if name else path
            known = parsed.get(target)
            if not target.exists() or (anchor and known and anchor not in known.names):
                lost.add((str(path.relative_to(site)), link))
    assert lost == set()


def test_every_link_to_another_place_is_well_formed(parsed):
    """Tests have no network: they cannot follow it."""
    links = {urldefrag(link)[0] for page in parsed.values() for link in page.links}
    outside = {link for link in links if ":" in link}
    assert len(outside) > 50
    form = re.compile(r"https://[\w-]+(\.[\w-]+)+(/[^\s<>]*)?")
    assert [link for link in outside if not form.fullmatch(link)] == []


def test_every_public_name_has_a_place_in_the_reference(parsed):
    places = set().union(*(page.names for page in parsed.values()))
    names = [parameter.id for parameter in public_objects()]
    assert len(names) > 150
    assert [name for name in names if name not in places] == []


def test_equations_are_drawn_and_pictures_are_there(site, parsed):
    page = parsed[site / "docs" / "cells" / "slstm.html"]
    assert page.equations > 5
    text = (site / "docs" / "cells" / "slstm.html").read_text()
    assert "merror" not in text and r"\odot" not in text
    pictures = {path.stem for path in (site / "_images").glob("*.png")}
    assert {"slstm", "conv_gru", "gains"} <= pictures


def test_signatures_are_what_one_would_write(site):
    for path in (site / "docs" / "api").glob("*.html"):
        text = html.unescape(re.sub(r"<[^>]+>", "", path.read_text()))
        assert not re.search(r"~\w+\.|<class |0x[0-9a-f]{8}", text), path.name


def test_pages_need_nothing_from_another_place(parsed):
    """The pages can be read without a network."""
    outside = {
        link
        for page in parsed.values()
        for link in page.links
        if link.startswith(("http:", "//")) or (":" in link and link.endswith(".js"))
    }
    assert outside == set()


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, *_):
        pass


def seen(address, folder, *words):
    """A page as a headless browser shows it."""
    options = ["--headless", "--no-sandbox", "--disable-gpu"]
    options += [f"--user-data-dir={folder}", "--virtual-time-budget=10000"]
    return subprocess.run(
        [BROWSER, *options, *words, address],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout


@in_a_browser
def test_search_finds_a_cell(address, tmp_path):
    text = seen(f"{address}/search.html?q=zoneout", tmp_path, "--dump-dom")
    assert "docs/cells/zoneout.html" in text


@in_a_browser
def test_front_door_leads_to_the_front_page(address, tmp_path):
    text = seen(address, tmp_path, "--dump-dom")
    assert "Write one time step as ordinary JAX" in text


@in_a_browser
@pytest.mark.parametrize(
    "page", ["docs/index", "docs/cells/lstm", "notebooks/01_quickstart"]
)
def test_page_is_painted(page, address, tmp_path):
    picture = tmp_path / "page.png"
    seen(f"{address}/{page}.html", tmp_path / "profile", f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000
