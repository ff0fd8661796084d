// Draws schedules: a row per rank, an action in the colour of its kind, the critical path outlined; below, the memory of
// each rank. Where actions are too narrow to be told apart, each pixel has the mean of the colours of what runs.
(() => {
  const { data, view, theme, GUTTER, AXIS, duration, element } = shell;
  const RIGHT = 118, HEAD = 16, BETWEEN = 8, MEMORY = 88, NARROW = 3;
  const looks = data.looks.map(([kind, word, chunk, colour, hatched, lanes]) => ({
    kind, word, chunk, colour, hatched, lanes, rgb: [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)),
  }));
  const drawings = data.timelines.map(unpack);

  // ---- data: differences to times
  function unpack(timeline, number) {
    const ranks = timeline.spans.map((flat, rank) => unpackRank(timeline, rank));
    const pitch = ranks.length <= 8 ? 32 : ranks.length <= 16 ? 25 : ranks.length <= 32 ? 17 : 11;
    const rows = HEAD + ranks.length * pitch;
    return {
      canvas: document.getElementById("timeline-" + number), makespan: timeline.makespan, ranks, pitch, rows,
      height: rows + BETWEEN + MEMORY + AXIS, peak: timeline.peak, bubbles: timeline.bubbles, peaks: timeline.peaks,
    };
  }
  function unpackRank(timeline, rank) {
    const { tick, shapes } = timeline, flat = timeline.spans[rank];
    const pieces = shapes.map(([text, kind, ...inside]) => {
      const found = [];
      for (let n = 0; n < inside.length; n += 2) found.push({ look: inside[n], stage: inside[n + 1] });
      return { text, kind, pieces: found };
    });
    const starts = [], ends = [], shape = [], first = []; // first: where the microbatches are in flat
    for (let at = 0, time = 0; at < flat.length;) {
      time += flat[at];
      starts.push(time * tick);
      time += flat[at + 1];
      ends.push(time * tick);
      shape.push(pieces[flat[at + 2]]);
      first.push(at + 3);
      at += 3 + pieces[flat[at + 2]].pieces.length;
    }
    const critical = new Uint8Array(starts.length);
    timeline.critical[rank].reduce((before, step) => { critical[before + step] = 1; return before + step; }, 0);
    return { rank, flat, end: timeline.makespan, starts, ends, shape, first, critical, arrivals: unpackArrivals(timeline, rank, starts), memory: unpackMemory(timeline, rank) };
  }
  function unpackArrivals(timeline, rank, starts) {
    const found = new Map(), flat = timeline.arrivals[rank], { tick } = timeline;
    for (let n = 0, at = 0; n < flat.length; n += 8) {
      at += flat[n];
      const arrival = starts[at] - flat[n + 5] * tick, sent = arrival - flat[n + 6] * tick, start = sent - flat[n + 7] * tick;
      const text = `${flat[n + 2]}SEND_${flat[n + 3] ? "B" : "F"}${flat[n + 4]}`;
      found.set(at, [...(found.get(at) || []), { text, sender: flat[n + 1], start, sent, arrival }]);
    }
    return found;
  }
  function unpackMemory(timeline, rank) {
    const flat = timeline.memory[rank], times = [], amounts = [];
    for (let n = 0, time = 0; n < flat.length; n += 2) {
      time += flat[n];
      times.push(time * timeline.tick);
      amounts.push(flat[n + 1]);
    }
    return { times, amounts };
  }
  // The first position whose number is larger than the value.
  function after(numbers, value) {
    let low = 0, high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] > value) high = middle; else low = middle + 1;
    }
    return low;
  }
  function visible(row) { return [after(row.ends, view.from), after(row.starts, view.to)]; }
  function microbatch(row, at, piece) { return row.flat[row.first[at] + piece]; }
  function textOf(row, at) {
    const { text, kind, pieces } = row.shape[at];
    if (text) return text;
    const parts = pieces.map(({ look, stage }, n) => {
      const number = microbatch(row, at, n);
      return stage + looks[look].kind + (number < 0 ? "" : number) + (looks[look].lanes > 1 ? "/" + looks[look].lanes : "");
    });
    return parts.length > 1 ? `(${parts.join(";")})${kind}` : parts[0];
  }

  // ---- drawing
  function draw(drawing, hover) {
    const context = shell.prepare(drawing), scale = shell.scaleOf(drawing.canvas);
    const room = context.wide - GUTTER - RIGHT, bottom = drawing.height - AXIS;
    shell.axis(context, drawing, scale, bottom);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, room + 1, drawing.height);
    context.clip();
    const shown = drawing.ranks.reduce((sum, row) => { const [from, to] = visible(row); return sum + Math.max(0, to - from); }, 0);
    context.fillStyle = theme.track;
    for (const row of drawing.ranks) context.fillRect(GUTTER, top(drawing, row), Math.max(0, scale(drawing.makespan) - GUTTER), boxHeight(drawing));
    const narrow = shown > 0 && room * drawing.ranks.length / shown < NARROW;
    if (narrow) mixed(context, drawing, room);
    for (const row of drawing.ranks) narrow ? criticalBars(context, drawing, row, scale) : boxes(context, drawing, row, scale);
    if (hover && hover.drawing === drawing) highlight(context, drawing, hover, scale);
    memory(context, drawing, hover, scale);
    context.restore();
    labels(context, drawing, hover);
  }
  function boxHeight(drawing) { return drawing.pitch - (drawing.pitch > 12 ? 4 : 1); }
  function top(drawing, row) { return HEAD + row.rank * drawing.pitch; }
  function faded(look) { const test = shell.focus(); return test !== null && !test(look); }
  function boxes(context, drawing, row, scale) {
    const [from, to] = visible(row), high = boxHeight(drawing), y = top(drawing, row);
    for (let at = from; at < to; at += 1) {
      const { pieces } = row.shape[at], x = scale(row.starts[at]), wide = scale(row.ends[at]) - x;
      const gap = wide > 4 ? 1 : 0, part = high / pieces.length;
      pieces.forEach(({ look }, n) => {
        context.globalAlpha = faded(looks[look]) ? 0.16 : 1;
        paint(context, looks[look], x, y + n * part, Math.max(0.75, wide - gap), part - (n < pieces.length - 1 ? 0.5 : 0));
        number(context, microbatch(row, at, n), x, y + (n + 0.5) * part, wide - gap, part);
      });
      context.globalAlpha = 1;
      if (row.critical[at]) { context.strokeStyle = theme.ink; context.lineWidth = 1.4; context.strokeRect(x + 0.2, y, Math.max(1, wide - gap - 0.4), high); }
    }
  }
  function paint(context, look, x, y, wide, high) {
    context.fillStyle = look.colour;
    context.fillRect(x, y, wide, high);
    context.fillStyle = theme.track; // a cut between nano-batches
    for (let lane = 1; lane < look.lanes; lane += 1) context.fillRect(x, y + high * lane / look.lanes - 0.75, wide, 1.5);
    if (!look.hatched || wide < 4) return;
    context.save();
    context.beginPath();
    context.rect(x, y, wide, high);
    context.clip();
    context.beginPath();
    for (let at = x - high; at < x + wide; at += 6) { context.moveTo(at, y + high); context.lineTo(at + high, y); }
    context.strokeStyle = "rgba(20, 24, 31, .35)";
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }
  function number(context, shown, x, middle, wide, high) {
    if (shown < 0 || wide < 7 || high < 9) return;
    const from = Math.max(x, GUTTER), to = Math.min(x + wide, context.wide - RIGHT);
    context.font = `${Math.min(13, Math.floor(high * 0.75))}px system-ui, sans-serif`;
    if (context.measureText(shown).width > to - from - 2) return;
    context.fillStyle = "#14181f"; // every look is light enough for dark letters
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(shown, (from + to) / 2, middle + 0.5);
  }
  // One pixel high per rank, then stretched.
  function mixed(context, drawing, room) {
    const columns = Math.max(1, Math.round(room * (window.devicePixelRatio || 1)));
    const image = new ImageData(columns, drawing.ranks.length);
    const scale = columns / (view.to - view.from), sums = new Float32Array(4 * columns);
    for (const row of drawing.ranks) {
      sums.fill(0);
      const [from, to] = visible(row);
      for (let at = from; at < to; at += 1) mix(sums, row.shape[at].pieces, (row.starts[at] - view.from) * scale, (row.ends[at] - view.from) * scale, columns);
      for (let n = 0; n < columns; n += 1) {
        const covered = sums[4 * n + 3], to = 4 * (row.rank * columns + n);
        for (let c = 0; c < 3; c += 1) image.data[to + c] = covered ? sums[4 * n + c] / covered : 0;
        image.data[to + 3] = Math.min(1, covered) * 255;
      }
    }
    const small = document.createElement("canvas");
    small.width = columns;
    small.height = drawing.ranks.length;
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (const row of drawing.ranks)
      context.drawImage(small, 0, row.rank, columns, 1, GUTTER, top(drawing, row), room, boxHeight(drawing));
  }
  function mix(sums, pieces, start, end, columns) {
    const first = Math.max(0, Math.floor(start)), last = Math.min(columns - 1, Math.ceil(end) - 1);
    for (const { look } of pieces) {
      if (faded(looks[look])) continue;
      const { rgb } = looks[look];
      for (let n = first; n <= last; n += 1) {
        const part = (Math.min(end, n + 1) - Math.max(start, n)) / pieces.length;
        for (let c = 0; c < 3; c += 1) sums[4 * n + c] += part * rgb[c];
        sums[4 * n + 3] += part;
      }
    }
  }
  function criticalBars(context, drawing, row, scale) {
    const [from, to] = visible(row), y = top(drawing, row) + boxHeight(drawing) / 2 - 1;
    context.fillStyle = theme.ink;
    for (let at = from; at < to; at += 1) if (row.critical[at]) {
      const x = scale(row.starts[at]);
      context.fillRect(x, y, Math.max(1, scale(row.ends[at]) - x), 2);
    }
  }
  // The action under the pointer, and the messages that it uses.
  function highlight(context, drawing, { row, at }, scale) {
    const x = scale(row.starts[at]), high = boxHeight(drawing);
    context.strokeStyle = theme.stall;
    context.lineWidth = 2;
    context.strokeRect(x, top(drawing, row), Math.max(1.5, scale(row.ends[at]) - x - 1), high);
    context.lineWidth = 1.5;
    for (const { sender, start, arrival } of row.arrivals.get(at) || []) {
      const above = sender < row.rank;
      context.beginPath();
      context.moveTo(scale(start), top(drawing, drawing.ranks[sender]) + (above ? high : 0));
      context.lineTo(scale(arrival), top(drawing, row) + (above ? 0 : high));
      context.stroke();
    }
  }
  function memory(context, drawing, hover, scale) {
    const base = drawing.height - AXIS, roof = base - MEMORY, peak = drawing.peak || 1;
    const y = (amount) => base - 1 - amount / peak * (MEMORY - 6);
    const chosen = hover && hover.drawing === drawing ? hover.row : null;
    for (const row of drawing.ranks) if (row !== chosen) curve(context, row, scale, y, curveColour(drawing, row), 1.5, chosen ? 0.3 : 0.9);
    if (chosen) curve(context, chosen, scale, y, theme.ink, 2, 1);
    context.fillStyle = theme.line;
    context.fillRect(GUTTER, roof - BETWEEN / 2, context.wide, 1);
  }
  function curveColour(drawing, row) {
    return `oklch(0.62 0.14 ${Math.round(300 - 200 * row.rank / Math.max(1, drawing.ranks.length - 1))})`;
  }
  // Steps inside one pixel become one vertical line.
  function curve(context, row, scale, y, colour, line, alpha) {
    const { times, amounts } = row.memory;
    const from = Math.max(0, after(times, view.from) - 1), to = after(times, view.to);
    if (from >= to) return;
    context.beginPath();
    let x = scale(Math.max(times[from], view.from)), level = amounts[from], low = level, high = level;
    context.moveTo(x, y(level));
    for (let n = from + 1; n < to; n += 1) {
      const next = scale(times[n]);
      if (next - x >= 1) {
        if (low < high) { context.lineTo(x, y(low)); context.lineTo(x, y(high)); }
        context.lineTo(x, y(level));
        context.lineTo(next, y(level));
        x = next;
        low = high = level;
      }
      level = amounts[n];
      low = Math.min(low, level);
      high = Math.max(high, level);
    }
    if (low < high) { context.lineTo(x, y(low)); context.lineTo(x, y(high)); }
    context.lineTo(x, y(level));
    context.lineTo(scale(Math.min(view.to, row.end)), y(level));
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.globalAlpha = alpha;
    context.stroke();
    context.globalAlpha = 1;
  }
  function labels(context, drawing, hover) {
    const step = Math.ceil(13 / drawing.pitch), chosen = hover && hover.drawing === drawing ? hover.row.rank : -1;
    const right = context.wide - RIGHT;
    context.font = `${drawing.pitch > 14 ? 12.5 : 11}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const { rank } of drawing.ranks) {
      const near = Math.abs(rank - chosen) < step && chosen >= 0;
      if (rank !== chosen && (near || rank % step)) continue;
      const middle = HEAD + rank * drawing.pitch + boxHeight(drawing) / 2;
      context.fillStyle = rank === chosen ? theme.ink : theme.soft;
      context.fillText("rank " + rank, GUTTER - 12, middle);
      context.fillText((100 * drawing.bubbles[rank]).toFixed(1) + "%", right + 58, middle);
      context.fillText(amount(drawing.peaks[rank]), right + RIGHT - 6, middle);
    }
    context.fillStyle = theme.soft;
    const base = drawing.height - AXIS;
    context.fillText("memory", GUTTER - 12, base - MEMORY / 2);
    context.fillText(amount(drawing.peak), GUTTER - 12, base - MEMORY + 8);
    context.fillText("0", GUTTER - 12, base - 6);
    context.fillText("bubble", right + 58, HEAD / 2 - 1);
    context.fillText("peak", right + RIGHT - 6, HEAD / 2 - 1);
  }
  function amount(number) {
    if (Math.abs(number) < 9999.5) return String(Number(number.toPrecision(4)));
    const [scale, unit] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([s]) => Math.abs(number) >= s * 0.99995);
    return Number((number / scale).toPrecision(4)) + " " + unit;
  }

  // ---- what is where
  function find(drawing, x, y) {
    const row = drawing.ranks[Math.floor((y - HEAD) / drawing.pitch)];
    if (!row || y > drawing.rows || x > drawing.canvas.clientWidth - RIGHT) return null;
    const time = shell.timeAt(drawing.canvas, x), at = after(row.ends, time);
    return at < row.starts.length && row.starts[at] <= time ? { drawing, row, at, span: row.rank + ":" + at } : null;
  }
  function describe({ drawing, row, at }) {
    const { pieces } = row.shape[at], start = row.starts[at], end = row.ends[at];
    const words = pieces.map(({ look, stage }, n) => {
      const number = microbatch(row, at, n);
      const lanes = looks[look].lanes > 1 ? `, as ${looks[look].lanes} nano-batches` : "";
      return `${looks[look].word} of stage ${stage}` + (number < 0 ? "" : `, microbatch ${number}`) + lanes;
    });
    const step = Math.max(0, after(row.memory.times, start) - 1), held = row.memory.amounts[step];
    return [
      element("b", textOf(row, at)),
      ...words.map((word) => element("div", word)),
      element("div", `rank ${row.rank}, ${duration(end - start)}, from ${duration(start)} to ${duration(end)}`),
      element("div", held === undefined ? "" : `memory at its start ${amount(held)}`),
      element("div", row.critical[at] ? "on the critical path" : ""),
      ...waited(row, at),
    ].filter((line) => line.textContent);
  }
  function waited(row, at) {
    const start = row.starts[at], free = at ? row.ends[at - 1] : 0, tiny = 1e-9 * shell.end;
    const messages = [...(row.arrivals.get(at) || [])].sort((a, b) => b.arrival - a.arrival);
    const lines = messages.map(({ text, sender, arrival }) =>
      `uses ${text} of rank ${sender}, there since ${duration(arrival)}` + (start - arrival > tiny ? `, ${duration(start - arrival)} earlier` : ""));
    const pause = start - free, last = messages[0];
    const why = pause <= tiny ? "" : last && last.arrival > free + tiny
      ? `idle ${duration(pause)} before it, until ${last.text} of rank ${last.sender} arrived`
      : `idle ${duration(pause)} before it`;
    return [...lines.map((line) => element("div", line)), element("div", why, "why")];
  }

  // ---- legend
  const kinds = new Map();
  for (const look of looks) if (!kinds.has(look.kind) || look.chunk < kinds.get(look.kind).chunk) kinds.set(look.kind, look);
  for (const look of kinds.values())
    shell.entry(look.word, (context, wide, high) => paint(context, { ...look, lanes: 1 }, 0, 0, wide, high), (other) => other.kind === look.kind);
  if (data.chunks > 1) for (let chunk = 0; chunk < data.chunks; chunk += 1) {
    const sample = looks.find((look) => look.chunk === chunk);
    if (sample) shell.entry(`stage ${chunk + 1} of a rank`, (context, wide, high) => paint(context, { ...sample, lanes: 1 }, 0, 0, wide, high), (other) => other.chunk === chunk);
  }
  const split = looks.find((look) => look.lanes > 1);
  if (split) shell.entry("cut: nano-batches", (context, wide, high) => paint(context, split, 0, 0, wide, high), (other) => other.lanes > 1);
  if (data.timelines.some(({ critical }) => critical.some((row) => row.length))) shell.entry("critical path", (context, wide, high) => {
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.4;
    context.strokeRect(0.7, 0.7, wide - 1.4, high - 1.4);
  }, () => true);
  const rows = drawings.length ? drawings[0].ranks : [];
  for (const row of rows.length > 2 ? [rows[0], rows[rows.length - 1]] : rows)
    shell.entry(`memory of rank ${row.rank}`, (context, wide, high) => {
      context.fillStyle = curveColour(drawings[0], row);
      context.fillRect(0, high / 2 - 1, wide, 2);
    }, () => true);
  shell.run({ drawings, draw, find, describe, right: RIGHT });
})();
