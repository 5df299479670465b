"""The page: tables, figures and runs in one HTML file that needs no other."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import densekd
from densekd.config.settings_tree import toml_lines
from densekd.files import to_json
from densekd.report.charts import Chart, HeatMap
from densekd.report.export import header_spans
from densekd.report.labels import file_name_part
from densekd.report.overview import commit_of
from densekd.report.runs import RunRecord
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, Column, Row, Table, cell_text, short_duration


@dataclass(frozen=True)
class Section:
    """A part of the page: warnings, then tables, then charts."""

    name: str  # its anchor
    title: str
    about: str = ""
    remarks: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart | HeatMap, ...] = ()

    def figures(self) -> dict[str, tuple[str, list[Chart | HeatMap]]]:
        """The charts of each protocol, as ``{file name: (protocol, charts)}``."""
        found: dict[str, list[Chart | HeatMap]] = {}
        for chart in self.charts:
            found.setdefault(chart.protocol, []).append(chart)
        names = [f"{self.name}-{file_name_part(protocol)}" for protocol in found]
        # Number protocols that have the same file name.
        unique = [n if n not in names[:i] else f"{n}-{i}" for i, n in enumerate(names)]
        return dict(zip(unique, found.items(), strict=True))


@dataclass(frozen=True)
class Contents:
    """All that is on a page. The section called ``runs`` shows the settings of all runs."""

    title: str
    lead: str  # what the page is about, in a sentence
    shortened: str  # which schedules were shortened; empty if none was
    methods: tuple[str, ...]  # in the order of their colours
    protocols: tuple[str, ...]
    sections: tuple[Section, ...]
    runs: tuple[tuple[RunRecord, str], ...]  # with the label of the method


def render_page(contents: Contents) -> bytes:
    """The page as HTML. All names are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(_asset("page.html.jinja"))
    values = _PageValues(contents)
    text = template.render(
        contents=contents,
        values=values,
        header_spans=header_spans,
        version=densekd.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        # Our own files, so they need no escaping.
        css=Markup(_asset("page.css")),
        js=Markup(_asset("chart.js") + _asset("page.js")),
        # Rendered before the data, because this fills them in.
        figures={section.name: values.figures(section) for section in contents.sections},
        # Through JSON, which replaces NaN.
        data=json.loads(to_json(values.data)),
    )
    return text.encode(errors="backslashreplace")


class _PageValues:
    """What the template asks for: methods and protocols by index, cells, figures and runs."""

    def __init__(self, contents: Contents) -> None:
        self.method_indices = {method: i for i, method in enumerate(contents.methods)}
        self.protocol_indices = {protocol: i for i, protocol in enumerate(contents.protocols)}
        # Numbered, because folder names may repeat.
        self.links = {run.folder.name: f"run-{i}" for i, (run, _) in enumerate(contents.runs)}
        self.data: dict[str, Any] = {
            "methods": list(contents.methods),
            "protocols": list(contents.protocols),
            "charts": [],
            "maps": [],
        }

    def methods(self, methods: Sequence[str]) -> str:
        return " ".join(str(self.method_indices[method]) for method in methods)

    def protocol(self, protocol: str) -> str:
        return str(self.protocol_indices.get(protocol, ""))

    def cells(self, row: Row, columns: Sequence[Column]) -> list[dict[str, Any]]:
        return [self._cell(*pair) for pair in zip(row.cells, columns, strict=True)]

    def _cell(self, cell: Cell, column: Column) -> dict[str, Any]:
        value, text, spread = cell, cell_text(cell, column.kind), ""
        if isinstance(cell, Summary):
            value = cell.mean
            text, sign, spread = text.partition(" ± ")
            spread = (sign + spread).strip()
        return {
            "value": "" if value is None else value,
            "text": text,
            "spread": spread,
            "link": self.links.get(str(cell)) if column.key == "folder" else None,
        }

    def figures(self, section: Section) -> list[tuple[str, str, list[dict[str, Any]]]]:
        return [
            (protocol, name, [self._figure(chart) for chart in charts])
            for name, (protocol, charts) in section.figures().items()
        ]

    def _figure(self, chart: Chart | HeatMap) -> dict[str, Any]:
        """The template's values of a figure. Its points go into the page's data."""
        content = asdict(chart)
        if isinstance(chart, HeatMap):
            kind, title, about = "map", chart.method, _about(chart)
            content["method"] = self.method_indices[chart.method]
        else:
            kind, title, about = "chart", chart.title, "" if chart.y == "loss" else chart.y
            content["series"] = [
                {
                    "method": self.method_indices[series.method],
                    "finished": series.finished,
                    "points": [[p.x, p.y, p.spread] for p in series.points],
                }
                for series in chart.series
            ]
        known = self.data[f"{kind}s"]
        known.append(content)
        return {"kind": kind, "place": len(known) - 1, "title": title, "about": about}

    def run(self, run: RunRecord, method: str) -> dict[str, Any]:
        seed, order = run.replicate
        config = {**run.config, "data": {**run.config.get("data", {}), "dir": None}}
        return {
            "link": self.links[run.folder.name],
            "name": f"{run.folder.name}: {method}, seed {seed}, order {order}",
            "facts": _facts(run),
            "config": "\n".join(toml_lines(config)),
        }


def _about(chart: HeatMap) -> str:
    words = [f"mean of {chart.count} runs"] if chart.count > 1 else []
    return ", ".join(["% of test images", *words, *([] if chart.finished else ["unfinished"])])


def _facts(run: RunRecord) -> list[tuple[str, str]]:
    """The protocol, code and machine of a run, as far as they are known."""
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    memory = machine.get("memory")
    versions = ", ".join(f"{name} {v}" for name, v in (result.get("versions") or {}).items())
    hardware = [machine.get("accelerator"), machine.get("processor")]
    hardware += [f"{machine['cores']} cores"] if machine.get("cores") else []
    hardware += [f"{memory / 2**30:.0f} GiB"] if memory else []
    facts = {
        "protocol": run.protocol.label,
        "training time": short_duration(run.seconds) if run.steps else "",
        "commit": commit_of(run),
        "machine": ", ".join(str(part) for part in hardware if part),
        "engine": ", ".join(f"{name} {value}" for name, value in engine.items()),
        "versions": versions,
        "distillation": str(result.get("combination") or ""),
    }
    return [(word, value) for word, value in facts.items() if value]


def _asset(name: str) -> str:
    return files("densekd.report").joinpath("assets", name).read_text("utf-8")
