"use strict";
// Sorts tables by the column whose heading is pressed, and widens the timelines of a section, which scroll together.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1, isText = head.classList.contains("text");
    const by = (row) => row.cells[column].dataset.by;
    heads.forEach((each) => { each.ariaSort = "none"; });
    head.ariaSort = sign > 0 ? "ascending" : "descending";
    // Cells without a value come last, whichever way.
    body.append(...[...body.rows].sort((a, b) => (by(a) === "") - (by(b) === "")
      || sign * (isText ? by(a).localeCompare(by(b)) : by(a) - by(b))));
  }));
}

const NAMES = "http://www.w3.org/2000/svg";
// The words inside a bar, where there is room for them at this zoom.
function label(svg) {
  svg.querySelectorAll("g g text").forEach((text) => text.remove());
  for (const bar of svg.querySelectorAll("g g")) {
    const [title, box] = bar.children, words = title.textContent.split("\n")[0];
    const wide = parseFloat(box.getAttribute("width")) / 100 * svg.clientWidth;
    const high = bar.children.length > 2 ? 16 : parseFloat(box.getAttribute("height"));
    if (!words || high < 12 || wide < words.length * 6.5 + 6) continue;
    const text = document.createElementNS(NAMES, "text");
    text.textContent = words;
    text.setAttribute("x", box.getAttribute("x"));
    text.setAttribute("dx", "3");
    text.setAttribute("y", parseFloat(box.getAttribute("y")) + high / 2 + 4);
    bar.append(text);
  }
}
for (const section of document.querySelectorAll("section.zooms")) {
  const panes = [...section.querySelectorAll(".scroll")];
  let zoom = 1;
  // The time under the pointer, or in the middle, stays where it is.
  function widen(factor, pane = panes[0], at = pane.clientWidth / 2) {
    const before = zoom, left = pane.scrollLeft;
    zoom = Math.min(64, Math.max(1, zoom * factor));
    for (const each of panes) {
      each.firstElementChild.setAttribute("width", 100 * zoom + "%");
      label(each.firstElementChild);
      each.scrollLeft = (left + at) * zoom / before - at;
    }
  }
  const acts = { in: () => widen(2), out: () => widen(0.5), fit: () => widen(0) };
  section.querySelectorAll("button[data-zoom]").forEach((button) => button.addEventListener("click", acts[button.dataset.zoom]));
  for (const pane of panes) {
    pane.addEventListener("scroll", () => panes.forEach((other) => { if (other !== pane) other.scrollLeft = pane.scrollLeft; }));
    pane.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      widen(event.deltaY < 0 ? 1.25 : 0.8, pane, event.clientX - pane.getBoundingClientRect().left);
    }, { passive: false });
    label(pane.firstElementChild);
  }
}
