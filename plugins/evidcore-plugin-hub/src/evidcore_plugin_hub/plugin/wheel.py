"""Read a wheel without installing it: what it holds, and everything for which it is refused."""

import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import re
import stat
import sys
import tokenize
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import PurePosixPath

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from evidcore.errors import PluginError
from evidcore.registry import KIND_NAMES, NAME, card_in, normal, offers
from evidcore_plugin_hub.plugin.code_look import CAPABILITIES, CodeLook
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_hub.trust.names import alike, is_known, known_elsewhere
from evidcore_plugin_hub.trust.pins import file_digest, record_digest

MOST_BYTES = 16 * 2**20  # of a wheel, and of what it unpacks to
MOST_FILES = 1000
MOST_PYTHON = 2**18  # bytes of one module: parsing takes 650 times as much
MOST_OF_MODULES = 2**20  # bytes of all
TEXTS = (".json", ".md", ".py", ".pyi", ".toml", ".txt", ".typed")
_OF_METADATA = re.compile(
    r"METADATA|RECORD|WHEEL|entry_points\.txt|top_level\.txt|(licenses/.*)?(LICENSE|LICENCE|NOTICE|AUTHORS|COPYING)[\w.]*"
)
_RUN_UNASKED = {"conftest", "sitecustomize", "usercustomize"}
_TRUST = re.compile(r"allow|approved|certified|endorsed|official|signed|trust|verified", re.IGNORECASE)
_ENTRY = re.compile(r"(?P<name>[^\s=]+) ?= ?(?P<target>[^\s=]+)")
_TARGET = re.compile(r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheel:
    """What a wheel holds, as far as it can be read without running any of it."""

    package: str
    version: str
    file: str  # its name
    content: bytes
    files: Mapping[str, bytes]  # path -> content, without RECORD
    components: Mapping[str, str]  # "kind/name" -> "module:attribute"
    core: str  # the versions of evidcore that it asks for: ">=0.1,<0.2"
    requires: tuple[str, ...]  # what else it asks for, as its metadata say
    licence: str
    about: str  # a line
    readme: str
    capabilities: Mapping[str, str]  # what it may reach -> what shows it

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def record(self) -> str:
        """Return the hash of its files, which evid.lock holds."""
        return record_digest({path: file_digest(content) for path, content in self.files.items()})

    @property
    def source(self) -> dict[str, bytes]:
        """Return its files without its metadata: what people read under src/ on the Hub."""
        return {path: content for path, content in self.files.items() if ".dist-info/" not in path}


def open_wheel(file: str, content: bytes) -> Wheel:
    """Read a wheel by its file's name and bytes.

    Raises:
        PluginError: with everything for which it is refused. Nothing in it was run.
    """
    wrong: list[str] = []
    try:
        return _opened(file, content, wrong)
    except _Refused as cause:
        wrong += cause.args
    except Exception as cause:  # any bytes may be called a wheel
        wrong.append(f"cannot be read as a wheel ({type(cause).__name__}: {cause})")
    listing = "".join(f"\n  {line}" for line in dict.fromkeys(wrong))
    raise PluginError(f"{PurePosixPath(file).name}: refused, and nothing in it was run{listing}")


class _Refused(Exception):
    """Nothing more is read; says why where that was not collected yet."""


def _opened(file: str, content: bytes, wrong: list[str]) -> Wheel:
    """Read it, and collect what is wrong; raise `_Refused` where that is anything."""
    try:
        name, number, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as cause:
        raise _Refused(f"has no name of a wheel ({cause})") from cause
    package, version = str(name), str(number)
    if {str(tag) for tag in tags} != {"py3-none-any"}:
        raise _Refused("is no wheel for any Python 3; only pure ones are published")
    if package.startswith("evidcore"):
        raise _Refused(f"{package} has the name of a package of evidcore itself")
    if number.local:
        raise _Refused(f"has the local version {version}, which no tag of the Hub can name")
    if len(content) > MOST_BYTES:
        raise _Refused(f"has {len(content)} bytes; at most {MOST_BYTES} are read")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        wrong += _faults_of_entries(archive.infolist())
        if wrong:
            raise _Refused
        listed = [item for item in archive.infolist() if not item.is_dir()]
        files = {item.filename: archive.open(item).read(item.file_size) for item in listed}  # never more
    folders = {path.partition("/")[0] for path in files if path.partition("/")[0].endswith(".dist-info")}
    meta = f"{file.split('-')[0]}-{file.split('-')[1]}.dist-info"
    if folders != {meta}:
        raise _Refused(f"must hold the folder {meta} and no other of metadata, has {sorted(folders)}")
    recorded = files.pop(f"{meta}/RECORD", b"")
    wrong += _faults_of_record(recorded, files, f"{meta}/RECORD")
    wrong += _faults_of_places(files, meta, package)
    wrong += _faults_of_texts(files)
    if wrong:
        raise _Refused
    fields, _ = parse_email(files.get(f"{meta}/METADATA", b""))  # a field that is there twice is left out
    if (normal(fields.get("name", "")), fields.get("version")) != (package, version):
        wrong.append(f"is called {fields.get('name')} {fields.get('version')} inside")
    readme = fields.get("description", "")
    offered = files.get(f"{meta}/entry_points.txt", b"").decode()
    components = _components(offered, top_modules(files), wrong)
    core, requires = _requirements(fields.get("requires_dist", []), wrong)
    reach = _capabilities(files, readme, wrong)
    if wrong:
        raise _Refused
    return Wheel(
        package=fields["name"], version=version, file=file, content=content, files=files,
        components=components, core=core, requires=tuple(requires), capabilities=reach, readme=readme,
        licence=" ".join(fields.get("license_expression", "").split())[:100],
        about=" ".join(fields.get("summary", "").split())[:200],
    )  # fmt: skip


def top_modules(files: Iterable[str]) -> set[str]:
    """Return the top-level modules of paths."""
    return {path.partition("/")[0].removesuffix(".py") for path in files if path.endswith(".py")}


def _faults_of_entries(entries: list[zipfile.ZipInfo]) -> Iterator[str]:
    """Yield what makes an archive unsafe to unpack."""
    if len(entries) > MOST_FILES:
        yield f"holds {len(entries)} files; at most {MOST_FILES} are read"
        return
    if sum(item.file_size for item in entries) > MOST_BYTES:
        yield f"unpacks to more than {MOST_BYTES} bytes"
    seen: set[str] = set()
    for item in entries:
        name = item.orig_filename
        parts = PurePosixPath(name).parts
        plain = PurePosixPath(name).as_posix() == name.removesuffix("/") and name == item.filename
        if name.startswith("/") or ".." in parts or "\\" in name or ":" in name or not name.isprintable():
            yield f"{name!r} leads out of the folder that it is unpacked in"
        elif not plain or not name.isascii():
            yield f"{name!r} is another name of a file"
        if stat.S_ISLNK(item.external_attr >> 16):
            yield f"{name!r} is a link"
        if item.flag_bits & 1:
            yield f"{name!r} is encrypted"
        if item.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # may unpack to any size
            yield f"{name!r} is packed by another method than deflate"
        if name.lower() in seen:
            yield f"{name!r} is there twice"
        seen.add(name.lower())


def _faults_of_record(recorded: bytes, files: Mapping[str, bytes], itself: str) -> Iterator[str]:
    listed = [row for row in csv.reader(recorded.decode().splitlines()) if row]
    rows = {row[0]: row[1] for row in listed if len(row) == 3}
    if len(rows) != len(listed):
        yield "RECORD has a row twice, or one that is not path, hash and size"
    rows.pop(itself, None)
    hashes = {path: file_digest(content) for path, content in files.items()}
    yield from (f"{path} is in no RECORD" for path in sorted(hashes.keys() - rows.keys()))
    yield from (f"{path} is in RECORD and not there" for path in sorted(rows.keys() - hashes.keys()))
    both = sorted(rows.keys() & hashes.keys())
    yield from (f"{path} is not what RECORD says" for path in both if rows[path] != hashes[path])


def _faults_of_places(files: Mapping[str, bytes], meta: str, package: str) -> Iterator[str]:
    """Yield files that a plugin must not bring."""
    stem, own = package.replace("-", "_"), set[str]()
    with contextlib.suppress(metadata.PackageNotFoundError):  # an earlier version of it
        own = top_modules(pins.recorded(metadata.distribution(package)))
    for path in files:
        place = PurePosixPath(path)
        top = place.parts[0].removesuffix(".py")
        if place.parts[0] == meta:
            if not _OF_METADATA.fullmatch(place.relative_to(meta).as_posix()):
                yield f"{path}: this file of metadata runs or installs something"
            continue
        if place.suffix.lower() not in TEXTS:
            yield f"{path}: only text may be in a plugin ({', '.join(TEXTS)}); no binary, no data"
        elif len(place.parts) == 1 and place.suffix != ".py":
            yield f"{path}: must lie in a folder of the package"
        if top.endswith(".data"):
            yield f"{path}: would be installed outside the package"
        elif top in _RUN_UNASKED:
            yield f"{path}: is imported unasked"
        elif top in sys.stdlib_module_names or top == "evidcore" or top.startswith("evidcore_"):
            yield f"{path}: {top!r} is a module of Python or of evidcore"
        elif top != stem and not top.startswith(stem + "_"):
            yield f"{path}: {top!r} is no module of this package; its modules begin with {stem!r}"
        elif top not in own and find_spec(top) is not None:
            yield f"{path}: {top!r} is a module that another package has installed"
        folder = f"{place.parent.as_posix()}/"
        if len(place.parts) > 1 and path.endswith(".py") and f"{folder}__init__.py" not in files:
            yield f"{path}: its folder has no __init__.py"


def _faults_of_texts(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what people cannot read as it is: other encodings, characters that hide or turn others."""
    for path, content in files.items():
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            yield f"{path} is no text in UTF-8"
            continue
        lines = text.replace("\r\n", "\n")  # Python ends a line at a lone \r too, where few editors show it
        odd = sorted({item for item in lines if not item.isprintable() and item not in "\n\t"})
        if odd:
            yield f"{path} holds control characters, {odd[0]!r} among them"
        if path.endswith(".py") and (len(content) > MOST_PYTHON or not _is_read_as_utf8(content)):
            yield f"{path} names another encoding, or is longer than {MOST_PYTHON} bytes"
    if sum(len(content) for path, content in files.items() if path.endswith(".py")) > MOST_OF_MODULES:
        yield f"its modules are longer than {MOST_OF_MODULES} bytes together"


def _is_read_as_utf8(content: bytes) -> bool:
    try:
        return tokenize.detect_encoding(io.BytesIO(content).readline)[0] in ("utf-8", "utf-8-sig")
    except SyntaxError:  # of an encoding that there is not
        return False


def _components(text: str, tops: set[str], wrong: list[str]) -> dict[str, str]:
    """Return what the entry points offer, held to one way of writing: programs read others apart."""
    result: dict[str, str] = {}
    kind = None
    for line in text.split("\n"):
        entry = _ENTRY.fullmatch(line)
        if line.startswith("[") and line.endswith("]"):
            kind = line[1:-1].removeprefix("evidcore.")
            if kind == line[1:-1] or kind not in KIND_NAMES:
                wrong.append(f"offers {line}; a plugin offers components of evidcore alone")
        elif line and (entry is None or kind is None or not line.isascii() or len(line.splitlines()) != 1):
            wrong.append(f"its entry points hold {line!r}, neither [group] nor name = target")
        elif entry is not None:
            wrong += _faults_of_entry(str(kind), entry["name"], entry["target"], tops)
            if f"{kind}/{entry['name']}" in result:
                wrong.append(f"offers {kind} {entry['name']!r} twice")
            result[f"{kind}/{entry['name']}"] = entry["target"]
    if not result:
        wrong.append("offers no component")
    return result


def _faults_of_entry(kind: str, name: str, target: str, tops: set[str]) -> Iterator[str]:
    built_in = {row.name for row in offers(kind) if is_known(row.package)} | set(known_elsewhere(kind))
    match = _TARGET.fullmatch(target)
    if not NAME.fullmatch(name):
        yield f"{kind} {name!r}: a component's name has small letters, digits and dashes"
    elif name in built_in:
        yield f"{kind} {name!r}: evidcore has one of that name"
    elif twin := next((item for item in built_in if alike(item) == alike(name)), None):
        yield f"{kind} {name!r}: can be mistaken for evidcore's {twin!r}"
    elif match is None or match[1] not in tops:
        yield f"{kind} {name!r}: {target!r} is no module:attribute of this package"


def _requirements(lines: list[str], wrong: list[str]) -> tuple[str, list[str]]:
    """Return the range of evidcore, and what else is asked for."""
    core, others = "", []
    for line in lines:
        try:
            item = Requirement(line)
        except InvalidRequirement as cause:
            wrong.append(f"requirement {line!r} cannot be read ({cause})")
            continue
        if item.marker is not None:
            if not re.fullmatch(r"extra == ['\"][\w.-]+['\"]", str(item.marker)):
                wrong.append(f"requirement {line!r} has a condition; it must hold everywhere")
            continue
        if item.url:
            wrong.append(f"requirement {line!r} names an address; it must name a version")
        elif normal(item.name) == "evidcore":
            core = str(item.specifier)
        elif is_known(item.name) and "<" in str(item.specifier):
            others.append(line)
        elif [part.operator for part in item.specifier] != ["=="] or "*" in str(item.specifier):
            wrong.append(f"requirement {line!r} must be pinned: {item.name}==VERSION")
        else:
            others.append(line)
    if "<" not in core:
        wrong.append(
            f"must say for which versions of evidcore it is made, as evidcore>=0.1,<0.2, says {core!r}"
        )
    return core, others


def _capabilities(files: Mapping[str, bytes], readme: str, wrong: list[str]) -> dict[str, str]:
    """Return what a plugin may reach as its card says, with what shows it; note what is not on the card."""
    looks, path = dict[str, CodeLook](), ""
    reach, loading = dict[str, str](), list[str]()
    try:
        for path in (name for name in files if name.endswith(".py")):
            looks[path] = CodeLook(files[path].decode(), top_modules(files))
        classes = {name for look in looks.values() for name in look.classes}
        classes -= {name for look in looks.values() for name in look.others}
        for path, look in looks.items():
            look.classes = classes
            reach |= {name: f"{path} {what}" for name, what in look.capabilities()}
            loading += [f"{path} {what}" for what in itertools.islice(look.runs_when_loaded(), 30)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as cause:
        wrong.append(f"{path} is no Python that can be read ({type(cause).__name__}: {cause})")
    if loading:
        reach["loading"] = "; ".join(loading)[:1900]
    try:
        card = card_in(readme, "its README")
    except PluginError as cause:
        wrong.append(str(cause))
        return reach
    wrong += [f"its card says {key!r}; whom to trust is the user's to say" for key in _claims(card)]
    asked = [name for name in CAPABILITIES if card.get(f"needs_{name}") is True]
    untold = {name: what for name, what in reach.items() if name not in asked}
    wrong += [f"{what}, and its card does not say needs_{name} = true" for name, what in untold.items()]
    return {name: reach.get(name, "its card says so") for name in asked}


def _claims(table: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a card that claim trust, however deep."""
    for key, value in table.items():
        if _TRUST.search(key):
            yield key
        if isinstance(value, Mapping):
            yield from _claims(value)
