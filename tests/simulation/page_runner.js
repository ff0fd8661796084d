// Runs the script of a page under node with just enough of a browser, and prints as JSON what it wrote on its canvases
// and in its tooltip: node page_runner.js page.html [x y wheel-turns]...
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const [, data] = page.match(/<script type="application\/json" id="data">(.*?)<\/script>/s);
const [, script] = page.match(/<script>\n(.*?)<\/script>/s);
const written = [], pending = [], elements = new Map();
let outlines = 0;
function context() {
  const known = {
    fillText: (text) => written.push(String(text)), measureText: (text) => ({ width: 6 * String(text).length }),
    strokeRect: () => { outlines += 1; },
  };
  return new Proxy(known, { get: (target, name) => (name in target ? target[name] : () => {}), set: (target, name, value) => { target[name] = value; return true; } });
}
function element(kind) {
  const listeners = {}, made = {
    kind, style: {}, clientWidth: 1000, offsetWidth: 100, offsetHeight: 50, children: [], attributes: {}, hidden: true, textContent: "",
    addEventListener: (name, act) => { (listeners[name] = listeners[name] || []).push(act); },
    fire: (name, event) => (listeners[name] || []).forEach((act) => act({ preventDefault() {}, ...event })),
    append: (...more) => made.children.push(...more), replaceChildren: (...more) => { made.children = more; },
    setAttribute: (name, value) => { made.attributes[name] = value; }, getAttribute: (name) => made.attributes[name],
    getBoundingClientRect: () => ({ left: 0, top: 0 }), setPointerCapture() {}, getContext: context,
  };
  return made;
}
global.document = {
  getElementById: (id) => {
    if (!elements.has(id)) elements.set(id, element(id));
    return elements.get(id);
  },
  createElement: element, documentElement: element("html"),
};
global.window = { devicePixelRatio: 1, innerWidth: 1200, innerHeight: 900, addEventListener() {}, matchMedia: () => ({ addEventListener() {} }) };
global.getComputedStyle = () => ({ getPropertyValue: () => "0.5" });
global.requestAnimationFrame = (act) => pending.push(act);
global.ImageData = class { constructor(width, height) { this.data = new Uint8ClampedArray(4 * width * height); } };
document.getElementById("data").textContent = data;
const frame = () => { while (pending.length) pending.shift()(); };
new Function(script)();
frame();
const report = { first: [...written], outlines, legend: document.getElementById("legend").children.map((button) => button.children[1]), tips: [] };
for (let n = 3; n < process.argv.length; n += 3) {
  const [x, y, turns] = process.argv.slice(n, n + 3).map(Number), canvas = document.getElementById("timeline-0");
  for (let turn = 0; turn < turns; turn += 1) canvas.fire("wheel", { deltaX: 0, deltaY: -300, offsetX: x });
  canvas.fire("pointermove", { clientX: x, clientY: y });
  written.length = 0;
  frame();
  const tip = document.getElementById("tip");
  report.tips.push({ lines: tip.hidden ? [] : tip.children.map((line) => line.textContent), written: [...written] });
  canvas.fire("keydown", { key: "0" });
  frame();
}
console.log(JSON.stringify(report));
