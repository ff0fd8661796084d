// Draws what one rank does: a row per track, regions in colours, lanes hatched, stalls in red.
(() => {
  const { data, end, view, theme, GUTTER, AXIS, duration, element } = shell;
  const GAP = 5, RIGHT = 14;
  let focus = null; // what the legend highlights: a test on spans

  // ---- data: arrays to objects, and neighbours of one region to runs that carry one label
  const text = (number) => data.texts[number];
  const drawings = data.timelines.map((timeline, number) => {
    let y = 4;
    const rows = timeline.rows.map((row) => {
      const height = row.label === "compute" ? 42 : row.label === "host" ? 20 : 32;
      const spans = row.spans.map(([start, stop, kind, name, color, region, lane, phase, detail, pair]) => ({
        start, stop, kind, pair, name: text(name), color: text(color), region: text(region), lane: text(lane),
        phase: text(phase), detail: text(detail),
      }));
      const made = { label: row.label, y, height, spans, runs: runs(spans) };
      y += height + GAP;
      return made;
    });
    const canvas = document.getElementById("timeline-" + number);
    return { canvas, rows, height: y + AXIS, makespan: timeline.makespan, comm: (label) => label.startsWith("comm") };
  });

  function runs(spans) {
    const found = [];
    for (const span of spans) {
      const last = found[found.length - 1];
      const joins = last && span.kind === "compute" && last.kind === "compute" && last.color === span.color &&
        last.lane === span.lane && last.phase === span.phase && span.start - last.stop <= 1e-9 * end;
      if (joins) { last.stop = span.stop; last.inside.push(span.start); }
      else found.push({ ...span, inside: [span.start] });
    }
    return found;
  }

  // ---- colours
  function fill(span, part = 0) {
    const lane = data.lanes.indexOf(span.lane);
    // Lanes differ in lightness as well as in hatching, so that they can be told apart in a bar one pixel wide.
    const light = Number(theme.light) - (lane > 0 ? 0.07 * (1 + (lane - 1) % 2) : 0) + part;
    const hue = data.hues[span.color];
    return hue === undefined ? `oklch(${light} 0.012 260)` : `oklch(${light} ${theme.chroma} ${hue})`;
  }
  function edge(span) { return fill(span, Number(theme.light) > 0.6 ? -0.22 : 0.2); }
  function hatched(span) { return data.lanes.indexOf(span.lane) % 2 === 1; }

  // ---- drawing
  function box(context, span, x, y, width, height) {
    const w = Math.max(width, 0.75);
    const r = Math.min(3, w / 4);
    context.beginPath();
    context.roundRect(x, y, w, height, r);
    if (span.kind === "wait") {
      context.fillStyle = theme["stall-soft"];
      context.fill();
      stripes(context, x, y, w, height, theme.stall, 5, 1.2);
      outline(context, x, y, w, height, r, theme.stall, 1.4);
      return;
    }
    context.fillStyle = fill(span, span.kind === "host" ? -0.12 : 0);
    context.fill();
    if (hatched(span) && w > 3) stripes(context, x, y, w, height, edge(span), 7, 0.7);
    if (span.phase === "weight_grad") {
      context.fillStyle = edge(span);
      context.fillRect(x, y + height - 4, w, 4);
    }
    if (span.kind === "launch" && w > 3) outline(context, x, y, w, height, r, edge(span), 1.6);
  }
  function outline(context, x, y, w, h, r, color, line) {
    if (w <= line * 2) return;
    context.beginPath();
    context.roundRect(x + line / 2, y + line / 2, w - line, h - line, r);
    context.strokeStyle = color;
    context.lineWidth = line;
    context.stroke();
  }
  function stripes(context, x, y, w, h, color, step, line) {
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.beginPath();
    for (let at = x - h - ((x - h) % step); at < x + w; at += step) { context.moveTo(at, y + h); context.lineTo(at + h, y); }
    context.strokeStyle = color;
    context.lineWidth = line;
    context.stroke();
    context.restore();
  }
  function label(context, run, x, width, row) {
    const from = Math.max(x, GUTTER), room = Math.min(x + width, context.wide - RIGHT) - from - 10;
    if (room < 14) return;
    const seconds = duration(run.stop - run.start);
    const phase = { weight_grad: " W", input_grad: " I" }[run.phase] || "";
    const own = (run.color || run.name) + phase;
    context.font = "12px system-ui, sans-serif";
    const choices = run.kind === "wait" ? ["stalled " + seconds, seconds] : [`${run.lane} ${own}`.trim(), own, run.lane];
    const shown = choices.find((choice) => choice && context.measureText(choice).width <= room);
    if (!shown) return;
    const middle = row.y + row.height / 2;
    const second = row.height > 36 && run.kind !== "wait" && context.measureText(seconds).width <= room;
    context.textBaseline = "middle";
    context.textAlign = "left";
    if (run.kind === "wait") {
      // Text over stripes is hard to read: give it a plain ground.
      context.fillStyle = theme.card;
      context.fillRect(from + 3, middle - 9, context.measureText(shown).width + 6, 18);
    }
    context.fillStyle = run.kind === "wait" ? theme.stall : theme["on-span"];
    context.fillText(shown, from + 6, middle - (second ? 7 : 0));
    if (second) {
      context.font = "11px system-ui, sans-serif";
      context.globalAlpha *= 0.72;
      context.fillText(seconds, from + 6, middle + 8);
      context.globalAlpha /= 0.72;
    }
  }
  function draw(drawing, hover) {
    focus = shell.focus();
    const context = shell.prepare(drawing), { wide } = context, scale = shell.scaleOf(drawing.canvas);
    const bottom = drawing.height - AXIS;
    shell.axis(context, drawing, scale, bottom);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, wide - GUTTER - RIGHT + 1, drawing.height);
    context.clip();
    for (const row of drawing.rows) { context.fillStyle = theme.track; context.fillRect(GUTTER, row.y, wide, row.height); }
    for (const row of drawing.rows) for (const span of row.spans) if (span.kind === "wait") {
      context.fillStyle = theme["stall-soft"];
      context.fillRect(scale(span.start), 0, scale(span.stop) - scale(span.start), bottom);
    }
    for (const row of drawing.rows) drawRow(context, row, scale);
    drawPair(context, drawing, scale, hover);
    context.restore();
    context.font = "12.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = theme.soft;
    for (const row of drawing.rows) context.fillText(row.label, GUTTER - 12, row.y + row.height / 2, GUTTER - 14);
  }
  function drawRow(context, row, scale) {
    for (const run of row.runs) {
      if (run.stop < view.from || run.start > view.to) continue;
      const x = scale(run.start), width = scale(run.stop) - x;
      context.globalAlpha = focus && !focus(run) ? 0.16 : 1;
      box(context, run, x, row.y, width - (width > 4 ? 1 : 0), row.height);
      operations(context, run, row, scale);
      label(context, run, x, width, row);
    }
    context.globalAlpha = 1;
  }
  // Where the operations inside a run begin, when there is room for marks.
  function operations(context, run, row, scale) {
    if (run.inside.length < 2) return;
    context.fillStyle = edge(run);
    let last = scale(run.start);
    for (const start of run.inside) {
      const x = scale(start);
      if (x - last < 6) continue;
      context.fillRect(x - 0.5, row.y, 1, 7);
      last = x;
    }
  }
  function drawPair(context, drawing, scale, hover) {
    if (!hover || hover.drawing !== drawing) return;
    const { span } = hover;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.6;
    for (const row of drawing.rows) for (const other of row.spans) {
      if (other !== span && (span.pair < 0 || other.pair !== span.pair)) continue;
      const x = scale(other.start);
      context.strokeRect(x, row.y, Math.max(1, scale(other.stop) - x - 1), row.height);
    }
  }

  // ---- text
  function describe({ span }) {
    const kinds = { compute: "computation", launch: "transfer", wait: "stalled in a wait", host: "host work" };
    const place = [span.lane && "lane " + span.lane, span.region, span.phase.replace("_grad", " gradient")].filter(Boolean).join(" \u00b7 ");
    return [
      element("b", span.name),
      element("div", place),
      element("div", `${kinds[span.kind]}, ${duration(span.stop - span.start)}, from ${duration(span.start)} to ${duration(span.stop)}`),
      element("div", span.detail, span.kind === "wait" ? "why" : ""),
    ].filter((line) => line.textContent);
  }

  // ---- what is where
  function find(drawing, x, y) {
    const time = shell.timeAt(drawing.canvas, x), near = 2 * (view.to - view.from) / drawing.canvas.clientWidth;
    const row = drawing.rows.find((r) => y >= r.y && y <= r.y + r.height);
    const hit = row && (row.spans.find((s) => s.start <= time && time < s.stop) ||
      row.spans.find((s) => s.start - near <= time && time <= s.stop + near));
    return hit ? { drawing, row, span: hit } : null;
  }
  // ---- legend: the regions, the lanes and what else is in the drawings
  const every = drawings.flatMap((drawing) => drawing.rows.flatMap((row) => row.spans));
  function entry(name, sample, test) {
    if (every.some(test)) shell.entry(name, (context, width, height) => box(context, sample, 0, 0, width, height), test);
  }
  const plain = { kind: "compute", color: "", lane: "", phase: "" };
  for (const color of Object.keys(data.hues)) entry(color, { ...plain, color }, (s) => s.color === color && s.kind !== "wait");
  entry("no region", plain, (s) => !s.color && s.kind !== "wait");
  if (data.lanes.length > 1) for (const lane of data.lanes) entry("lane " + lane, { ...plain, lane }, (s) => s.lane === lane);
  entry("weight gradient", { ...plain, phase: "weight_grad" }, (s) => s.phase === "weight_grad");
  entry("transfer", { ...plain, kind: "launch" }, (s) => s.kind === "launch");
  entry("host", { ...plain, kind: "host" }, (s) => s.kind === "host");
  entry("stall", { ...plain, kind: "wait" }, (s) => s.kind === "wait");
  shell.run({ drawings, draw, find, describe, right: RIGHT });
})();
