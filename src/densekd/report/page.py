"""The page: tables, figures and runs in one file that needs nothing else."""

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
from densekd.report.export import spans
from densekd.report.labels import slug
from densekd.report.overview import commit_of
from densekd.report.runs import RunRecord
from densekd.report.statistics import Summary
from densekd.report.tables import Cell, Column, Row, Table, duration, plain, shown


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        name: of its place in it.
        title: what it is called.
        about: what it shows.
        remarks: what must not be overlooked.
        tables: come first.
        charts: come after them.
    """

    name: str
    title: str
    about: str = ""
    remarks: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart | HeatMap, ...] = ()

    def figures(self) -> dict[str, tuple[str, list[Chart | HeatMap]]]:
        """Its charts by protocol, under the names of their files, with the protocol."""
        found: dict[str, list[Chart | HeatMap]] = {}
        for chart in self.charts:
            found.setdefault(chart.protocol, []).append(chart)
        names = [f"{self.name}-{slug(protocol)}" for protocol in found]
        # Protocols that differ only in what a file's name can't have are numbered.
        unique = [n if n not in names[:i] else f"{n}-{i}" for i, n in enumerate(names)]
        return dict(zip(unique, found.items(), strict=True))


@dataclass(frozen=True)
class Contents:
    """All that is on a page.

    Args:
        title: of the page.
        lead: what it is made of, in a sentence.
        shortened: says which schedules were shortened; empty if none was.
        methods: in the order of their colours.
        protocols: all of them.
        sections: from top to bottom; the one called ``runs`` has ``runs`` in full.
        runs: every run with what its method is called.
    """

    title: str
    lead: str
    shortened: str
    methods: tuple[str, ...]
    protocols: tuple[str, ...]
    sections: tuple[Section, ...]
    runs: tuple[tuple[RunRecord, str], ...]


def page(contents: Contents) -> bytes:
    """The page as HTML. Names in it may be anything: what they contain stays text."""
    made = _Page(contents)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(_asset("page.html.jinja"))
    text = template.render(
        title=contents.title,
        lead=contents.lead,
        shortened=contents.shortened,
        version=densekd.__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        # Ours, so that it may be taken as it is.
        css=Markup(_asset("page.css")),
        js=Markup(_asset("chart.js") + _asset("page.js")),
        sections=[made.section(section) for section in contents.sections],
        runs=[made.run(run, method) for run, method in contents.runs],
        # Last, for it has what the sections put into it; as JSON, which has no NaN.
        data=json.loads(to_json(made.data)),
    )
    return text.encode(errors="backslashreplace")


class _Page:
    """Turns what is on a page into what its template takes."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.methods = {method: i for i, method in enumerate(contents.methods)}
        self.protocols = {protocol: i for i, protocol in enumerate(contents.protocols)}
        # Folders of different places may have the same name.
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
        config = {**run.config, "data": {**run.config.get("data", {}), "dir": None}}
        return {
            "link": self.links[run.folder.name],
            "name": f"{run.folder.name}: {method}, seed {run.drawn[0]}, order {run.drawn[1]}",
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
        groups = [{"title": title, "count": count} for title, count in spans(columns)]
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
        value, (text, sign, spread) = plain(cell), shown(cell, column.kind).partition(" ± ")
        if not isinstance(cell, Summary):
            text, sign, spread = shown(cell, column.kind), "", ""
        return {
            "kind": column.kind,
            "value": "" if value is None else value,
            "text": text,
            "spread": (sign + spread).strip(),
            "link": self.links.get(str(cell)) if column.key == "folder" else None,
        }

    def _figure(self, chart: Chart | HeatMap) -> dict[str, Any]:
        """What the template says of a figure; what is drawn goes into the page's data."""
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
    """What a run was computed with and on, in words, as far as it is known."""
    result = run.result or {}
    machine, engine = result.get("machine") or {}, result.get("engine") or {}
    memory = machine.get("memory")
    versions = ", ".join(f"{name} {v}" for name, v in (result.get("versions") or {}).items())
    hardware = [machine.get("accelerator"), machine.get("processor")]
    hardware += [f"{machine['cores']} cores"] if machine.get("cores") else []
    hardware += [f"{memory / 2**30:.0f} GiB"] if memory else []
    facts = {
        "protocol": run.protocol.label,
        "training time": duration(run.seconds) if run.steps else "",
        "commit": commit_of(run),
        "machine": ", ".join(str(part) for part in hardware if part),
        "engine": ", ".join(f"{name} {value}" for name, value in engine.items()),
        "versions": versions,
        "distillation": str(result.get("combination") or ""),
    }
    return [(word, value) for word, value in facts.items() if value]


def _asset(name: str) -> str:
    return files("densekd.report").joinpath("assets", name).read_text("utf-8")
