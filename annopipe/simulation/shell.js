"use strict";
// What every page of timelines shares: its data, words and colours, one view that zoom and pan move on all canvases,
// the tooltip and the legend. The script after this one calls shell.run with how to draw and what is where.
const shell = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const end = Math.max(...data.timelines.map((t) => t.makespan), 0) || 1;
  const view = { from: 0, to: end };
  const GUTTER = 104, AXIS = 24;
  const page = { right: 14 }; // what shell.run was given
  let hover = null; // what `find` returned for the place under the pointer
  const theme = { read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["card", "ink", "soft", "line", "track", "stall", "stall-soft", "on-span", "light", "chroma"])
      this[name] = style.getPropertyValue("--" + name).trim();
  } };

  // ---- text
  function duration(seconds) {
    if (seconds === 0) return "0";
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]].find(([s]) => Math.abs(seconds) >= s * 0.99995) || [1e-9, "ns"];
    return Number((seconds / scale).toPrecision(4)) + " " + unit;
  }
  function element(kind, content, className = "") {
    const made = document.createElement(kind);
    made.textContent = content;
    made.className = className;
    return made;
  }

  // ---- time axis
  function ticks(span, room) {
    const rough = span / Math.max(2, room / 110), power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  }
  function axis(context, drawing, scale, bottom) {
    const step = ticks(view.to - view.from, context.wide - GUTTER);
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let n = Math.ceil(view.from / step - 1e-9); n * step <= view.to * (1 + 1e-9); n += 1) {
      const x = scale(n * step);
      context.fillStyle = theme.line;
      context.fillRect(x, 0, 1, bottom);
      context.fillStyle = theme.soft;
      context.fillText(duration(n * step), Math.min(x, context.wide - 22), bottom + 6);
    }
    const x = scale(drawing.makespan);
    if (x >= GUTTER && x <= context.wide) { context.fillStyle = theme.soft; context.fillRect(x, 0, 1.5, bottom + 4); }
  }

  // ---- canvases: the size of one at the resolution of the screen, and what time is where
  function prepare({ canvas, height }) {
    const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.wide = wide;
    return context;
  }
  function inside(canvas) { return canvas.clientWidth - GUTTER - page.right; }
  function timeAt(canvas, x) { return view.from + (x - GUTTER) / inside(canvas) * (view.to - view.from); }
  function scaleOf(canvas) {
    const room = inside(canvas);
    return (time) => GUTTER + (time - view.from) / (view.to - view.from) * room;
  }

  // ---- moving about
  let pending = false;
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; page.drawings.forEach((drawing) => page.draw(drawing, hover)); });
  }
  function show(from, to) {
    const width = Math.min(end, Math.max(to - from, end * 1e-6));
    view.from = Math.min(Math.max(0, from), end - width);
    view.to = view.from + width;
    redraw();
  }
  function zoom(factor, at = (view.from + view.to) / 2) { show(at - (at - view.from) * factor, at + (view.to - at) * factor); }
  function pan(share) { const by = (view.to - view.from) * share; show(view.from + by, view.to + by); }
  function point(drawing, event) {
    const area = drawing.canvas.getBoundingClientRect(), x = event.clientX - area.left;
    const found = x < GUTTER ? null : page.find(drawing, x, event.clientY - area.top);
    if ((found && found.span) !== (hover && hover.span) || (found && found.drawing) !== (hover && hover.drawing)) { hover = found; redraw(); }
    tip.hidden = !found;
    if (!found) return;
    tip.replaceChildren(...page.describe(found));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : below) + "px";
  }
  function listen(drawing) {
    const { canvas } = drawing;
    let grabbed = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / canvas.clientWidth);
      else zoom(Math.exp(event.deltaY * 0.0016), timeAt(canvas, event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { grabbed = event.clientX; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { grabbed = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (grabbed !== null) {
        pan((grabbed - event.clientX) / inside(canvas));
        grabbed = event.clientX;
      }
      point(drawing, event);
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; hover = null; redraw(); });
    canvas.addEventListener("dblclick", () => show(0, end));
    canvas.addEventListener("keydown", (event) => {
      const act = {
        "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), "0": () => show(0, end),
        ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
      }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
  }

  // ---- legend: an entry highlights what it stands for; `test` is what shell.focus() then returns
  const entries = [];
  let focus = null;
  function entry(name, paint, test) {
    const button = element("button", "");
    button.type = "button";
    const swatch = element("canvas", "");
    button.append(swatch, name);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("mouseenter", () => { focus = test; redraw(); });
    button.addEventListener("mouseleave", () => { focus = kept(); redraw(); });
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") === "true";
      for (const other of entries) other.button.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(!pressed));
      focus = kept();
      redraw();
    });
    document.getElementById("legend").append(button);
    entries.push({ button, swatch, paint, test });
  }
  function kept() {
    const pressed = entries.find((e) => e.button.getAttribute("aria-pressed") === "true");
    return pressed ? pressed.test : null;
  }
  function swatches() {
    for (const { swatch, paint } of entries) {
      const ratio = window.devicePixelRatio || 1;
      swatch.width = 20 * ratio;
      swatch.height = 13 * ratio;
      const context = swatch.getContext("2d");
      context.scale(ratio, ratio);
      paint(context, 20, 13);
    }
  }
  function restyle() { theme.read(); swatches(); redraw(); }

  // drawings: { canvas, height, makespan, ... }; draw(drawing, hover); find(drawing, x, y) -> { drawing, span, ... } or
  // null; describe(found) -> elements; right: pixels that the page keeps free on the right.
  function run(parts) {
    Object.assign(page, parts);
    page.drawings.forEach(listen);
    document.getElementById("zoom-in").addEventListener("click", () => zoom(0.6));
    document.getElementById("zoom-out").addEventListener("click", () => zoom(1.7));
    document.getElementById("fit").addEventListener("click", () => show(0, end));
    window.addEventListener("resize", redraw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
    restyle();
  }
  return { data, end, view, theme, GUTTER, AXIS, axis, duration, element, entry, focus: () => focus, prepare, redraw, run, scaleOf, timeAt };
})();
