// What a reader can do: filter, sort, open runs, and switch between light and dark.

const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const state = { hidden: new Set(), protocol: "", text: "" };
const shown = (method) => !state.hidden.has(method);

const tip = {
  node: document.getElementById("tip"),
  show(event, title, lines) {
    this.node.replaceChildren(html("b", "", title));
    for (const { method, text } of lines) {
      const line = html("div");
      if (method !== undefined) {
        const swatch = html("i", "swatch");
        swatch.style.setProperty("--c", colour(method));
        line.append(swatch, html("span", "", data.methods[method]));
      }
      line.append(html("span", "", text));
      this.node.append(line);
    }
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
  },
  hide: () => (tip.node.hidden = true),
};

const drawingOf = (figure) => figure.querySelector(".drawing");
const isMap = (figure) => figure.classList.contains("map");
const contentOf = (figure) => data.figures[figure.dataset.figure];

function drawFigure(figure) {
  if (isMap(figure)) drawMap(drawingOf(figure), contentOf(figure), tip);
  else drawChart(drawingOf(figure), contentOf(figure), shown, tip);
}

function reserveFigure(figure, width) {
  if (isMap(figure)) reserveMap(drawingOf(figure));
  else reserveChart(drawingOf(figure), contentOf(figure), data.methods, shown, width);
}

// A report may have hundreds of figures, so each is drawn when it comes near the screen.
const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      drawFigure(target);
    }
  },
  { rootMargin: "600px" },
);

const methodsOf = (figure) =>
  isMap(figure) ? [contentOf(figure).method] : contentOf(figure).series.map((s) => s.method);

const ofProtocol = (node) =>
  state.protocol === "" || node.dataset.protocol === "" || node.dataset.protocol === state.protocol;

// A row stays if all its methods are shown.
function agrees(node) {
  const methods = node.dataset.methods.split(" ").filter(Boolean).map(Number);
  return ofProtocol(node) && methods.every(shown) && node.textContent.toLowerCase().includes(state.text);
}

function apply() {
  for (const node of all("[data-methods]")) node.hidden = !agrees(node);
  for (const figure of all("figure")) {
    figure.hidden = !(ofProtocol(figure) && methodsOf(figure).some(shown));
    watcher.unobserve(figure);
  }
  const some = (selector, root) => all(selector, root).some((node) => !node.hidden);
  for (const body of all("tbody")) body.hidden = !some("[data-methods]", body);
  for (const part of all(".part")) part.hidden = !some("figure", part);
  for (const section of all("section")) section.querySelector(".nothing").hidden = some("[data-methods], figure", section);
  // Read all widths before changing anything: each change would cost another layout.
  const widths = all("figure").filter((figure) => !figure.hidden).map((figure) => [figure, drawingOf(figure).clientWidth]);
  for (const [figure, width] of widths) {
    reserveFigure(figure, width);
    watcher.observe(figure);
  }
  const filtered = state.hidden.size || state.protocol || state.text;
  document.getElementById("clear").hidden = !filtered;
}

function sort(head) {
  const column = [...head.parentNode.children].indexOf(head);
  // Numbers start with the largest, names with A.
  const usual = head.classList.contains("text") ? "ascending" : "descending";
  const other = usual === "ascending" ? "descending" : "ascending";
  const order = head.getAttribute("aria-sort") === usual ? other : usual;
  for (const each of head.parentNode.children) each.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  const value = (row) => row.cells[column].dataset.value;
  const compare = head.classList.contains("text")
    ? (a, b) => a.localeCompare(b, "en", { numeric: true })
    : (a, b) => Number(a) - Number(b);
  const sign = order === "ascending" ? 1 : -1;
  for (const body of head.closest("table").tBodies) {
    const rows = all("[data-methods]", body).sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      // Unknown values stay at the bottom.
      return (x === "") - (y === "") || sign * compare(x, y);
    });
    body.append(...rows);
  }
}

function toggle(button) {
  const method = Number(button.dataset.method);
  if (!state.hidden.delete(method)) state.hidden.add(method);
  button.setAttribute("aria-pressed", String(shown(method)));
  apply();
}

function reset() {
  state.hidden.clear();
  state.protocol = state.text = "";
  document.getElementById("filters").reset();
  for (const button of all("#methods button")) button.setAttribute("aria-pressed", "true");
  apply();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("densekd-theme", theme);
  } catch {
    // No storage: the choice lasts for this visit.
  }
}

function restoreTheme() {
  try {
    const theme = localStorage.getItem("densekd-theme");
    if (theme) document.documentElement.dataset.theme = theme;
  } catch {
    // No storage: follow the system.
  }
}

restoreTheme();
document.getElementById("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme || system;
  setTheme(now === "dark" ? "light" : "dark");
});
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("clear").addEventListener("click", reset);
document.getElementById("search").addEventListener("input", (event) => {
  state.text = event.target.value.trim().toLowerCase();
  apply();
});
document.getElementById("protocol").addEventListener("change", (event) => {
  state.protocol = event.target.value;
  apply();
});
for (const button of all("#methods button")) button.addEventListener("click", () => toggle(button));
for (const button of all("th button")) button.addEventListener("click", () => sort(button.parentNode));
// Opens a run that the address names, also on load; the click covers a second one on the same link.
function openRun(hash) {
  const details = document.getElementById(hash.slice(1));
  if (details?.matches("details")) details.open = true;
}
addEventListener("hashchange", () => openRun(location.hash));
for (const link of all("td a[href^='#']")) link.addEventListener("click", () => openRun(link.hash));
let width = innerWidth;
addEventListener("resize", () => {
  // On a phone, browser bars come and go and change only the height.
  if (innerWidth !== width) apply();
  width = innerWidth;
});
addEventListener("beforeprint", () => all("figure").filter((figure) => !figure.hidden).forEach(drawFigure));
apply();
openRun(location.hash);
