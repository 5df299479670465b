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
    made = _Page(contents)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(_asset("page.html.jinja"))
    text = template.render(
        title=contents.title,
        lead=contents.lead,
        shortened=contents.shortened,
        version=densekd.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        # Our own files, so they need no escaping.
        css=Markup(_asset("page.css")),
        js=Markup(_asset("chart.js") + _asset("page.js")),
        sections=[made.section(section) for section in contents.sections],
        runs=[made.run(run, method) for run, method in contents.runs],
        # Last, because sections add to it. Through JSON, which replaces NaN.
        data=json.loads(to_json(made.data)),
    )
    return text.encode(errors="backslashreplace")


class _Page:
    """Turns the contents of a page into the values of its template."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.methods = {method: i for i, method in enumerate(contents.methods)}
        self.protocols = {protocol: i for i, protocol in enumerate(contents.protocols)}
        # Numbered, because folder names may repeat.
        self.links = {run.folder.name: f"run-{i}" for i, (run, _) in enumerate(contents.runs)}
        self.data: dict[str, Any] = {
            "methods": list(contents.methods),
            "protocols": list(contents.protocols),
            "charts": [],
            "maps": [],
        }

    def section(self, section: Section) -> dict[str, Any]:
        tables = [self._table(table) for table in section.tables]
        figures = [
            (protocol, name, [self._figure(chart) for chart in charts])
            for name, (protocol, charts) in section.figures().items()
        ]
        return {
            **{"name": section.name, "title": section.title, "about": section.about},
            **{"remarks": section.remarks, "tables": tables, "figures": figures},
        }

    def run(self, run: RunRecord, method: str) -> dict[str, Any]:
        seed, order = run.replicate
        config = {**run.config, "data": {**run.config.get("data", {}), "dir": None}}
        return {
            "link": self.links[run.folder.name],
            "name": f"{run.folder.name}: {method}, seed {seed}, order {order}",
            "state": run.progress,
            "methods": self._methods((method,)),
            "protocol": self._protocol(run.protocol.label),
            "facts": _facts(run),
            "config": "\n".join(toml_lines(config)),
        }

    def _table(self, table: Table) -> dict[str, Any]:
        parts = table.parts()
        columns = parts[0][1].columns
        grouped = any(column.group for column in columns)
        groups = [{"title": title, "count": count} for title, count in header_spans(columns)]
        bodies = [
            {"heading": heading, "rows": [self._row(columns, row) for row in part.rows]}
            for heading, part in parts
        ]
        facts = {"name": table.name, "title": table.title, "note": table.note}
        return {**facts, "columns": columns, "groups": groups if grouped else [], "bodies": bodies}

    def _row(self, columns: Sequence[Column], row: Row) -> dict[str, Any]:
        cells = [self._cell(*pair) for pair in zip(row.cells, columns, strict=True)]
        protocol = self._protocol(row.protocol)
        return {"cells": cells, "methods": self._methods(row.methods), "protocol": protocol}

    def _cell(self, cell: Cell, column: Column) -> dict[str, Any]:
        value, text, spread = cell, cell_text(cell, column.kind), ""
        if isinstance(cell, Summary):
            value = cell.mean
            text, sign, spread = text.partition(" ± ")
            spread = (sign + spread).strip()
        return {
            "kind": column.kind,
            "value": "" if value is None else value,
            "text": text,
            "spread": spread,
            "link": self.links.get(str(cell)) if column.key == "folder" else None,
        }

    def _figure(self, chart: Chart | HeatMap) -> dict[str, Any]:
        """The template's values of a figure. Its points go into the page's data."""
        kind = "map" if isinstance(chart, HeatMap) else "chart"
        known = self.data[f"{kind}s"]
        content = asdict(chart)
        if isinstance(chart, HeatMap):
            content["method"] = self.methods[chart.method]
            title, about = chart.method, _about(chart)
        else:
            title, about = chart.title, "" if chart.y == "loss" else chart.y
            content["series"] = [
                {
                    "method": self.methods[series.method],
                    "finished": series.finished,
                    "points": [[p.x, p.y, p.spread] for p in series.points],
                }
                for series in chart.series
            ]
        known.append(content)
        return {
            **{"kind": kind, "place": len(known) - 1, "title": title, "about": about},
            "protocol": self._protocol(chart.protocol),
        }

    def _methods(self, methods: Sequence[str]) -> str:
        return " ".join(str(self.methods[method]) for method in methods)

    def _protocol(self, protocol: str) -> str:
        return str(self.protocols.get(protocol, ""))


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
