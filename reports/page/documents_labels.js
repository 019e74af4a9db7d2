"use strict";
// Texts that an encoder classified: each left as a whole, with a label, or a number, for its only token.

const ASKED = ["not evaluated", "evaluated", "exited here"];

class ClassifiedGroup extends TraceGroup {
  constructor(entry, header, columns) {
    super(entry, header, columns);
    this.noun = header.is_number ? "number" : "label";
  }

  title(run, document) {
    return this.header.inputs[document] ?? this.entry.documents[document][1];
  }

  referenceText() {
    return ""; // it is above the answers
  }

  /** The only token of an answer; numbers are not held against full depth's, from which each differs a little. */
  answer(run, document) {
    const answer = super.answer(run, document);
    const gold = this.header.golds[document];
    for (const token of answer.tokens) {
      token.score = this.blocksOf(run, document)[token.exit - 1].score;
      token.right = this.header.is_number || gold === null ? null : token.text === gold;
      if (this.header.is_number) token.differs = token.first = false;
      token.document = document;
    }
    return { ...answer, compared: answer.compared && !this.header.is_number };
  }

  /** What every block said of a text, where any run asked it, and what a run's gate made of that. */
  blocksOf(run, document) {
    const { value, asked, score } = this.columns;
    return Array.from({ length: this.blocks }, (_, block) => {
      const n = document * this.blocks + block;
      const own = run * this.documents * this.blocks + n;
      const steps = this.value("score", own);
      return {
        label: this.text(this.value("label", n)),
        value: this.value("value", n) === null ? null : this.scaled(value.values[n], value.none, this.header.value_range),
        asked: asked.values[own],
        score: steps === null ? null : this.scaled(steps, score.none, this.header.score_range[run]),
      };
    });
  }

  /** The first block that is known to have said what full depth says; null where none is. */
  firstAgreeing(document) {
    if (this.full < 0 || this.header.is_number) return null;
    const [place] = this.tokenPlaces(this.full, document);
    const start = document * this.blocks;
    const block = this.columns.label.values.subarray(start, start + this.blocks).indexOf(place);
    return block < 0 ? null : block + 1;
  }

  wasted(token) {
    const first = this.firstAgreeing(token.document);
    return first === null || token.differs ? 0 : token.exit - first;
  }

  /** At least so much is between full depth's label and the next: what is not its probability is that of the others. */
  lastMargin(token) {
    const n = (token.document + 1) * this.blocks - 1;
    if (this.header.is_number || this.value("value", n) === null) return 1;
    const { values, none } = this.columns.value;
    return Math.max(0, 2 * this.scaled(values[n], none, this.header.value_range) - 1);
  }

  disagreement(run, other, document) {
    const [[a], [b]] = [run, other].map((one) => this.answer(one, document).tokens);
    if (!a || !b) return null;
    const differs = !this.header.is_number && a.text !== b.text;
    const apart = Math.abs(a.exit - b.exit);
    if (!differs && !apart) return null;
    const said = differs ? `${shown(a.text, 30)} and ${shown(b.text, 30)}` : `the same ${this.noun}`;
    const told = this.header.is_number ? `${apart} blocks apart` : `${said}, ${apart} blocks apart`;
    return { document, position: 0, rank: -(differs ? this.blocks : 0) - apart, told };
  }

  sums({ run, document, tokens: [token] }) {
    const parts = [`exited after block ${token.exit} of ${this.blocks}`];
    if (token.right !== null) parts.push(token.right ? "✓ the true label" : "✗ not the true label");
    const score = this.documentScore(run, document);
    if (score !== null && this.header.is_number) parts.push(`${this.header.metric} ${decimal(score, 1)}`);
    return parts.join(" · ");
  }
}

/** The text and its true label, above the answers. */
function inputParts(group, document) {
  const [text, gold] = [group.header.inputs[document], group.header.golds[document]];
  const body = text === null ? [make("p", "hint", "The text was not stored.")] : text.split("\n").map((line) => make("p", "", make("bdi", "", visible(line))));
  const truth = gold === null ? "not stored" : make("bdi", "said", shown(gold));
  return [...body, make("p", "truth", make("span", "", `True ${group.noun}: `), truth)];
}

