"use strict";
// Sliders, windows and outlines of the volume viewers.
for (const viewer of document.querySelectorAll("figure.viewer")) {
  const volume = JSON.parse(document.getElementById(viewer.dataset.volume).textContent);
  const image = viewer.querySelector(".screen img");
  const drawing = viewer.querySelector(".screen svg");
  const slider = viewer.querySelector(".slider input");
  const output = viewer.querySelector("output");
  const outline = viewer.querySelector("input.outline");
  const show = () => {
    const place = Number(slider.value);
    const chosen = viewer.querySelector(".switch input:checked");
    const window_ = chosen ? chosen.value : Object.keys(volume.windows)[0];
    const text = `slice ${volume.z[place]} of ${volume.depth}`;
    image.src = volume.windows[window_][place];
    image.alt = `Axial ${text}, ${window_}`;
    output.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    drawing.replaceChildren();
    if (!outline || !outline.checked) return;
    Object.values(volume.outlines).forEach((paths, number) => {
      if (!(place in paths)) return;
      const path = document.createElementNS(drawing.namespaceURI, "path");
      path.setAttribute("d", paths[place]);
      path.setAttribute("class", `s${number}`);
      drawing.append(path);
    });
  };
  viewer.addEventListener("input", show);
  const screen = viewer.querySelector(".screen");
  let dragged = null;
  screen.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") return;
    dragged = { y: event.clientY, from: Number(slider.value) };
    screen.setPointerCapture(event.pointerId);
  });
  screen.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    slider.value = dragged.from + Math.round((dragged.y - event.clientY) / 6);
    show();
  });
  screen.addEventListener("pointerup", () => { dragged = null; });
  show();
}

// Tooltips of the curves: pointer, or arrow keys when a chart has the focus.
const tip = document.getElementById("tip");
const written = (value, unit) => {
  if (unit === "rate") return `${(100 * value).toFixed(1)} %`;
  return String(Number(value.toPrecision(4))).replace("-", "\u2212");
};
const row = (...cells) => {
  const line = document.createElement("tr");
  for (const cell of cells) {
    const box = document.createElement("td");
    box.textContent = cell;
    line.append(box);
  }
  return line;
};
for (const figure of document.querySelectorAll("figure.curve")) {
  const block = figure.querySelector(".points");
  if (!block) continue;
  const data = JSON.parse(block.textContent);
  const drawing = figure.querySelector("svg");
  const cursor = figure.querySelector(".cursor");
  const steps = [...new Set(data.curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const [left, right, width] = data.area;
  let at = steps.length - 1;
  const nearest = (step) => {
    let best = 0;
    steps.forEach((other, place) => { if (Math.abs(other - step) < Math.abs(steps[best] - step)) best = place; });
    return best;
  };
  const show = (place) => {
    at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[at];
    const x = left + ((right - left) * (step - data.first)) / Math.max(data.last - data.first, 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const table = document.createElement("table");
    table.append(row("step", String(step)));
    for (const curve of data.curves) {
      const found = curve.steps.indexOf(step);
      if (found >= 0) table.append(row(curve.label, written(curve.values[found], data.unit)));
    }
    tip.replaceChildren(table);
    tip.hidden = false;
    const box = drawing.getBoundingClientRect();
    const wide = tip.offsetWidth;
    const near = box.left + (x / width) * box.width;
    tip.style.left = `${Math.min(Math.max(near + 12, 8), window.innerWidth - wide - 8)}px`;
    tip.style.top = `${Math.max(box.top + 6, 8)}px`;
  };
  const hide = () => {
    tip.hidden = true;
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
  };
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    show(nearest(data.first + ((x - left) / (right - left)) * (data.last - data.first)));
  });
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("focus", () => { if (drawing.matches(":focus-visible")) show(at); });
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(at - 1);
    else if (event.key === "ArrowRight") show(at + 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}
