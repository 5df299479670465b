// Draws figures as SVG in the page's colours.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const colour = (method) => `var(--c${method % 10})`;
const dash = (method) => DASHES[Math.floor(method / 10) % DASHES.length];

function svg(tag, attributes = {}, parent = null, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function html(tag, className = "", text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

// Round numbers that span a range: about `count` of them at most, at least `least` apart.
function ticks(low, high, count, least = 0) {
  const rough = Math.max(least, (high - low || 1) / count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const number = (value) =>
  Number(value.toPrecision(Math.abs(value) < 100 ? 4 : 5)).toLocaleString("en", { maximumFractionDigits: 6 });
const short = (value) => value.toLocaleString("en", { maximumFractionDigits: 4 });
const withSpread = ([, y, spread], unit) => number(y) + (spread ? ` ± ${number(spread)}` : "") + unit;

const MAP_EDGE = 260;
const chartHeight = (width) => Math.max(200, Math.min(270, width * 0.62));

// Sizes a figure before it is drawn, so that drawing it later moves nothing else on the page.
function reserveChart(target, chart, methods, shown, availableWidth) {
  const series = chart.series.filter((s) => shown(s.method));
  const width = Math.max(240, availableWidth);
  reserve(target, width, chartHeight(width));
  target.querySelector(".legend")?.remove();
  target.append(legend(series, methods, chart.categories.length > 0));
}

const reserveMap = (target) => reserve(target, MAP_EDGE, MAP_EDGE);

function reserve(target, width, height) {
  const root = target.querySelector("svg") ?? svg("svg", {}, target);
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

// Maps values to pixels, with room for axis labels.
function frame(chart, series, width) {
  const height = chartHeight(width);
  const box = { left: 42, right: width - 10, top: 8, bottom: height - (chart.x ? 38 : 24) };
  const points = series.flatMap((s) => s.points);
  const lows = points.map(([, y, spread]) => y - (spread || 0));
  const highs = points.map(([, y, spread]) => y + (spread || 0));
  let [low, high] = [Math.min(...lows), Math.max(...highs)];
  if (chart.categories.length) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  [low, high] = [low === 0 ? 0 : low - room, high + room];
  const xs = points.map(([x]) => x);
  const [first, last] = chart.categories.length
    ? [-0.5, chart.categories.length - 0.5]
    : [Math.min(...xs), Math.max(...xs)];
  const inset = chart.categories.length || first === last ? 0 : 8;
  const span = last - first || 1;
  const x = (value) =>
    first === last
      ? (box.left + box.right) / 2
      : box.left + inset + ((value - first) / span) * (box.right - box.left - 2 * inset);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  return { width, height, box, x, y, low, high, first, last, whole: xs.every(Number.isInteger) };
}

function axes(root, chart, f) {
  for (const value of ticks(f.low, f.high, 5)) {
    svg("line", { class: "grid", x1: f.box.left, x2: f.box.right, y1: f.y(value), y2: f.y(value) }, root);
    svg("text", { x: f.box.left - 6, y: f.y(value) + 4, "text-anchor": "end" }, root, short(value));
  }
  const below = f.box.bottom + 16;
  if (chart.categories.length) {
    const most = Math.max(4, Math.floor((f.box.right - f.box.left) / chart.categories.length / 6.2));
    chart.categories.forEach((name, i) => {
      const cut = name.length > most ? `${name.slice(0, most - 1)}…` : name;
      svg("text", { x: f.x(i), y: below, "text-anchor": "middle" }, root, cut);
    });
  } else {
    for (const value of ticks(f.first, f.last, Math.max(3, Math.floor(f.width / 52)), f.whole ? 1 : 0)) {
      svg("text", { x: f.x(value), y: below, "text-anchor": "middle" }, root, short(value));
    }
  }
  if (chart.x) {
    svg("text", { x: (f.box.left + f.box.right) / 2, y: f.height - 4, "text-anchor": "middle" }, root, chart.x);
  }
}

function drawLines(root, series, f) {
  for (const { method, points, finished } of series) {
    const at = (f2) => points.map((p) => `${f.x(p[0]).toFixed(1)},${f2(p).toFixed(1)}`);
    const group = svg("g", { class: finished ? "series" : "series unfinished" }, root);
    if (points.some((p) => p[2])) {
      const upper = at((p) => f.y(p[1] + (p[2] || 0)));
      const lower = at((p) => f.y(p[1] - (p[2] || 0))).reverse();
      svg("polygon", { class: "band", points: [...upper, ...lower].join(" "), style: `fill: ${colour(method)}` }, group);
    }
    const style = `stroke: ${colour(method)}`;
    const attributes = { class: "line", points: at((p) => f.y(p[1])).join(" "), style };
    svg("polyline", { ...attributes, "stroke-dasharray": finished ? dash(method) : "2 4" }, group);
    if (points.length > 40) continue;
    for (const p of points) {
      svg("circle", { cx: f.x(p[0]), cy: f.y(p[1]), r: 2.6, style: `fill: ${colour(method)}` }, group);
    }
  }
}

function drawBars(root, series, f) {
  const width = ((f.x(1) - f.x(0)) * 0.8) / series.length;
  series.forEach(({ method, points }, i) => {
    const group = svg("g", { class: "series" }, root);
    for (const [category, y, spread] of points) {
      const left = f.x(category) + (i - series.length / 2) * width;
      const [top, bottom] = [f.y(Math.max(y, 0)), f.y(Math.min(y, 0))];
      const shape = { x: left + width * 0.06, y: top, width: width * 0.88, height: Math.max(0, bottom - top), rx: 1.5 };
      svg("rect", { ...shape, style: `fill: ${colour(method)}` }, group);
      if (!spread) continue;
      const x = left + width / 2;
      svg("line", { class: "whisker", x1: x, x2: x, y1: f.y(y - spread), y2: f.y(y + spread) }, group);
    }
  });
}

function legend(series, methods, bars) {
  const node = html("div", "legend");
  for (const { method, finished } of series) {
    const entry = html("span");
    const mark = svg("svg", { viewBox: "0 0 20 8" });
    const style = `stroke: ${colour(method)}`;
    const attributes = { x1: 0, x2: 20, y1: 4, y2: 4, "stroke-width": bars ? 8 : 2.4, style };
    svg("line", { ...attributes, "stroke-dasharray": bars ? "" : finished ? dash(method) : "2 4" }, mark);
    entry.append(mark, methods[method] + (finished ? "" : ", unfinished"));
    node.append(entry);
  }
  return node;
}

// The x value nearest to a pixel, its title, and a line for each series with a value there.
function near(chart, series, f, place) {
  const xs = [...new Set(series.flatMap((s) => s.points.map(([x]) => x)))];
  const x = xs.reduce((best, each) => (Math.abs(f.x(each) - place) < Math.abs(f.x(best) - place) ? each : best));
  const unit = chart.y.startsWith("%") ? " %" : "";
  const lines = series.flatMap(({ method, points }) => {
    const point = points.find((p) => p[0] === x);
    return point ? [{ method, value: point[1], text: withSpread(point, unit) }] : [];
  });
  if (!chart.categories.length) lines.sort((a, b) => b.value - a.value);
  return { x, title: chart.categories[x] ?? `${short(x)} ${chart.x}`, lines };
}

// Both fill in the SVG that `reserveChart` or `reserveMap` made.
function drawChart(target, chart, shown, tip) {
  const series = chart.series.filter((s) => shown(s.method));
  const root = target.querySelector("svg");
  const width = root.viewBox.baseVal.width;
  const f = frame(chart, series, width);
  root.replaceChildren();
  axes(root, chart, f);
  const bars = chart.categories.length > 0;
  const guide = svg("line", { class: "guide", y1: f.box.top, y2: f.box.bottom, visibility: "hidden" }, root);
  (bars ? drawBars : drawLines)(root, series, f);
  root.onpointermove = (event) => {
    const { left, width: wide } = root.getBoundingClientRect();
    const found = near(chart, series, f, ((event.clientX - left) / wide) * width);
    for (const end of ["x1", "x2"]) guide.setAttribute(end, f.x(found.x));
    guide.setAttribute("visibility", bars ? "hidden" : "visible");
    tip.show(event, found.title, found.lines);
  };
  root.onpointerleave = () => {
    guide.setAttribute("visibility", "hidden");
    tip.hide();
  };
}

function drawMap(target, map, tip) {
  const [size, edge, margin] = [map.values.length, MAP_EDGE, 26];
  const cell = (edge - margin) / size;
  const root = target.querySelector("svg");
  root.replaceChildren();
  const every = Math.ceil(size / 12);
  map.values.forEach((row, r) => {
    const top = r * cell;
    if (r % every === 0) {
      svg("text", { x: margin - 5, y: top + cell / 2 + 4, "text-anchor": "end" }, root, r + 1);
      svg("text", { x: margin + (r + 0.5) * cell, y: edge - 10, "text-anchor": "middle" }, root, r + 1);
    }
    row.forEach((value, c) => {
      if (value === null) return;
      const fill = `fill: color-mix(in oklab, var(--heat) ${(8 + value * 0.92).toFixed(1)}%, var(--paper))`;
      const x = margin + c * cell;
      const box = svg("rect", { x, y: top, width: cell - (size > 20 ? 0 : 1), height: cell - (size > 20 ? 0 : 1), rx: size > 20 ? 0 : 2, style: fill }, root);
      const title = `task ${c + 1} after task ${r + 1}`;
      box.addEventListener("pointermove", (event) => tip.show(event, title, [{ text: `${number(value)} %` }]));
      box.addEventListener("pointerleave", tip.hide);
      if (size > 12) return;
      const ink = value > 55 ? "fill: light-dark(#fff, #0d1114)" : "fill: var(--ink)";
      const place = { x: x + cell / 2 - 0.5, y: top + cell / 2 + 3.5, "text-anchor": "middle", "pointer-events": "none" };
      svg("text", { ...place, style: `${ink}; font-size: ${size > 8 ? 9 : 11}px` }, root, value.toFixed(size > 8 ? 0 : 1));
    });
  });
  svg("text", { x: (edge + margin) / 2, y: edge, "text-anchor": "middle" }, root, "task");
}