/** A cell for each block: its prediction and confidence; faded after the exit, and empty if no run evaluated it. */
function blockStrip(group, { run, document, tokens: [token] }) {
  const cells = group.blocksOf(run, document).map((block, n) => {
    const number = make("span", `token exit-${n + 1}`, `${n + 1}${block.asked === 2 ? " ▲" : ""}`);
    const said = make("bdi", block.label !== null && block.label === group.header.golds[document] ? "hit" : "", saidBy(group, block, 14));
    const cell = make("li", `${n + 1 > token.exit ? "behind" : ""}${block.asked ? " asked" : ""}`, number, said, make("span", "p", block.value === null || group.header.is_number ? "" : decimal(block.value)));
    cell.title = `Block ${n + 1}: ${saidBy(group, block, 200)}, ${ASKED[block.asked]}`;
    return cell;
  });
  const strip = make("ol", "blocks", ...cells);
  strip.setAttribute("aria-label", `Prediction of each of ${group.blocks} blocks`);
  strip.tabIndex = 0;
  return strip;
}

function saidBy(group, block, most) {
  if (block.value === null) return "–";
  return group.header.is_number ? String(Number(block.value.toPrecision(4))) : shown(block.label, most);
}

class LabelPanel extends TokenPanel {
  show(group, answer, token, pinned, letGo) {
    const run = group.entry.runs[answer.run];
    const blocks = group.blocksOf(answer.run, answer.document);
    this.element.classList.toggle("pinned", pinned);
    this.element.replaceChildren(
      this.title(answer, token, pinned ? letGo : null),
      make("p", "whose", run.label),
      this.labelFacts(group, answer, token),
      this.table(group, answer, token, blocks),
    );
  }

  place() {
    return "the whole answer";
  }

  labelFacts(group, answer, token) {
    const list = make("dl", "facts");
    const add = (name, ...what) => list.append(make("dt", "", name), make("dd", "", ...what));
    const gold = group.header.golds[answer.document];
    add("Exit", `after block ${token.exit} of ${group.blocks}: ${REASONS[token.reason] ?? token.reason}`);
    if (gold !== null) add("Truth", make("bdi", "said", shown(gold, 60)), token.right === null ? "" : token.right ? " ✓ the same" : " ✗ another");
    if (token.full !== null) add("Full depth", make("bdi", "said", shown(token.full, 60)), !answer.compared ? "" : token.differs ? ` ≠ another ${group.noun}` : " ✓ the same");
    const first = group.firstAgreeing(answer.document);
    if (first !== null) add("Settled", `block ${first}: the first evaluated block that agrees with full depth`);
    if (token.score !== null) add("Gate", `score ${Number(token.score.toPrecision(3))} where it left`);
    return list;
  }

  table(group, answer, token, blocks) {
    const names = ["Block", group.header.is_number ? "Number" : "Label", ...(group.header.is_number ? [] : ["Probability"]), "Score", ""];
    const head = make("tr", "", ...names.map((name) => make("th", "", name)));
    for (const cell of head.cells) cell.scope = "col";
    const gold = group.header.golds[answer.document];
    const rows = blocks.map((block, n) => {
      const name = make("th", "", make("span", `token exit-${n + 1}`, String(n + 1)), block.asked === 2 ? " ▲" : "");
      name.scope = "row";
      const said = make("td", "", make("bdi", block.label !== null && block.label === gold ? "hit" : "", saidBy(group, block, 24)));
      if (block.label !== null) said.title = shown(block.label, 400);
      const probability = group.header.is_number ? null : make("td", "", block.value === null ? "–" : decimal(block.value, 3));
      const score = make("td", "", block.score === null ? "–" : String(Number(block.score.toPrecision(3))));
      return make("tr", n + 1 === token.exit ? "left-here" : "", name, said, probability, score, make("td", "p", ASKED[block.asked]));
    });
    const underlined = group.header.is_number ? "" : "; the true label is underlined";
    const wide = make("div", "lens", make("table", "", make("caption", "", `Prediction of each block${underlined}; – if no method here evaluated it`), make("thead", "", head), make("tbody", "", ...rows)));
    wide.tabIndex = 0;
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", "Prediction of each block");
    return wide;
  }

  announce(group, token) {
    const right = token.right === null ? "" : token.right ? ", the true label" : ", not the true label";
    this.live.textContent = `${shown(token.text, 60)}: exit after block ${token.exit} of ${group.blocks}${right}.`;
  }
}
