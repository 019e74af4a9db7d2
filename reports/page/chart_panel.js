"use strict";
// One panel of the chart: a model on a task.
class ChartPanel {
  /** Draw `points` into `parent`; `styles`: colour and mark of methods; `faint`: says of a point whether it stands back. */
  constructor(parent, points, { x, y, styles, faint }) {
    Object.assign(this, { points, x, y, styles, faint });
    this.width = Math.max(280, parent.clientWidth);
    this.height = Math.min(460, Math.max(250, this.width * 0.55));
    [this.left, this.right, this.top, this.bottom] = [48, this.width - 12, 8, this.height - 40];
    const values = (axis) => points.flatMap((p) => [axis.at(p), axis.low?.(p), axis.high?.(p)]).filter(Number.isFinite);
    this.sx = ChartPanel.scale(values(x), this.left, this.right);
    this.sy = ChartPanel.scale(values(y), this.bottom, this.top);
    this.svg = chartElement(parent, "svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "group", "aria-label": `${y.title} against ${x.title}` });
    this.drawFloors();
    this.drawAxes();
    this.drawSweeps();
    this.drawIntervals();
    const front = this.front();
    this.drawPareto(front);
    this.order = [...points].sort((a, b) => x.at(a) - x.at(b) || y.at(a) - y.at(b));
    this.marks = this.order.map((p) => this.mark(p));
    this.name(front);
  }

  static scale(values, from, to) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = 0.04 * (high - low) || 0.5;
    [low, high] = [low - pad, high + pad];
    return Object.assign((value) => from + ((value - low) / (high - low)) * (to - from), { low, high });
  }

  static ticks({ low, high }, about) {
    const rough = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  }

  at(p) { return [this.sx(this.x.at(p)), this.sy(this.y.at(p))]; }

  drawFloors() {
    if (this.x !== CHART_X.speedup) return;
    for (const p of this.points.filter((p) => p.aa_low !== undefined && !this.faint(p))) {
      const [from, to] = [Math.max(this.sx.low, p.aa_low), Math.min(this.sx.high, p.aa_high)].map(this.sx);
      if (to > from) chartElement(this.svg, "rect", { class: "floor", x: from, y: this.at(p)[1] - 3, width: to - from, height: 6 });
    }
  }

  drawAxes() {
    const { svg, sx, sy, left, right, top, bottom } = this;
    for (const tick of ChartPanel.ticks(sx, this.width / 90)) {
      chartElement(svg, "line", { class: "grid", x1: sx(tick), x2: sx(tick), y1: top, y2: bottom });
      chartElement(svg, "text", { x: sx(tick), y: bottom + 15, "text-anchor": "middle" }, number(tick));
    }
    for (const tick of ChartPanel.ticks(sy, this.height / 50)) {
      chartElement(svg, "line", { class: "grid", x1: left, x2: right, y1: sy(tick), y2: sy(tick) });
      chartElement(svg, "text", { x: left - 6, y: sy(tick) + 4, "text-anchor": "end" }, number(tick));
    }
    const metrics = new Set(this.points.map((p) => p.metric));
    const title = this.y === CHART_Y.value && metrics.size === 1 ? `${[...metrics][0]}${this.points[0].lower_is_better ? ", less is better" : ""}` : this.y.title;
    const room = Math.floor((right - left) / 6.2);
    const across = this.x.title.length > room ? this.x.title.split(/[:,]/)[0] : this.x.title;
    chartElement(svg, "text", { class: "axis", x: (left + right) / 2, y: this.height - 8, "text-anchor": "middle" }, across);
    chartElement(svg, "text", { class: "axis", transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, title);
  }

  drawSweeps() {
    for (const swept of Object.values(Object.groupBy(this.points.filter((p) => Number.isFinite(p.threshold)), (p) => p.sweep))) {
      if (swept.length < 2) continue;
      const path = swept.sort((a, b) => a.threshold - b.threshold).map((p) => this.at(p).map((v) => v.toFixed(1)).join(" "));
      chartElement(this.svg, "path", { class: this.faint(swept[0]) ? "sweep faint" : "sweep", d: `M${path.join("L")}`, stroke: this.styles[swept[0].method][0] });
    }
  }

  drawIntervals() {
    const { svg, x, y, sx, sy } = this;
    for (const p of this.points.filter((p) => !this.faint(p))) {
      const [px, py] = this.at(p);
      const stroke = this.styles[p.method][0];
      if (Number.isFinite(x.low?.(p))) chartElement(svg, "line", { class: "interval", stroke, x1: sx(x.low(p)), x2: sx(x.high(p)), y1: py, y2: py });
      if (Number.isFinite(y.low?.(p))) chartElement(svg, "line", { class: "interval", stroke, x1: px, x2: px, y1: sy(y.low(p)), y2: sy(y.high(p)) });
    }
  }

  /** Real points, oracles and random exits left out, that no other beats both across and in quality, from the best across on. */
  front() {
    const sign = this.x.less ? 1 : -1;
    const real = this.points.filter((p) => !p.simulated && !p.bound && !this.faint(p));
    real.sort((a, b) => sign * (this.x.at(a) - this.x.at(b)) || this.y.merit(b) - this.y.merit(a));
    let best = -Infinity;
    return real.filter((p) => this.y.merit(p) > best && ((best = this.y.merit(p)), true));
  }

  drawPareto(front) {
    if (front.length < 2) return;
    const [first, ...others] = front.map((p) => this.at(p));
    const steps = others.map(([px, py], i) => `V${py.toFixed(1)}H${px.toFixed(1)}`);
    chartElement(this.svg, "path", { class: "pareto", d: `M${first[0].toFixed(1)} ${first[1].toFixed(1)}${steps.join("")}` });
  }

  mark(p) {
    const [colour, marker] = this.styles[p.method];
    const [px, py] = this.at(p);
    const faint = this.faint(p);
    const mark = chartElement(this.svg, "path", {
      class: `point${p.simulated ? " simulated" : ""}${faint ? " faint" : ""}`, d: CHART_MARKS[marker], transform: `translate(${px.toFixed(2)} ${py.toFixed(2)})`,
      stroke: colour, fill: p.simulated ? "none" : colour, tabindex: -1, role: "img", "aria-label": chartWords(p),
    });
    if (this.x === CHART_X.speedup && p.is_other_length && !faint) chartElement(this.svg, "text", { class: "other-length", x: px + 5, y: py - 3 }, "†");
    return mark;
  }

  /** Name the front's points, as far as there is room: a name covers no other name. */
  name(front) {
    const taken = [];
    for (const p of front) {
      const [px, py] = this.at(p);
      const width = 5.6 * p.short.length;
      const gap = p.is_other_length ? 13 : 8;
      const ends = px + gap + width > this.right;
      const box = { x: ends ? px - 8 - width : px + gap, y: py - 12, width, height: 13 };
      const meets = (other) => box.x < other.x + other.width && other.x < box.x + width && box.y < other.y + other.height && other.y < box.y + box.height;
      if (box.x < this.left || taken.some(meets)) continue;
      taken.push(box);
      chartElement(this.svg, "text", { class: "name", x: ends ? px - 8 : px + gap, y: Math.max(this.top + 10, py - 3), "text-anchor": ends ? "end" : "start" }, p.short);
    }
  }
}
