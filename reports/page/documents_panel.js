"use strict";
// What is known of one token: facts, confidence by block, and the logit lens.

/** An element with a class and children; strings become text, never markup. */
function make(tag, name = "", ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== null));
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const HIDDEN_CHARACTERS = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** A text with every character spelled out that cannot be seen or moves others. */
function visible(text) {
  return text.replace(HIDDEN_CHARACTERS, (character) => {
    if (character === "\n") return "↵";
    const code = character.codePointAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\u{${code}}`;
  });
}

/** A token as it is shown: without the space that begins a word, and something to see where there is nothing. */
function shown(text, most = Infinity) {
  const characters = Array.from(visible(text.startsWith(" ") ? text.slice(1) : text));
  const kept = characters.slice(0, most).join("");
  if (characters.length > most) return `${kept}…`;
  return kept.trim() ? kept : "␣".repeat(Math.max(1, characters.length));
}

function decimal(number, digits = 2) {
  return number.toFixed(digits);
}

const REASONS = { threshold: "the method let it go", last: "no block was left" };
const CHART = { width: 360, height: 150, left: 30, right: 6, top: 8, bottom: 34 };

class TokenPanel {
  constructor(element, live) {
    Object.assign(this, { element, live });
  }

  hint(text) {
    this.element.replaceChildren(make("p", "hint", text));
  }

  show(group, answer, token, pinned, letGo) {
    const run = group.entry.runs[answer.run];
    const blocks = token.probe === null ? null : group.readOuts(token.probe, answer.run);
    const oracle = token.probe === null ? null : group.columns.first_match.values[token.probe];
    const final = token.probe === null ? null : group.value("full_token_id", token.probe);
    this.element.classList.toggle("pinned", pinned);
    this.element.replaceChildren(
      this.title(answer, token, pinned ? letGo : null),
      make("p", "whose", run.label),
      this.facts(group, run, token, oracle),
      ...(blocks
        ? [this.chart(run, token, oracle, blocks), this.lens(token, oracle, final, blocks)]
        : [make("p", "note", this.whyNot(answer, token))]),
    );
  }

  title(answer, token, letGo) {
    const chip = make("span", `token exit-${token.exit}${token.differs ? " differs" : ""}`, make("bdi", "", shown(token.text)));
    const place = make("span", "place", this.place(answer, token));
    if (!letGo) return make("div", "what", chip, place);
    const button = make("button", "", "Let go");
    button.type = "button";
    button.addEventListener("click", letGo);
    return make("div", "what", chip, place, button);
  }

  place(answer, token) {
    return `token ${token.position + 1} of ${answer.tokens.length}`;
  }

  facts(group, run, token, oracle) {
    const list = make("dl", "facts");
    const add = (name, ...what) => list.append(make("dt", "", name), make("dd", "", ...what));
    add("Exit", `after block ${token.exit} of ${group.blocks}: ${REASONS[token.reason] ?? token.reason}`);
    if (oracle !== null) add("Oracle", `block ${oracle}: the first to put full depth’s token on top`);
    if (token.full !== null) add("Full depth", make("bdi", "said", shown(token.full, 60)), token.differs ? " ≠ another token" : " ✓ the same");
    else if (token.differs) add("Full depth", "had ended before");
    if (token.score !== null && run.threshold) add("Gate", `score ${Number(token.score.toPrecision(3))}, ${run.threshold[1]}`);
    return list;
  }

  whyNot(answer, token) {
    if (!answer.compared) return "Full depth has not run on these documents, so nothing is known of the blocks.";
    if (token.position > answer.shared) {
      return `Read-outs by block are of full depth’s own answer. This one went another way at token ${answer.shared + 1}, so from the next token on they say nothing about it.`;
    }
    return "Full depth’s answer was not probed here. A suite’s probes record what each block reads out.";
  }

  chart(run, token, oracle, blocks) {
    const { width, height, left, right, top, bottom } = CHART;
    const step = (width - left - right) / blocks.length;
    const y = (p) => top + (1 - p) * (height - top - bottom);
    const middle = (block) => left + (block + 0.5) * step;
    const spoken = `Confidence by block: ${blocks.map((block, n) => `${n + 1}: ${decimal(block.top[0].p)}`).join(", ")}`;
    const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken, class: "by-block" });
    for (const p of [0, 0.5, 1]) {
      chart.append(
        draw("line", { x1: left, x2: width - right, y1: y(p), y2: y(p), class: "grid" }),
        draw("text", { x: left - 5, y: y(p) + 3.5, class: "axis end" }, String(p)),
      );
    }
    const every = Math.ceil(blocks.length / 14);
    blocks.forEach((block, n) => {
      const bar = { x: left + n * step + step * 0.14, width: step * 0.72, y: y(block.top[0].p), height: y(0) - y(block.top[0].p) };
      chart.append(draw("rect", { ...bar, class: `bar exit-fill-${n + 1}` }));
      const marks = (n + 1 === token.exit ? "▲" : "") + (n + 1 === oracle ? "◇" : "");
      if (n % every === 0 || marks) chart.append(draw("text", { x: middle(n), y: y(0) + 12, class: "axis middle" }, String(n + 1)));
      if (marks) chart.append(draw("text", { x: middle(n), y: y(0) + 26, class: "mark middle" }, marks));
    });
    chart.append(draw("polyline", { points: blocks.map((block, n) => `${middle(n)},${y(block.p)}`).join(" "), class: "final" }));
    const gates = blocks.map((block, n) => [n, block.gate]).filter(([, gate]) => gate !== null && gate >= 0 && gate <= 1);
    const level = run.threshold?.[0] ?? null;
    const line = gates.length && level !== null && level >= 0 && level <= 1;
    const across = { x1: left, x2: width - right, y1: y(level), y2: y(level) };
    if (line) chart.append(draw("line", { ...across, class: "halo" }), draw("line", { ...across, class: "threshold" }));
    for (const [n, gate] of gates) chart.append(draw("circle", { cx: middle(n), cy: y(gate), r: 3, class: "gate" }));
    const key = ["bars: most probable token", "line: full depth’s token", "▲ exit", "◇ oracle"];
    if (gates.length) key.push("dots: the gate’s score");
    if (line) key.push("dashes: its threshold");
    return make("figure", "confidence", chart, make("figcaption", "", `Probability after each block: ${key.join(" · ")}`));
  }

  lens(token, oracle, final, blocks) {
    const gated = blocks.some((block) => block.gate !== null);
    const head = make("tr", "");
    const names = ["Block", "1st", "2nd", "3rd", "Full", ...(gated ? ["Gate"] : [])];
    for (const name of names) {
      const cell = make("th", "", name);
      cell.scope = "col";
      head.append(cell);
    }
    const body = make("tbody");
    blocks.forEach((block, n) => {
      const where = (n + 1 === token.exit ? " ▲" : "") + (n + 1 === oracle ? " ◇" : "");
      const name = make("th", "", make("span", `token exit-${n + 1}`, String(n + 1)), where);
      name.scope = "row";
      const row = make("tr", n + 1 === token.exit ? "left-here" : "", name);
      for (const { place, text, p } of block.top) {
        const cell = make("td", "", make("bdi", place === final ? "hit" : "", text === null ? "–" : shown(text, 24)), " ", make("span", "p", decimal(p)));
        if (text !== null) cell.title = shown(text, 400);
        row.append(cell);
      }
      row.append(make("td", "", `#${block.rank}${block.rankIsMost ? "+" : ""} `, make("span", "p", decimal(block.p))));
      if (gated) row.append(make("td", "", block.gate === null ? "–" : decimal(block.gate, 2)));
      body.append(row);
    });
    const wide = make("div", "lens", make("table", "", make("caption", "", "Logit lens: the likeliest tokens after each block, and rank and probability of full depth’s (Full)"), make("thead", "", head), body));
    wide.tabIndex = 0;
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", "Logit lens");
    return wide;
  }

  announce(group, token) {
    const same = token.full === null ? "" : token.differs ? `, full depth has ${shown(token.full, 60)}` : ", as full depth";
    const oracle = token.probe === null ? "" : `. Oracle layer ${group.columns.first_match.values[token.probe]}`;
    this.live.textContent = `Token ${token.position + 1}, ${shown(token.text, 60)}: exit after block ${token.exit} of ${group.blocks}${same}${oracle}.`;
  }
}
