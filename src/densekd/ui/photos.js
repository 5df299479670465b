// Selects, moves and removes photos. For gr.HTML's js_on_load.
const idsIn = (place, which) =>
  [...place.querySelectorAll(`[data-photo]${which}`)].map((photo) => photo.dataset.photo);
const selected = () => idsIn(element, "[aria-pressed=true]");
const change = (action, photos, name) => trigger("select", { action, photos, name: name || "" });

function showSelection() {
  const count = selected().length;
  element.querySelector(".kd-selection").hidden = !count;
  element.querySelector(".kd-selection span").textContent =
    count === 1 ? "1 photo selected" : `${count} photos selected`;
}

function changeSelected(action, name) {
  change(action, selected(), name);
  select(element.querySelectorAll("[data-photo]"), false);
}

function select(photos, on) {
  for (const photo of photos) photo.setAttribute("aria-pressed", on);
  showSelection();
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const section = button.closest("section"), { photo, act } = button.dataset;
  if (photo) select([button], button.getAttribute("aria-pressed") !== "true");
  else if (act === "select-class") select(section.querySelectorAll("[data-photo]"), true);
  else if (act === "remove") {
    change("remove", idsIn(button.parentElement, ""));
    button.parentElement.remove();  // at once, so that the next click removes the next photo
  }
  else if (act === "remove-class") change("remove", idsIn(section, ""));
  else if (act === "add-more") change("choose", [], section.dataset.class);
  else if (act === "remove-selected") changeSelected("remove");
  else if (act === "move") changeSelected("move", element.querySelector("input")?.value);
});
