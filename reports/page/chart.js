"use strict";
// The frontier: a point for each row of the results table that its filters leave.
(() => {
  const chart = document.getElementById("chart");
  const table = document.getElementById("summary")?.closest("article");
  if (!chart || !table?.rowsInOrder) return;
  const { styles, points } = JSON.parse(document.getElementById("points").textContent);
  const canvas = chart.querySelector(".canvas");
  const tip = chart.querySelector(".tip");
  const [across, up] = [chart.querySelector("[data-x]"), chart.querySelector("[data-y]")];

  const X = {
    speedup: { title: "measured speed-up over full depth, of whole requests", at: (p) => p.speedup, low: (p) => p.speedup_low, high: (p) => p.speedup_high },
    token: { title: "measured speed-up over full depth, of decoding a token", at: (p) => p.speedup_per_token },
    blocks: { title: "mean blocks run, share of all blocks", at: (p) => p.mean_blocks_run / p.blocks },
    depth: { title: "mean exit layer, share of all blocks", at: (p) => p.mean_exit_layer / p.blocks },
    ideal: { title: "work saved: full depth's bytes read over the method's, of decoding", at: (p) => p.ideal_speedup_bytes },
  };
  const share = (p, value) => (value === undefined || !p.full_value ? undefined : (100 * value) / p.full_value);
  const Y = {
    relative: { title: "quality, % of full depth's", at: (p) => share(p, p.value), low: (p) => share(p, p.ci_low), high: (p) => share(p, p.ci_high) },
    value: { title: "quality", at: (p) => p.value, low: (p) => p.ci_low, high: (p) => p.ci_high },
  };
  const MARKS = {
    o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    s: "M-3.6-3.6h7.2v7.2h-7.2z",
    "^": "M0-4.6L4.4 3.6H-4.4z",
    v: "M0 4.6L4.4-3.6H-4.4z",
    "<": "M-4.6 0L3.6-4.4V4.4z",
    ">": "M4.6 0L-3.6-4.4V4.4z",
    D: "M0-4.8L4.8 0L0 4.8L-4.8 0z",
    d: "M0-5.4L3.2 0L0 5.4L-3.2 0z",
    P: "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    X: "M-4.4-2.6L-2.6-4.4L0-1.8L2.6-4.4L4.4-2.6L1.8 0L4.4 2.6L2.6 4.4L0 1.8L-2.6 4.4L-4.4 2.6L-1.8 0z",
    h: "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4z",
    "*": "M0-5.4L1.6-1.7L5.3-1.5L2.4.9L3.4 4.6L0 2.6L-3.4 4.6L-2.4.9L-5.3-1.5L-1.6-1.7z",
  };
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes, text) => {
    const element = parent.appendChild(document.createElementNS(SVG, name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const number = (value, digits = 2) => value.toFixed(digits).replace(/\.?0+$/, "");
  const ticks = (low, high, about) => {
    const rough = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  };
  const scale = (values, from, to) => {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = 0.04 * (high - low) || 0.5;
    [low, high] = [low - pad, high + pad];
    const at = (value) => from + ((value - low) / (high - low)) * (to - from);
    return Object.assign(at, { low, high });
  };
  const words = (p) =>
    `${p.label}${p.simulated ? " (simulated)" : ""} · ${p.model} · ${p.task} · ` +
    [
      `${p.metric} ${p.value === undefined ? "not measured" : number(p.value)}` + (p.ci_low === undefined ? "" : ` [${number(p.ci_low)}, ${number(p.ci_high)}]`) +
        (p.full_value === undefined ? "" : `, full depth ${number(p.full_value)}`),
      p.mean_exit_layer === undefined ? "" : `exit layer ${number(p.mean_exit_layer)} of ${p.blocks}`,
      p.mean_blocks_run === undefined ? "" : `blocks run ${number(p.mean_blocks_run)}`,
      p.speedup === undefined || p.full ? "" : `speed-up ${number(p.speedup)}` + (p.speedup_low === undefined ? "" : ` [${number(p.speedup_low)}, ${number(p.speedup_high)}]`),
      p.aa_low === undefined ? "" : `full depth against itself [${number(p.aa_low)}, ${number(p.aa_high)}]`,
      p.is_other_length === undefined ? "" : `${p.is_other_length ? "† " : ""}${number(p.tokens_per_request, 1)} tokens, full depth ${number(p.full_tokens_per_request, 1)}`,
      p.speedup_per_token === undefined || p.full ? "" : `per token ${number(p.speedup_per_token)}`,
      p.speedup_decode === undefined || p.full ? "" : `decoding ${number(p.speedup_decode)}` + (p.ideal_speedup_decode === undefined ? "" : ` of ideal ${number(p.ideal_speedup_decode)}`),
      p.ideal_speedup_bytes === undefined ? "" : `work saved ${number(p.ideal_speedup_bytes)}×`,
      `n = ${p.n}` + (p.timed_documents === undefined ? "" : `, timed ${p.timed_documents}` + (p.timed_rounds === undefined ? "" : ` × ${p.timed_rounds}`)),
    ].filter(Boolean).join(" · ");

  const draw = () => {
    const [x, y] = [X[across.value], Y[up.value]];
    const visible = points.filter((p) => !table.rowsInOrder[p.row].hidden);
    const shown = visible.filter((p) => Number.isFinite(x.at(p)) && Number.isFinite(y.at(p)));
    canvas.replaceChildren();
    tip.hidden = true;
    chart.querySelector(".methods").replaceChildren();
    if (!shown.length) {
      canvas.textContent = visible.length ? "None of these rows has both of these values." : "No row is left.";
      return;
    }
    const width = Math.max(320, canvas.clientWidth);
    const height = Math.min(460, Math.max(280, width * 0.55));
    const [left, right, top, bottom] = [52, width - 14, 10, height - 42];
    const svg = make(canvas, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${Y[up.value].title} against ${x.title}` });
    const edges = (axis) => shown.flatMap((p) => [axis.at(p), axis.low?.(p), axis.high?.(p)]).filter(Number.isFinite);
    const floors = across.value === "speedup" ? shown.filter((p) => p.aa_low !== undefined) : [];
    const [sx, sy] = [scale(edges(x), left, right), scale(edges(y), bottom, top)];
    for (const p of floors) {
      const [from, to] = [Math.max(sx.low, p.aa_low), Math.min(sx.high, p.aa_high)].map(sx);
      if (to > from) make(svg, "rect", { class: "floor", x: from, y: sy(y.at(p)) - 3, width: to - from, height: 6 });
    }
    for (const tick of ticks(sx.low, sx.high, width / 90)) {
      make(svg, "line", { class: "grid", x1: sx(tick), x2: sx(tick), y1: top, y2: bottom });
      make(svg, "text", { x: sx(tick), y: bottom + 16, "text-anchor": "middle" }, number(tick));
    }
    for (const tick of ticks(sy.low, sy.high, height / 50)) {
      make(svg, "line", { class: "grid", x1: left, x2: right, y1: sy(tick), y2: sy(tick) });
      make(svg, "text", { x: left - 7, y: sy(tick) + 4, "text-anchor": "end" }, number(tick));
    }
    const metrics = new Set(shown.map((p) => p.metric));
    const title = up.value === "value" && metrics.size === 1 ? [...metrics][0] : y.title;
    make(svg, "text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, x.title);
    make(svg, "text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, title);
    const cross = (p, colour) => {
      const [px, py] = [sx(x.at(p)), sy(y.at(p))];
      if (Number.isFinite(x.low?.(p))) make(svg, "line", { class: "interval", stroke: colour, x1: sx(x.low(p)), x2: sx(x.high(p)), y1: py, y2: py });
      if (Number.isFinite(y.low?.(p))) make(svg, "line", { class: "interval", stroke: colour, x1: px, x2: px, y1: sy(y.low(p)), y2: sy(y.high(p)) });
    };
    for (const p of shown) cross(p, styles[p.method][0]);
    const order = [...shown].sort((a, b) => x.at(a) - x.at(b) || y.at(a) - y.at(b));
    const marks = order.map((p) => {
      const [colour, marker] = styles[p.method];
      const place = `translate(${sx(x.at(p)).toFixed(2)} ${sy(y.at(p)).toFixed(2)})`;
      return make(svg, "path", { class: p.simulated ? "point simulated" : "point", d: MARKS[marker], transform: place, stroke: colour, fill: p.simulated ? "none" : colour, tabindex: -1, role: "img", "aria-label": words(p) });
    });
    for (const p of across.value === "speedup" ? order.filter((p) => p.is_other_length) : []) {
      make(svg, "text", { class: "other-length", x: sx(x.at(p)) + 5, y: sy(y.at(p)) - 3 }, "†");
    }
    marks[0].setAttribute("tabindex", 0);
    const show = (i) => {
      marks.forEach((mark, j) => mark.classList.toggle("chosen", i === j));
      tip.textContent = words(order[i]);
      tip.hidden = false;
    };
    marks.forEach((mark, i) => {
      mark.addEventListener("mouseenter", () => show(i));
      mark.addEventListener("focus", () => show(i));
      mark.addEventListener("click", () => goTo(order[i]));
      mark.addEventListener("keydown", (event) => {
        if (event.key === "Enter") goTo(order[i]);
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: marks.length - 1 }[event.key];
        if (next === undefined || !marks[next]) return;
        event.preventDefault();
        mark.setAttribute("tabindex", -1);
        marks[next].setAttribute("tabindex", 0);
        marks[next].focus();
      });
    });
    legend(shown);
  };
  const goTo = (p) => {
    const row = table.rowsInOrder[p.row];
    row.scrollIntoView({ block: "center" });
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
  };
  const legend = (shown) => {
    for (const method of [...new Set(shown.map((p) => p.method))].sort()) {
      const entry = chart.querySelector(".methods").appendChild(document.createElement("span"));
      const [colour, marker] = styles[method];
      const svg = make(entry, "svg", { viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": true });
      make(svg, "path", { d: MARKS[marker], fill: colour });
      entry.append(method);
    }
  };
  for (const select of [across, up]) select.addEventListener("input", draw);
  table.addEventListener("filtered", draw);
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - width) < 1) return; // its own height changes with every drawing
    width = contentRect.width;
    draw();
  }).observe(canvas);
  chart.hidden = false;
})();
